"""A BatchEnv gives the results of an ordinary env of the same arithmetic; its check is tested."""

import functools
import os
import re
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from made_up import same, step_alike
from vectors import begun

import pysampler
from pysampler import _core
from pysampler.envs import BatchEnv, Generators, check_batch_env
from pysampler.envs._errors import RowError
from pysampler.errors import EnvError

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
LIMIT = 15


class Walk(gym.Env):
    """A walk that ends at its goal; the ordinary env that ``Walks`` must equal."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        low = (options or {}).get("low", -1)
        self.at = self.np_random.uniform(low, 1, 2)
        return self.at.copy(), {"first": self.at[0]}

    def step(self, action):
        self.at = self.at + (np.asarray(action) - 1) * 0.3
        over = bool(np.abs(self.at).max() > 1.5)
        return self.at.copy(), -np.abs(self.at[0]), over, False, {"x": self.at[1], "n": self.at * 2}


class Walks(BatchEnv):
    """The same for many at once."""

    observation_space = Walk.observation_space
    action_space = Walk.action_space
    max_episode_steps = LIMIT

    def __init__(self, num_envs, *, closed=None):
        super().__init__(num_envs)
        self.at = self.rows((2,))
        self.low = np.full(num_envs, -1.0)
        self._closed = closed

    def set_options(self, ids, options):
        self.low[ids] = [one.get("low", -1) for one in options]

    def reset(self, ids, rngs):
        for i, rng in zip(np.arange(self.num_envs)[ids], rngs, strict=True):
            self.at[i] = rng.uniform(self.low[i], 1, 2)
        self.low[ids] = -1
        return {"first": self.at[ids, 0].copy()}

    def step(self, ids, actions):
        self.at[ids] += (actions[:, None] - 1) * 0.3
        at = self.at[ids]
        infos = {"x": at[:, 1].copy(), "n": at * 2}
        return -np.abs(at[:, 0]), np.abs(at).max(1) > 1.5, infos

    def observe(self, ids):
        return self.at[ids]

    def double(self, x):
        return 2 * x

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self):
        if self._closed is not None:
            self._closed.touch()


def walk():
    return TimeLimit(Walk(), LIMIT)


def compare(ours, theirs, mode, steps=60):
    seeds = list(range(ours.num_envs))[::-1]
    step_alike(ours, theirs, mode, steps, {"low": 0.5}, {"low": 0}, seeds)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "groups": 2}])
def test_batch_envs_equal_ordinary_ones(mode, options):
    ours = pysampler.make_vec(Walks, 7, autoreset_mode=mode, **options)
    compare(ours, SyncVectorEnv([walk] * 7, autoreset_mode=mode), mode)


@pytest.mark.parametrize("mode", MODES)
def test_lists_may_mix_batch_envs_vector_envs_and_envs(mode):
    vector = functools.partial(SyncVectorEnv, [walk] * 2, autoreset_mode=mode)
    functions = [functools.partial(Walks, 3), walk, vector, functools.partial(Walks, 1)]
    ours = pysampler.VectorEnv(functions, autoreset_mode=mode, num_workers=2)
    compare(ours, SyncVectorEnv([walk] * 7, autoreset_mode=mode), mode)


def test_rollouts_of_batch_envs_equal_those_of_ordinary_ones():
    def some(envs):
        with pysampler.Rollouts(envs, lambda o: (o[:, 0] > 0).astype(int), 32, seed=3) as rollouts:
            rollout = next(rollouts)
            return rollout.observations.copy(), rollout.rewards.copy(), rollout.starts.copy()

    with (
        pysampler.make_vec(Walks, 6, num_workers=2) as ours,
        pysampler.VectorEnv([walk] * 6, num_workers=2) as theirs,
    ):
        same(some(ours), some(theirs))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_of_batch_envs_are_restored(num_workers):
    with begun(pysampler.make_vec(Walks, 4, num_workers=num_workers), seed=1) as envs:
        for _ in range(5):
            envs.step(np.ones(4, int))
        states = envs.get_state()
        actions = np.array([[0, 1, 2, 2]] * 20)
        first = [envs.step(one) for one in actions]
        envs.set_state(states)
        same([envs.step(one) for one in actions], first)
        envs.set_state(np.repeat(envs.get_state([0]), 4))
        observations, *_ = envs.step(np.ones(4, int))
        assert len(np.unique(observations[:, 0])) == 1


def test_calls_reach_batch_envs(tmp_path):
    closed = tmp_path / "closed"
    with pysampler.make_vec(Walks, 4, num_workers=1, closed=closed) as envs:
        assert envs.call("double", 4) == (8,) * 4
        assert envs.get_attr("max_episode_steps") == (LIMIT,) * 4
        assert envs.apply(lambda env: env.num_envs, envs=[2]) == (4,)
        assert envs.describe() == "envs 0 to 3:\n  Walks of 4 envs  in one call"
    assert closed.exists()


def test_set_options_reach_automatic_resets_of_batch_envs():
    with pysampler.make_vec(Walks, 4, num_workers=1, autoreset_mode=SAME_STEP) as envs:
        envs.reset(seed=1)
        envs.set_options([1, 2], {"low": 0.9})
        for _ in range(LIMIT):
            *_, infos = envs.step(np.ones(4, int))
        assert list(infos["options_version"]) == [0, 1, 1, 0]
        assert (infos["first"][1:3] >= 0.9).all()


def test_options_that_a_batch_env_does_not_take_raise():
    class Plain(Walks):
        set_options = BatchEnv.set_options

    with (
        pysampler.make_vec(Plain, 2, num_workers=1) as envs,
        pytest.raises(EnvError, match=r"Plain takes no options, got \{'low': 0\}"),
    ):
        envs.reset(options={"low": 0})


def test_results_of_a_step_are_copied_before_observations():
    class Sharing(Walks):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.buffer = np.zeros(2 * num_envs)

        def step(self, ids, actions):
            rewards, over, _ = super().step(ids, actions)
            shared = self.buffer[: len(rewards)]
            shared[:] = rewards
            return shared, over

        def observe(self, ids):
            rows = self.at[ids]
            shared = self.buffer[: 2 * len(rows)].reshape(-1, 2)
            shared[:] = rows
            return shared

    ours, theirs = (begun([lambda kind=kind: kind(4)], seed=1) for kind in (Sharing, Walks))
    with ours, theirs:
        same(ours.step(np.ones(4, int))[:4], theirs.step(np.ones(4, int))[:4])


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("several", [False, True])
def test_lists_of_python_numbers_are_actions(num_workers, several):
    vector = functools.partial(SyncVectorEnv, [walk] * 2)
    functions = [functools.partial(Walks, 2), vector, walk] if several else [vector]
    with pysampler.VectorEnv(functions, num_workers=num_workers) as ours:
        theirs = SyncVectorEnv([walk] * ours.num_envs)
        same(ours.reset(seed=1), theirs.reset(seed=1))
        for step in range(4):
            actions = [(step + i) % 3 for i in range(ours.num_envs)]
            same(ours.step(actions), theirs.step(actions))
            same(ours.step(tuple(actions)), theirs.step(tuple(actions)))


def test_attributes_of_batch_envs_can_be_set():
    with begun(pysampler.make_vec(Walks, 3, num_workers=1), seed=1) as envs:
        envs.set_attr("at", [np.zeros(2)] * 3)
        assert not envs.step(np.ones(3, int))[0].any()
        envs.set_state(envs.get_state())
        assert not envs.step(np.ones(3, int))[0].any()
        with pytest.raises(EnvError, match="max_episode_steps is read when the envs are made"):
            envs.set_attr("max_episode_steps", 3)


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"action_space": spaces.Dict(a=spaces.Discrete(2))}, "whose action_space is Dict"),
        ({"observation_space": spaces.Text(3)}, "whose observation_space is Text"),
        ({"__init__": lambda self, num_envs: None}, r"call super\(\).__init__\(num_envs\) first"),
        ({"__init__": lambda self, num_envs: Walks.__init__(self, 0)}, "num_envs 0"),
    ],
)
def test_batch_envs_that_cannot_be_are_named(attributes, error):
    with pytest.raises(EnvError, match=f"env 0 is a Wrong.*{error}"):
        pysampler.make_vec(type("Wrong", (Walks,), attributes), 2, num_workers=1)


def test_make_vec_takes_arguments_and_limits_of_batch_envs():
    for make in (Walks, functools.partial(Walks)):
        envs = pysampler.make_vec(make, 2, num_workers=1, max_episode_steps=2)
        with begun(envs, seed=1):
            envs.step(np.ones(2, int))
            assert envs.step(np.ones(2, int))[3].all()
    more = type("More", (Walks,), {"__init__": lambda self, num_envs: Walks.__init__(self, 3)})
    with pytest.raises(ValueError, match="3 envs were made, expected 2"):
        pysampler.make_vec(more, 2, num_workers=1)
    with pytest.raises(EnvError, match="a Walks is many envs; pass numbers instead"):
        pysampler.VectorEnv([functools.partial(Walks, 2)] * 2, num_workers="auto")


def test_states_of_other_kinds_of_envs_are_refused():
    class Stated(Walk):
        def get_state(self):
            return self.at.copy()

        def set_state(self, state):
            self.at = state

    with begun([functools.partial(Walks, 2), Stated, Stated], seed=1, num_workers=1) as envs:
        states = envs.get_state()
        envs.set_state(states)
        for order in ([2, 3, 0, 1], [0, 1, 0, 3]):
            with pytest.raises(EnvError, match="cannot set state: it belongs to other envs"):
                envs.set_state(states[order])


def test_rows_of_objects_are_refused():
    with pytest.raises(ValueError, match="cannot make rows of object"):
        Walks(2).rows((), object)


def test_replaced_batch_envs_begin_again():
    with pysampler.make_vec(Walks, 4, num_workers=2, on_worker_loss="restart") as envs:
        envs.reset(seed=1)
        os.kill(envs._pool.pids[0], signal.SIGKILL)
        *_, truncated, infos = envs.step(np.ones(4, int))
        assert list(truncated) == list(infos["worker_lost"]) == [True, True, False, False]
        observations, rewards, *_ = envs.step(np.ones(4, int))
        assert list(rewards[:2]) == [0, 0]
        assert (np.abs(observations) < 1.5).all()


class Clipping(Walks):
    """Walks that write to their actions."""

    def step(self, ids, actions):
        np.clip(actions, 0, 1, out=actions)
        return super().step(ids, actions)


def test_batch_envs_may_write_to_their_actions():
    check_batch_env(Clipping)
    with pysampler.make_vec(Clipping, 4, num_workers=1) as envs:
        rollout = next(pysampler.Rollouts(envs, lambda o: np.full(len(o), 2), 5))
        assert (rollout.actions == 2).all()


class Slips(Walks):
    """Walks that slip: a step draws from the generators too."""

    def step(self, ids, actions):
        slips = self.rngs.of(ids).uniform(0, 1) < 0.3
        return super().step(ids, np.where(slips, 1, actions))


class Slip(Walk):
    def step(self, action):
        slips = self.np_random.uniform(0, 1) < 0.3
        return super().step(1 if slips else action)


@pytest.mark.parametrize("mode", MODES)
def test_steps_may_draw_random_numbers(mode):
    check_batch_env(Slips)
    ours = pysampler.make_vec(Slips, 5, autoreset_mode=mode, num_workers=2)
    compare(ours, SyncVectorEnv([lambda: TimeLimit(Slip(), LIMIT)] * 5, autoreset_mode=mode), mode)


class SlipsByHand(Walks):
    """The same, by each other way to the generators."""

    def step(self, ids, actions):
        every = [rng.uniform(0, 1) for rng in self.rngs]
        first, last = self.rngs[0].uniform(0, 1), [rng.uniform(0, 1) for rng in self.rngs[1:]]
        slips = self.rngs.uniform(0, 1) + every + [first, *last] < 0.9
        return super().step(ids, np.where(slips[ids], 1, actions))


@pytest.mark.parametrize("kind", [Slips, SlipsByHand])
def test_states_have_the_random_generators_of_steps(kind):
    with begun(pysampler.make_vec(kind, 3, num_workers=0), seed=1) as envs:
        for _ in range(30):
            envs.step(np.full(3, 2))
        states = envs.get_state()
        first = [envs.step(np.zeros(3, int)) for _ in range(5)]
        envs.set_state(states)
        same([envs.step(np.zeros(3, int)) for _ in range(5)], first)


def test_wrappers_of_a_batch_env_are_refused():
    with pytest.raises(TypeError, match="wrappers .* of Walks, a BatchEnv"):
        pysampler.make_vec(Walks, 2, wrappers=[TimeLimit])


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (
            {"step": lambda self, ids, actions: (np.zeros(1), np.zeros(1, bool))},
            r"step returned rewards of \(1,\), expected \(3,\)",
        ),
        (
            {"step": lambda self, ids, actions: (np.zeros(3), np.zeros(3))},
            "step returned terminated of float64, expected bool",
        ),
        ({"step": lambda self, ids, actions: (1, 2, 3, 4)}, "step returned 4 values"),
        (
            {"observe": lambda self, ids: np.zeros((1, 2))},
            r"observe returned float64 of shape \(1, 2\), expected float64 of \(3, 2\)",
        ),
        (
            {"observe": lambda self, ids: np.zeros((len(self.at[ids]), 2), np.float32)},
            "observe returned float32 of shape",
        ),
        ({"step": lambda self, ids, actions: 1 / 0}, "division by zero"),
        ({"reset": BatchEnv.reset}, r"has no method reset\(ids, rngs\)"),
    ],
)
def test_mistakes_of_a_batch_env_are_errors_of_its_envs(rows, error):
    with (
        pysampler.make_vec(type("Wrong", (Walks,), rows), 3, num_workers=1) as envs,
        pytest.raises(EnvError, match=f"env 0 in worker 0 .*({error})"),
    ):
        envs.reset(seed=1)
        envs.step(np.zeros(3, int))


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937])
@pytest.mark.parametrize(
    ("low", "high", "shape"),
    [
        (0, 2, ()),
        (0.5, 2.5, (3,)),
        (np.array([0.0, -1.0]), np.array([1.0, 3.0]), (2,)),
        (np.zeros((2, 2)), np.ones((2, 2)), (2, 2)),
        (0, np.array([1.0, 3.0]), (2,)),
    ],
)
def test_uniform_draws_what_each_generator_draws(bits, low, high, shape):
    made, again = ([np.random.Generator(bits(seed)) for seed in range(5)] for _ in range(2))
    for ids in (slice(None), np.array([3, 1], np.int32)):
        chosen = again[ids] if isinstance(ids, slice) else [again[i] for i in ids]
        drawn = Generators(made).of(ids).uniform(low, high, shape)
        same(drawn, np.array([one.uniform(low, high, shape) for one in chosen]))
    assert [one.random() for one in made] == [one.random() for one in again]


@pytest.mark.parametrize("exported", [True, False])
@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937])
@pytest.mark.parametrize("shape", [(), 3, np.int64(3), (2, 2), (0,)])
def test_standard_normal_draws_what_each_generator_draws(bits, shape, exported, monkeypatch):
    if not exported:  # by NumPy's library
        monkeypatch.setattr(_core, "standard_normal", lambda generators, out: False)
    made, again = ([np.random.Generator(bits(seed)) for seed in range(5)] for _ in range(2))
    drawn = Generators(made).standard_normal(shape)
    same(drawn, np.array([one.standard_normal(shape) for one in again]))
    assert [one.random() for one in made] == [one.random() for one in again]


def test_this_numpy_exports_how_it_draws_normal_numbers():
    """Otherwise a reset calls Python for each generator."""
    drawn = np.empty((1, 2))
    assert _core.standard_normal([np.random.default_rng(1)], drawn)
    same(drawn[0], np.random.default_rng(1).standard_normal(2))
    with pytest.raises(ValueError, match="a row for each of 0 generators"):
        _core.standard_normal([], drawn)


@pytest.mark.parametrize(
    ("generators", "low", "out", "error"),
    [
        ([1], 0, np.zeros((1, 1)), "bit_generator"),
        ([np.random.default_rng(1)], 0, np.zeros((2, 1)), "a row for each of 1 generators"),
        ([np.random.default_rng(1)], np.zeros(3), np.zeros((1, 2)), "3 bounds, expected one or 2"),
        ([np.random.default_rng(1)], np.array([0, 2]), np.zeros((1, 2)), "high - low is -1.0"),
    ],
)
def test_uniform_refuses_wrong_arguments(generators, low, out, error):
    with pytest.raises((ValueError, AttributeError), match=error):
        _core.uniform(generators, low, 1.0, out)


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.5), (0, np.inf), (np.nan, 1.0), (-1e308, 1e308)])
def test_uniform_refuses_the_bounds_that_each_generator_refuses(low, high):
    with pytest.raises(Exception, match="high - low") as refused:
        np.random.default_rng(1).uniform(low, high)
    with pytest.raises(type(refused.value), match="high - low"):
        Generators([np.random.default_rng(1)]).uniform(low, high, 1)


# -- the check -------------------------------------------------------------------------------------


def test_check_accepts_a_right_batch_env():
    check_batch_env(Walks)
    check_batch_env(functools.partial(Walks), num_envs=1, steps=50)


class Rebinding(Walks):
    def step(self, ids, actions):
        self.at = self.at + 0.1
        return super().step(ids, actions)


class Mixing(Walks):
    def step(self, ids, actions):
        rewards, terminated, infos = super().step(ids, actions)
        return rewards - rewards.mean(), terminated, infos


class TouchingOthers(Walks):
    def step(self, ids, actions):
        results = super().step(ids, actions)
        if not isinstance(ids, slice):
            self.at += 1e-3
        return results


class ResettingOthers(Walks):
    def reset(self, ids, rngs):
        infos = super().reset(ids, rngs)
        self.at[:] += 1e-3
        return infos


class Hidden(Walks):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.steps = np.zeros(num_envs)

    def step(self, ids, actions):
        self.steps[ids] += 1
        rewards, terminated, infos = super().step(ids, actions)
        return rewards + self.steps[ids], terminated, infos


class Random(Walks):
    def step(self, ids, actions):
        self.at[ids] += np.random.normal(size=self.at[ids].shape)
        return super().step(ids, actions)


class Floats(Walks):
    def observe(self, ids):
        return self.at[ids].astype(np.float32)


class Outside(Walks):
    observation_space = spaces.Box(-0.5, 0.5, (2,), np.float64)


class Flat(Walks):
    def observe(self, ids):
        return self.at[ids, 0]


class Numbers(Walks):
    def step(self, ids, actions):
        rewards, terminated, infos = super().step(ids, actions)
        return rewards, terminated.astype(int), infos


class OneReward(Walks):
    def step(self, ids, actions):
        return 1.0, super().step(ids, actions)[1]


class ObservingAll(Walks):
    def observe(self, ids):
        return self.at


class ObservingFirst(Walks):
    def observe(self, ids):
        return self.at[: len(self.at[ids])]


class ResettingAll(Walks):
    max_episode_steps = None

    def reset(self, ids, rngs):
        super().reset(ids, rngs)
        self.at[:] = self.at[ids][0]

    def step(self, ids, actions):
        return super().step(ids, actions)[0], False


class MixingInfos(Walks):
    def step(self, ids, actions):
        rewards, terminated, infos = super().step(ids, actions)
        return rewards, terminated, {"x": infos["x"] - infos["x"].mean()}


class Curriculum(Walks):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.resets = [0] * num_envs

    def reset(self, ids, rngs):
        super().reset(ids, rngs)
        for i in np.arange(self.num_envs)[ids]:
            self.resets[i] += 1
            self.at[i] /= self.resets[i]


class Keeping(Walks):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.kept = [None] * num_envs

    def reset(self, ids, rngs):
        super().reset(ids, rngs)
        for i, rng in zip(np.arange(self.num_envs)[ids], rngs, strict=True):
            self.kept[i] = rng

    def step(self, ids, actions):
        rewards, *rest = super().step(ids, actions)
        places = np.arange(self.num_envs)[ids]
        return rewards + [self.kept[i].random() for i in places], *rest


class Cached(Walks):
    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.seen = np.zeros((num_envs, 2))

    def reset(self, ids, rngs):
        super().reset(ids, rngs)
        self.seen[ids] = self.at[ids]

    def step(self, ids, actions):
        results = super().step(ids, actions)
        self.seen[ids] = self.at[ids]
        return results

    def observe(self, ids):
        return self.seen[ids]


class OneEnd(Walks):
    def step(self, ids, actions):
        return super().step(ids, actions)[0], np.zeros(1, bool)


class Infos(Walks):
    def reset(self, ids, rngs):
        super().reset(ids, rngs)
        return {"a": 1}


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (Rebinding, "step replaced at, an array of rows"),
        (Mixing, "reward of step 0 of env 0 is .* if"),
        (TouchingOthers, "step changed env .*, which was not among ids|if others step apart"),
        (ResettingOthers, "reset changed env .*, which was not among ids"),
        (Hidden, "envs step differently after a return to the same state"),
        (Random, "with the same seeds and actions"),
        (Floats, "observe returned float32, expected float64"),
        (Outside, "is not in Box"),
        (Flat, r"observe returned shape \(5,\), expected \(5, 2\)"),
        (Numbers, "terminated of int64 .*, expected bool"),
        (OneReward, r"rewards 1.0, expected numbers of shape \(5,\)"),
        (ObservingAll, r"observe returned shape \(5, 2\), expected"),
        (ObservingFirst, "the observation of env .* if others step apart"),
        (ResettingAll, "the observation of env 1 is .* if it is alone"),
        (MixingInfos, "the info 'x' of step 0 of env 0 is .* if"),
        (Curriculum, "envs step differently after a return to the same state"),
        (Keeping, "envs step differently after a return to the same state"),
        (Cached, "envs step differently after a return to the same state"),
        (OneEnd, r"terminated of bool \(1,\), expected bool \(5,\)"),
        (Infos, r"reset returned info 'a' of shape \(\), expected an array of 5 rows"),
    ],
)
def test_check_finds_broken_rules(wrong, error):
    with pytest.raises(ValueError, match=f"cannot use {wrong.__name__}: .*{error}"):
        check_batch_env(wrong)


class Odd(Walks):
    """Does something wrong in steps, once told."""

    def __init__(self, num_envs, *, how=None):
        super().__init__(num_envs)
        self.how = how

    def step(self, ids, actions):
        rewards, over, infos = super().step(ids, actions)
        if isinstance(self.how, tuple):
            raise RowError(*self.how)
        return rewards, over, self.how(infos)


@pytest.mark.parametrize("row", [100, 10**8, -1, "x", 2.0, None, 1 << 80])
@pytest.mark.parametrize("call", ["step", "step_chunk"])
def test_errors_of_rows_that_are_no_env_blame_the_first(row, call):
    with begun(pysampler.make_vec(Odd, 4, num_workers=0, how=(row, "no such row")), seed=1) as envs:
        for _ in range(2):
            with pytest.raises(EnvError, match="no such row") as caught:
                getattr(envs, call)(np.ones((4, 3) if call == "step_chunk" else 4, int))
            assert caught.value.env == 0


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            lambda _: {"x": np.zeros(9)},
            "'x' as an array of shape (9,), expected an array with a row",
        ),
        (lambda _: {"x": np.float64(1)}, "'x' as float64, expected an array with a row for each"),
        (
            lambda _: {"x": [1, 2, 3, 4]},
            "'x' as list, expected an array with a row for each of the",
        ),
        (lambda _: {"x": {"y": 1}}, "'x' as dict, expected an array with a row for each of the"),
        (lambda _: [("x", 1)], "step returned infos of list, expected a dict of arrays"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_infos_without_a_row_for_each_env_raise(how, text, mode):
    with pysampler.make_vec(Odd, 4, num_workers=0, autoreset_mode=mode, how=how) as envs:
        envs.reset(seed=1)
        with pytest.raises(EnvError, match=re.escape(text)):
            envs.step(np.ones(4, int))
