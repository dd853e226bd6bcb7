"""Beside busy programs: how much of a shared machine does a vector env get?

    python benchmarks/neighbours.py --out benchmarks/results

Programs that compute without end run beside the contenders, each in a session of its own, as the
programs of other users do. The contenders of a case step in turn, slice by slice, with the same
actions. "Usual slices" is pysampler with the scheduler's default for all its threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import running
from gymnasium.vector import AutoresetMode
from running import Measure, Options

import pysampler

USUAL, OURS, THREADS, ASYNC, SYNC = NAMES = (
    *("usual slices", "pysampler", "threads", "AsyncVectorEnv", "SyncVectorEnv"),
)
CASES = {"CartPole x 8": ("CartPole-v1", 8), "CartPole x 64": ("CartPole-v1", 64)}
CASES["HalfCheetah x 64"] = ("HalfCheetah-v5", 64)
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def take_usual_slices() -> None:
    """Give all threads of this process and of its descendants the default slice."""
    pids = [os.getpid()]
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, 0, 0, 0)
            ctypes.CDLL(None).syscall(
                _SCHED_SETATTR[os.uname().machine], int(task.name), attributes, 0
            )
            pids += map(int, (task / "children").read_text().split())


def contender(name: str, case: str, workers: int) -> Measure:
    env, count = CASES[case]
    mode = AutoresetMode.SAME_STEP
    envs: Any
    if name in {SYNC, ASYNC}:
        make = [lambda: gym.make(env)] * count
        envs = getattr(gym.vector, name)(make, autoreset_mode=mode)
    else:
        options = {"num_workers": workers, "autoreset_mode": mode}
        options["context"] = "threads" if name == THREADS else None
        envs = pysampler.make_vec(env, count, **options)
    if name == USUAL:
        take_usual_slices()
    return running.rate_of_sampled_steps(envs)


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run programs that compute without a pause beside the block."""
    # They end with this process, however it ends.
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**5))"
    program = [sys.executable, "-c", code]
    busy = [subprocess.Popen(program, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def measure(options: Options) -> dict[str, Any]:
    found: dict[str, dict[int, Any]] = {}
    for case in options.cases:
        found[case] = {}
        for count in options.beside:
            running.say(f"{case} beside {count}")
            with neighbours(count):
                rates = running.rates_in_turn(__file__, NAMES, (case, options.workers), options)
            found[case][count] = rates
    return {"workers": options.workers, "cases": found}


def report(results: dict[str, Any]) -> list[str]:
    rows = []
    for case, beside in results["cases"].items():
        for count, rates in beside.items():
            base = rates[USUAL]
            row = [case, count, f"{statistics.median(base):,.0f}"]
            rows.append(row + [running.multiples(rates[name], base) for name in NAMES[1:]])
    return [
        (
            f"{results['workers']} workers, SAME_STEP. Multiples of pysampler with usual "
            "slices, medians [quartiles] of repetitions in turn.\n"
        ),
        running.table(["envs", "busy programs", f"{USUAL}, steps/s", *NAMES[1:]], rows),
    ]


if __name__ == "__main__":
    running.study(
        *("Beside busy programs", measure, report),
        contender=contender,
        quick={"cases": ["CartPole x 8"], "beside": [2], "repetitions": 2, "seconds": 0.05},
        cases=CASES,
        beside=[0, 2, 8],
        **running.SLICES | {"seconds": 0.7, "repetitions": 9},
    )
