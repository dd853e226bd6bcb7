"""A gridworld as a BatchEnv: in NumPy, with a step in numba, and with a step in C.

    python examples/gridworld.py             # checks each, and prints env steps per second
    python examples/gridworld.py --envs 4096

An agent walks to a goal. Walls are where ``WALLS`` is True. An episode ends at the goal, or after
200 steps.
"""

import argparse
import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np

import pysampler
from pysampler.envs import BatchEnv, check_batch_env

try:
    import numba
except ImportError:  # only NumbaGridWorld needs it
    numba = None

# [numpy]
SIZE = 12
WALLS = np.zeros((SIZE, SIZE), bool)
WALLS[4, 2:10] = WALLS[8, 0:6] = True
FREE = np.argwhere(~WALLS)
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


class GridWorld(BatchEnv):
    """The position and the goal of each env are rows of arrays."""

    observation_space = gym.spaces.Box(0, SIZE - 1, (4,), np.int64)
    action_space = gym.spaces.Discrete(4)
    max_episode_steps = 200

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.at = self.rows((2,), np.int64)
        self.goal = self.rows((2,), np.int64)

    def reset(self, ids, rngs):
        drawn = rngs.uniform(0, len(FREE), (2,)).astype(int)
        self.at[ids], self.goal[ids] = FREE[drawn[:, 0]], FREE[drawn[:, 1]]

    def step(self, ids, actions):
        before = self.at[ids]
        after = np.clip(before + MOVES[actions], 0, SIZE - 1)
        blocked = WALLS[after[:, 0], after[:, 1]]
        after[blocked] = before[blocked]
        self.at[ids] = after
        reached = (after == self.goal[ids]).all(axis=1)
        return np.where(reached, 1.0, -0.01), reached

    def observe(self, ids):
        return np.concatenate((self.at[ids], self.goal[ids]), axis=1)


# [numba]
def _loop(at, goal, ids, actions, moves, walls, rewards, reached):
    for n in range(len(ids)):
        i, size = ids[n], len(walls)
        x = min(max(at[i, 0] + moves[actions[n], 0], 0), size - 1)
        y = min(max(at[i, 1] + moves[actions[n], 1], 0), size - 1)
        if not walls[x, y]:
            at[i, 0], at[i, 1] = x, y
        reached[n] = at[i, 0] == goal[i, 0] and at[i, 1] == goal[i, 1]
        rewards[n] = 1.0 if reached[n] else -0.01


class NumbaGridWorld(GridWorld):
    """A loop over the envs, compiled: no arrays for the results of single operations."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.loop = numba.njit(_loop)
        self.all = np.arange(num_envs, dtype=np.int32)

    def step(self, ids, actions):
        rows = self.all[ids]
        rewards, reached = np.empty(len(rows)), np.empty(len(rows), bool)
        self.loop(self.at, self.goal, rows, actions, MOVES, WALLS, rewards, reached)
        return rewards, reached


# [c]
SOURCE = """
#include <stdint.h>

static int64_t within(int64_t x, int64_t size) { return x < 0 ? 0 : x < size ? x : size - 1; }

void step(int64_t (*at)[2], const int64_t (*goal)[2], const int32_t *ids, int64_t count,
          const int64_t *actions, const int64_t (*moves)[2], const uint8_t *walls, int64_t size,
          double *rewards, uint8_t *reached) {
    for (int64_t n = 0; n < count; ++n) {
        int64_t *own = at[ids[n]];
        const int64_t *its_goal = goal[ids[n]];
        const int64_t x = within(own[0] + moves[actions[n]][0], size);
        const int64_t y = within(own[1] + moves[actions[n]][1], size);
        if (!walls[x * size + y]) { own[0] = x; own[1] = y; }
        reached[n] = own[0] == its_goal[0] && own[1] == its_goal[1];
        rewards[n] = reached[n] ? 1.0 : -0.01;
    }
}
"""


def compiled(source):
    """Compile C, and return the library."""
    folder = Path(tempfile.mkdtemp())
    (folder / "step.c").write_text(source)
    command = [
        "cc",
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "step.so"),
        str(folder / "step.c"),
    ]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "step.so"))


class CGridWorld(GridWorld):
    """The same loop in C, called by ctypes with the addresses of the arrays."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.library = compiled(SOURCE)  # in the worker: it need not be pickled
        self.all = np.arange(num_envs, dtype=np.int32)

    def step(self, ids, actions):
        rows = self.all[ids]
        actions = actions.astype(np.int64, copy=False)
        rewards, reached = np.empty(len(rows)), np.empty(len(rows), bool)
        arrays = self.at, self.goal, rows, actions, MOVES, WALLS, rewards, reached
        at, goal, rows_at, *others = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
        actions_at, moves, walls, *results = others
        count, size = ctypes.c_int64(len(rows)), ctypes.c_int64(SIZE)
        self.library.step(at, goal, rows_at, count, actions_at, moves, walls, size, *results)
        return rewards, reached


# [end]
class OneGridWorld(gym.Env):
    """The same as an ordinary env, for comparison."""

    observation_space = GridWorld.observation_space
    action_space = GridWorld.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.goal = FREE[self.np_random.uniform(0, len(FREE), 2).astype(int)]
        return np.concatenate((self.at, self.goal)), {}

    def step(self, action):
        after = np.clip(self.at + MOVES[action], 0, SIZE - 1)
        if not WALLS[after[0], after[1]]:
            self.at = after
        reached = bool((self.at == self.goal).all())
        observation = np.concatenate((self.at, self.goal))
        return observation, 1.0 if reached else -0.01, reached, False, {}


def one_grid_world():
    return gym.wrappers.TimeLimit(OneGridWorld(), GridWorld.max_episode_steps)


def rate(make, count, seconds=1.0):
    """Return the env steps per second of a vector env."""
    with make(count) as envs:
        envs.reset(seed=1)
        actions = np.random.default_rng(1).integers(0, 4, (64, count))
        for one in actions:
            envs.step(one)
        steps, begun = 0, time.perf_counter()
        while (took := time.perf_counter() - begun) < seconds:
            envs.step(actions[steps % 64])
            steps += 1
    return steps * count / took


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    kinds = [GridWorld, *([NumbaGridWorld] if numba else []), CGridWorld]
    makers = {"one by one": lambda n: pysampler.VectorEnv([one_grid_world] * n, **workers)}
    workers = {"num_workers": options.workers}
    for kind in kinds:
        check_batch_env(kind)
        makers[kind.__name__] = lambda n, kind=kind: pysampler.make_vec(kind, n, **workers)
    for name, make in makers.items():
        print(f"{name:<16}{rate(make, options.envs, options.seconds):>14,.0f} env steps/s")


if __name__ == "__main__":
    main()
