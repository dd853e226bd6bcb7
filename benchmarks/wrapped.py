"""Envs in CleanRL's wrappers: pysampler beside gymnasium, EnvPool and envs without wrappers.

    python benchmarks/wrapped.py --out benchmarks/results
    python benchmarks/wrapped.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, with the same random actions. EnvPool has
gymnasium's vector wrappers around it, which share one mean among all envs: less work than one for
each env.
"""

from __future__ import annotations

import argparse
import functools
import runpy
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from running import (
    answer,
    heading,
    machine,
    multiples,
    options_of,
    publish,
    rate_of_steps,
    rates_in_turn,
    say,
    stolen_share,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS = ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "CartPole-v1"]
OURS, BARE, PYTHON = "pysampler", "make_vec without wrappers", "pysampler, native=False"
ASYNC, SYNC, POOL = "AsyncVectorEnv", "SyncVectorEnv", "EnvPool, vector wrappers"


def make_env(env_id: str) -> gym.Env:
    """Make an env as CleanRL's ppo_continuous_action.py does."""
    env = gym.make(env_id)
    env = wrappers.FlattenObservation(env)
    env = wrappers.RecordEpisodeStatistics(env)
    if isinstance(env.action_space, gym.spaces.Box):
        env = wrappers.ClipAction(env)
    env = wrappers.NormalizeObservation(env)
    env = wrappers.TransformObservation(env, lambda o: np.clip(o, -10, 10), None)
    env = wrappers.NormalizeReward(env, gamma=0.99)
    return wrappers.TransformReward(env, lambda r: np.clip(r, -10, 10))


def pool(env_id: str, count: int, workers: int, *, normalized: bool = True) -> Any:
    """Return EnvPool's envs in the same wrappers for vector envs, or only with statistics."""
    recipes = Path(__file__).parents[1] / "examples" / "recipes"
    own = runpy.run_path(str(recipes / "envpool_envs.py"))["VectorEnv"]
    envs: Any = own(env_id, count, num_threads=workers)
    envs = wrappers.vector.RecordEpisodeStatistics(envs)
    if not normalized:
        return envs
    if isinstance(envs.single_action_space, gym.spaces.Box):
        envs = wrappers.vector.ClipAction(envs)
    envs = wrappers.vector.NormalizeObservation(envs)
    envs = wrappers.vector.TransformObservation(envs, lambda o: np.clip(o, -10, 10))
    envs = wrappers.vector.NormalizeReward(envs, gamma=0.99)
    return wrappers.vector.TransformReward(envs, lambda r: np.clip(r, -10, 10))


def contender(name: str, env_id: str, count: int, workers: int) -> Any:
    """Return the vector env of a contender."""
    import pysampler

    env_fns = [functools.partial(make_env, env_id)] * count
    if name == BARE:
        return pysampler.make_vec(env_id, count, num_workers=workers)
    if name in (OURS, PYTHON):
        native = "auto" if name == OURS else False
        return pysampler.VectorEnv(env_fns, num_workers=workers, native=native)
    if name == POOL:
        return pool(env_id, count, workers)
    return getattr(gym.vector, name)(env_fns)


def stepping(name: str, env_id: str, count: int, workers: int) -> Callable[[dict], dict]:
    envs = contender(name, env_id, count, workers)
    envs.reset(seed=0)
    space = envs.single_action_space
    rng = np.random.default_rng(0)
    if isinstance(space, gym.spaces.Box):
        low, high = np.maximum(space.low, -1), np.minimum(space.high, 1)
        actions = rng.uniform(low, high, (64, count, *space.shape)).astype(space.dtype)
    else:
        actions = rng.integers(0, int(space.n), (64, count)).astype(np.int64)
    return rate_of_steps(envs, actions)


def measure(env_id: str, count: int, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    names = [OURS, BARE, POOL, PYTHON, SYNC, ASYNC]
    rates = rates_in_turn(__file__, names, (env_id, count, workers), options)
    return {"env": env_id, "envs": count, "rates": rates}


def tables(results: dict[str, Any]) -> str:
    others = [BARE, POOL, PYTHON, SYNC, ASYNC]
    rows = []
    for case in results["cases"]:
        rates = case["rates"]
        ours = rates.get(OURS, [])
        row = [f"{case['env']} x {case['envs']}", f"{statistics.median(ours or [0.0]):,.0f}"]
        row += [multiples(ours, rates.get(name, [])) for name in others]
        rows.append(row)
    return "\n".join(
        [
            heading("Envs in CleanRL's wrappers", results["machine"]),
            (
                f"{results['workers']} workers, and as many threads of EnvPool. Random "
                "actions. Each column after the second is how many times as fast `VectorEnv` is "
                "with an unchanged script: medians [quartiles] of repetitions in turn.\n"
            ),
            table(["", "pysampler, env steps/s", *(f"/ {name}" for name in others)], rows),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", default=ENVS, metavar="ID")
    parser.add_argument("--count", type=int, default=64)
    options = options_of(parser, 0.3)
    if options.quick:
        options.envs, options.count = options.envs[:1], 8
        options.repetitions, options.seconds = 2, 0.05
    results: dict[str, Any] = {
        "machine": machine(),
        "workers": options.workers,
        "cases": [],
    }
    with stolen_share(results["machine"]):
        for env_id in options.envs:
            say(env_id)
            results["cases"].append(measure(env_id, options.count, options.workers, options))
    text = tables(results)
    publish(options, "wrapped", results, text)


if __name__ == "__main__":
    if len(sys.argv) == 5 and not sys.argv[1].startswith("--"):
        name, env_id, count, workers = sys.argv[1:]
        answer(lambda: stepping(name, env_id, int(count), int(workers)))
    else:
        main()
