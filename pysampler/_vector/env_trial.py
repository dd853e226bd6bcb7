"""A trial of an env in this process: the time of a step.

The env is made only for the trial, and global random generators are restored after it.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.torch import loaded_torch
from pysampler._vector.env_calls import expect_env
from pysampler._vector.waiting import cpu_seconds
from pysampler._workers.exceptions import error_from, report
from pysampler.envs.batch import BatchEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import gymnasium as gym

__all__ = ["try_env"]

# The trial ends after _STEPS steps and _SECONDS of stepping, or after _AT_MOST seconds.
_STEPS, _SECONDS, _AT_MOST = 20, 0.005, 0.1
_LONG = 20  # times the shortest step; time of a step beyond that does not count towards _SECONDS
_PARTS = 5  # of the trial; the result is the median of their means


def try_env(env_fn: Callable[[], gym.Env[Any, Any]], count: int = 0) -> tuple[float, float, int]:
    """Make an env, and step it for some milliseconds.

    Args:
        env_fn: The function that makes it.
        count: How many such envs a group has; 0 if workers step them one by one.

    Returns:
        The time of a step, and the share of it for which the env needs a CPU. And if workers may
        step ``count`` of them together, so that the time says nothing about them, how many each
        worker should have if there are several; otherwise 0.
    """
    with _global_generators_kept():
        with _blaming("being made"):
            env = env_fn()
            if isinstance(env, BatchEnv):
                raise ValueError(f"a {type(env).__name__} is many envs; pass numbers instead")
            expect_env(env, 0)
        with _blaming("being stepped"):
            seconds, on_cpu = _step_seconds(env)
        return seconds, on_cpu, _share(env_fn, env) if count > 1 else 0


def _share(env_fn: Any, env: gym.Env[Any, Any]) -> int:
    """Return the least number of such envs for each worker; 0 if they may not step together.

    Also 0 if this process could simulate them, too.
    """
    from pysampler._vector.native import known  # noqa: PLC0415 - most do without
    from pysampler._vector.wrapped.stack import peel  # noqa: PLC0415 - likewise

    wrappers, inner, _ = peel(env)
    base = inner.unwrapped
    try:
        known.limit_of(inner)
        known.expect_known(base)
    except known.NotNativeError:
        return 0
    here = known.has_task(base) and getattr(env_fn, "makes_alike", False) and not wrappers
    return 0 if here else known.share_of(base)


def _step_seconds(env: gym.Env[Any, Any]) -> tuple[float, float]:
    """Step an env for some milliseconds, close it, and return the time of a step.

    And the share of it for which the env needs a CPU, or 1 if unknown.
    """
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        took: list[float] = []
        spent, least = 0.0, float("inf")
        on_cpu = cpu_seconds("thread-self")
        begun = time.perf_counter()
        while spent < _SECONDS or len(took) < _STEPS:
            action = env.action_space.sample()
            before = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            if np.any(terminated) or np.any(truncated):
                env.reset()
            took.append(time.perf_counter() - before)
            least = min(least, took[-1])
            spent += min(took[-1], _LONG * least)  # longer steps probably lost the CPU
            if time.perf_counter() - begun > _AT_MOST:
                break
        if on_cpu is not None:
            on_cpu = ((cpu_seconds("thread-self") or 0) - on_cpu) / (time.perf_counter() - begun)
    finally:
        env.close()
    # The first half is cold. The median of several means ignores a part in which this process lost
    # its CPU.
    parts = [part for part in np.array_split(took[len(took) // 2 :], _PARTS) if len(part)]
    seconds = float(np.median([part.mean() for part in parts]))
    return seconds, 1.0 if on_cpu is None else min(1.0, on_cpu)


@contextlib.contextmanager
def _blaming(doing: str) -> Iterator[None]:
    """Report exceptions of the trial's env as errors of env 0."""
    try:
        yield
    except Exception as error:
        reported = report(error)
        blamed = error_from(
            reported, f"env 0 raised {reported.kind} {doing}, in the trial of num_workers='auto'"
        )
        blamed.env = 0
        raise blamed from error


@contextlib.contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Restore the global random generators afterwards, since later envs may draw from them."""
    torch = loaded_torch()
    if not hasattr(torch, "get_rng_state"):  # another thread is importing it
        torch = None
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])
