"""Envs for the checks whether envs interfere, and ``check``, which makes one."""

import itertools

import gymnasium as gym
import numpy as np

from pysampler._vector.isolation.check import check_envs

SETTINGS = {"gravity": 9.8}
numbers = itertools.count()


def check(env_fn, **options):
    """Check in forks of this process, which start at once."""
    return check_envs([env_fn], **{"steps": 20, "context": "fork", **options})[0]


class Plain(gym.Env):
    """Its observations follow from its seed and actions; subclasses spoil that."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(5)  # of all envs
    render_mode = None
    metadata = {"render_modes": ["rgb_array", "human"]}  # noqa: RUF012

    def __init__(self):
        self.position = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.random()
        self.begin()
        return self.observation(), self.info()

    def step(self, action):
        self.position += action * self.np_random.random()
        self.act()
        return self.observation(), float(self.position), self.position > 40, False, self.info()

    def begin(self):
        pass

    def act(self):
        pass

    def info(self):
        return {}

    def observation(self):
        return np.array([self.position, 0.0])


class ResetByClose(Plain):
    open = True

    def observation(self):
        return np.array([self.position, type(self).open])

    def close(self):
        type(self).open = False


class Draws(Plain):
    def observation(self):
        return np.array([self.position, np.random.random()])


class ReadsGlobals(Plain):
    def observation(self):
        return np.array([SETTINGS["gravity"], 0.0])

    def act(self):
        SETTINGS["gravity"] += 1


class Numbered(Plain):
    def __init__(self):
        super().__init__()
        self.number = next(numbers)

    def observation(self):
        return np.array([self.position, self.number])
