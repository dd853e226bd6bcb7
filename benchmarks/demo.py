"""HalfCheetah-v5 sampled by gymnasium's AsyncVectorEnv and by pysampler, side by side.

pysampler runs it twice: as Python envs, and simulated together as ``make_vec`` does by default. All
are created, then stepped in turn for short times, so that other load affects them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import pysampler

ENV = "HalfCheetah-v5"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress what MuJoCo prints for each env that is created."""
    null = os.open(os.devnull, os.O_WRONLY)
    kept = os.dup(2)
    os.dup2(null, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def make_env() -> gym.Env[Any, Any]:
    return gym.make(ENV)


class Side:
    """A vector env and its speed so far."""

    def __init__(self, name: str, make: Callable[[int], Any], envs: int) -> None:
        begun = time.perf_counter()
        with quiet():
            self.envs = make(envs)
            self.envs.reset(seed=0)
        self.started = time.perf_counter() - begun
        self.name = name
        self.rates: list[float] = []
        self.steps = 0
        self._actions = [self.envs.action_space.sample() for _ in range(16)]

    def run(self, seconds: float) -> None:
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            self.envs.step(self._actions[steps % 16])
            steps += 1
        self.steps += steps * self.envs.num_envs
        self.rates.append(steps * self.envs.num_envs / (time.perf_counter() - begun))

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def table(sides: list[Side]) -> Table:
    shown = Table(title=f"{ENV}, {sides[0].envs.num_envs} envs", title_justify="left")
    for column in ("", "start, s", "env steps", "steps/s"):
        shown.add_column(column, justify="left" if not column else "right")
    for side in sides:
        row = side.name, f"{side.started:.2f}", f"{side.steps:,}", f"{side.rate:,.0f}"
        shown.add_row(*row)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    console = Console()
    console.print(f"{options.envs} {ENV}, stepped for {options.seconds:g} s")
    makers: dict[str, Callable[[int], Any]] = {
        "gymnasium AsyncVectorEnv": lambda n: gym.vector.AsyncVectorEnv([make_env] * n),
        "pysampler VectorEnv": lambda n: pysampler.VectorEnv([make_env] * n),
        "the same, native=False": lambda n: pysampler.VectorEnv([make_env] * n, native=False),
    }
    sides = []
    for name, make in makers.items():
        with console.status(f"{name} makes {options.envs} envs"):
            sides.append(Side(name, make, options.envs))
    bars = Progress(
        TextColumn("{task.description:26}"), BarColumn(), TextColumn("{task.fields[rate]:>12}")
    )
    tasks = [bars.add_task(side.name, total=None, rate="") for side in sides]
    end = time.monotonic() + options.seconds
    with Live(bars, console=console, refresh_per_second=8, transient=True):
        while time.monotonic() < end or not all(side.rates for side in sides):
            for task, side in zip(tasks, sides, strict=True):
                side.run(0.25)
                fastest = max(s.rate for s in sides if s.rates)
                bars.update(task, total=fastest, completed=side.rate, rate=f"{side.rate:,.0f}/s")
    console.print(table(sides))
    for side in sides[1:]:
        ratio = side.rate / sides[0].rate
        console.print(f"[bold]{ratio:.1f} times[/] the steps in the same time: {side.name}")
    for side in sides:
        side.envs.close()


if __name__ == "__main__":
    main()
