"""Speeds of ``num_workers="auto"``, beside SyncVectorEnv and the default, for many kinds of envs.

Each cell of the grid, a number of envs and a step time, has an interpreter of its own, in which all
three step in turn, in short slices. A step of an env is a fixed amount of work: it does not pass
while a process waits for a CPU.

    python benchmarks/divisions.py --out benchmarks/results
    python benchmarks/divisions.py --cell 20 8 8        # us a step, envs, slices: one cell, as JSON
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from contenders import rounds_of
from division_model import gain
from envs import Busy
from gymnasium.vector import SyncVectorEnv
from running import heading, in_interpreter, machine, publish, quartiles, say, stolen_share, table

import pysampler

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = ["1", "10", "100", "1000", "10000", "CartPole-v1", "HalfCheetah-v5"]  # us, or an env
ENVS = [1, 2, 4, 8, 16, 64]
CPUS = [2, 4, 8, 16, 32]  # of the simulation
SECONDS = 0.1  # of a slice, at least one step of all envs


class Working(Busy):
    """An env whose step counts to a number, however long that takes."""

    def __init__(self, count: int) -> None:
        super().__init__(0)
        self._count = count

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for _ in range(self._count):
            pass
        return self._observation, 1.0, False, False, {}


def maker(step: str) -> Callable[[], gym.Env[Any, Any]]:
    """Return what makes an env whose step takes about that time, in us, or the env of that name."""
    if not step.isdigit():
        return functools.partial(gym.make, step)
    taken = []
    for _ in range(9):
        begun = time.perf_counter()
        Working(100_000).step(0)
        taken.append(time.perf_counter() - begun)
    return functools.partial(Working, int(float(step) / (statistics.median(taken) * 10)))


def cell(step: str, envs: int, slices: int) -> dict[str, Any]:
    """Return the steps of all envs a second of each contender, a figure for each slice."""
    env_fns = [maker(step)] * envs
    same_step = {"autoreset_mode": "SameStep"}
    contenders: dict[str, Any] = {
        "sync": SyncVectorEnv(env_fns, **same_step),
        "default": pysampler.VectorEnv(env_fns, **same_step),
        "auto": pysampler.VectorEnv(env_fns, num_workers="auto", **same_step),
    }
    actions = [contenders["sync"].action_space.sample() for _ in range(64)]
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for vector in contenders.values():
        vector.reset(seed=0)
        rounds_of(functools.partial(vector.step, actions[0]), SECONDS)
    for turn in range(slices):
        for name, vector in contenders.items():
            step_all = functools.partial(vector.step, actions[turn % 64])
            rounds = rounds_of(step_all, SECONDS)
            rates[name].append(len(rounds) / sum(rounds))
    division = contenders["auto"].division
    for vector in contenders.values():
        vector.close()
    return {
        "rates": rates,
        "workers": division.num_workers,
        "here": division.main_envs,
        "step_us": division.step_seconds * 1e6,
        "round_us": division.round_seconds * 1e6,
    }


def of_the_better(rates: dict[str, list[float]]) -> list[float]:
    """Return auto's rates as fractions of those of the better of the others, by its median."""
    better = max(rates["sync"], rates["default"], key=statistics.median)
    return [one / other for one, other in zip(rates["auto"], better, strict=True)]


def report(results: dict[str, Any]) -> str:
    rows, choices = [], []
    for step in STEPS:
        name = f"{step} us" if step.isdigit() else step
        row, choice = [name], [name]
        for envs in ENVS:
            found = results["cells"].get(f"{step}, {envs}")
            row.append(quartiles(of_the_better(found["rates"])) if found else "-")
            where = f"{found['workers']} w, {found['here']} here" if found else "-"
            choice.append("all here" if where.startswith("0 w") else where)
        rows.append(row)
        choices.append(choice)
    header = ["a step", *(f"{envs} env{'s' * (envs > 1)}" for envs in ENVS)]
    return "\n".join(
        [
            heading('What num_workers="auto" chooses', results["machine"]),
            (
                'Steps a second of all envs with `num_workers="auto"`, as fractions of the better '
                "of gymnasium's SyncVectorEnv and the default of `VectorEnv`, in turn, in slices "
                f"of {SECONDS:g} s or one step. Median [quartiles].\n"
            ),
            table(header, rows),
            "What it chose: workers, and envs in the process of the program:\n",
            table(header, choices),
            "## On more CPUs, simulated\n",
            (
                "How much faster `step()` of 64 envs is with a worker less and the best number of "
                "envs here, than with a worker for each CPU; in brackets, that number. Costs as "
                "measured on 2 and 16 CPUs (benchmarks/division_model.py). What it leaves out is "
                "in favour of a worker less: that the parent takes a CPU, and leaves its caches "
                "cold.\n"
            ),
            table(["a step", *(f"{cpus} CPUs" for cpus in CPUS)], simulated()),
        ]
    )


def simulated() -> list[list[str]]:
    """Return rows of a table: what it gains if the parent steps envs too, on more CPUs."""
    rows = []
    for step in (5.5, 20, 100):
        gains = [gain(64, cpus, step) for cpus in CPUS]
        rows.append([f"{step:g} us", *(f"{faster:.2f} [{own}]" for faster, own in gains)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", nargs=3, help="a step in us, envs, slices: print one cell")
    parser.add_argument("--slices", type=int, default=12, help="of each contender")
    parser.add_argument("--out", type=Path, help="folder to write results to")
    options = parser.parse_args()
    if options.cell:
        step, envs, slices = options.cell
        print(json.dumps(cell(step, int(envs), int(slices))))
        return
    results: dict[str, Any] = {"machine": machine(), "cells": {}}
    with stolen_share(results["machine"]):
        for step in STEPS:
            for envs in ENVS:
                found = in_interpreter(__file__, "--cell", step, str(envs), str(options.slices))
                results["cells"][f"{step}, {envs}"] = found
                say(
                    f"{step}, {envs}: {quartiles(of_the_better(found['rates']))} with "
                    f"{found['workers']} workers, {found['here']} here"
                )
    text = report(results)
    publish(options, "divisions", results, text)


if __name__ == "__main__":
    main()
