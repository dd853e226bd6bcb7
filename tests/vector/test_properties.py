"""Property tests: random spaces and infos give the same batches as gymnasium."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import SpaceEnv, same
from vectors import alike, begun

import pysampler

quick = settings(max_examples=60, derandomize=True)
few = settings(quick, max_examples=10)

# -- spaces ---------------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
flat = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 100, shape, dtype),
        shapes,
        st.sampled_from([np.float64, np.float32, np.float16, np.uint8, np.int16, np.int64]),
    ),
    st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-3, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
    st.builds(spaces.Text, st.integers(1, 4)),
)
nested = st.recursive(
    flat,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def compare(env_fns, mode, workers, steps=12):
    with (
        pysampler.VectorEnv(env_fns, autoreset_mode=mode, num_workers=workers) as ours,
        contextlib.closing(SyncVectorEnv(env_fns, autoreset_mode=mode)) as theirs,
    ):
        alike(ours, theirs, steps, seed=1)


@pytest.mark.slow
@quick
@given(nested, nested, st.sampled_from([AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]))
def test_any_space_matches_gymnasium_inline(observation, action, mode):
    compare([functools.partial(SpaceEnv, observation, action, infos="all")] * 3, mode, 0)


@pytest.mark.slow
@few
@given(nested, nested)
def test_any_space_matches_gymnasium_in_workers(observation, action):
    fns = [functools.partial(SpaceEnv, observation, action, infos="all")] * 3
    compare(fns, AutoresetMode.SAME_STEP, 2)


# -- infos ----------------------------------------------------------------------------------------


class Sayer(gym.Env):
    """Returns the given infos in turn."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, sayings):
        self.sayings = sayings
        self.at = 0

    def _next(self):
        info = self.sayings[self.at % len(self.sayings)]
        self.at += 1
        return info

    def reset(self, *, seed=None, options=None):
        return 0, self._next()

    def step(self, action):
        return 1, 0.0, self.at % 4 == 0, False, self._next()


# Arrays of a key have one shape, as gymnasium requires.
keys = st.sampled_from(["a", "b", "c", "episode", "final_obs"])
numbers = st.one_of(
    st.integers(-5, 5),
    st.floats(allow_nan=True),
    st.booleans(),
    st.builds(np.float32, st.integers(-3, 3)),
    st.builds(np.int8, st.integers(-3, 3)),
    st.builds(np.bool_, st.booleans()),
    st.builds(np.complex64, st.integers(-3, 3)),
    st.none(),
    st.text(max_size=3),
    st.just((1, 2)),
)
infos = st.recursive(
    st.dictionaries(keys, numbers, max_size=4),
    lambda inner: st.dictionaries(keys, st.one_of(numbers, inner), max_size=4),
    max_leaves=8,
)


def outcome(make, steps):
    """Return the results, and the type of an exception: gymnasium rejects some mixtures."""
    results = []
    with contextlib.closing(make()) as envs:
        try:
            results.append(envs.reset())
            results.extend(envs.step(np.zeros(len(envs.env_fns), np.int64)) for _ in range(steps))
        except Exception as error:
            return results, type(error)
    return results, None


@pytest.mark.slow
@settings(quick, max_examples=300)
@given(
    st.lists(st.lists(infos, min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]),
)
@pytest.mark.filterwarnings("ignore")
def test_any_infos_match_gymnasium(sayings, mode):
    fns = [functools.partial(Sayer, saying) for saying in sayings]
    ours, raised = outcome(
        lambda: pysampler.VectorEnv(fns, autoreset_mode=mode, num_workers=0), steps=8
    )
    theirs, refused = outcome(lambda: SyncVectorEnv(fns, autoreset_mode=mode), steps=8)
    for a, b in zip(ours, theirs, strict=False):
        same(a, b)
    assert len(ours) >= len(theirs)
    if refused is None:
        assert raised is None


# -- the infos option, and infos in frames --------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_infos_option_limits_the_infos(workers, mode):
    fns = [functools.partial(SpaceEnv, spaces.Box(0, 1, (2,)), infos="all")] * 4

    def make(infos):
        return pysampler.VectorEnv(fns, infos=infos, num_workers=workers, autoreset_mode=mode)

    every, final, none = make("all"), make("final"), make("none")
    all_infos = every.reset(seed=1)[1]
    assert all_infos
    assert final.reset(seed=1)[1] == none.reset(seed=1)[1] == {}
    finals = 0
    for _ in range(50):
        if mode == AutoresetMode.DISABLED and finals:
            break
        *results, infos = every.step(np.zeros(4, np.int64))
        *results_f, infos_f = final.step(np.zeros(4, np.int64))
        *results_n, infos_n = none.step(np.zeros(4, np.int64))
        same(results, results_f)
        same(results, results_n)
        ended = results[2] | results[3]
        finals += ended.sum()
        if mode == AutoresetMode.SAME_STEP:
            wanted = {
                k: v for k, v in infos.items() if k.lstrip("_") in ("final_obs", "final_info")
            }
            same(infos_f, wanted)
            wanted = {k: v for k, v in wanted.items() if "obs" in k}
            same(infos_n, wanted)
        else:
            assert infos_n == {}
            assert bool(infos_f) == bool(ended.any())
            if infos_f:
                same(infos_f["_always"], ended)
                same(infos_f["always"][ended], infos["always"][ended])
    assert finals
    for envs in (every, final, none):
        envs.close()


def test_numeric_infos_travel_in_the_frame():
    fns = [functools.partial(SpaceEnv, spaces.Box(0, 1, (2,)), infos="numbers")] * 4
    with begun(fns, num_workers=2) as envs:
        envs.step(np.zeros(4, np.int64))
        for _ in range(20):
            envs.step_async(np.zeros(4, np.int64))
            assert envs._pool.wait() == []  # no env sent mail
            assert envs.step_wait()[4].keys() == {"x", "_x", "n", "_n", "f", "_f"}


def test_more_info_keys_than_columns_match_gymnasium():
    class Talker(Sayer):
        def __init__(self):
            super().__init__([{f"key {i}": i + 0.5 for i in range(500)}])

    with pysampler.VectorEnv([Talker] * 3, num_workers=2) as ours:
        theirs = SyncVectorEnv([Talker] * 3)
        for _ in range(3):
            alike(ours, theirs, 1)
