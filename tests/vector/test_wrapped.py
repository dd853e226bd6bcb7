"""gymnasium's wrappers, run on arrays of all envs of a worker, change nothing but the speed."""

import functools
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import describe, identical, same
from vectors import even_for_few

import pysampler
from pysampler.errors import EnvError

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")

MODES = NEXT_STEP, SAME_STEP, DISABLED = list(AutoresetMode)
COUNT = 6


class Walk(gym.Env):
    """A random walk that reacts to actions, in episodes that end by chance.

    Args:
        dtype: Of the observations.
        space_dtype: Of their space, if another.
        reward: Makes a reward of a float.
        shape: Of the observations.
        infos: Whether infos describe the actions.
    """

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, dtype="f8", space_dtype=None, reward=float, shape=(3,), *, infos=False):
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.dtype(space_dtype or dtype))
        self.dtype, self.reward, self.infos = np.dtype(dtype), reward, infos
        self.at = np.zeros(shape)
        self.last_reward = 0.0
        self.actions = []

    def _observe(self):
        return np.array(self.at, self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=self.at.shape)
        if options and options.get("fails"):
            raise ValueError("cannot be reset")
        return self._observe(), {"begun": True} if self.infos else {}

    def step(self, action):
        self.at = self.at + self.np_random.normal(size=self.at.shape) + np.sum(action) / 3
        self.last_reward = self.reward(3 * self.np_random.normal() + float(np.sum(action)))
        self.actions = [*self.actions[-2:], (action, describe(action))]
        info = {}
        if self.infos:
            unchanged = all(describe(action) == before for action, before in self.actions)
            info = {"action": describe(action), "unchanged": unchanged, "x": self.at.sum()}
            if self.np_random.random() < 0.3:
                info["sometimes"] = {"deep": [1, 2]}
        ends = self.np_random.random(2) < 0.1
        return self._observe(), self.last_reward, bool(ends[0]), bool(ends[1]), info

    def double(self, x):
        return 2 * x

    def oldest_action(self):
        return self.actions[0][0]


class Dictionary(Walk):
    """The walk, observed in two parts."""

    def __init__(self):
        super().__init__(infos=True)
        box = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.observation_space = spaces.Dict(a=box, b=spaces.Discrete(4))

    def _observe(self):
        return {"a": self.at.copy(), "b": int(abs(self.at[0])) % 4}


def _mujoco(env_id):
    return lambda: gym.make(env_id, max_episode_steps=7)


BASES = {
    "float64": Walk,
    "float32": functools.partial(Walk, "f4"),
    "numbers": functools.partial(Walk, shape=()),
    "matrix": functools.partial(Walk, "f4", shape=(2, 3)),
    "rewards of float32": functools.partial(Walk, reward=np.float32),
    "rewards of float64": functools.partial(Walk, reward=np.float64),
    "whole rewards": functools.partial(Walk, reward=int),
    "another dtype than its space": functools.partial(Walk, "f4", "f8"),
    "with infos": functools.partial(Walk, infos=True),
    "HalfCheetah": _mujoco("HalfCheetah-v5"),
    "Hopper": _mujoco("Hopper-v5"),
    "Pendulum": functools.partial(gym.make, "Pendulum-v1", max_episode_steps=7),
}
MUJOCO = "HalfCheetah", "Hopper"
WELL_KNOWN = *MUJOCO, "Pendulum"
# Base envs that return results of other types than layers have: their batches end.
UNLIKE = "rewards of float32", "another dtype than its space", "numbers"
# Wrappers whose function may act differently for ints: batches of "whole rewards" end.
OF_REWARDS = "TransformReward", "ClipReward", "ClipReward at one end"


class Doubled(gym.ObservationWrapper):
    """A wrapper that no layer exists for."""

    def observation(self, observation):
        return observation * 2


class Watchful(wrappers.NormalizeReward):
    """A subclass of a wrapper that a layer exists for."""


def _sum_and_shift(observation):
    return observation / (1 + np.abs(observation).max())


def _first(action):
    return action * (1 if action[0] > 0 else -1)


@functools.cache
def _scale_of(shape, dtype):
    """Return an array of scales: one object for all envs of a process, as a constant would be."""
    return np.linspace(0.5, 2.0, int(np.prod(shape, dtype=int))).reshape(shape).astype(dtype)


