"""Vector envs and BatchEnvs in workers, beside the same alone, EnvPool and envs in Python.

    python benchmarks/batches.py --out benchmarks/results
    python benchmarks/batches.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, with the same random actions. "Batches that
never talk" are one process for each worker that steps its own vector env: the most that the workers
could reach.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from running import (
    answer,
    apart,
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

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gridworld

OURS, MAIN, APART = "pysampler", "with main_envs", "batches that never talk"
PYTHON, ALONE, POOL = "pysampler, envs in Python", "the vector env alone", "EnvPool"
NUMBA, C, SYNC = "in numba", "in C", "SyncVectorEnv"
CLASSIC = "make_vec of the id, native"
CASES = {
    "CartPole": (1024, [OURS, MAIN, APART, ALONE, CLASSIC, POOL, PYTHON]),
    "Breakout": (64, [OURS, MAIN, APART, ALONE, POOL, PYTHON]),
    "GridWorld": (1024, [OURS, MAIN, APART, NUMBA, C, PYTHON, SYNC]),
}


def atari(count: int, threads: int) -> gym.vector.VectorEnv:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("breakout", count, num_threads=threads)


def one_atari() -> gym.Env:
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Breakout-v5", frameskip=1)
    return gym.wrappers.FrameStackObservation(gym.wrappers.AtariPreprocessing(env), 4)


def batch(case: str, count: int, threads: int = 1) -> Any:
    """Return a vector env of many envs, to step in one call."""
    if case == "CartPole":
        return CartPoleVectorEnv(count)
    if case == "Breakout":
        return atari(count, threads)
    return pysampler.VectorEnv([functools.partial(gridworld.GridWorld, count)], num_workers=0)


def contender(name: str, case: str, count: int, workers: int) -> Any:
    if name == POOL:
        import envpool

        task = {"CartPole": "CartPole-v1", "Breakout": "Breakout-v5"}[case]
        return envpool.make(task, "gymnasium", num_envs=count, num_threads=workers)
    if name == ALONE:
        return batch(case, count, threads=workers)
    if name in (PYTHON, SYNC):
        one: Callable[[], gym.Env] = {
            "CartPole": functools.partial(gym.make, "CartPole-v1"),
            "Breakout": one_atari,
            "GridWorld": gridworld.one_grid_world,
        }[case]
        if name == SYNC:
            return gym.vector.SyncVectorEnv([one] * count)
        return pysampler.VectorEnv([one] * count, num_workers=workers, native=False)
    kind = {NUMBA: gridworld.NumbaGridWorld, C: gridworld.CGridWorld}.get(name)
    if name == CLASSIC:
        return pysampler.make_vec("CartPole-v1", count, num_workers=workers, native=True)
    if case == "GridWorld":
        make = functools.partial(kind or gridworld.GridWorld, count // workers)
    else:
        make = functools.partial(batch, case, count // workers)
    options = {"num_workers": workers - 1, "main_envs": 1} if name == MAIN else {}
    return pysampler.VectorEnv([make] * workers, **{"num_workers": workers, **options})


def stepping(name: str, case: str, count: int, workers: int) -> Callable[[dict], dict]:
    if name == APART:
        return apart(alone, workers, case, count // workers)
    envs = contender(name, case, count, workers)
    envs.reset() if name == POOL else envs.reset(seed=0)
    actions = actions_of(case, count)
    if name == POOL:
        actions = actions.astype(envs.action_space.dtype)
    return rate_of_steps(envs, actions)


def actions_of(case: str, count: int) -> Any:
    number = 2 if case == "CartPole" else 4
    return np.random.default_rng(0).integers(0, number, (64, count))


def alone(case: str, count: int) -> Callable[[dict], dict]:
    """Return a function that steps envs of this process."""
    envs = batch(case, count)
    envs.reset(seed=0)
    return rate_of_steps(envs, actions_of(case, count))


def measure(case: str, count: int, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    names = CASES[case][1]
    if importlib.util.find_spec("numba") is None:
        names = [name for name in names if name != NUMBA]
    rates = rates_in_turn(__file__, names, (case, count, workers), options)
    return {"case": case, "envs": count, "rates": rates}


def tables(results: dict[str, Any]) -> str:
    parts = [
        heading("Many envs in one call", results["machine"]),
        (
            f"{results['workers']} workers, and as many threads of EnvPool and of the "
            "vector env alone. Random actions. The last column is how many times as fast "
            "`VectorEnv` of one vector env (or BatchEnv) for each worker is: medians [quartiles] "
            "of repetitions in turn.\n"
        ),
    ]
    for case in results["cases"]:
        ours = case["rates"].get(OURS, [])
        rows = []
        for name, rates in case["rates"].items():
            ratios = [a / b for a, b in zip(ours, rates, strict=False)]
            rate = f"{statistics.median(rates or [0.0]):,.0f}"
            rows.append([name, rate, quartiles(ratios) if ratios and name != OURS else ""])
        parts += [
            f"\n## {case['case']} x {case['envs']:,}\n",
            table(["", "env steps/s", "ours /"], rows),
        ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = options_of(parser, 0.3)
    counts = {case: CASES[case][0] for case in options.cases}
    if options.quick:
        counts = {"CartPole": 16}
        options.repetitions, options.seconds = 2, 0.05
    results: dict[str, Any] = {
        "machine": machine(),
        "workers": options.workers,
        "cases": [],
    }
    with stolen_share(results["machine"]):
        for case, count in counts.items():
            say(case)
            results["cases"].append(measure(case, count, options.workers, options))
    text = tables(results)
    publish(options, "batches", results, text)


if __name__ == "__main__":
    if len(sys.argv) == 5 and not sys.argv[1].startswith("--"):
        name, case, count, workers = sys.argv[1:]
        answer(lambda: stepping(name, case, int(count), int(workers)))
    else:
        main()
