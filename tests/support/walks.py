"""Episodes to evaluate, of very different lengths."""

import os
import signal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pysampler import EpisodeSpec


class Walk(gym.Env):
    """Episodes of 1 to 60 steps by the seed, whose rewards depend on all actions so far.

    Observes (a number of the env's generator, the last action, the options' "bonus").
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, dies=None):
        self.dies = dies  # a file: kill the process in the first step 3 after which it is missing

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(self.np_random.choice([1, 2, 7, 60]))
        self.steps, self.total = 0, 0.0
        self.bonus = float((options or {}).get("bonus", 0))
        return self.observe(0.0), {}

    def observe(self, action):
        return np.array([self.np_random.random(), action, self.bonus])

    def step(self, action):
        self.steps += 1
        assert self.steps <= self.length, "an env without an episode was stepped"
        if self.dies is not None and self.steps == 3 and not self.dies.exists():
            self.dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.total = self.total * 0.9 + float(action[0]) + self.bonus
        over = self.steps == self.length
        info = {"is_success": self.total > 0, "ignored": "text"}
        return self.observe(float(action[0])), self.total, over, False, info


SPECS = [EpisodeSpec()] * 20 + [EpisodeSpec(options={"bonus": i % 3}) for i in range(20)]
SPECS += [EpisodeSpec(seed=5)] * 3 + [EpisodeSpec(seed=5, options={"bonus": 2})]


def results(evaluation):
    return [(one.seed, one.return_, one.length, one.success) for one in evaluation.episodes]
