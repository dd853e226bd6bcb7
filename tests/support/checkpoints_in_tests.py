"""Helpers for tests of checkpoints."""

import numpy as np

from pysampler import ReplayBuffer


class Holder:
    """An object with a state_dict."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def make_replay(count=20, capacity=16):
    like = {"x": np.zeros(3, np.float32), "next_x": np.zeros(3, np.float32)}
    replay = ReplayBuffer(capacity, like, seed=5)
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    none = np.zeros(count)
    replay.add(
        {"x": x, "next_x": x + 1}, rewards=x[:, 0], terminated=none, truncated=none, env=none
    )
    return replay


def names(directory):
    return sorted(path.name for path in directory.iterdir())
