"""Threads instead of processes: VectorEnv(context="threads") beside processes and SyncVectorEnv.

    python benchmarks/threads.py --out benchmarks/results
    build/python-nogil/venv/bin/python benchmarks/threads.py --out benchmarks/results

The contenders of a case step in turn, slice by slice, with the same actions. Run it with each
Python whose threads are of interest: the results are named after it. "Apart" are processes that
step their share of the envs one by one and never communicate: the ideal. Cases whose library this
Python lacks are left out. Then the start of many envs is timed, and the memory of envs that all
read one table is measured.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
import running
from envs import Busy
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from running import Measure, Options

import pysampler

APART, SYNC, PROCESSES, THREADS = NAMES = "apart", "SyncVectorEnv", "processes", "threads"
KEYS = 10
LOCKED = getattr(sys, "_is_gil_enabled", lambda: True)()
PYTHON = (
    f"Python {sys.version_info[0]}.{sys.version_info[1]} {'with' if LOCKED else 'without'} its lock"
)


class ManyInfos(Busy):
    """Computes for 20 us, and returns ten numbers in its info."""

    def __init__(self) -> None:
        super().__init__(20)

    def step(self, action: Any) -> Any:
        *results, _ = super().step(action)
        return *results, {f"number {i}": float(i) for i in range(KEYS)}


class Reads(gym.Env):
    """Reads a whole table in each step."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        return np.array([self.table.sum()]), 0.0, False, False, {}


def atari(count: int, threads: int) -> Any:
    """Return ALE's own vector env, which steps its envs in C++."""
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        "breakout", count, num_threads=threads, autoreset_mode=AutoresetMode.SAME_STEP
    )


class Case(NamedTuple):
    """Envs to step.

    Attributes:
        make: Makes an env; with ``batch``, a vector env of so many envs on so many threads.
        count: How many envs.
        module: The module that they need.
        native: The id of envs that blocks step together: in threads only those of ``make_vec``.
        batch: Whether ``make`` returns vector envs: each worker has one.
    """

    make: Callable[..., Any]
    count: int
    module: str = ""
    native: str = ""
    batch: bool = False


CASES: dict[str, Case] = {
    "CartPole x 8": Case(lambda: gym.make("CartPole-v1"), 8),
    "CartPole x 64": Case(lambda: gym.make("CartPole-v1"), 64),
    "20 us x 64": Case(lambda: Busy(20), 64),
    "ten infos x 64": Case(ManyInfos, 64),
    "HalfCheetah in Python x 8": Case(lambda: gym.make("HalfCheetah-v5"), 8, "mujoco"),
    "HalfCheetah x 8": Case(lambda: gym.make("HalfCheetah-v5"), 8, "mujoco", "HalfCheetah-v5"),
    "HalfCheetah x 64": Case(lambda: gym.make("HalfCheetah-v5"), 64, "mujoco", "HalfCheetah-v5"),
    "AtariVectorEnv x 8": Case(atari, 8, "ale_py", batch=True),
    "AtariVectorEnv x 64": Case(atari, 64, "ale_py", batch=True),
}
READ_BY_EACH = "processes, the table read in each"
READERS = 8  # envs that read a table, with a worker each


def alone(case: str, count: int) -> Measure:
    """Return a function that steps envs of this process."""
    make, _, _, native, batch = CASES[case]
    if batch:
        return running.rate_of_sampled_steps(make(count, 1))
    if native:
        return running.rate_of_sampled_steps(pysampler.make_vec(native, count, num_workers=0))
    return running.rate_of_single_envs([make() for _ in range(count)])


