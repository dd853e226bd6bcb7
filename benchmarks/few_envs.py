"""The default of make_vec with few known envs, beside each choice that a user could make instead.

    python benchmarks/few_envs.py --out benchmarks/results
    python benchmarks/few_envs.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, each in a process of its own.
"""

from __future__ import annotations

import statistics
from typing import Any

import gymnasium as gym
import running
from running import Measure, Options

import pysampler

ENVS = ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "Hopper-v5"]
COUNTS = 1, 4, 8, 16, 64
DEFAULT, SYNC, POOL = "default", "SyncVectorEnv", "EnvPool"
OPTIONS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "num_workers=0": {"num_workers": 0},
    "native=False": {"native": False},
}
NAMES = [*OPTIONS, SYNC, POOL]


def stepping(name: str, env_id: str, count: int, workers: int) -> Measure:
    envs: Any
    if name == POOL:
        import envpool

        envs = envpool.make_gymnasium(env_id, num_envs=count, num_threads=min(workers, count))
        envs.reset()
    else:
        if name == SYNC:
            envs = gym.make_vec(env_id, count, vectorization_mode="sync")
        else:
            envs = pysampler.make_vec(env_id, count, **OPTIONS[name])
        envs.reset(seed=0)
    space = gym.make(env_id).action_space
    space.seed(0)
    batch = gym.vector.utils.batch_space(space, count)
    batch.seed(0)
    dtype = envs.action_space.dtype if name == POOL else batch.dtype
    return running.rate_of_steps(envs, [batch.sample().astype(dtype) for _ in range(64)])


def measure(options: Options) -> dict[str, Any]:
    cases = {
        f"{env_id} x {count}": (env_id, count, options.workers)
        for env_id in options.envs
        for count in options.counts
    }
    return {
        "workers": options.workers,
        "cases": running.rates_of_cases(__file__, cases, NAMES, options),
    }


def report(results: dict[str, Any]) -> list[str]:
    rows = running.ratio_rows(results["cases"], DEFAULT, NAMES[1:], of_base=False)
    for row, rates in zip(rows, results["cases"].values(), strict=True):
        row[1] = f"{statistics.median(rates[DEFAULT]) / 1e3:,.1f}"
    about = (
        f"`pysampler.make_vec(id, n)` on {results['workers']} CPUs, EnvPool with as many threads. "
        "Random actions. The first column is in thousands of env steps per second. The others say "
        "how many times as fast as each contender the default is: medians [quartiles] of slices "
        "in turn.\n"
    )
    header = ["", "1,000 steps/s", *(f"/ {name}" for name in NAMES[1:])]
    return [about, running.table(header, rows)]


if __name__ == "__main__":
    running.study(
        *("Few known envs", measure, report),
        contender=stepping,
        quick={"envs": ["CartPole-v1"], "counts": [4], "repetitions": 2, "seconds": 0.05},
        choices={"envs": ENVS},
        envs=ENVS,
        counts=COUNTS,
        **running.SLICES | {"seconds": 0.15},
    )
