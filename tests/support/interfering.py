"""Envs for the checks whether envs interfere."""

import gymnasium as gym
import numpy as np


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
