"""How long does an evaluation take: a queue of episodes, a share for each env, and gymnasium?

64 episodes of 10 to 1,000 steps (spread evenly on a logarithmic scale) on 8 envs, whose steps
compute for a fixed time in 2 workers, or sleep in 8. The contenders take turns in this process:

- ``queue``: ``pysampler.evaluate``; ``longest first`` with ``order=`` an earlier evaluation
- ``shares``: each env gets 8 episodes in advance, as ``evaluate`` did it before; all envs step
  until the last one is done
- ``gymnasium``: ``AsyncVectorEnv``, whose envs go on to the next seed until 64 episodes have begun

The ideal is the number of steps over the rate of ``evaluate`` while all envs are busy, which 8
episodes of the same length measure.

    python benchmarks/evaluation.py
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from envs import Busy
from running import Options, quartiles, ratios, say, study, table, turns

import pysampler

ENVS = 8
EPISODES = 64
BUSY_STEPS = 500  # of each env, to measure the rate


class Case(NamedTuple):
    us: float  # that a step takes
    workers: int
    sleeps: bool = False

    def __str__(self) -> str:
        doing = "sleeps" if self.sleeps else "computes"
        return f"{doing} {self.us:g} us, {self.workers} workers"


CASES = Case(20, 2), Case(100, 2), Case(500, 2), Case(2000, 8, sleeps=True)


class Episodes(Busy):
    """Busy, in episodes whose length depends on the seed; or on all of them, if ``length`` is."""

    def __init__(self, case: Case, length: int | None = None) -> None:
        super().__init__(0 if case.sleeps else case.us)
        self._seconds = case.us / 1e6 if case.sleeps else 0
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self._left = self._length or length_of(self._next_seed() if seed is None else seed)
        return result

    def _next_seed(self) -> int:
        return int(self.np_random.integers(EPISODES))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seconds:
            time.sleep(self._seconds)
        observation, reward, _, _, info = super().step(action)
        self._left -= 1
        return observation, reward, self._left == 0, False, info


def length_of(seed: int) -> int:
    """Return the number of steps of an episode; seeds of long and short ones are mixed."""
    return round(10 * 100 ** (seed * 37 % EPISODES / (EPISODES - 1)))


def still(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def shares(case: Case) -> Callable[[], int]:
    make = functools.partial(Episodes, case)
    rollouts = pysampler.Rollouts(
        *(make, still, 64), num_envs=ENVS, num_workers=case.workers, seed=0
    )

    def run() -> int:
        left, steps = np.full(ENVS, EPISODES // ENVS), 0
        while (left > 0).any():
            ended = next(rollouts).ended
            for env, length in zip(ended.env, ended.lengths, strict=True):
                steps += int(length) * (left[env] > 0)
                left[env] -= 1
        return steps

    return run


def gymnasium(case: Case) -> Callable[[], int]:
    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv([functools.partial(Episodes, case)] * ENVS)
    actions = np.zeros(ENVS, np.int64)

    def run() -> int:
        envs.reset(seed=0)
        begun, steps = ENVS, 0
        lengths, busy, fresh = np.zeros(ENVS, np.int64), np.ones(ENVS, bool), np.zeros(ENVS, bool)
        while busy.any():
            _, _, terminated, truncated, _ = envs.step(actions)
            lengths += busy & ~fresh
            fresh = terminated | truncated
            for env in np.flatnonzero(fresh & busy):
                steps += int(lengths[env])
                lengths[env] = 0
                busy[env] = begun < EPISODES
                begun += 1
        return steps

    return run


def queue(case: Case, episodes: int = EPISODES, length: int | None = None) -> Callable[..., int]:
    make = functools.partial(Episodes, case, length)
    envs = pysampler.VectorEnv([make] * ENVS, num_workers=case.workers)
    earlier = pysampler.evaluate(envs, still, episodes, seed=0)

    def run(*, longest_first: bool = False) -> int:
        order = earlier if longest_first else None
        evaluation = pysampler.evaluate(envs, still, episodes, seed=0, order=order)
        return int(evaluation.lengths.sum())

    return run


def measured(case: Case, repetitions: int) -> dict[str, list[float]]:
    """Return the shares of the ideal rate that contenders reached, by name."""
    ours = queue(case)
    contenders: dict[str, Callable[[], int]] = {
        "ideal": queue(case, ENVS, BUSY_STEPS),
        "queue": ours,
        "longest first": functools.partial(ours, longest_first=True),
        "shares": shares(case),
        "gymnasium": gymnasium(case),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for name, run in turns(contenders, repetitions):
        begun = time.perf_counter()
        steps = run()
        rates[name].append(steps / (time.perf_counter() - begun))
    ideal = rates["ideal"]
    return {name: own if own is ideal else ratios(own, ideal) for name, own in rates.items()}


def measure(options: Options) -> dict[str, Any]:
    cells = []
    for case in CASES[: 1 if options.quick else None]:
        say(f"a step {case}")
        found = measured(case, options.repetitions)
        cells.append({"case": str(case), **found})
    return {"cells": cells}


def report(results: dict[str, Any]) -> list[str]:
    names = ["queue", "longest first", "shares", "gymnasium"]
    rows = [
        [cell["case"], quartiles(cell["ideal"], 0), *(quartiles(cell[name]) for name in names)]
        for cell in results["cells"]
    ]
    about = "Steps a second of 8 episodes of the same length, and shares of that rate.\n"
    return [about, table(["a step", "ideal", *names], rows)]


if __name__ == "__main__":
    study(__doc__.splitlines()[0], measure, report, quick={"repetitions": 1}, repetitions=7)