def _cleanrl(env):
    env = wrappers.FlattenObservation(env)
    env = wrappers.RecordEpisodeStatistics(env)
    env = wrappers.ClipAction(env)
    env = wrappers.NormalizeObservation(env)
    box = env.observation_space
    env = wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), box)
    env = wrappers.NormalizeReward(env, gamma=0.95)
    return wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))


def _scaled(env):
    """Scale observations by an array in a closure, in their dtype."""
    scale = _scale_of(env.observation_space.shape, env.observation_space.dtype)
    return wrappers.TransformObservation(env, lambda obs: obs * scale - 1, None)


def _transformed_action(env):
    box = spaces.Box(-2, 2, env.action_space.shape, np.float32)
    return wrappers.TransformAction(env, lambda action: np.clip(action / 2, -1, 1), box)


def _bounded(env):
    """Give the env a bounded observation space, which RescaleObservation needs."""
    space = env.observation_space
    box = spaces.Box(-5, 5, space.shape, space.dtype)
    env = wrappers.TransformObservation(env, lambda obs: np.clip(obs, -5, 5), box)
    return wrappers.RescaleObservation(env, -1.0, 2.0)


def _stacked_twice(env):
    """Stack normalized observations, padded with zeros, and stacks of ones with a constant."""
    env = wrappers.NormalizeObservation(env)
    env = wrappers.FrameStackObservation(env, 2, padding_type="zero")
    padding = np.full(env.observation_space.shape, 0.5, env.observation_space.dtype)
    return wrappers.FrameStackObservation(env, 2, padding_type=padding)


def _unknown_inside(env):
    return wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(Doubled(env)))


def _unknown_outside(env):
    return Doubled(wrappers.NormalizeReward(env))


def _unknown_between(env):
    return wrappers.ClipReward(Doubled(wrappers.NormalizeReward(env)), -0.5, 0.5)


def _twice(env):
    env = wrappers.NormalizeObservation(wrappers.RecordEpisodeStatistics(env))
    return wrappers.NormalizeObservation(env, epsilon=1e-3)


def _two_statistics(env):
    env = wrappers.RecordEpisodeStatistics(env, buffer_length=3, stats_key="raw")
    return wrappers.RecordEpisodeStatistics(wrappers.NormalizeReward(env), buffer_length=2)


def _not_elementwise(env):
    return wrappers.TransformObservation(env, _sum_and_shift, None)


def _not_elementwise_actions(env):
    return wrappers.NormalizeReward(wrappers.TransformAction(env, _first, None))


def _not_elementwise_within(env):
    return wrappers.RecordEpisodeStatistics(_not_elementwise(wrappers.NormalizeReward(env)))


# Stacks of wrappers, and how many of the wrappers, from the outermost on, are on the batch.
STACKS = {
    "RecordEpisodeStatistics": (wrappers.RecordEpisodeStatistics, 1),
    "NormalizeObservation": (wrappers.NormalizeObservation, 1),
    "NormalizeReward": (wrappers.NormalizeReward, 1),
    "TransformObservation": (_scaled, 1),
    "TransformReward": (lambda env: wrappers.TransformReward(env, lambda r: r * 0.1 + 1), 1),
    "TransformAction": (_transformed_action, 1),
    "unchanged actions": (lambda env: wrappers.TransformAction(env, lambda a: a, None), 1),
    "ClipAction": (wrappers.ClipAction, 1),
    "ClipReward": (lambda env: wrappers.ClipReward(env, -0.5, 1.5), 1),
    "ClipReward at one end": (lambda env: wrappers.ClipReward(env, max_reward=0.25), 1),
    "RescaleAction": (lambda env: wrappers.RescaleAction(env, -3.0, 5.0), 1),
    "RescaleObservation": (_bounded, 2),
    "DtypeObservation": (lambda env: wrappers.DtypeObservation(env, np.float32), 1),
    "DtypeObservation of integers": (lambda env: wrappers.DtypeObservation(env, np.int16), 0),
    "FlattenObservation": (wrappers.FlattenObservation, 1),
    "ReshapeObservation": (
        lambda env: wrappers.ReshapeObservation(env, (1, *env.observation_space.shape)),
        1,
    ),
    "FrameStackObservation": (lambda env: wrappers.FrameStackObservation(env, 3), 1),
    "FrameStackObservation of zeros": (_stacked_twice, 3),
    "CleanRL": (_cleanrl, 7),
    "NormalizeObservation twice": (_twice, 3),
    "two statistics": (_two_statistics, 3),
    "unknown inside": (_unknown_inside, 1),
    "unknown outside": (_unknown_outside, 0),
    "unknown between": (_unknown_between, 1),
    "subclass": (lambda env: wrappers.ClipReward(Watchful(env), -0.5, 0.5), 1),
    "not elementwise": (_not_elementwise, 0),
    "actions not elementwise": (_not_elementwise_actions, 1),
    "not elementwise within": (_not_elementwise_within, 0),
}
# Around envs of users, which may keep or change what some wrappers keep or read.
AROUND_USERS = {
    "RecordEpisodeStatistics": 0,
    "TransformObservation": 0,
    "FrameStackObservation": 0,
    "FrameStackObservation of zeros": 0,
    "CleanRL": 5,
    "NormalizeObservation twice": 2,
    "two statistics": 0,
}


