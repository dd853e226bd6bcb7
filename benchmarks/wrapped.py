"""Envs in CleanRL's wrappers: pysampler beside gymnasium, EnvPool and envs without wrappers.

    python benchmarks/wrapped.py --out benchmarks/results
    python benchmarks/wrapped.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, with the same random actions. EnvPool has
gymnasium's vector wrappers around it, which share one mean among all envs: less work than one for
each env.
"""

from __future__ import annotations

import functools
import runpy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import running
from gymnasium import wrappers
from running import Measure, Options

ENVS = ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "CartPole-v1"]
OURS, BARE, PYTHON = "pysampler", "make_vec without wrappers", "pysampler, native=False"
ASYNC, SYNC, POOL = "AsyncVectorEnv", "SyncVectorEnv", "EnvPool, vector wrappers"
OTHERS = [BARE, POOL, PYTHON, SYNC, ASYNC]


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


def stepping(name: str, env_id: str, count: int, workers: int) -> Measure:
    envs = contender(name, env_id, count, workers)
    envs.reset(seed=0)
    space = envs.single_action_space
    rng = np.random.default_rng(0)
    if isinstance(space, gym.spaces.Box):
        low, high = np.maximum(space.low, -1), np.minimum(space.high, 1)
        actions = rng.uniform(low, high, (64, count, *space.shape)).astype(space.dtype)
    else:
        actions = rng.integers(0, int(space.n), (64, count)).astype(np.int64)
    return running.rate_of_steps(envs, actions)


def measure(options: Options) -> dict[str, Any]:
    workers, count = options.workers, options.count
    cases = {f"{env_id} x {count}": (env_id, count, workers) for env_id in options.envs}
    return {
        "workers": workers,
        "cases": running.rates_of_cases(__file__, cases, [OURS, *OTHERS], options),
    }


def report(results: dict[str, Any]) -> list[str]:
    return [
        (
            f"{results['workers']} workers, and as many threads of EnvPool. Random "
            "actions. Each column after the second is how many times as fast `VectorEnv` is "
            "with an unchanged script: medians [quartiles] of repetitions in turn.\n"
        ),
        running.table(
            ["", "pysampler, env steps/s", *(f"/ {name}" for name in OTHERS)],
            running.ratio_rows(results["cases"], OURS, OTHERS, of_base=False),
        ),
    ]


if __name__ == "__main__":
    running.study(
        *("Envs in CleanRL's wrappers", measure, report),
        contender=stepping,
        quick={"envs": ENVS[:1], "count": 8, "repetitions": 2, "seconds": 0.05},
        envs=ENVS,
        count=64,
        **running.SLICES,
    )
