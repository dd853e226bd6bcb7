"""Vector envs and BatchEnvs in workers, beside the same alone, EnvPool and envs in Python.

    python benchmarks/batches.py --out benchmarks/results
    python benchmarks/batches.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, with the same random actions. "Batches that
never talk" are one process for each worker that steps its own vector env: the most that the workers
could reach.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import running
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from running import Measure, Options

import pysampler

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


def stepping(name: str, case: str, count: int, workers: int) -> Measure:
    if name == APART:
        return running.apart(alone, workers, case, count // workers)
    envs = contender(name, case, count, workers)
    envs.reset() if name == POOL else envs.reset(seed=0)
    actions = actions_of(case, count)
    if name == POOL:
        actions = actions.astype(envs.action_space.dtype)
    return running.rate_of_steps(envs, actions)


def actions_of(case: str, count: int) -> Any:
    number = 2 if case == "CartPole" else 4
    return np.random.default_rng(0).integers(0, number, (64, count))


def alone(case: str, count: int) -> Measure:
    """Return a function that steps envs of this process."""
    envs = batch(case, count)
    envs.reset(seed=0)
    return running.rate_of_steps(envs, actions_of(case, count))


def measure(options: Options) -> dict[str, Any]:
    without = [] if importlib.util.find_spec("numba") else [NUMBA]
    found = {}
    for case in options.cases:
        count = 16 if options.quick else CASES[case][0]
        names = [name for name in CASES[case][1] if name not in without]
        running.say(case)
        rates = running.rates_in_turn(__file__, names, (case, count, options.workers), options)
        found[f"{case} x {count:,}"] = rates
    return {"workers": options.workers, "cases": found}


def report(results: dict[str, Any]) -> list[str]:
    parts = [
        (
            f"{results['workers']} workers, and as many threads of EnvPool and of the "
            "vector env alone. Random actions. The last column is how many times as fast "
            "`VectorEnv` of one vector env (or BatchEnv) for each worker is: medians [quartiles] "
            "of repetitions in turn.\n"
        )
    ]
    for case, found in results["cases"].items():
        ours = found.get(OURS, [])
        rows = [
            [
                *(name, f"{statistics.median(rates or [0.0]):,.0f}"),
                running.multiples(ours, rates) if ours and name != OURS else "",
            ]
            for name, rates in found.items()
        ]
        parts += [f"\n## {case}\n", running.table(["", "env steps/s", "ours /"], rows)]
    return parts


if __name__ == "__main__":
    running.study(
        *("Many envs in one call", measure, report),
        contender=stepping,
        quick={"cases": ["CartPole"], "repetitions": 2, "seconds": 0.05},
        cases=CASES,
        **running.SLICES,
    )