def made(base, stack):
    """Return an env of a base env and a stack of wrappers."""
    return STACKS[stack][0](BASES[base]())


def functions(base, stack, count=COUNT):
    if base in MUJOCO:
        pytest.importorskip("mujoco")
    return [functools.partial(made, base, stack)] * count


class Both:
    """Our envs and a SyncVectorEnv of the same functions, stepped with equal actions."""

    def __init__(self, env_fns, mode=NEXT_STEP, scale=2.0, **options):
        given = {"num_workers": 1, "worker_init": even_for_few, **options}
        if given["num_workers"] == 0:
            del given["worker_init"]
        self.ours = pysampler.VectorEnv(env_fns, autoreset_mode=mode, **given)
        self.theirs = SyncVectorEnv(env_fns, autoreset_mode=mode)
        self.mode, self.scale = mode, scale
        self.rng = np.random.default_rng(4)
        self.ended = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ours.close()
        self.theirs.close()

    def spaces_are_equal(self):
        assert self.ours.observation_space == self.theirs.observation_space
        assert self.ours.action_space == self.theirs.action_space

    def reset(self, **given):
        identical_but_times(self.ours.reset(**given), self.theirs.reset(**given), f"reset {given}")

    def steps(self, count, kind="f4"):
        """Step both; with autoreset disabled, reset episodes that have ended."""
        shape = self.theirs.action_space.shape
        for step in range(count):
            actions = (self.scale * self.rng.normal(size=shape)).astype(kind)
            a, b = self.ours.step(actions), self.theirs.step(actions)
            identical_but_times(a, b, f"step {step}")
            over = b[2] | b[3]
            self.ended += int(over.sum())
            if self.mode is DISABLED and over.any():
                self.reset(options={"reset_mask": over})

    def begin(self, steps):
        self.reset(seed=1)
        self.steps(steps)

    def states_are_equal(self):
        """Compare the states of all wrappers."""
        identical_but_times(
            list(self.ours.apply(state_of)), [state_of(env) for env in self.theirs.envs], "states"
        )

    def set(self, name, value):
        self.ours.set_attr(name, value)
        self.theirs.set_attr(name, value)

    def has(self, name):
        return self.theirs.envs[0].has_wrapper_attr(name)


def state_of(env):
    """Return the state of each wrapper of an env, apart from times, as arrays."""
    state = []
    while env is not env.unwrapped:
        one = {}
        for name, value in vars(env).items():
            if type(value).__name__ == "RunningMeanStd":
                one[name] = [np.array(value.mean), np.array(value.var), float(value.count)]
            elif type(value).__name__ == "deque" and name != "time_queue":
                one[name] = [np.array(list(value)), np.array(value.maxlen)]
            elif isinstance(value, (bool, int, float, np.generic, np.ndarray)) and (
                "time" not in name and "checked" not in name
            ):
                one[name] = np.array(value)
        state.append(one)
        env = env.env
    return state


def identical_but_times(ours, theirs, place):
    identical(_without_times(ours), _without_times(theirs), place)


def _without_times(value):
    if isinstance(value, dict):
        kept = {key: _without_times(one) for key, one in value.items()}
        for key in ("episode", "raw"):
            if key in kept:
                kept[key] = {**kept[key], "t": None}
        return kept
    return type(value)(map(_without_times, value)) if type(value) in (tuple, list) else value


def on_batch(envs):
    """Return the names of the wrappers on the batch, of each table of ``describe()``."""
    tables = []
    for line in envs.describe().splitlines():
        if not line.startswith(" "):
            tables.append([])
        elif line.split()[1:] == ["on", "the", "batch"]:
            tables[-1].append(line.split()[0])
    return tables


