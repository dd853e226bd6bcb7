"""Seeds of the global generators: each env draws as if it were alone in its process."""

import random
import sys

import gymnasium as gym
import numpy as np
import pytest
from interrupts import at_each_point
from told_envs import SmallEnv
from vectors import begun

import pysampler

SEEDS = [3, 4, 5]


class Draws(SmallEnv):
    """Observes numbers of the global generators, and draws more or fewer in each step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = gym.spaces.Discrete(2)
    uses_torch = False

    def __init__(self):
        if self.uses_torch:
            import torch  # noqa: F401 - only the workers need it

    def observe(self):
        if self.steps == 0:
            self.left = random.randrange(2, 6)
        third = float(sys.modules["torch"].rand(())) if self.uses_torch else 0.0
        return np.array([random.random(), np.random.normal(), np.random.rand(), third])

    def act(self, action):
        for _ in range(int(action)):
            random.random()

    def ends(self, action):
        return self.left == 0


class DrawsFromTorch(Draws):
    uses_torch = True


def results_of(envs, seeds=SEEDS, steps=20):
    envs.action_space.seed(0)
    observations = [envs.reset(seed=seeds)[0].copy()]
    actions = (envs.action_space.sample() for _ in range(steps))
    observations += [envs.step(some)[0].copy() for some in actions]
    return np.array(observations)


def alone(env_fn, seed, actions):
    """Return the observations of an env stepped by hand, after seeding the generators."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    env = env_fn()
    found = [env.reset(seed=seed)[0]]
    over = False
    for action in actions:
        if over:
            found.append(env.reset()[0])
            over = False
            continue
        observation, _, over, _, _ = env.step(action)
        found.append(observation)
    random.setstate(before[0])
    np.random.set_state(before[1])
    return np.array(found)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_env_draws_as_if_it_were_alone(workers):
    with pysampler.VectorEnv([Draws] * 3, num_workers=workers, seed_globals=True) as envs:
        ours = results_of(envs)
        envs.action_space.seed(0)
        actions = np.array([envs.action_space.sample() for _ in range(20)])
    for i, seed in enumerate(SEEDS):
        assert np.array_equal(ours[:, i], alone(Draws, seed, actions[:, i]))


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("env", [Draws, pytest.param(DrawsFromTorch, marks=pytest.mark.slow)])
def test_results_do_not_depend_on_other_envs_of_the_worker(env, groups):
    if env.uses_torch:
        pytest.importorskip("torch")
    runs = []
    for workers in (1, 3):
        with pysampler.VectorEnv(
            [env] * 3, num_workers=workers, groups=groups if workers == 1 else 1, seed_globals=True
        ) as envs:
            runs += [results_of(envs), results_of(envs)]
    assert all(np.array_equal(runs[0], one) for one in runs)


def test_the_generators_of_the_program_are_left_alone():
    with begun([Draws] * 3, seed=1, num_workers=0, seed_globals=True) as envs:
        random.seed(7)
        np.random.seed(7)
        theirs = random.Random(7), np.random.RandomState(7)
        for draw in ("normal", "normal", "rand", "normal"):  # normal numbers are made in pairs
            assert getattr(np.random, draw)() == getattr(theirs[1], draw)()
            assert (random.random(), random.gauss()) == (theirs[0].random(), theirs[0].gauss())
            envs.reset(seed=2)
            envs.step(envs.action_space.sample())


@pytest.mark.slow
def test_an_interrupt_leaves_the_program_and_envs_their_own_generators():
    with begun([Draws] * 2, seed=1, num_workers=0, seed_globals=True) as envs:
        random.seed(7)
        np.random.seed(7)
        theirs = random.Random(7), np.random.RandomState(7)

        def check(result, where):
            if result is None:
                envs.step_wait()
            envs.reset(seed=3)
            assert random.random() == theirs[0].random(), where
            assert np.random.normal() == theirs[1].normal(), where
            assert np.random.rand() == theirs[1].rand(), where

        only = "_with_globals", "leave", "_get_random", "_set_random", "_get_numpy", "_set_numpy"
        assert at_each_point(lambda: envs.step([0, 0]), check, only=only) > 30


def test_a_vector_env_that_a_function_returns_counts_as_one_env():
    def several():
        return gym.vector.SyncVectorEnv([Draws] * 2)

    runs = []
    for workers in (1, 2):
        with pysampler.VectorEnv([several] * 2, num_workers=workers, seed_globals=True) as envs:
            runs.append(results_of(envs, seeds=1))
    assert np.array_equal(*runs)


def test_native_and_seed_globals_exclude_each_other():
    with pytest.raises(ValueError, match="native=True, but seed_globals is given"):
        pysampler.VectorEnv([Draws], native=True, seed_globals=True)
