"""What a vector env costs besides its steps: time to start, and memory.

Each figure is measured in a new interpreter, in turn with the others.
"""

from __future__ import annotations

import statistics
from typing import Any

from running import in_interpreter, in_turn

ENVS = 64

START = """
import json, sys, time
import gymnasium as gym
make = [lambda: gym.make("HalfCheetah-v5")] * {envs}
begun = time.perf_counter()
{first}
envs.reset(seed=0)
first = time.perf_counter() - begun
envs.close()
begun = time.perf_counter()
{second}
second = time.perf_counter() - begun
print(json.dumps([first, second]))
"""
OURS = "import pysampler; envs = pysampler.VectorEnv(make)"
THEIRS = 'envs = gym.vector.AsyncVectorEnv(make, context="fork")'
ALONE = """
import multiprocessing
def work(): [m() for m in make[::2]]
gym.make("HalfCheetah-v5")
begun = time.perf_counter()
both = [multiprocessing.get_context("fork").Process(target=work) for _ in range(2)]
[p.start() for p in both]
[p.join() for p in both]
"""

GROWTH = """
import json, psutil
import numpy as np, gymnasium as gym, pysampler
me = psutil.Process()
envs = pysampler.VectorEnv([lambda: gym.make("CartPole-v1")] * 64, num_workers=2)
envs.reset(seed=0)
actions = envs.action_space.sample()
def memory():
    return [psutil.Process(p).memory_info().rss for p in (me.pid, *envs._pool.pids)]
for _ in range(500):
    envs.step(actions)
before = memory()
for _ in range({rounds}):
    envs.step(actions)
print(json.dumps([(b - a) / 1024 for a, b in zip(before, memory())]))
"""


def measure(repetitions: int = 5, steps: int = 1_000_000) -> dict[str, Any]:
    """Return the seconds to start 64 HalfCheetahs, and the growth in KiB over a million steps."""
    programs = {
        "gymnasium AsyncVectorEnv, fork": START.format(envs=ENVS, first=THEIRS, second=THEIRS),
        "pysampler": START.format(envs=ENVS, first=OURS, second=OURS),
        "making the envs alone, in two processes": START.format(
            envs=ENVS, first=THEIRS, second=ALONE
        ),
    }
    taken = in_turn(
        programs, range(repetitions), lambda name, _: in_interpreter("-c", programs[name])
    )
    alone = "making the envs alone, in two processes"
    return {
        "start": {
            name: [statistics.median(column) for column in zip(*rows, strict=True)]
            for name, rows in taken.items()
            if name != alone
        },
        "making_alone": statistics.median(row[1] for row in taken[alone]),
        "growth_KiB": in_interpreter("-c", GROWTH.format(rounds=steps // 64)),
    }