def depth(base, stack):
    """Return the number of an env's wrappers, from the outermost on, that belong on the batch."""
    return STACKS[stack][1] if base in WELL_KNOWN else AROUND_USERS.get(stack, STACKS[stack][1])


def names(base, stack):
    """Return the names of an env's wrappers that belong on the batch."""
    env, found = made(base, stack), []
    for _ in range(depth(base, stack)):
        found.append(type(env).__name__)
        env = env.env
    return found


def run(base, stack, mode, workers=1, groups=1):
    """Take both through steps, resets and calls, and compare all results."""
    env_fns = functions(base, stack)
    with Both(env_fns, mode, num_workers=workers, groups=groups) as both:
        both.spaces_are_equal()
        if depth(base, stack):
            assert on_batch(both.ours) == [names(base, stack)]
        both.reset(seed=5)
        both.steps(14)
        both.reset(options={"reset_mask": np.array([True, False, False, True, True, False])})
        both.steps(5, "f8")
        both.states_are_equal()
        both.steps(4)
        both.reset(seed=[9, None, 8, None, 7, None])
        both.steps(3)
        for name in ("episode_count", "episode_returns", "return_queue"):
            if both.has(name):
                ours, theirs = both.ours.get_attr(name), both.theirs.get_attr(name)
                identical_but_times([*map(np.array, ours)], [*map(np.array, theirs)], name)
        if both.has("update_running_mean"):
            both.set("update_running_mean", [True, False, False, True, False, False])
            both.steps(5)
            both.set("update_running_mean", [True] * COUNT)
            both.steps(3)
        if base not in WELL_KNOWN:
            same(both.ours.call("double", 4), both.theirs.call("double", 4))
            both.steps(3)
        both.reset()
        both.steps(4, "i8")
        assert both.ended > 4
        if base == "whole rewards" and stack in OF_REWARDS:
            assert on_batch(both.ours) == [[]]
            assert "a reward of a type that layers would change" in both.ours.describe()
        elif depth(base, stack) and base not in UNLIKE:  # together again, after calls and a reset
            assert on_batch(both.ours) == [names(base, stack)]
        both.states_are_equal()
        if depth(base, stack):
            assert on_batch(both.ours) == [[]]
        both.steps(4)


def slow_but(quick, values):
    """Return parameters, of which all but some are marked slow."""
    return [
        pytest.param(
            one,
            marks=[] if one in quick else [pytest.mark.slow],
            id=one.__name__ if isinstance(one, type) else repr(one).strip("'"),
        )
        for one in values
    ]


WITH_MUJOCO = slow_but(["with infos"], ["with infos", "HalfCheetah"])
QUICK_STACKS = (
    "RecordEpisodeStatistics",
    "two statistics",
    "NormalizeObservation twice",
    *(("RescaleAction", "RescaleObservation", "unknown between", "not elementwise within")),
)
QUICK_BASES = *UNLIKE[:2], "whole rewards"


@pytest.mark.parametrize("mode", MODES)
def test_results_equal_sync_vector_env(mode):
    run("with infos", "CleanRL", mode, workers=2)


@pytest.mark.parametrize("stack", slow_but(QUICK_STACKS, STACKS))
def test_every_stack_equals_sync_vector_env(stack):
    run("with infos", stack, MODES[list(STACKS).index(stack) % 3])


@pytest.mark.parametrize("stack", AROUND_USERS)
def test_wrappers_around_well_known_envs_equal_sync_vector_env(stack):
    run("Pendulum", stack, MODES[list(STACKS).index(stack) % 3])


@pytest.mark.parametrize("base", slow_but(QUICK_BASES, BASES))
def test_every_base_env_equals_sync_vector_env(base):
    run(base, "CleanRL", MODES[list(BASES).index(base) % 3], groups=2)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("stack", STACKS)
