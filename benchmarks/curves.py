"""Learning curves of several runs: when they reach a return, what they reach by then, a picture.

A curve is a list of points (env steps, seconds, return), both counted from the start of a run.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from running import pyplot

Curve = Sequence[Sequence[float]]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS, SECONDS, RETURN = range(3)  # of a point
RECENT = 3  # points whose mean is the return at some time: one evaluation says little


def add_examples_to_path() -> None:
    """Let benchmarks import the learners of the examples, behind modules of this folder."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))


def example(name: str) -> Any:
    """Return a module of the examples under a name by which workers cannot import it."""
    own = f"{name}_example"
    if own not in sys.modules:
        spec = importlib.util.spec_from_file_location(own, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[own] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(EXAMPLES))  # what examples share
        spec.loader.exec_module(sys.modules[own])
        sys.path.remove(str(EXAMPLES))
    return sys.modules[own]


def reached(curve: Curve, goal: float, axis: int) -> float | None:
    """Return the steps or seconds of the first point that has the goal; None if none has."""
    return next((point[axis] for point in curve if point[RETURN] >= goal), None)


def return_at(curve: Curve, axis: int = STEPS, limit: float = math.inf) -> float:
    """Return the mean return of the last points within some steps or seconds; nan without any."""
    within = [point[RETURN] for point in curve if point[axis] <= limit]
    return statistics.fmean(within[-RECENT:]) if within else math.nan


def spread_to_goal(curves: list[Curve], goal: float, axis: int) -> str:
    """Return the median and the range of ``reached`` as text, and how many runs reach it."""
    found = [x for curve in curves if (x := reached(curve, goal, axis)) is not None]
    if not found:
        return "-"
    middle, least, most = (f"{x:,.0f}" for x in (statistics.median(found), min(found), max(found)))
    few = f" ({len(found)} of {len(curves)})" * (len(found) < len(curves))
    return f"{middle} [{least}, {most}]{few}"


def compared(ours: list[float | None], others: list[float | None], unit: str) -> str:
    """Say whether runs need fewer steps or seconds than others: if ranges do not overlap.

    None is a run that never gets there.
    """
    a, b = ([float("inf") if x is None else x for x in some] for some in (ours, others))
    if max(a) < min(b):
        return f"fewer {unit} in every run"
    return f"more {unit} in every run" if min(a) > max(b) else f"no clear difference in {unit}"


def verdict(runs: Mapping[str, list[Any]], pairs: list[tuple[str, str]], goal: float) -> str:
    """Say for each pair of names what the first needs to the goal beside the second."""
    found = []
    for pair in pairs:
        words = []
        for axis, unit in ((STEPS, "steps"), (SECONDS, "seconds")):
            ours, theirs = (
                [reached(run["curve"], goal, axis) for run in runs[name]] for name in pair
            )
            words.append(compared(ours, theirs, unit))
            if all(x is None for x in (*ours, *theirs)):
                words = ["neither gets there"]
                break
        found.append(f"*{pair[0]}* beside *{pair[1]}*: {' and '.join(words)}")
    return f"To a return of {goal:g}, {'; '.join(found)}.\n"


def along(runs: Mapping[str, list[Any]], axis: int) -> dict[str, list[Any]]:
    """Return by name the curves of runs over steps, or over seconds."""
    return {
        name: [[(point[axis], point[RETURN]) for point in run["curve"]] for run in some]
        for name, some in runs.items()
    }


def panels(title: str, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return panels with the returns of a case's runs, over steps and over seconds."""
    shared = {"title": title, "y": "return", "goal": case["goal"]}
    return [
        {**shared, "x": name, "curves": along(case["runs"], axis)}
        for axis, name in ((STEPS, "env steps"), (SECONDS, "seconds"))
    ]


def picture(stem: Path, rows: list[list[dict[str, Any]]]) -> None:
    """Draw panels in rows to ``stem``.svg.

    Each panel has a title, labels, by name the curves of its seeds, and perhaps a goal.
    """
    size = (4 * max(map(len, rows)), 2.8 * len(rows))
    figure, grid = pyplot().subplots(len(rows), max(map(len, rows)), figsize=size, squeeze=False)
    for panels, axes in zip(rows, grid, strict=True):
        for axis in axes[len(panels) :]:
            axis.remove()
        for panel, axis in zip(panels, axes, strict=False):
            for number, (name, curves) in enumerate(panel["curves"].items()):
                for seed, points in enumerate(curves):
                    label = name if seed == 0 else None
                    style = f"C{number}{'.' * (len(points) == 1)}"
                    axis.plot(*np.reshape(points, (-1, 2)).T, style, linewidth=1, label=label)
            if (goal := panel.get("goal")) is not None:
                axis.axhline(goal, color="grey", linewidth=0.5)
            axis.set_title(panel["title"], fontsize=8)
            axis.set(xlabel=panel["x"], ylabel=panel["y"])
            axis.tick_params(labelsize=7)
    grid[0][0].legend(fontsize=7)
    figure.savefig(stem.with_suffix(".svg"))
