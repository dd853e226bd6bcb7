"""States of ordinary envs, with and without get_state and set_state."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from mujoco_in_tests import CHEETAH, MODES, identical, ordinary, together, walk

import pysampler
from pysampler.errors import EnvError

WAYS = pytest.mark.parametrize(("workers", "groups"), [(0, 1), (0, 3), (2, 2)])


class RolloutRunner(gym.Env):
    """A random walk with get_state and set_state."""

    observation_space = spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.normal()
        self.steps = 0
        return np.array([self.at, self.steps]), {}

    def step(self, action):
        self.at += action * self.np_random.normal()
        self.steps += 1
        return np.array([self.at, self.steps]), self.at, self.steps >= 9, False, {}

    def get_state(self):
        return {"at": self.at, "steps": self.steps, "rng": self.np_random.bit_generator.state}

    def set_state(self, state):
        self.at, self.steps = state["at"], state["steps"]
        self.np_random.bit_generator.state = state["rng"]


@WAYS
@pytest.mark.parametrize("mode", MODES)
def test_ordinary_envs_with_state_methods_restore(mode, workers, groups):
    """The state includes the time limit's count and a pending reset."""
    fns = [lambda: gym.wrappers.TimeLimit(RolloutRunner(), 6)] * 5
    options = {"num_workers": workers, "groups": groups, "autoreset_mode": mode}
    with contextlib.closing(pysampler.VectorEnv(fns, **options)) as envs:
        envs.reset(seed=1)
        actions = [np.full(5, k % 3) for k in range(20)]
        for start in (3, 1, 1, 1):
            walk(envs, actions[:start])
            states = envs.get_state()
            assert states.shape == (5,)
            first = walk(envs, actions)
            envs.reset(seed=7)
            envs.set_state(states)
            identical(walk(envs, actions), first)
        envs.set_state(np.repeat(envs.get_state([4]), 5))
        observations = envs.step(actions[1])[0]
        assert (observations == observations[0]).all()


class GetsOnly(RolloutRunner):
    set_state = None


class Walk(RolloutRunner):
    """Hands out its state itself, and takes states as its own."""

    def step(self, action):
        self.state["at"] += float(action) + 1
        return np.full(2, self.state["at"]), self.state["at"], False, False, {}

    def reset(self, *, seed=None, options=None):
        self.state = {"at": 0.0}
        return np.zeros(2), {}

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "context": "threads"}]
)
def test_envs_share_no_state_with_each_other_or_the_program(options):
    with pysampler.VectorEnv([Walk] * 2, **options) as envs:
        envs.reset()
        states = np.repeat(envs.get_state([0]), 2)
        for _ in range(3):
            envs.set_state(states)
            for step in (1, 2):
                assert envs.step(np.array([0, 1]))[1].tolist() == [step, 2 * step]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make", [GetsOnly, lambda: gym.make("CartPole-v1"), lambda: gym.make(CHEETAH)]
)
def test_ordinary_envs_without_state_methods_raise(make, workers):
    """The ``set_state`` of gymnasium's MuJoCo envs does not count: there is no get_state."""
    with contextlib.closing(
        pysampler.VectorEnv([make] * 2, num_workers=workers, native=False)
    ) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"has no methods get_state\(\) and set_state") as caught:
            envs.get_state()
        assert isinstance(caught.value, AttributeError)
        assert caught.value.env == 0
        envs.step(envs.action_space.sample())


def test_an_error_in_set_state_names_its_env():
    class Refuses(RolloutRunner):
        def set_state(self, state):
            raise RuntimeError("not mine")

    with contextlib.closing(pysampler.VectorEnv([RolloutRunner, Refuses], num_workers=0)) as envs:
        envs.reset(seed=1)
        states = envs.get_state()
        with pytest.raises(EnvError, match="env 1 raised RuntimeError .*: not mine") as caught:
            envs.set_state(states)
        assert caught.value.env == 1


def test_native_states_are_refused_by_ordinary_mujoco_envs():
    with (
        contextlib.closing(together(CHEETAH, 2)) as envs,
        contextlib.closing(ordinary(CHEETAH, 2)) as others,
    ):
        envs.reset()
        others.reset()
        with pytest.raises(EnvError):
            others.set_state(envs.get_state())


def test_states_of_ended_episodes_leave_the_reset_to_the_user_if_disabled():
    fns = [lambda: gym.wrappers.TimeLimit(RolloutRunner(), 3)] * 2
    with (
        pysampler.VectorEnv(fns, num_workers=0) as envs,
        pysampler.VectorEnv(fns, num_workers=0, autoreset_mode="Disabled") as others,
    ):
        for each in (envs, others):
            each.reset(seed=1)
        for _ in range(3):
            envs.step(np.ones(2, int))
        others.set_state(envs.get_state())
        assert others.step(np.ones(2, int))[3].all()
