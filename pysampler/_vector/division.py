"""How envs are divided between workers and this process: as told, or by a trial of one env."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler import _core
from pysampler._numbers import whole_number
from pysampler._vector import arguments
from pysampler._vector.env_server import expect_env
from pysampler._workers.counters import with_unit
from pysampler._workers.exceptions import error_from, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import gymnasium as gym

    from pysampler._workers.processes import WorkerAssignment

__all__ = ["Division", "divide", "fastest"]

Count = int | Literal["auto"]

# How long the trial steps its env: as soon as both are reached, or at the last.
_STEPS, _SECONDS, _AT_MOST = 20, 0.005, 0.1
_LONG = 20  # times the shortest step; what a step takes beyond that does not count as trial
_PARTS = 5  # of the trial, each with a mean
# Seconds that a step of all envs costs beside theirs: in this process, and to send to workers that
# are awake and to read what they have written.
INLINE_STEP_COST_S, _SEND, _READ = 5e-6, 2e-6, 3e-6
# A division that is slower by less than this share is as good, if it uses fewer processes or leaves
# this one free.
_CLOSE = 0.05


@dataclass(frozen=True)
class Division:
    """How many worker processes there are, and how many envs this process steps itself.

    Attributes:
        num_workers: The number of worker processes.
        main_envs: The number of envs that live in this process.
        step_seconds: How long a step took in the trial; None if there was none.
        round_seconds: How long a step of all envs should take then.
    """

    num_workers: int
    main_envs: int
    step_seconds: float | None = None
    round_seconds: float | None = None

    def __str__(self) -> str:
        """Return what was chosen, and why, as a sentence."""
        workers = f"{self.num_workers} worker{'s' * (self.num_workers != 1)}"
        where = f"{workers}, {self.main_envs} env{'s' * (self.main_envs != 1)} in this process"
        if self.num_workers == 0:
            where = "no workers, all envs in this process"
        if self.step_seconds is None or self.round_seconds is None:
            return f"{where}, without a trial"
        return (
            f"{where}: a step of one env takes {with_unit(self.step_seconds)}, so a step of all "
            f"should take {with_unit(self.round_seconds)}, less than with other numbers"
        )

    def assignments(
        self, envs: int, groups: int
    ) -> tuple[list[WorkerAssignment], WorkerAssignment | None]:
        """Return what each worker has, and what this process has."""
        if self.num_workers == 0:
            return [], arguments.assignments(envs, 1, groups)[0]
        away = arguments.assignments(envs - self.main_envs, self.num_workers, groups)
        if self.main_envs == 0:
            return away, None
        return away, arguments.assignments(self.main_envs, 1, groups, envs - self.main_envs)[0]


def divide(
    num_workers: Count | None,
    main_envs: Count,
    env_fns: list[Callable[[], gym.Env[Any, Any]]],
    most: int | None,
) -> Division:
    """Return how to divide envs, or raise ValueError.

    Args:
        num_workers: As of ``VectorEnv``.
        main_envs: As of ``VectorEnv``.
        env_fns: What makes the envs.
        most: The largest number of processes that step envs.
    """
    for name, given in (("num_workers", num_workers), ("main_envs", main_envs)):
        if isinstance(given, str) and given != "auto":
            raise ValueError(
                f'cannot make vector env: {name} {given!r}, expected a whole number or "auto"'
            )
    envs = len(env_fns)
    cpus = _core.usable_cpus() if most is None else min(most, _core.usable_cpus())
    if num_workers == "auto":
        if main_envs not in (0, "auto"):
            raise ValueError(
                f"cannot make vector env: main_envs {main_envs!r} with num_workers='auto', which "
                "chooses both"
            )
        return fastest(envs, cpus, step_seconds(env_fns[0]))
    if main_envs == "auto":
        workers = max(1, cpus - 1) if num_workers is None else num_workers
        workers = arguments.workers(workers, max(1, envs - 1), most)
        if workers == 0 or envs == 1:
            return Division(0, envs)
        seconds = step_seconds(env_fns[0])
        own = min(range(1, envs - workers + 1), key=lambda n: _round(envs, workers, n, seconds))
        return Division(workers, own, seconds, _round(envs, workers, own, seconds))
    own = whole_number("make vector env", "main_envs", main_envs, 0)
    if own == 0:
        return Division(workers := arguments.workers(num_workers, envs, most), envs * (not workers))
    if own >= envs:
        raise ValueError(
            f"cannot make vector env: main_envs {own}, expected fewer than the {envs} envs; "
            "num_workers=0 steps all of them in this process"
        )
    if num_workers is None:
        num_workers = max(1, cpus - 1)
    workers = arguments.workers(num_workers, envs - own, most)
    if workers == 0:
        raise ValueError(
            f"cannot make vector env: main_envs {own} with num_workers=0, which steps all of them "
            "in this process"
        )
    return Division(workers, own)


def fastest(envs: int, cpus: int, seconds: float) -> Division:
    """Return the division by which a step of all envs should take the least time.

    Args:
        envs: The number of envs.
        cpus: The number of CPUs.
        seconds: How long a step of one env takes.
    """
    ways = [(0, envs)]
    if envs > 1 and cpus > 1:
        ways += [(min(cpus, envs), 0)]
        workers = min(cpus - 1, envs - 1)
        ways += [(workers, own) for own in range(1, envs - workers + 1)]
    rounds = [_round(envs, *way, seconds) for way in ways]
    close = [
        (way, took)
        for way, took in zip(ways, rounds, strict=True)
        if took <= min(rounds) * (1 + _CLOSE)
    ]
    # All here, or none here, if it is about as fast; otherwise the fastest.
    (workers, own), took = next(
        (one for one in close if 0 in one[0]), min(close, key=lambda one: one[1])
    )
    return Division(workers, own, seconds, took)


def _round(envs: int, workers: int, own: int, seconds: float) -> float:
    """Return how long a step of all envs should take, in seconds."""
    if workers == 0:
        return INLINE_STEP_COST_S + envs * seconds
    costs = _core.wait_costs()
    # This process stays awake where there is a CPU for it, beside those of the workers.
    notice = costs.park_ns / 1e9 if workers >= costs.cpus else 0.0
    theirs = -(-(envs - own) // workers) * seconds + notice
    return _SEND + max(own * seconds, theirs) + _READ


def step_seconds(env_fn: Callable[[], gym.Env[Any, Any]]) -> float:
    """Make an env, step it for some milliseconds, and return how long a step took."""
    with _global_generators_kept():
        with _blaming("being made"):
            env = env_fn()
            expect_env(env, 0)
        with _blaming("being stepped"):
            return _step_seconds(env)


def _step_seconds(env: gym.Env[Any, Any]) -> float:
    """Step an env for some milliseconds, close it, and return how long a step took."""
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        took: list[float] = []
        spent, least = 0.0, float("inf")
        begun = time.perf_counter()
        while spent < _SECONDS or len(took) < _STEPS:
            action = env.action_space.sample()
            before = time.perf_counter()
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
            took.append(time.perf_counter() - before)
            least = min(least, took[-1])
            spent += min(took[-1], _LONG * least)  # the rest it may have lost its CPU
            if time.perf_counter() - begun > _AT_MOST:
                break
    finally:
        env.close()
    half = took[len(took) // 2 :]  # the first ones are cold
    # Of several means the median: a part in which this process lost its CPU does not count.
    parts = [part for part in np.array_split(half, _PARTS) if len(part)]
    return float(np.median([part.mean() for part in parts]))


@contextlib.contextmanager
def _blaming(doing: str) -> Iterator[None]:
    """Raise what the env of the trial raises as an error of it."""
    try:
        yield
    except Exception as error:
        told = report(error)
        blamed = error_from(
            told, f"env 0 raised {told.kind} {doing}, in the trial of num_workers='auto'"
        )
        blamed.env = 0
        raise blamed from error


@contextlib.contextmanager
def _global_generators_kept() -> Iterator[None]:
    """Put the global random generators back to where they are now: the envs made later use them."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
