"""A vector env returns exactly the results of gymnasium's SyncVectorEnv."""

import copy
import functools
import inspect

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from made_up import SpaceEnv, same, step_alike
from scripted import Scripted
from vectors import begun

import pysampler
from pysampler.errors import EnvError

MODES = list(AutoresetMode)


def run_both(env_fns, mode, steps, **kwargs):
    """Run both with the same seeds and actions; assert that all results are equal."""
    ours = pysampler.VectorEnv(env_fns, autoreset_mode=mode, **kwargs)
    theirs = SyncVectorEnv(env_fns, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    step_alike(ours, theirs, mode, steps, {"a": 1}, {"b": 2}, [5] * len(env_fns))


def box(*shape, dtype=np.float32):
    return spaces.Box(0, 100, shape, dtype)


SPACES = {
    "box": box(3),
    "box of no dimension": box(),
    "box of doubles": box(2, 2, dtype=np.float64),
    "box of halves": box(3, dtype=np.float16),
    "empty box": box(0),
    "image": box(8, 8, 3, dtype=np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi discrete": spaces.MultiDiscrete([3, 4, 5]),
    "multi discrete of two dimensions": spaces.MultiDiscrete([[3, 4], [5, 6]]),
    "multi binary": spaces.MultiBinary(7),
    "multi binary of two dimensions": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict(a=box(2), b=spaces.Discrete(3)),
    "tuple": spaces.Tuple((box(2), spaces.Discrete(3))),
    "nested": spaces.Dict(
        a=spaces.Tuple((box(), spaces.Dict(x=spaces.MultiBinary(2), y=box(2, 2)))),
        b=spaces.Dict(c=spaces.Discrete(4)),
    ),
    "text": spaces.Text(5),
    "sequence": spaces.Sequence(box(2), seed=1),
    "stacked sequence": spaces.Sequence(box(2), stack=True, seed=1),
    "graph": spaces.Graph(box(2), spaces.Discrete(3), seed=1),
    "one of": spaces.OneOf([box(2), spaces.Discrete(3)], seed=1),
    "nested with text": spaces.Dict(a=box(2), t=spaces.Tuple((spaces.Text(3), box(1)))),
}


if "dtype" in inspect.signature(spaces.Discrete).parameters:
    SPACES["discrete of another dtype"] = spaces.Discrete(5, dtype=np.int32)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SPACES)
def test_every_observation_space_matches_sync_vector_env(name, mode):
    fns = [functools.partial(SpaceEnv, SPACES[name])] * 5
    run_both(fns, mode, 30, num_workers=2)


@pytest.mark.parametrize("name", SPACES)
def test_every_action_space_matches_sync_vector_env(name):
    fns = [functools.partial(SpaceEnv, box(1), SPACES[name], infos="all")] * 3
    run_both(fns, AutoresetMode.NEXT_STEP, 20, num_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("workers", "groups", "copy"),
    [(0, 1, True), (0, 2, False), (1, 1, True), (2, 1, False), (2, 3, True), (5, 1, False)],
)
def test_all_kinds_of_infos_match_on_uneven_groups(mode, workers, groups, copy):
    fns = [functools.partial(SpaceEnv, box(2), infos="all")] * 7
    run_both(fns, mode, 100, num_workers=workers, groups=groups, copy=copy)


@pytest.mark.parametrize("mode", MODES)
def test_infos_that_only_some_envs_return_match(mode):
    kinds = ["none", "numbers", "all", "none", "numbers"]
    fns = [functools.partial(SpaceEnv, box(2), infos=kind) for kind in kinds]
    run_both(fns, mode, 100, num_workers=2)


def made_by_gymnasium():
    """Yield the env ids of gymnasium; of its MuJoCo envs only v5."""
    for env_id, spec in gym.registry.items():
        if not str(spec.entry_point).startswith("gymnasium.envs.") or "jax" in str(
            spec.entry_point
        ):
            continue
        if "mujoco" in str(spec.entry_point) and not env_id.endswith("-v5"):
            continue
        yield env_id


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("env_id", list(made_by_gymnasium()))
@pytest.mark.parametrize(("mode", "workers"), list(zip(MODES, (1, 2, 5), strict=True)))
def test_every_gymnasium_env_matches_sync_vector_env(env_id, mode, workers):
    try:
        gym.make(env_id).close()
    except (gym.error.Error, ImportError) as error:
        pytest.skip(str(error))
    images = "CarRacing" in env_id  # slow: each step renders one
    fns = [functools.partial(gym.make, env_id)] * (2 if images else 5)
    run_both(fns, mode, 100 if images else 300, num_workers=workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["box", "large", "dict", "text"])
def test_masked_reset_returns_the_last_observations_of_other_envs(kind, num_workers):
    """Even if the caller has written to the arrays since."""
    space = {**SPACES, "large": box(20000), "text": spaces.Dict(a=box(2), b=spaces.Text(9))}[kind]
    env_fns = [functools.partial(SpaceEnv, space, box(2), ends=0.0)] * 3
    with pysampler.VectorEnv(
        env_fns, num_workers=num_workers, autoreset_mode=AutoresetMode.DISABLED
    ) as envs:
        kept, mask = np.array([0, 2]), np.array([False, True, False])

        def parts(observations):
            if not isinstance(observations, dict):
                return [observations]
            return list(observations.values())

        def expect_kept(given):
            last = copy.deepcopy(given)
            parts(given)[0][:] = -1
            again, _ = envs.reset(options={"reset_mask": mask})
            for before, after in zip(parts(last), parts(again), strict=True):
                same([before[i] for i in kept], [after[i] for i in kept], "observations")
            return again

        last, _ = envs.reset(seed=3)
        expect_kept(last)
        for _ in range(4):
            last = envs.step(envs.action_space.sample())[0]
            expect_kept(expect_kept(last))


@pytest.mark.parametrize("normalizer", [None, pysampler.Normalizer(rewards=False)])
def test_masked_reset_after_rollouts_leaves_other_envs_unchanged(normalizer):
    env_fns = [Scripted] * 4
    with pysampler.VectorEnv(env_fns, num_workers=2, autoreset_mode=AutoresetMode.DISABLED) as envs:
        actions = np.full((4, 2), 3, np.float32)
        with pysampler.Rollouts(
            envs, lambda _: actions, 5, seed=3, normalize=normalizer
        ) as rollouts:
            next(rollouts).observations[:] = -1
        again, _ = envs.reset(options={"reset_mask": np.array([False, True, False, False])})
        # Seed, episode, steps, last action.
        assert again[[0, 2, 3]].tolist() == [[seed, 0, 5, 6] for seed in (3, 5, 6)]


def test_rejected_observation_does_not_become_the_last_one():
    class Refused(SpaceEnv):
        def step(self, action):
            observation, *rest = super().step(action)
            if self.refuse:
                observation = {"a": observation["a"] + 1, "b": np.zeros(3)}
            return observation, *rest

    env_fn = functools.partial(Refused, SPACES["dict"], box(2), ends=0.0)
    with begun(
        [env_fn] * 2, seed=1, num_workers=1, frames=1, autoreset_mode=AutoresetMode.DISABLED
    ) as envs:
        envs.set_attr("refuse", [False, False])
        last = envs.step(np.zeros((2, 2), np.float32))[0]
        last = last["a"][0].copy(), last["b"][0]
        envs.set_attr("refuse", [True, False])
        for _ in range(4):
            with pytest.raises(EnvError):
                envs.step(np.zeros((2, 2), np.float32))
            again, _ = envs.reset(options={"reset_mask": np.array([False, True])})
            same((again["a"][0], again["b"][0]), last, "observation")


def test_spaces_that_differ_only_in_dtype_raise():
    def made(dtype):
        env = Scripted()
        env.observation_space = spaces.Box(0, 1, (3,), np.float32)
        env.observation_space.dtype = np.dtype(dtype)
        return env

    env_fns = [functools.partial(made, dtype) for dtype in ("float32", "float64")]
    for num_workers in (0, 1, 2):
        with pytest.raises(RuntimeError, match="not equivalent"):
            pysampler.VectorEnv(env_fns, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_masked_reset_leaves_the_options_and_zeros_of_envs_that_were_never_reset(num_workers):
    options = {"reset_mask": np.array([False, True])}
    with pysampler.VectorEnv(
        [functools.partial(SpaceEnv, box(2))] * 2, num_workers=num_workers
    ) as envs:
        observations, _ = envs.reset(seed=1, options=options)
    assert observations[0].tolist() == [0, 0]
    assert observations[1].all()
    assert options["reset_mask"].tolist() == [False, True]


class Reshaped(SpaceEnv):
    def _observe(self):
        return super()._observe().reshape(-1)[::-1].astype(np.float64)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward]), *rest


@pytest.mark.parametrize("num_workers", [0, 1])
def test_observations_of_the_right_size_are_converted(num_workers):
    for dtype in (np.float32, np.uint8):
        fns = [functools.partial(SpaceEnv, box(2, 3, dtype=dtype))] * 2
        theirs = SyncVectorEnv(fns)
        reshaped = [functools.partial(Reshaped, box(2, 3, dtype=dtype))] * 2
        with pysampler.VectorEnv(reshaped, num_workers=num_workers) as envs:
            for ours, expected in (
                (envs.reset(seed=1)[0], theirs.reset(seed=1)[0]),
                (envs.step([1, 1])[:2], theirs.step([1, 1])[:2]),
            ):
                ours, rewards = ours if isinstance(ours, tuple) else (ours, None)
                expected, others = expected if isinstance(expected, tuple) else (expected, None)
                same(ours.reshape(2, -1), expected.reshape(2, -1)[:, ::-1])
                same(rewards, others)
