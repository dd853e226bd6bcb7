"""The default of make_vec with few known envs, beside each choice that a user could make instead.

    python benchmarks/few_envs.py --out benchmarks/results
    python benchmarks/few_envs.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, each in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from running import (
    answer,
    heading,
    machine,
    options_of,
    publish,
    quartiles,
    rate_of_steps,
    rates_in_turn,
    say,
    stolen_share,
    table,
)

import pysampler

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS = {  # with their ids in EnvPool
    "CartPole-v1": "CartPole-v1",
    "Pendulum-v1": "Pendulum-v1",
    "HalfCheetah-v5": "HalfCheetah-v5",
    "Hopper-v5": "Hopper-v5",
}
COUNTS = 1, 4, 8, 16, 64
DEFAULT, SYNC, POOL = "default", "SyncVectorEnv", "EnvPool"
OPTIONS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "num_workers=0": {"num_workers": 0},
    "native=False": {"native": False},
}
NAMES = [*OPTIONS, SYNC, POOL]


def stepping(name: str, env_id: str, count: int, workers: int) -> Callable[[dict], dict]:
    envs: Any
    if name == POOL:
        import envpool

        envs = envpool.make_gymnasium(ENVS[env_id], num_envs=count, num_threads=min(workers, count))
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
    return rate_of_steps(envs, [batch.sample().astype(dtype) for _ in range(64)])


def measure(env_id: str, count: int, options: argparse.Namespace) -> dict[str, Any]:
    rates = rates_in_turn(__file__, NAMES, (env_id, count, options.workers), options)
    return {"env": env_id, "envs": count, "rates": rates}


def tables(results: dict[str, Any]) -> str:
    parts = [
        heading("Few known envs", results["machine"]),
        (
            f"`pysampler.make_vec(id, n)` on {results['workers']} CPUs, EnvPool with as many "
            "threads. Random actions. The first column is in thousands of env steps per second. "
            "The others say how many times as fast as each contender the default is: medians "
            "[quartiles] of slices in turn.\n"
        ),
    ]
    rows = []
    for case in results["cases"]:
        ours = case["rates"][DEFAULT]
        cells = [f"{statistics.median(ours) / 1e3:,.1f}"]
        for name in NAMES[1:]:
            rates = case["rates"].get(name, [])
            cells.append(
                quartiles([a / b for a, b in zip(ours, rates, strict=False)]) if rates else ""
            )
        rows.append([f"{case['env']} x {case['envs']}", *cells])
    parts.append(table(["", "1,000 steps/s", *(f"/ {name}" for name in NAMES[1:])], rows))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=list(ENVS))
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS)
    options = options_of(parser, 0.15)
    if options.quick:
        options.envs, options.counts = ["CartPole-v1"], [4]
        options.repetitions, options.seconds = 2, 0.05
    results: dict[str, Any] = {"machine": machine(), "workers": options.workers, "cases": []}
    with stolen_share(results["machine"]):
        for env_id in options.envs:
            for count in options.counts:
                say(f"{env_id} x {count}")
                results["cases"].append(measure(env_id, count, options))
    publish(options, "few-envs", results, tables(results))


if __name__ == "__main__":
    if len(sys.argv) == 5 and not sys.argv[1].startswith("--"):
        name, env_id, count, workers = sys.argv[1:]
        answer(lambda: stepping(name, env_id, int(count), int(workers)))
    else:
        main()
