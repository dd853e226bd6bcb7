"""Spare envs: a slot goes on with an env that was reset before, and nobody waits for a reset."""

import contextlib
import os
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector.utils import iterate

import pysampler
from pysampler._workers.counters import SpareUse

MODES = ["NextStep", "SameStep", "Disabled"]


class Counting(gym.Env):
    """Has episodes of a random length, and observes random numbers of its own."""

    observation_space = gym.spaces.Dict(
        x=gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        t=gym.spaces.Tuple([gym.spaces.Discrete(100), gym.spaces.Text(8)]),
    )
    action_space = gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,)))
    gravity = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.options = seed, options
        self.left = self.np_random.integers(2, 7)
        return self._observe(), {"seed": -1 if seed is None else seed}

    def step(self, action):
        self.left -= 1
        reward = float(action["a"]) + float(action["b"][0])
        return self._observe(), reward, bool(self.left <= 0), False, {"left": int(self.left)}

    def _observe(self):
        return {"x": self.np_random.random(2), "t": (int(self.left), "x" * int(self.left))}


class Simple(Counting):
    """The same with plain spaces."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def step(self, action):
        return super().step({"a": action, "b": np.zeros(2)})

    def _observe(self):
        return super()._observe()["x"]


def make(env=Counting, num=4, spares=2, **options):
    return pysampler.VectorEnv([env] * num, spare_envs=spares, **options)


def run(envs, mode, steps=50, seed=5):
    """Return all that a program sees of some steps, slot by slot."""
    envs.action_space.seed(0)
    space = envs.observation_space
    observations, infos = envs.reset(seed=seed)
    seen = [(list(iterate(space, observations)), infos)]
    for _ in range(steps):
        observations, *rest = envs.step(envs.action_space.sample())
        seen.append((list(iterate(space, observations)), *rest))
        over = rest[1] | rest[2]
        if mode == "Disabled" and over.any():
            observations, infos = envs.reset(options={"reset_mask": over})
            seen.append((list(iterate(space, observations)), infos))
    return seen


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray) and a.dtype == object:
        return len(a) == len(b) and all(map(equal, a, b))
    return np.array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_episodes_do_not_depend_on_the_number_of_workers(mode):
    runs = []
    for workers in (None, 2, 1):
        with make(autoreset_mode=mode, num_workers=workers) as envs:
            runs.append(run(envs, mode))
            runs.append(run(envs, mode))
            assert envs.num_workers == (workers or 6)
    assert all(equal(runs[0], one) for one in runs[1:])


def replayed(seen, actions, mode, slot):
    """Step an env by hand as a slot shows it; return the seeds of its episodes."""
    env, step, over, seeds = Counting(), 0, False, []
    observation, _ = env.reset(seed=5 + slot)
    assert equal(seen[0][0][slot], observation)

    def begin(infos):
        seeds.append(int(infos["seed"][slot]))
        return env.reset(seed=seeds[-1])[0]

    for observations, *rest in seen[1:]:
        infos = rest[-1]
        if len(rest) == 1:  # a masked reset
            observation = begin(infos) if over else observation
            over = False
        elif mode == "NextStep" and over:
            observation, over = begin(infos), False
            assert (rest[0][slot], rest[1][slot]) == (0, False)
            step += 1
        else:
            observation, reward, over, _, info = env.step(actions[step][slot])
            step += 1
            assert (reward, over) == (rest[0][slot], rest[1][slot])
            if mode == "SameStep" and over:
                assert equal(infos["final_obs"][slot], observation)
                assert infos["final_info"]["left"][slot] == info["left"]
                observation = begin(infos)
        assert equal(observations[slot], observation)
    assert step == len(actions)
    return seeds


@pytest.mark.parametrize("mode", MODES)
def test_each_slot_shows_whole_episodes(mode):
    with make(autoreset_mode=mode, num_workers=2) as envs:
        seen = run(envs, mode)
        envs.action_space.seed(0)
        actions = [list(iterate(envs.action_space, envs.action_space.sample())) for _ in range(50)]
    seeds = [seed for slot in range(4) for seed in replayed(seen, actions, mode, slot)]
    assert len(set(seeds)) == len(seeds) > 20
    assert {int(env) for *_, infos in seen for env in infos["env_in_slot"]} == set(range(6))


class Waits(Simple):
    """Waits in each reset but the first until a file is there."""

    def __init__(self, gate):
        self.gate, self.resets = gate, 0

    def reset(self, **kwargs):
        self.resets += 1
        while self.resets > 1 and not os.path.exists(self.gate):  # noqa: PTH110
            threading.Event().wait(0.001)
        return super().reset(**kwargs)


def test_others_step_while_an_env_resets(tmp_path):
    gate = str(tmp_path / "gate")
    envs = pysampler.VectorEnv([lambda: Waits(gate)] * 2, spare_envs=4, autoreset_mode="SameStep")
    envs.reset(seed=1)
    ends = 0
    while ends < 3:  # so many episodes end, and no reset has ended
        _, _, terminated, _, _ = envs.step(np.zeros(2, int))
        ends += terminated.sum()
    use = envs.stats().spares
    assert (use.episodes, use.waits) == (ends, 0)
    (tmp_path / "gate").touch()
    for _ in range(30):
        envs.step(np.zeros(2, int))
    envs.close()


def test_stats_say_how_many_spares_would_have_been_enough():
    use = SpareUse(2).after(waited=False, seconds=0.0).after(waited=True, seconds=0.5)
    assert use[:4] == (2, 2, 1, 0.5)
    use = use.with_needed({1: 90, 4: 6, 9: 4})
    assert use.enough == 4
    assert str(use).startswith("2 episodes began with one of 2 spare envs; 1 waited for it, ")
    assert str(use).endswith("each; spare_envs=4 would have been enough for 95 %")
    assert str(SpareUse(1, 3)).endswith("which was always ready")
    with make() as envs:
        run(envs, "NextStep", steps=20)
        stats = envs.stats()
        assert stats.spares.episodes > 4
        assert len(stats.steps.count) == 6
        assert str(stats).splitlines()[-1] == str(stats.spares)


def test_calls_reach_the_envs_in_the_slots():
    with make(Simple, num=2, spares=1, autoreset_mode="SameStep") as envs:
        envs.reset(seed=1)
        ended = False
        while not ended:
            _, _, terminated, _, infos = envs.step(np.zeros(2, int))
            ended = terminated.any()
        assert sorted(infos["env_in_slot"].tolist()) != [0, 1]
        seeds = np.array(envs.get_attr("seed"))
        assert seeds[terminated].tolist() == infos["seed"][terminated].tolist()
        assert envs.apply(lambda env, plus: env.seed + plus, 1) == tuple(seeds + 1)
        envs.set_attr("gravity", 3.0)
        assert envs.get_attr("gravity") == (3.0, 3.0)
        with pytest.raises(ValueError, match="the values differ, and envs change slots"):
            envs.set_attr("gravity", [1.0, 2.0])


def test_seeds_and_options_of_a_masked_reset_go_to_the_env_in_the_slot():
    with make(Simple, num=2, spares=1, autoreset_mode="Disabled") as envs:
        envs.reset(seed=1)
        mask = np.array([True, False])
        _, infos = envs.reset(seed=[77, None], options={"reset_mask": mask})
        assert infos["seed"][0] == 77
        assert infos["env_in_slot"][0] == 0
        _, infos = envs.reset(options={"reset_mask": mask, "size": 3})
        assert infos["env_in_slot"][0] == 0
        assert envs.get_attr("options")[0] == {"size": 3}
        _, infos = envs.reset(options={"reset_mask": mask})
        assert infos["env_in_slot"][0] == 2


@pytest.mark.slow
def test_lost_workers_are_replaced():
    with make(Simple, on_worker_loss="restart", autoreset_mode="SameStep") as envs:
        envs.reset(seed=1)
        os.kill(envs.apply(lambda _: os.getpid())[1], signal.SIGKILL)
        lost = False
        for _ in range(30):
            *_, infos = envs.step(np.zeros(4, int))
            lost = lost or "worker_lost" in infos.get("final_info", {})
        assert lost
        assert envs.stats().losses.sum() == 1


class Fails(Simple):
    def step(self, action):
        if action == 2:
            raise LookupError("no such action")
        return super().step(action)


def test_an_exception_of_an_env_is_raised_and_the_others_go_on():
    with make(Fails, autoreset_mode="SameStep") as envs:
        envs.reset(seed=1)
        with pytest.raises(LookupError, match="no such action"):
            envs.step(np.array([0, 2, 0, 0]))
        for _ in range(20):
            envs.step(np.zeros(4, int))


def zero(observations):
    return np.zeros(len(observations), int)


@pytest.mark.slow
def test_rollouts_take_spare_envs():
    found = []
    for workers in (None, 2):
        options = {"spare_envs": 2, "num_workers": workers, "seed": 3}
        with pysampler.Rollouts([Simple] * 4, zero, 20, **options) as rollouts:
            for _ in range(3):
                rollout = next(rollouts)
                assert rollout.valid.all()
            found.append(rollout.observations.copy())
            assert rollouts.envs.stats().spares.episodes > 8
    assert np.array_equal(*found)


def test_evaluations_refuse_spare_envs():
    with make(Simple) as envs, pytest.raises(ValueError, match="the vector env has spare_envs"):
        pysampler.evaluate(envs, zero, 2)


@pytest.mark.parametrize("sampler", ["Rollouts", "Actors"])
def test_policies_in_workers_refuse_spare_envs(sampler):
    kind = getattr(pysampler, sampler)
    options = {"horizon": 8, "policy_in": "workers"} if sampler == "Rollouts" else {}
    with pytest.raises(ValueError, match="with spare_envs=1: the workers do not"):
        kind(Simple, zero, num_envs=2, spare_envs=1, **options)


def test_spare_envs_make_no_chunks():
    with make(Simple) as envs:
        envs.reset(seed=1)
        with pytest.raises(ValueError, match="SpareEnvs steps all of its envs or none"):
            envs.step_chunk(np.zeros((4, 3), int))
        envs.step(np.zeros(4, int))


def test_options_that_do_not_work_with_spares_are_refused():
    for options, text in (
        ({"num_workers": 0}, "num_workers 0 with spare_envs, whose resets need workers"),
        ({"groups": 2}, "groups 2 with spare_envs, expected 1"),
        ({"main_envs": 1}, "main_envs 1 with spare_envs, expected 0"),
        ({"spares": -1}, "spare_envs -1, expected a whole number of at least 0"),
    ):
        with pytest.raises(ValueError, match=text):
            make(**options)


def test_an_interrupted_step_goes_on(monkeypatch):
    with make(Simple, autoreset_mode="SameStep") as envs:
        expected = run(envs, "SameStep", steps=12)
        envs.action_space.seed(0)
        envs.reset(seed=5)
        inner, receive = envs._spares.inner, envs._spares.inner.recv
        for step in range(12):
            actions, interrupted = envs.action_space.sample(), []

            def recv(*args, interrupted=interrupted, **kwargs):
                if not interrupted:
                    interrupted.append(True)
                    raise KeyboardInterrupt
                return receive(*args, **kwargs)

            monkeypatch.setattr(inner, "recv", recv)
            with pytest.raises(KeyboardInterrupt):
                envs.step(actions)
            observations, *rest = envs.step_wait()
            assert equal(list(observations), expected[step + 1][0])
            assert equal(tuple(rest), expected[step + 1][1:])


class NeverReset(Simple):
    """Its second reset hangs."""

    resets = 0

    def reset(self, **options):
        self.resets += 1
        if self.resets > 1:
            threading.Event().wait()
        return super().reset(**options)


@pytest.mark.parametrize("how", [{"terminate": True}, {"timeout": 0.1}])
def test_close_does_not_wait_for_resets_of_spares(how):
    envs = make(NeverReset)
    envs.reset(seed=1)
    while not envs._spares.inner.pending:
        envs.step(np.zeros(4, int))
    envs.close(**how)
    assert envs._spares.inner.closed


class FailsLater(Simple):
    """Its second reset raises."""

    resets = 0

    def reset(self, **options):
        self.resets += 1
        if self.resets == 2:
            raise LookupError("no second reset")
        return super().reset(**options)

    def step(self, action):
        observation, *results, info = super().step(action % 3)
        return observation, *results, {**info, "action": int(action)}


def test_step_after_a_failed_reset_takes_its_own_actions():
    with make(FailsLater, autoreset_mode="NextStep") as envs:
        envs.reset(seed=1)
        with pytest.raises(LookupError, match="no second reset"):
            while True:
                envs.step(np.ones(4, int))
        infos = None
        while infos is None:
            with contextlib.suppress(LookupError):  # of another spare
                infos = envs.step(np.full(4, 2))[4]
        assert set(infos["action"][infos["_action"]].tolist()) == {2}


@pytest.mark.parametrize("spares", [None, "", 0.0, [], -1])
def test_spare_envs_are_a_whole_number(spares):
    with pytest.raises(ValueError, match="spare_envs"):
        make(Simple, spares=spares)
