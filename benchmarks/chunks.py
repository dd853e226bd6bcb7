"""Chunks of actions: step_chunk with 1 to 16 steps, beside step and processes that never talk.

    python benchmarks/chunks.py --out benchmarks/results
    python benchmarks/chunks.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, with the same random actions. "Apart" are one
process for each worker that steps its own envs one by one: the ideal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import running
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from running import Measure, Options

import pysampler

APART, STEP = "apart", "step"
LENGTHS = 1, 4, 8, 16
NAMES = [APART, STEP, *(f"K = {steps}" for steps in LENGTHS)]


class Camera(gym.Env):
    """A picture of 64 x 64 that takes about 0.1 ms; it is not drawn if it is not read."""

    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(2)
    skips = True

    def __init__(self) -> None:
        self.unseen, self.steps = False, 0
        self.picture = np.zeros((64, 64, 3), np.uint8)

    def skip_frames(self, unseen: bool) -> None:  # noqa: FBT001 - as step_chunk calls it
        self.unseen = unseen and self.skips

    def _draw(self) -> np.ndarray:
        x = np.linspace(0, 1, 64, dtype=np.float32)
        scene = np.sin(x[:, None] * (self.steps % 50)) * np.cos(x[None, :] * 9)
        return np.repeat((scene * 127 + 128).astype(np.uint8)[..., None], 3, axis=2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = self.steps == 500
        if not self.unseen or ended:
            self.picture = self._draw()
        return self.picture, 0.0, False, ended, {}


class SeenCamera(Camera):
    """Draws each picture."""

    skips = False


CASES: dict[str, Callable[[], gym.Env]] = {
    "CartPole": lambda: gym.make("CartPole-v1"),
    "HalfCheetah": lambda: gym.make("HalfCheetah-v5"),
    "HalfCheetah in Python": lambda: gym.make("HalfCheetah-v5"),
    "picture": SeenCamera,
    "picture, skip_frames": Camera,
}
COUNT = 8


def alone(case: str, count: int) -> Measure:
    """Return a function that steps envs of this process."""
    return running.rate_of_single_envs([CASES[case]() for _ in range(count)])


def stepping(name: str, case: str, workers: int) -> Measure:
    if name == APART:
        return running.apart(alone, workers, case, COUNT // workers)
    envs = pysampler.VectorEnv(
        [CASES[case]] * COUNT,
        num_workers=workers,
        autoreset_mode=AutoresetMode.SAME_STEP,
        native=False if "Python" in case else "auto",
    )
    envs.reset(seed=0)
    envs.action_space.seed(0)
    space = envs.single_action_space
    length = 1 if name == STEP else int(name.rsplit(maxsplit=1)[-1])
    drawn = np.array([space.sample() for _ in range(64 * COUNT * length)], space.dtype)
    actions = drawn.reshape(64, COUNT, length, *(space.shape or ()))
    chunks = itertools.cycle([chunk[:, 0].copy() if name == STEP else chunk for chunk in actions])

    def step() -> int:
        envs.step(next(chunks))
        return COUNT

    def step_chunk() -> int:
        return int(envs.step_chunk(next(chunks))[4]["steps"].sum())

    return running.warmed(running.repeated(step if name == STEP else step_chunk))


def measure(options: Options) -> dict[str, Any]:
    cases = {case: (case, options.workers) for case in options.cases}
    return {
        "workers": options.workers,
        "cases": running.rates_of_cases(__file__, cases, NAMES, options),
    }


def report(results: dict[str, Any]) -> list[str]:
    cases = {f"{case} x {COUNT}": rates for case, rates in results["cases"].items()}
    return [
        (
            f"{results['workers']} workers, random actions, SAME_STEP. Fractions of the ideal, "
            "processes that step their share of the envs one by one and never communicate: "
            "medians [quartiles] of repetitions in turn. Only steps that envs made count: an "
            "env waits from the end of its episode to that of the chunk.\n"
        ),
        running.table(
            ["env", "ideal, steps/s", *NAMES[1:]],
            running.ratio_rows(cases, APART, NAMES[1:], of_base=True),
        ),
    ]


if __name__ == "__main__":
    running.study(
        *("Chunks of actions", measure, report),
        contender=stepping,
        quick={"cases": ["CartPole"], "repetitions": 2, "seconds": 0.05},
        cases=CASES,
        **running.SLICES,
    )