def contender(name: str, case: str, workers: int) -> Measure:
    make, count, _, native, batch = CASES[case]
    if name == APART:
        return running.apart(alone, workers, case, count // workers)
    mode = AutoresetMode.SAME_STEP
    if name == SYNC and batch:
        return running.rate_of_sampled_steps(make(count, workers))
    if name == SYNC:
        return running.rate_of_sampled_steps(SyncVectorEnv([make] * count, autoreset_mode=mode))
    context = "threads" if name == THREADS else None
    options = {"num_workers": workers, "autoreset_mode": mode, "context": context}
    if native:
        return running.rate_of_sampled_steps(pysampler.make_vec(native, count, **options))
    made = [functools.partial(make, count // workers, 1)] * workers if batch else [make] * count
    return running.rate_of_sampled_steps(pysampler.VectorEnv(made, native=False, **options))


def start_of(context: str, count: int) -> float:
    """Return the seconds to make a vector env of CartPoles, which the program does once more."""
    make = CASES["CartPole x 8"].make
    for _ in range(2):
        begun = time.perf_counter()
        envs = pysampler.VectorEnv([make] * count, num_workers=count, context=context, native=False)
        took = time.perf_counter() - begun
        envs.close()
    return took


def memory_of(way: str, megabytes: int) -> float:
    """Return the memory of a program and its workers in MB, each shared page counted once."""
    read = functools.partial(np.ones, megabytes * 125_000)
    table = None if way == READ_BY_EACH else read()
    envs = pysampler.VectorEnv(
        [lambda: Reads(read() if table is None else table)] * READERS,
        num_workers=READERS,
        context="threads" if way == THREADS else "forkserver",
    )
    envs.reset(seed=0)
    envs.step(np.zeros(READERS, int))
    me = psutil.Process()
    used = sum(one.memory_full_info().pss for one in (me, *me.children(recursive=True)))
    envs.close()
    return used / 1e6


def measure(options: Options) -> dict[str, Any]:
    cases = {
        case: (case, options.workers)
        for case in options.cases
        if not CASES[case].module or importlib.util.find_spec(CASES[case].module)
    }
    results = {
        "python": PYTHON,
        "workers": options.workers,
        "cases": running.rates_of_cases(__file__, cases, NAMES, options),
        "table": 10 if options.quick else 50,
    }
    contexts = {PROCESSES: "forkserver", THREADS: "threads"}
    starts: dict[str, list[float]] = {name: [] for name in contexts}
    for _ in range(min(5, options.repetitions)):
        for name, context in contexts.items():
            starts[name].append(running.in_interpreter(__file__, "start", context, 64))
    memory = {
        way: [
            running.in_interpreter(__file__, "memory", way, size) for size in (0, results["table"])
        ]
        for way in (READ_BY_EACH, PROCESSES, THREADS)
    }
    return {**results, "starts": starts, "memory": memory}


def report(results: dict[str, Any]) -> list[str]:
    cases = results["cases"]
    rows = running.ratio_rows(cases, APART, [SYNC, PROCESSES, THREADS], of_base=True)
    for row, rates in zip(rows, cases.values(), strict=True):
        row.append(running.multiples(rates[THREADS], rates[PROCESSES]))
    starts = [
        [context, f"{1000 * statistics.median(seconds):,.0f} ms"]
        for context, seconds in results["starts"].items()
    ]
    size = results["table"]
    memory = []
    for way, (without, with_table) in results["memory"].items():
        copies = (with_table - without) / size
        of_64 = 64 if way == READ_BY_EACH else round(copies)
        memory.append([way, f"{with_table - without:,.0f} MB", f"{copies:.1f}", f"{of_64 / 2} GB"])
    return [
        (
            f"{results['workers']} workers, SAME_STEP. Fractions of the ideal, processes that "
            "step their share of the envs and never communicate: medians [quartiles] of "
            "repetitions in turn. AtariVectorEnv in the place of SyncVectorEnv has as many "
            "threads of its own as there are workers.\n"
        ),
        running.table(
            ["envs", "ideal, steps/s", SYNC, PROCESSES, THREADS, "threads/processes"], rows
        ),
        "\nThe start of 64 CartPoles with a worker each, the second time in a program:\n",
        running.table(["workers", "start"], starts),
        (
            f"\nMemory of a table of {size} MB that {READERS} envs with a worker each read, "
            "beyond that of the same envs without it (PSS of all processes), and what this "
            "means for 64 envs and a table of 500 MB. Processes map a table in env_fns:\n"
        ),
        running.table(["workers", "memory", "tables", "64 envs, 500 MB"], memory),
    ]


if __name__ == "__main__":
    running.study(
        *(f"Threads, {PYTHON}", measure, report),
        file=f"threads-{'gil' if LOCKED else 'nogil'}",
        contender=contender,
        figures={"start": start_of, "memory": memory_of},
        quick={"cases": ["CartPole x 8", "AtariVectorEnv x 8"], "repetitions": 2, "seconds": 0.05},
        cases=CASES,
        **running.SLICES,
    )
