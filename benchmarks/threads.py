"""Threads instead of processes: VectorEnv(context="threads") beside processes and SyncVectorEnv.

    python benchmarks/threads.py --out benchmarks/results
    build/python-nogil/venv/bin/python benchmarks/threads.py --out benchmarks/results

The contenders of a case step in turn, slice by slice, with the same actions. Run it with each
Python whose threads are of interest: the results are named after it. "Apart" are processes that
step their share of the envs one by one and never communicate: the ideal. Cases whose library this
Python lacks are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from envs import Busy
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from running import (
    answer,
    apart,
    heading,
    in_interpreter,
    machine,
    options_of,
    quartiles,
    rate_of_single_envs,
    rate_of_steps,
    rates_in_turn,
    say,
    stolen_share,
    table,
    write,
)

import pysampler

if TYPE_CHECKING:
    from collections.abc import Callable

APART, SYNC, PROCESSES, THREADS = NAMES = "apart", "SyncVectorEnv", "processes", "threads"
KEYS = 10


class ManyInfos(Busy):
    """Computes for 20 us, and returns ten numbers in its info."""

    def __init__(self) -> None:
        super().__init__(20)

    def step(self, action: Any) -> Any:
        *results, _ = super().step(action)
        return *results, {f"number {i}": float(i) for i in range(KEYS)}


# The envs, how many, the module that they need, and whether blocks may step them together.
CASES: dict[str, tuple[Callable[[], gym.Env], int, str, bool]] = {
    "CartPole x 8": (lambda: gym.make("CartPole-v1"), 8, "", False),
    "CartPole x 64": (lambda: gym.make("CartPole-v1"), 64, "", False),
    "20 us x 64": (lambda: Busy(20), 64, "", False),
    "ten infos x 64": (ManyInfos, 64, "", False),
    "HalfCheetah in Python x 8": (lambda: gym.make("HalfCheetah-v5"), 8, "mujoco", False),
    "HalfCheetah x 8": (lambda: gym.make("HalfCheetah-v5"), 8, "mujoco", True),
    "HalfCheetah x 64": (lambda: gym.make("HalfCheetah-v5"), 64, "mujoco", True),
}


def alone(case: str, count: int) -> Callable[[dict], dict]:
    """Return a function that steps envs of this process."""
    make = CASES[case][0]
    if CASES[case][3]:
        envs = pysampler.VectorEnv([make] * count, num_workers=0)
        return stepping_of(envs)
    return rate_of_single_envs([make() for _ in range(count)])


def stepping_of(envs: Any) -> Callable[[dict], dict]:
    envs.reset(seed=0)
    envs.action_space.seed(0)
    return rate_of_steps(envs, [envs.action_space.sample() for _ in range(64)])


def contender(name: str, case: str, workers: int) -> Callable[[dict], dict]:
    make, count, _, native = CASES[case]
    if name == APART:
        return apart(alone, workers, case, count // workers)
    mode = AutoresetMode.SAME_STEP
    if name == SYNC:
        return stepping_of(SyncVectorEnv([make] * count, autoreset_mode=mode))
    return stepping_of(
        pysampler.VectorEnv(
            [make] * count,
            num_workers=workers,
            autoreset_mode=mode,
            context="threads" if name == THREADS else None,
            native="auto" if native else False,
        )
    )


def start_of(context: str, count: int) -> float:
    """Return the seconds to make a vector env of CartPoles, which the program does once more."""
    make = CASES["CartPole x 8"][0]
    for _ in range(2):
        begun = time.perf_counter()
        envs = pysampler.VectorEnv([make] * count, num_workers=count, context=context, native=False)
        took = time.perf_counter() - begun
        envs.close()
    return took


def tables(results: dict[str, Any]) -> str:
    rows = []
    for case, rates in results["cases"].items():
        ideal = rates[APART]
        row = [case, f"{statistics.median(ideal):,.0f}"]
        row += [
            quartiles([a / b for a, b in zip(rates[name], ideal, strict=False)])
            for name in (SYNC, PROCESSES, THREADS)
        ]
        pairs = zip(rates[THREADS], rates[PROCESSES], strict=False)
        row.append(quartiles([a / b for a, b in pairs]))
        rows.append(row)
    starts = [
        [context, f"{1000 * statistics.median(seconds):,.0f} ms"]
        for context, seconds in results["starts"].items()
    ]
    return "\n".join(
        [
            heading(f"Threads, {results['python']}", results["machine"]),
            (
                f"{results['workers']} workers, SAME_STEP. Fractions of the ideal, processes that "
                "step their share of the envs and never communicate: medians [quartiles] of "
                "repetitions in turn.\n"
            ),
            table(["envs", "ideal, steps/s", SYNC, PROCESSES, THREADS, "threads/processes"], rows),
            "\nThe start of 64 CartPoles with a worker each, the second time in a program:\n",
            table(["workers", "start"], starts),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = options_of(parser, 0.3)
    if options.quick:
        options.cases, options.repetitions, options.seconds = ["CartPole x 8"], 2, 0.05
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    version = ".".join(map(str, sys.version_info[:2]))
    results: dict[str, Any] = {
        "machine": machine(),
        "python": f"Python {version} {'with' if locked else 'without'} its lock",
        "workers": options.workers,
        "cases": {},
        "starts": {"processes": [], "threads": []},
    }
    with stolen_share(results["machine"]):
        for case in options.cases:
            if not CASES[case][2] or importlib.util.find_spec(CASES[case][2]):
                say(case)
                arguments = case, options.workers
                rates = rates_in_turn(__file__, list(NAMES), arguments, options)
                results["cases"][case] = rates
        for _ in range(min(5, options.repetitions)):
            for name, context in (("processes", "forkserver"), ("threads", "threads")):
                results["starts"][name].append(in_interpreter(__file__, "start", context))
    text = tables(results)
    print(text)
    if options.out:
        write(options.out, f"threads-{'gil' if locked else 'nogil'}", results, text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["start"]:
        print(start_of(sys.argv[2], 64))
    elif len(sys.argv) == 4 and not sys.argv[1].startswith("--"):
        answer(lambda: contender(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    else:
        main()
