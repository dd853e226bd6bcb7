"""How long a step takes after the program has computed: a policy's time between two steps.

    python benchmarks/thinking.py --out benchmarks/results

Other benchmarks call `step()` again at once. A program with a policy does not: its workers wait
meanwhile, asleep or awake, and there are more processes than CPUs that could work.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import running
from envs import CASES, spin
from running import Measure, Options

OURS, SYNC = "pysampler", "gymnasium SyncVectorEnv"
SHARED, ASYNC = 'pysampler, main_envs="auto"', "gymnasium AsyncVectorEnv"
NAMES = [OURS, SHARED, SYNC, ASYNC]
ROWS = ["CartPole-v1, 64", "HalfCheetah-v5, 8", "HalfCheetah-v5, 64"]
THINKING = [0.0, 0.1, 0.3, 1.0, 3.0]  # ms


def contender(name: str, case: str, workers: int) -> Measure:
    """Prepare a vector env; answers how long its steps take after some computing, in us."""
    import gymnasium as gym

    import pysampler

    make = [CASES[case].make] * CASES[case].envs
    kinds: dict[str, Any] = {
        OURS: functools.partial(pysampler.VectorEnv, num_workers=workers, native=False),
        SHARED: functools.partial(
            pysampler.VectorEnv, num_workers=workers - 1, main_envs="auto", native=False
        ),
        SYNC: gym.vector.SyncVectorEnv,
        ASYNC: gym.vector.AsyncVectorEnv,
    }
    envs = kinds[name](make)
    envs.reset(seed=0)
    actions = envs.action_space.sample()

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        steps, until = [], time.perf_counter() + cell["seconds"]
        while time.perf_counter() < until or len(steps) < 20:
            spin(cell["thinking"] * 1e3)
            began = time.perf_counter()
            envs.step(actions)
            steps.append((time.perf_counter() - began) * 1e6)
        learned = steps[len(steps) // 4 :]  # by waits that know how long they usually last
        return {"us": statistics.median(learned)}

    return measure


def measure(options: Options) -> dict[str, Any]:
    cases = []
    for case in ROWS:
        arguments = {name: (name, case, options.workers) for name in NAMES}
        with running.started(__file__, arguments) as contenders:
            for thinking in THINKING:
                running.say(f"{case}, {thinking} ms")
                cell = {"thinking": thinking, "seconds": options.seconds}
                found = running.answers_in_turn(contenders, options.repetitions, **cell)
                us = {name: [one["us"] for one in answers] for name, answers in found.items()}
                cases.append({"case": case, "thinking": thinking, "us": us})
    return {"workers": options.workers, "cases": cases}


def report(results: dict[str, Any]) -> list[str]:
    def times(name: str) -> Any:
        return lambda row: running.multiples(row["us"][name], row["us"][OURS])

    return [
        (
            f"{results['workers']} workers. Between two steps the program computes for a time, as "
            "a policy does; only the step is measured. The columns on the right say how many times "
            "as long it takes: medians [quartiles] of slices in turn.\n"
        ),
        running.columns(
            results["cases"],
            {
                "envs": lambda row: row["case"],
                "between, ms": lambda row: f"{row['thinking']:g}",
                "pysampler, us": lambda row: f"{statistics.median(row['us'][OURS]):,.0f}",
                **{name: times(name) for name in NAMES[1:]},
            },
        ),
    ]


if __name__ == "__main__":
    running.study(
        *("Steps after a policy", measure, report),
        contender=contender,
        quick={"repetitions": 1, "seconds": 0.05},
        workers=2,
        repetitions=9,
        seconds=0.4,
    )
