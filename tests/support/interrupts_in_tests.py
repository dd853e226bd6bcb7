"""Helpers for tests of interrupts."""

import gc
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import pysampler


@pytest.fixture(autouse=True)
def garbage_goes_with_its_test():
    yield
    gc.collect()


class Counter(gym.Env):
    """Observes its step count; also returns it in infos as text, which may go by mail."""

    observation_space = spaces.Box(-1, 2.0**40, (2,), np.float64)
    action_space = spaces.Discrete(16)

    def __init__(self, number=0, *, talks=True):
        self.number, self.talks = number, talks
        self.steps = self.resets = 0

    def _observe(self):
        return np.array([self.number, self.steps], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        return self._observe(), {"text": f"reset {self.resets}"}

    def step(self, action):
        self.steps += 1
        info = {"text": f"{self.number} {self.steps}"} if self.talks else {}
        return self._observe(), float(self.steps), False, False, info

    def asked(self, question):
        return self.number, question


def counters(count=4, *, talks=True, **kwargs):
    kwargs = {"num_workers": 2, **kwargs}
    fns = [lambda n=n: Counter(n, talks=talks) for n in range(count)]
    return pysampler.VectorEnv(fns, **kwargs)


closing_while_pending = pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting")


# Raises a signal while this process unpickles it. A class, so that it can be pickled.
class Slow:
    def __reduce__(self):
        return unpickled, (os.getpid(),)


def unpickled(pid):
    """Raise a signal while an answer is read."""
    if pid != os.getpid():
        signal.raise_signal(signal.SIGUSR1)
    return Slow()
