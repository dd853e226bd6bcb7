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


def reset_if_lost(envs, results, here):
    """If an interrupt has lost envs in a step, reset all; return how many steps each has counted.

    Args:
        envs: The vector env.
        results: The results of the step.
        here: How many envs, the last ones, are in this process. No others may be lost.

    Returns:
        The steps; None if none was lost.
    """
    infos = results[4]
    lost = infos.get("worker_lost", np.zeros(len(results[1]), bool))
    if not lost.any():
        return None
    assert infos.get("env_id", np.arange(envs.num_envs))[lost].min() >= envs.num_envs - here
    while envs.pending:
        envs.recv()
    envs.reset()
    return np.array(envs.get_attr("steps"))


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
