"""Compares a library's envs on pysampler with the same envs on gymnasium's SyncVectorEnv."""

import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

import pysampler

sys.path.append(str(Path(__file__).parents[1] / "support"))
from made_up import same

STEPS = 200
ENVS = 4
TURNS, SECONDS = 6, 0.5  # per measurement


def compare(*ids: str, unseeded: Sequence[str] = (), **kwargs: Any) -> None:
    """Step registered envs, raise at the first difference, and print the cost of infos.

    Infos named in ``unseeded``, which an env draws from an unseeded generator, are not compared.
    """
    results = []
    for name in ids:
        make = functools.partial(gym.make, name, **kwargs)
        equal_to_sync(make, unseeded)
        results.append(f"{name} {ratio_with_infos(make):.2f}")
    print(
        f"equal to SyncVectorEnv for {STEPS} steps; rate with infos, of the rate without: "
        + ", ".join(results)
    )


def equal_to_sync(make: Callable[[], gym.Env[Any, Any]], unseeded: Sequence[str]) -> None:
    ours = vector_env(make)
    theirs = gym.vector.SyncVectorEnv([make] * ENVS)

    def compare_results(*results: Any) -> None:
        for infos in (one[-1] for one in results):
            for key in unseeded:
                infos.pop(key, None)
        same(*results)

    compare_results(ours.reset(seed=1), theirs.reset(seed=1))
    theirs.action_space.seed(1)
    for step in range(STEPS):
        actions = theirs.action_space.sample()
        try:
            compare_results(ours.step(actions), theirs.step(actions))
        except AssertionError as error:
            raise AssertionError(f"step {step}: {error}") from error
    ours.close()
    theirs.close()


def vector_env(make: Callable[[], gym.Env[Any, Any]], **options: Any) -> pysampler.VectorEnv:
    # shared_memory=False allows custom spaces.
    return pysampler.VectorEnv([make] * ENVS, num_workers=2, shared_memory=False, **options)


def ratio_with_infos(make: Callable[[], gym.Env[Any, Any]]) -> float:
    """Return the rate with infos divided by the rate without, measured in turns."""
    both = [vector_env(make, infos=kind) for kind in ("all", "none")]
    for envs in both:
        envs.reset(seed=1)
        rate(envs)
    ratios = [rate(both[0]) / rate(both[1]) for _ in range(TURNS)]
    for envs in both:
        envs.close()
    return statistics.median(ratios)


def rate(envs: Any) -> float:
    """Return steps per second."""
    actions = envs.action_space.sample()
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < SECONDS:
        envs.step(actions)
        steps += 1
    return steps / (time.perf_counter() - begun)
