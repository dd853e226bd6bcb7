"""The error of an env that raises in a step carries the results of the others."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from made_up import same
from told_envs import SmallEnv
from vectors import begun, info_of, reset_ended

import pysampler
from pysampler.envs import BatchEnv
from pysampler.errors import EnvError

MODES = ["NextStep", "SameStep", "Disabled"]
LANES = {
    "processes": {"num_workers": 2},
    "one worker": {"num_workers": 1, "groups": 2},
    "threads": {"num_workers": 2, "context": "threads"},
    "num_workers=0": {"num_workers": 0},
    "main_envs": {"num_workers": 1, "main_envs": 2},
}
GOES_ON, RAISES, RAISES_IN_RESET = 0, 1, 2


class Ends(SmallEnv):
    """Ends its episodes; raises in the step, or in the reset after it, if the action says so."""

    observation_space = gym.spaces.Box(0, 2.0**40, (3,), np.float64)
    raises = False

    def __init__(self, number):
        self.number = number

    def observe(self):
        return np.array([self.number, self.resets, self.steps], np.float64)

    def reset(self, **given):
        raises, self.raises = self.raises, False
        if raises:
            raise ValueError("no reset")
        return super().reset(**given)

    def begins(self):
        return {"reset": f"{self.number}"}

    def act(self, action):
        if action == RAISES:
            raise ValueError("no step")
        self.raises = action == RAISES_IN_RESET

    def reward(self, action):
        return float(self.steps)

    def ends(self, action):
        return self.raises or self.steps == 2 + self.number % 2

    def info(self, action):
        return {"text": f"{self.number} {self.steps}", "steps": self.steps}

    def fails(self):
        raise ValueError("no call")


def made(lane, mode="NextStep", count=4, **options):
    fns = [functools.partial(Ends, n) for n in range(count)]
    return pysampler.VectorEnv(fns, autoreset_mode=mode, **{**LANES[lane], **options})


def row_of(results, env):
    """Return what results say of one env."""
    observations, *columns, infos = results
    return observations[env], *(column[env] for column in columns), info_of(infos, env)


def raised(call):
    with pytest.raises(ValueError, match="no "):
        try:
            return call()
        except EnvError as error:
            assert type(error.results) in (tuple, type(None))
            caught = error
            raise
    return caught


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("waits", [False, True])
def test_error_of_a_step_has_the_results_of_the_others(lane, mode, waits):
    with made(lane, mode) as envs, made("num_workers=0", mode) as expected:
        last, _ = envs.reset(seed=1)
        expected.reset(seed=1)
        for number in range(12):
            actions = np.zeros(4, np.int64)
            actions[2] = RAISES * (number % 3 == 1)

            def step(actions=actions):
                if not waits:
                    return envs.step(actions)
                envs.step_async(actions)
                return envs.step_wait()

            results = error = None
            try:
                results = step()
            except ValueError as caught:
                error, results = caught, caught.results
            others = expected.step(np.zeros(4, np.int64))
            for env in (0, 1, 3):
                same(row_of(results, env), row_of(others, env))
            if error is not None:
                assert error.env == 2
                assert results[4]["env_error"].tolist() == [False, False, True, False]
                nothing = last[2], np.float64(0), np.False_, np.False_, {"env_error": np.True_}
                same(row_of(results, 2), nothing)
            else:
                assert "env_error" not in results[4]
            last = results[0]
            for one, of_one in ((envs, results), (expected, others)):
                reset_ended(one, of_one)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lane", LANES)
def test_next_step_goes_on_with_the_env_that_raised(lane, mode):
    with begun(made(lane, mode)) as envs:
        raised(lambda: envs.step([0, RAISES, 0, 0]))
        observations, rewards, *_ = envs.step([0] * 4)
        assert observations[1].tolist() == [1, 1, 1]
        assert rewards[1] == 1


@pytest.mark.parametrize("lane", LANES)
def test_a_reset_that_raised_is_repeated_with_next_step(lane):
    with made(lane, "NextStep") as envs:
        last, _ = envs.reset()
        last, _, terminated, *_ = envs.step([0, RAISES_IN_RESET, 0, 0])
        assert terminated.tolist() == [False, True, False, False]
        error = raised(lambda: envs.step([0] * 4))
        nothing = last[1], np.float64(0), np.False_, np.False_, {"env_error": np.True_}
        same(row_of(error.results, 1), nothing)
        assert error.results[1].tolist() == [2, 0, 2, 2]
        assert envs.step([0] * 4)[0][1].tolist() == [1, 2, 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lane", LANES)
def test_envs_that_raised_can_be_reset_by_their_mask(lane, mode):
    with made(lane, mode) as envs:
        last, _ = envs.reset()
        action = RAISES_IN_RESET if mode == "SameStep" else RAISES
        error = raised(lambda: envs.step([0, 0, 0, action]))
        nothing = last[3], np.float64(0), np.False_, np.False_, {"env_error": np.True_}
        same(row_of(error.results, 3), nothing)
        failed = error.results[4]["env_error"]
        assert failed.tolist() == [False, False, False, True]
        observations, _ = envs.reset(options={"reset_mask": failed})
        assert observations[:, 1:].tolist() == [[1, 1], [1, 1], [1, 1], [2, 0]]
        assert envs.step([0] * 4)[1].tolist() == [2, 2, 2, 1]


@pytest.mark.parametrize("lane", LANES)
def test_several_envs_that_raise_are_all_marked(lane):
    with begun(made(lane)) as envs:
        error = raised(lambda: envs.step([RAISES, 0, RAISES, RAISES]))
        assert error.results[4]["env_error"].tolist() == [True, False, True, True]
        assert error.results[1].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("lane", LANES)
def test_results_of_an_error_are_not_overwritten(lane):
    class Large(Ends):
        observation_space = gym.spaces.Box(0, 2.0**40, (1 << 15,), np.float64)

        def observe(self):
            return np.full(1 << 15, self.steps, np.float64)

    fns = [functools.partial(Large, n) for n in range(4)]
    with begun(fns, autoreset_mode="Disabled", **LANES[lane]) as envs:
        error = raised(lambda: envs.step([0, RAISES, 0, 0]))
        for _ in range(6):
            envs.step([0] * 4)
        assert error.results[0][:, 0].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("lane", LANES)
def test_errors_of_other_calls_have_no_results(lane):
    with begun(made(lane, "Disabled")) as envs:
        envs.step([0, RAISES_IN_RESET, 0, 0])
        assert raised(envs.reset).results is None
        envs.reset()
        assert raised(lambda: envs.call("fails")).results is None
        envs.send([0, RAISES, 0, 0])
        assert raised(envs.recv).results is None
        while envs.pending:
            envs.recv()


def test_slots_with_spare_envs_are_marked():
    with begun(made("processes", "SameStep", spare_envs=1)) as envs:
        error = raised(lambda: envs.step([0, RAISES, 0, 0]))
        assert error.results[4]["env_error"].tolist() == [False, True, False, False]
        assert error.results[1].tolist() == [1, 0, 1, 1]


class Batch(BatchEnv):
    """Raises for all of its envs together."""

    observation_space = gym.spaces.Box(0, 2.0**40, (1,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.steps = self.rows()

    def reset(self, ids, rngs):
        self.steps[ids] = 0

    def step(self, ids, actions):
        if (actions == RAISES).any():
            raise ValueError("no step")
        self.steps[ids] += 1
        return self.steps[ids].copy(), self.steps[ids] == 3

    def observe(self, ids):
        return self.steps[ids][:, None]


def batches(lane, mode):
    options = {**LANES[lane], "autoreset_mode": mode}
    if lane == "num_workers=0":
        return pysampler.VectorEnv([lambda: Batch(2)] * 2, **options)
    return pysampler.make_vec(Batch, 4, **options)


def vector_envs(lane, mode):
    def sync():
        return SyncVectorEnv([functools.partial(Ends, n) for n in range(2)], autoreset_mode=mode)

    options = {**LANES[lane], **({"main_envs": 1} if lane == "main_envs" else {})}
    return pysampler.VectorEnv([sync] * 2, autoreset_mode=mode, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [batches, vector_envs])
@pytest.mark.parametrize("lane", ["processes", "threads", "main_envs", "num_workers=0"])
def test_envs_that_step_together_are_marked_together(lane, make, mode):
    with make(lane, mode) as envs:
        last, _ = envs.reset()
        error = raised(lambda: envs.step(np.array([0, 0, 0, RAISES])))
        assert error.env == 2
        assert error.results[4]["env_error"].tolist() == [False, False, True, True]
        assert error.results[1].tolist() == [1, 1, 0, 0]
        same(error.results[0][2:], last[2:])
        assert envs.step(np.zeros(4, np.int64))[1][:2].tolist() == [2, 2]
