"""Chunks of actions: step_chunk with 1 to 16 steps, beside step and processes that never talk.

    python benchmarks/chunks.py --out benchmarks/results
    python benchmarks/chunks.py --quick --out build/bench-smoke

The contenders of a case step in turn, slice by slice, with the same random actions. "Apart" are one
process for each worker that steps its own envs one by one: the ideal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from running import (
    answer,
    apart,
    heading,
    machine,
    multiples,
    options_of,
    publish,
    rate_of_single_envs,
    rates_in_turn,
    say,
    stolen_share,
    table,
)

import pysampler

if TYPE_CHECKING:
    from collections.abc import Callable

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


def alone(case: str, count: int) -> Callable[[dict], dict]:
    """Return a function that steps envs of this process."""
    return rate_of_single_envs([CASES[case]() for _ in range(count)])


def stepping(name: str, case: str, workers: int) -> Callable[[dict], dict]:
    if name == APART:
        return apart(alone, workers, case, COUNT // workers)
    envs = pysampler.VectorEnv(
        [CASES[case]] * COUNT,
        num_workers=workers,
        autoreset_mode=AutoresetMode.SAME_STEP,
        native=False if "Python" in case else "auto",
    )
    envs.reset(seed=0)
    envs.action_space.seed(0)
    length = 0 if name == STEP else int(name.rsplit(maxsplit=1)[-1])
    shape = (64, COUNT, max(1, length))
    drawn = [
        [envs.single_action_space.sample() for _ in range(shape[2])] for _ in range(64 * COUNT)
    ]
    actions = np.array(drawn, envs.single_action_space.dtype).reshape(
        *shape, *(envs.single_action_space.shape or ())
    )
    chunks = [chunk[:, 0].copy() if name == STEP else chunk for chunk in actions]

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        steps, begun = 0, time.perf_counter()
        while (took := time.perf_counter() - begun) < cell["seconds"]:
            for chunk in chunks[:8]:
                if name == STEP:
                    envs.step(chunk)
                    steps += COUNT
                else:
                    steps += int(envs.step_chunk(chunk)[4]["steps"].sum())
        return {"rate": steps / took}

    measure({"seconds": 0.2})  # warm
    return measure


def tables(results: dict[str, Any]) -> str:
    rows = []
    for case, rates in results["cases"].items():
        ideal = rates[APART]
        row = [f"{case} x {COUNT}", f"{statistics.median(ideal):,.0f}"]
        row += [multiples(rates[name], ideal) for name in NAMES[1:]]
        rows.append(row)
    return "\n".join(
        [
            heading("Chunks of actions", results["machine"]),
            (
                f"{results['workers']} workers, random actions, SAME_STEP. Fractions of the ideal, "
                "processes that step their share of the envs one by one and never communicate: "
                "medians [quartiles] of repetitions in turn. Only steps that envs made count: an "
                "env waits from the end of its episode to that of the chunk.\n"
            ),
            table(["env", "ideal, steps/s", *NAMES[1:]], rows),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = options_of(parser, 0.3)
    if options.quick:
        options.cases, options.repetitions, options.seconds = ["CartPole"], 2, 0.05
    results: dict[str, Any] = {"machine": machine(), "workers": options.workers, "cases": {}}
    with stolen_share(results["machine"]):
        for case in options.cases:
            say(case)
            arguments = case, options.workers
            results["cases"][case] = rates_in_turn(__file__, NAMES, arguments, options)
    text = tables(results)
    publish(options, "chunks", results, text)


if __name__ == "__main__":
    if len(sys.argv) == 4 and not sys.argv[1].startswith("--"):
        answer(lambda: stepping(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    else:
        main()