def test_every_combination_equals_sync_vector_env(stack, base, mode):
    at = list(STACKS).index(stack) + list(BASES).index(base)
    run(base, stack, mode, 1 + at % 2, 1 + at // 2 % 2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("workers", "groups"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("stack", ["CleanRL", "two statistics", "unknown inside"])
@pytest.mark.parametrize("base", ["with infos", "rewards of float32", "Hopper"])
def test_every_division_equals_sync_vector_env(base, stack, workers, groups, mode):
    run(base, stack, mode, workers, groups)


@pytest.mark.parametrize("mode", MODES)
def test_wrappers_around_observations_in_parts_equal_sync_vector_env(mode):
    env_fns = [lambda: wrappers.NormalizeReward(Dictionary())] * 4
    with Both(env_fns, mode) as both:
        assert on_batch(both.ours) == [["NormalizeReward"]]
        both.begin(30)
        both.reset(options={"reset_mask": np.array([True, False, False, True])})
        both.steps(10)
        assert on_batch(both.ours) == [["NormalizeReward"]]
        both.states_are_equal()


@pytest.mark.parametrize("base", slow_but(UNLIKE[:1], UNLIKE))
def test_batches_end_after_results_of_other_types(base):
    with Both(functions(base, "NormalizeObservation")) as both:
        assert on_batch(both.ours) == [["NormalizeObservation"]]
        both.begin(3)
        assert on_batch(both.ours) == [[]]
        both.steps(20)
        both.states_are_equal()


def test_wrappers_stay_in_python_for_few_envs_and_in_this_process():
    for options in ({"worker_init": None}, {"num_workers": 0}):
        with Both(functions("float64", "CleanRL", 2), **options) as both:
            assert on_batch(both.ours) == [[]]
            both.begin(5)


@pytest.mark.parametrize("mode", MODES)
def test_layers_around_simulations_equal_sync_vector_env(mode):
    env_fns = functions("Hopper", "CleanRL", 4)
    with Both(env_fns, mode, num_workers=1, worker_init=None) as both:
        assert on_batch(both.ours) == [names("Hopper", "CleanRL")]
        assert "native" in repr(both.ours)
        both.begin(20)
        both.states_are_equal()
        both.set("update_running_mean", [False] * 4)
        both.steps(10)
        both.states_are_equal()


LEAVES = {"epsilon": 1e-2, "gamma": 0.5}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", WITH_MUJOCO)
@pytest.mark.parametrize("name", slow_but(["gamma"], LEAVES))
def test_changed_parameters_of_wrappers_end_the_batch(name, base, mode):
    with Both(functions(base, "CleanRL"), mode, groups=2) as both:
        both.begin(8)
        both.set(name, LEAVES[name])
        assert not any(on_batch(both.ours))
        both.reset(options={"reset_mask": np.arange(COUNT) % 2 == 0})
        both.steps(15)
        both.states_are_equal()


@pytest.mark.parametrize("base", ["with infos", "HalfCheetah"])
@pytest.mark.parametrize(
    "stack", slow_but(["CleanRL"], ["CleanRL", "ClipAction", "NormalizeReward"])
)
def test_lists_of_numbers_as_actions_equal_sync_vector_env(base, stack):
    with Both(functions(base, stack, 3)) as both:
        both.begin(9)
        for actions in np.random.default_rng(2).normal(size=(5, *both.theirs.action_space.shape)):
            identical_but_times(
                both.ours.step(actions.tolist()), both.theirs.step(actions.tolist()), "lists"
            )
        both.steps(9)
        both.states_are_equal()


@pytest.mark.parametrize("stack", slow_but(["CleanRL"], ["CleanRL", "RescaleAction"]))
def test_actions_of_any_dtype_equal_sync_vector_env(stack):
    with Both(functions("with infos", stack)) as both:
        both.reset(seed=1)
        for kind in ("f8", "f4", "i8", "f2", "i1", "?", "f8"):
            both.steps(4, kind)
        rows = both.rng.normal(size=both.theirs.action_space.shape)
        mixed = [row.astype(kind) for row, kind in zip(rows, ("f8", "f4", "i8") * 2, strict=True)]
        identical_but_times(both.ours.step(mixed), both.theirs.step(mixed), "several dtypes")
        both.steps(4)


def test_actions_that_an_env_keeps_do_not_change():
    with Both(functions("float64", "unchanged actions")) as both:
        both.begin(8)
        same(both.ours.call("oldest_action"), both.theirs.call("oldest_action"))


def _blur(env):
    env.set_wrapper_attr("epsilon", 1.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", slow_but([2], [1, 2]))
def test_envs_in_other_wrappers_than_the_rest_have_their_own_batch(groups, mode):
    def make(at):
        env = wrappers.NormalizeReward(Walk(), gamma=0.5)
        return wrappers.ClipReward(env, -1.0, 1.0) if at < 4 else env

    env_fns = [functools.partial(make, at) for at in range(COUNT)]
    with Both(env_fns, mode, groups=groups) as both:
        assert on_batch(both.ours) == [
            ["ClipReward", "NormalizeReward"],
            ["NormalizeReward"],
        ]
        both.begin(15)
        both.ours.apply(_blur, envs=[5])
        _blur(both.theirs.envs[5])
        assert on_batch(both.ours) == [[], []]
        both.steps(15)
        both.reset()
        assert on_batch(both.ours) == [["ClipReward", "NormalizeReward"], ["NormalizeReward"]]
        both.steps(15)
        both.states_are_equal()


def test_more_kinds_of_envs_than_a_worker_tries_equal_sync_vector_env():
    env_fns = [
        functools.partial(lambda at: wrappers.NormalizeReward(Walk(), gamma=at / 10), at)
        for at in range(7)
    ]
    with Both(env_fns) as both:
        both.begin(15)
        both.states_are_equal()


@pytest.mark.parametrize("base", WITH_MUJOCO)
@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_groups_that_step_alone_equal_single_envs(mode, base):
    """``recv`` returns groups in any order, and each env steps as often as it was sent."""
    env_fns = functions(base, "CleanRL")
    options = {"autoreset_mode": mode, "groups": 3, "num_workers": 1}
    ours = pysampler.VectorEnv(env_fns, worker_init=even_for_few, **options)
    theirs = pysampler.VectorEnv(env_fns, native=False, **options)
    for envs in (ours, theirs):
        envs.reset(seed=3)
    rng = np.random.default_rng(1)
    actions = rng.normal(size=(61, *ours.action_space.shape)).astype(np.float32)
    results = []
    for envs in (ours, theirs):
        seen = {i: [] for i in range(COUNT)}
        at = np.zeros(COUNT, int)
        envs.send(actions[0])
        for _ in range(60):
            observations, rewards, terminated, truncated, infos = envs.recv()
            ids = np.asarray(infos["env_id"])
            for row, i in enumerate(ids):
                seen[i].append((observations[row], rewards[row], terminated[row], truncated[row]))
            at[ids] += 1
            envs.send(actions[at[ids], ids], ids)
        while envs.pending:
            envs.recv()
        results.append([one[:15] for one in seen.values()])
        envs.close()
    identical_but_times(*results, "groups")


@pytest.mark.parametrize("base", WITH_MUJOCO)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("infos", slow_but(["final"], ["final", "none"]))
def test_omitted_infos_equal_envs_in_python(infos, mode, base):
    options = {"autoreset_mode": mode, "infos": infos, "num_workers": 1}
    env_fns = functions(base, "CleanRL", 4)
    with (
        pysampler.VectorEnv(env_fns, worker_init=even_for_few, **options) as ours,
        pysampler.VectorEnv(env_fns, native=False, **options) as theirs,
    ):
        identical_but_times(ours.reset(seed=1), theirs.reset(seed=1), "reset")
        rng, ended = np.random.default_rng(1), 0
        for step in range(30):
            actions = rng.normal(size=ours.action_space.shape)
            a, b = ours.step(actions), theirs.step(actions)
            identical_but_times(a, b, f"step {step}")
            over = b[2] | b[3]
            ended += over.sum()
            if mode is DISABLED and over.any():
                masks = {"reset_mask": over}
                identical_but_times(ours.reset(options=masks), theirs.reset(options=masks), "reset")
        assert ended > 3
        assert on_batch(ours) == [names(base, "CleanRL")]


@pytest.mark.parametrize("base", slow_but(["float64"], ["float64", "HalfCheetah"]))
@pytest.mark.parametrize("mode", slow_but([NEXT_STEP], MODES))
def test_replaced_workers_run_wrappers_on_batches_too(mode, base):
    env_fns = functions(base, "CleanRL", 4)
    options = {"autoreset_mode": mode, "num_workers": 2, "on_worker_loss": "restart"}
    results = []
    for native in ("auto", False):
        with pysampler.VectorEnv(
            env_fns, worker_init=even_for_few, native=native, **options
        ) as envs:
            seen = [envs.reset(seed=2)]
            rng = np.random.default_rng(0)
            for step in range(20):
                if step == 9:
                    os.kill(envs._pool.pids[1], signal.SIGKILL)
                seen.append(envs.step(rng.normal(size=envs.action_space.shape)))
                over = seen[-1][2] | seen[-1][3]
                if step == 9:
                    assert seen[-1][4]["worker_lost"].tolist() == [False, False, True, True]
                if mode is DISABLED and over.any():
                    seen.append(envs.reset(options={"reset_mask": over}))
            assert envs.stats().losses.tolist() == [0, 1]
            assert on_batch(envs) == [names(base, "CleanRL") if native else []]
            results.append((seen, list(envs.apply(state_of))))
    identical_but_times(*results, "after a loss")


def test_calls_that_step_and_reset_envs_equal_sync_vector_env():
    action = np.ones(2, np.float32)

    def steps(env):
        return [env.step(action)[:2] for _ in range(3)]

    def reset(env):
        return env.reset(seed=8)[0]

    with Both(functions("float64", "CleanRL")) as both:
        both.begin(5)
        for function in (steps, reset):
            for i in (1, 4):
                ours = both.ours.apply(function, envs=[i])
                identical_but_times(ours[0], function(both.theirs.envs[i]), "call")
                assert on_batch(both.ours) == [[]]
            both.steps(5)
            both.reset()
            assert on_batch(both.ours) == [names("float64", "CleanRL")]
            both.steps(5)
        both.states_are_equal()


def _replaced_statistics(env, dtype, count):
    env.set_wrapper_attr("obs_rms", wrappers.utils.RunningMeanStd(shape=(3,), dtype=dtype))
    env.get_wrapper_attr("obs_rms").count = count


@pytest.mark.parametrize("base", ["float32", "float64"])
@pytest.mark.parametrize("dtype", slow_but([np.float32], [np.float32, np.float64]))
@pytest.mark.parametrize(
    "count", slow_but([], [7, 7.5, np.float32(7.5)]) + slow_but([7.5], [np.float64(7.5)])
)
def test_replaced_running_means_equal_sync_vector_env(base, dtype, count):
    """Such as those of a checkpoint, or averages over envs."""
    with Both(functions(base, "NormalizeObservation", 3)) as both:
        both.begin(4)
        both.ours.apply(functools.partial(_replaced_statistics, dtype=dtype, count=count))
        for env in both.theirs.envs:
            _replaced_statistics(env, dtype, count)
        both.steps(6)
        both.states_are_equal()


def test_running_means_that_envs_share_equal_envs_in_python():
    def share(env):
        env.set_wrapper_attr("obs_rms", Shared.rms)

    env_fns = functions("float64", "NormalizeObservation", 3)
    results = []
    for native in ("auto", False):
        with pysampler.VectorEnv(
            env_fns, num_workers=1, worker_init=even_for_few, native=native
        ) as envs:
            envs.apply(share)
            seen = [envs.reset(seed=1)]
            seen += [envs.step(np.zeros((3, 2), np.float32)) for _ in range(5)]
            results.append((seen, list(envs.apply(state_of))))
    identical_but_times(*results, "shared")


class Shared:
    """Holds an object that all envs of a worker use."""

    rms = wrappers.utils.RunningMeanStd(shape=(3,), dtype=np.float32)


class Limited(Walk):
    """The walk, with bounds of actions that are drawn for each episode."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        bound = self.np_random.uniform(0.1, 1)
        self.action_space = spaces.Box(-bound, bound, (2,), np.float32)
        return result


def test_bounds_of_actions_that_change_equal_sync_vector_env():
    with Both([lambda: wrappers.ClipAction(Limited())] * 3) as both:
        both.begin(30)


class Rewarding(Walk):
    """The walk, with rewards of 0 and 1 and their negatives, as Python numbers."""

    def __init__(self, kind):
        super().__init__(reward=lambda x: kind(np.clip(round(x), -2, 2)))


REWARD_FUNCTIONS = {
    "sign of booleans": lambda r: (r > 0) - (r < 0),
    "sum of booleans": lambda r: 0.5 * ((r > 0) + (r > 1)),
    "negative of a boolean": lambda r: -(r > 0) * 1.0,
    "negative": lambda r: -r,
    "times -1": lambda r: r * -1,
    "positive part": lambda r: np.fmax(-0.0 * r, 0.0),
    "sign": lambda r: np.sign(r) * 1.0,
    "a method": lambda r: r.clip(-1, 1),
    "where": lambda r: np.where(r > 0, r * 1.0, 0.5),
    "clip": lambda r: np.clip(r, -1.0, 1.0),
}


ONLY_OF_PYTHON = "sign of booleans", "negative of a boolean"


@pytest.mark.parametrize("kind", slow_but([float], [int, float, np.float64]))
@pytest.mark.parametrize("name", REWARD_FUNCTIONS)
def test_functions_of_rewards_of_each_type_equal_envs_in_python(name, kind):
    """Python's numbers differ from NumPy's: booleans add up, and 0 has no sign."""
    if name in (ONLY_OF_PYTHON if kind is np.float64 else ["a method"]):
        pytest.skip("this type has no such operation")
    env_fns = [lambda: wrappers.TransformReward(Rewarding(kind), REWARD_FUNCTIONS[name])] * 9
    with Both(env_fns) as both:
        both.begin(20)


def _counted():
    seen = 0

    def later(reward):
        nonlocal seen
        seen += 1
        return reward * (0.0 if seen < 40 else 1.0)

    return wrappers.TransformReward(Walk(), later)


def _counted_in_an_array():
    seen = np.zeros(1)

    def later(reward):
        seen[0] += 1
        return reward * (0.0 if seen[0] < 40 else 1.0)

    return wrappers.TransformReward(Walk(), later)


def _of_a_closure():
    scale = 1.0

    def set_scale(value):
        nonlocal scale
        scale = value

    env = Walk()
    env.set_scale = set_scale
    return wrappers.TransformReward(env, lambda reward: reward * scale)


def _by_chance():
    np.random.seed(0)
    kept = 0.05
    return wrappers.TransformReward(Walk(), lambda r: np.where(np.random.random() < kept, 0.0, r))


@pytest.mark.parametrize("make", [_counted, _counted_in_an_array, _by_chance])
def test_functions_with_state_equal_sync_vector_env(make):
    with Both([make] * 3) as both:
        both.begin(60)


def test_functions_of_changed_variables_equal_sync_vector_env():
    with Both([_of_a_closure] * 3) as both:
        both.begin(5)
        for i in range(3):
            both.ours.apply(functools.partial(_set_scale, value=i + 2.0), envs=[i])
            _set_scale(both.theirs.envs[i], i + 2.0)
        both.steps(10)


def _set_scale(env, value):
    env.get_wrapper_attr("set_scale")(value)


class Positive(Walk):
    """The walk, whose observations have a square root."""

    def _observe(self):
        return np.abs(np.array(self.at))


def strict():
    even_for_few()
    np.seterr(all="raise")


def test_trials_report_no_errors_of_numbers_that_envs_do_not_return():
    env_fns = [
        lambda: wrappers.TransformObservation(Positive(), lambda obs: np.sqrt(obs), None)
    ] * 3
    with Both(env_fns, worker_init=strict) as both:
        both.begin(10)


class Endless(Walk):
    """The walk without ends of episodes."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


def test_statistics_that_would_fail_at_an_end_equal_sync_vector_env_until_then():
    record = wrappers.RecordEpisodeStatistics
    with Both([lambda: record(record(Endless()))] * 3) as both:
        both.begin(10)


class Buffered(Walk):
    """The walk, which returns the array that is its state."""

    def _observe(self):
        return self.at

    def step(self, action):
        self.at += self.np_random.normal(size=self.at.shape)
        return self.at, 1.0, False, False, {}


def test_functions_that_write_to_observations_equal_sync_vector_env():
    functions = (
        lambda obs: np.clip(obs, -1, 1, obs),
        lambda obs: obs.clip(-1, 1, obs),
        lambda obs: np.nan_to_num(np.minimum(obs, 1.0, out=obs), copy=False),
    )
    for function in functions:
        make = functools.partial(wrappers.TransformObservation, func=function)
        env_fns = [functools.partial(_buffered, make)] * 3
        with Both(env_fns) as both:
            both.begin(10)


def _buffered(make):
    return make(Buffered(), observation_space=None)


def test_an_env_that_raises_leaves_the_wrappers_of_others_in_order():
    with Both(functions("float64", "CleanRL", 4)) as both:
        both.begin(5)
        with pytest.raises(EnvError, match="cannot be reset"):
            both.ours.reset(options={"fails": True, "reset_mask": np.arange(4) == 2})
        with pytest.raises(ValueError, match="cannot be reset"):
            both.theirs.envs[2].reset(options={"fails": True})
        both.reset(seed=4)
        both.steps(10)
        both.states_are_equal()
