"""What more envs and more workers cost: the parent's part of a step, the start, memory.

Each figure is measured in an interpreter of its own, in turn with the others. Workers and parent
park, so that the CPU time of the parent is work, and none of it waiting.

    python benchmarks/many_envs.py --out benchmarks/results
"""

from __future__ import annotations

import gc
import json
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from cliffs import Env
from running import Options, in_interpreter, say, spread, study, table

import pysampler

SECONDS = 0.5  # of steps for one figure
# Envs and workers of the parent's part of a step.
STEPS = [(64, 2), (1024, 2), (8192, 2), (1024, 1), (1024, 4), (1024, 16), (1024, 64), (8192, 64)]
ASYNC = "gymnasium AsyncVectorEnv"
STARTS: list[tuple[str, int, int | None]] = [
    ("CartPole-v1", 8, None),
    ("CartPole-v1", 64, None),
    ("HalfCheetah-v5", 64, None),
    ("CartPole-v1", 1024, 2),
    ("CartPole-v1", 8192, 2),
    ("CartPole-v1", 64, 64),
    ("CartPole-v1", 256, 256),
    ("HalfCheetah-v5", 64, 64),
]


def step(envs: int, workers: int) -> tuple[float, float]:
    """Return the CPU time of the parent for a step of all envs, in us, user's and system's."""
    vector = pysampler.VectorEnv([Env] * envs, num_workers=workers, wait="park")
    vector.reset(seed=0)
    actions = np.zeros(envs, np.int64)
    for _ in range(10):
        vector.step(actions)
    rounds, end = 0, time.perf_counter() + SECONDS
    before = resource.getrusage(resource.RUSAGE_THREAD)
    while time.perf_counter() < end:
        vector.step(actions)
        rounds += 1
    after = resource.getrusage(resource.RUSAGE_THREAD)
    vector.close()
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return user / rounds * 1e6, system / rounds * 1e6


def start(env: str, envs: int, workers: int | None, kind: str) -> list[float]:
    """Return the seconds to start and reset envs: the first in a program, and the second.

    The first counts from the use of ``pysampler.VectorEnv``, which imports its modules.
    """
    env_fns = [lambda: gym.make(env)] * envs
    taken = []
    for _ in range(2):
        begun = time.perf_counter()
        vector: Any
        if kind == "pysampler":
            vector = pysampler.VectorEnv(env_fns, num_workers=workers)
        else:
            vector = gym.vector.AsyncVectorEnv(env_fns, context="fork")
        vector.reset(seed=0)
        taken.append(time.perf_counter() - begun)
        vector.close()
    return taken


def memory(envs: int, workers: int) -> float:
    """Return the memory of CartPoles that have stepped, in MB; without workers, of a list."""
    if workers == 0:
        plain = [gym.make("CartPole-v1") for _ in range(envs)]
        for env in plain:
            env.reset(seed=0)
            env.step(0)
        gc.collect()
        return proportional_size([os.getpid()])
    vector = pysampler.VectorEnv([lambda: gym.make("CartPole-v1")] * envs, num_workers=workers)
    vector.reset(seed=0)
    vector.step(np.zeros(envs, np.int64))
    gc.collect()
    taken = proportional_size([os.getpid(), *vector._pool.pids])
    vector.close()
    return taken


def proportional_size(pids: Iterable[int]) -> float:
    """Return the memory of processes, in MB; pages that several share count in parts."""
    rolled = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
    return sum(int(x.split()[1]) for lines in rolled for x in lines if x.startswith("Pss:")) / 1e3


def measure(options: Options) -> dict[str, Any]:
    cells: dict[str, list[tuple[Any, ...]]] = {
        "step": [*STEPS],
        "start": [
            *((*case, "pysampler") for case in STARTS),
            *((*case, ASYNC) for case in [*STARTS[:3], ("CartPole-v1", 256, 256)]),
        ],
        "memory": [(1024, 0), (8192, 0), (1024, 2), (8192, 2), (64, 2), (64, 64)],
    }
    taken: dict[str, dict[str, list[Any]]] = {name: {} for name in cells}
    for repetition in range(options.repetitions):
        for name, of_name in cells.items():
            for cell in of_name:
                say(f"{repetition + 1}/{options.repetitions}: {name} {cell}")
                figure = in_interpreter(__file__, name, *cell)
                taken[name].setdefault(json.dumps(cell), []).append(figure)
    return {"taken": taken}


def report(results: dict[str, Any]) -> list[str]:
    taken = results["taken"]
    rows = []
    for key, values in taken["step"].items():
        envs, workers = json.loads(key)
        user, system = ([value[i] for value in values] for i in range(2))
        both = [sum(value) for value in values]
        each = [1e3 * value / envs for value in both]
        numbers = [spread(column, 1) for column in (both, user, system, each)]
        rows.append([f"{envs:,}", str(workers), *numbers])
    header = ["envs", "workers", "us a step", "of this user", "system", "ns an env step"]
    parts = ["Median [least, most] of interpreters in turn.\n"]
    parts.append(
        "## The parent's part of a step\n\nIts CPU time, with envs that do next to nothing and "
        "workers that park. Of many workers that sleep it wakes four, which wake the others.\n"
    )
    parts += [table(header, rows), "## Starting, and the first reset, s\n"]
    rows = []
    for key, values in taken["start"].items():
        env, envs, workers, kind = json.loads(key)
        firsts, seconds = ([value[i] for value in values] for i in range(2))
        chosen = envs if kind == ASYNC else workers
        shown = "default" if chosen is None else str(chosen)
        rows.append([f"{envs:,} {env}", shown, kind, spread(firsts), spread(seconds)])
    parts.append(table(["", "workers", "", "the first in a program", "the second"], rows))
    sizes = {tuple(json.loads(key)): values for key, values in taken["memory"].items()}

    def growth(more: tuple[int, int], less: tuple[int, int], per: int) -> str:
        pairs = zip(sizes[more], sizes[less], strict=True)
        return spread([1e3 * (a - b) / per for a, b in pairs], 1)

    own, ours = (growth((8192, w), (1024, w), 8192 - 1024) for w in (0, 2))
    rows = [
        ["a CartPole-v1 in a list", own],
        ["a CartPole-v1 in a vector env, with its rows and counters", ours],
        ["a worker, with an env", growth((64, 64), (64, 2), 62)],
    ]
    about = "Proportional set sizes of the parent and its workers, as growth from fewer to more."
    return [*parts, f"## Memory\n\n{about}\n", table(["", "KB"], rows)]


if __name__ == "__main__":
    figures = {"step": step, "start": start, "memory": memory}
    study("Many envs, many workers", measure, report, figures=figures, repetitions=3)
