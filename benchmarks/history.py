"""The history of speed: ten ratios to reference loops, a row for each run.

    python benchmarks/history.py --out benchmarks/results
    python benchmarks/history.py --quick

Speeds differ from day to day, with the machine's load and clock; ratios of two programs that take
turns differ far less. So each contender takes turns, slice by slice, with a reference that uses
nothing of pysampler. A run appends its ratios to ``history.jsonl``, draws all rows, and prints each
ratio that fell by more than three quartile ranges below the last ten rows of the same machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

import actors
import curves
import envs
import footprint
import gymnasium as gym
import partial
import peers
import primitives
import running
import samplers
import threads
import wrapped
from running import Measure, in_interpreter, rate_of, rates_in_turn, repeated, say

from pysampler._cli.turns import Spread

Row = dict[str, Any]

WORKERS = 2
OURS, REFERENCE = "pysampler", "reference"
RECENT = 10  # rows that the newest is compared with
MOST = 3  # quartile ranges that a ratio may fall


# -- in a contender's process ----------------------------------------------------------------------


def of_case(name: str, case: str) -> Callable[[], Measure]:
    return functools.partial(threads.contender, name, case, WORKERS)


def loops(make: Callable[[], gym.Env], count: int) -> Measure:
    """Return a function that steps envs in plain loops, in processes that never communicate."""
    return running.apart(
        lambda n: running.rate_of_single_envs([make() for _ in range(n)]), WORKERS, count
    )


def rollouts() -> Measure:
    make = functools.partial(gym.make, "CartPole-v1")
    sampler = samplers.rollouts_of(make, 64, None, "main")
    return lambda cell: {"rate": rate_of(samplers.sampled(sampler, cell["seconds"]))}


def acting() -> Measure:
    policy, high = envs.Linear(actors.CARTPOLE), 1024
    source = actors.made(actors.CARTPOLE, policy, high=high)

    measure = repeated(lambda: len(source.take(256)))

    def measure_what_follows(cell: dict[str, Any]) -> dict[str, Any]:
        source.take(high)  # records from before
        return measure(cell)

    return measure_what_follows


def receiving() -> Measure:
    measure = partial.pysampler("plain")
    cell = {"policy": 0, "least": 4, "timeout": None}
    return lambda asked: measure(cell, asked["seconds"])


def round_trips(make: peers.Make) -> Measure:
    context = multiprocessing.get_context("fork")
    ping, pong = make(context)
    context.Process(target=primitives.answer, args=(pong, sys.maxsize), daemon=True).start()

    def trips() -> int:
        for _ in range(100):
            ping()
        return 100

    return repeated(trips)


def starts(first: str) -> Measure:
    """Return a function that starts the first vector env of a new program, once."""
    program = footprint.START.format(envs=8, first=first, second="")
    return lambda _: {"rate": 1 / in_interpreter("-c", program)[0]}


class Ratio(NamedTuple):
    """Two programs that take turns.

    Attributes:
        about: What they do, for the report.
        ours: Prepares pysampler's program.
        reference: Prepares the other.
        turns: The most turns of each; few where one takes seconds.
    """

    about: str
    ours: Callable[[], Measure]
    reference: Callable[[], Measure]
    turns: int = 99


CARTPOLES = of_case(threads.APART, "CartPole x 8")
CHEETAHS = of_case(threads.APART, "HalfCheetah in Python x 8")
RATIOS = {
    "CartPole x 8": Ratio(
        "`step`, one env after another / plain loops",
        of_case(threads.PROCESSES, "CartPole x 8"),
        CARTPOLES,
    ),
    "CartPole x 64": Ratio(
        "the same",
        of_case(threads.PROCESSES, "CartPole x 64"),
        of_case(threads.APART, "CartPole x 64"),
    ),
    "HalfCheetah x 8": Ratio(
        "the same", of_case(threads.PROCESSES, "HalfCheetah in Python x 8"), CHEETAHS
    ),
    "HalfCheetah x 8, threads": Ratio(
        "`step` of native blocks in threads / plain loops",
        of_case(threads.THREADS, "HalfCheetah x 8"),
        CHEETAHS,
    ),
    "CartPole x 8, wrapped": Ratio(
        "`step` with CleanRL's wrappers / plain loops with them",
        lambda: wrapped.stepping(wrapped.OURS, "CartPole-v1", 8, WORKERS),
        lambda: loops(lambda: wrapped.make_env("CartPole-v1"), 4),
    ),
    "Rollouts": Ratio(
        "64 CartPoles, a free policy / plain loops without policy", rollouts, CARTPOLES
    ),
    "Actors": Ratio(
        "records of 16 CartPoles, a linear policy / plain loops without policy", acting, CARTPOLES
    ),
    "recv": Ratio(
        "`recv(min_envs=4)` of 16 envs, steps of 100 us (exponential) / plain loops",
        receiving,
        lambda: loops(partial.makers(slow=False)[0], 8),
    ),
    "Flag": Ratio(
        "round trips of two processes / those over a `multiprocessing` pipe",
        lambda: round_trips(peers.flag),
        lambda: round_trips(peers.pipe),
    ),
    "start": Ratio(
        "first start of 8 HalfCheetahs in a program / that of `AsyncVectorEnv`",
        lambda: starts(footprint.OURS),
        lambda: starts(footprint.THEIRS),
        turns=7,
    ),
}


# -- in the process that measures ------------------------------------------------------------------


def measured(names: list[str], options: argparse.Namespace) -> Row:
    """Return a row: where and when, and the quartiles of each ratio that could be measured."""
    m, ratios = running.machine() | {"load": os.getloadavg()[0]}, {}
    with running.stolen_share(m):
        for name in names:
            say(name)
            turns = min(options.repetitions, RATIOS[name].turns)
            own = argparse.Namespace(**vars(options) | {"repetitions": turns})
            rates = rates_in_turn(__file__, [OURS, REFERENCE], (name,), own)
            if len(rates) == 2:
                pairs = zip(rates[OURS], rates[REFERENCE], strict=True)
                found = Spread.of([a / b for a, b in pairs])
                ratios[name] = [round(value, 4) for value in astuple(found)]
    python = m["python"].rpartition(".")[0]
    where = f"{m['processor']}, {m['cpus']} CPUs{', virtual' * m['virtual']}, Python {python}"
    kept = {key: m[key] for key in ("date", "commit", "kernel")}
    others = {key: round(m[key], 3) for key in ("load", "stolen")}
    return {**kept, **others, "machine": where, "ratios": ratios}


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, row: Row) -> list[Row]:
    """Append a row to the history; return all its rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return read(path)


def before(rows: list[Row], name: str) -> list[Spread]:
    """Return a ratio in the last rows of the newest row's machine, without the newest."""
    *earlier, newest = rows
    same = [row["ratios"] for row in earlier if row["machine"] == newest["machine"]]
    return [Spread(*ratios[name]) for ratios in same if name in ratios][-RECENT:]


def drops(rows: list[Row]) -> list[str]:
    """Describe each ratio of the newest row that is far below those of its machine before it.

    Far is more than three times the larger of two quartile ranges: that of the slices of a run, and
    that of the medians of the runs.
    """
    said = []
    for name, found in rows[-1]["ratios"].items():
        if not (earlier := before(rows, name)):
            continue
        slices = Spread.of([one.high - one.low for one in earlier]).middle
        runs, now = Spread.of([one.middle for one in earlier]), Spread(*found)
        width = max(runs.high - runs.low, slices)
        if now.middle < runs.middle - MOST * width:
            said.append(
                f"{name} fell from {runs.middle:.2f} to {now.middle:.2f}: more than {MOST} "
                f"quartile ranges of {width:.3f} ({len(earlier)} earlier rows)"
            )
    return said


def report(rows: list[Row]) -> str:
    """Return the newest row beside those before it, and a picture of all."""
    newest, lines = rows[-1], []
    for name, found in newest["ratios"].items():
        earlier = [one.middle for one in before(rows, name)]
        usual = f"{Spread.of(earlier).middle:.2f}" if earlier else "-"
        lines.append([name, RATIOS[name].about, str(Spread(*found)), usual])
    return (
        f"# Row {len(rows)}, measured {newest['date']}\n\n{newest['machine']}, Linux "
        f"{newest['kernel']}, load {newest['load']:.1f} before. {newest['stolen']:.1%} of its CPU "
        f"time went to other machines meanwhile. pysampler {newest['commit']}. Medians [quartiles] "
        f"of slices in turn, {WORKERS} workers and processes.\n\n"
        + running.table(["", "pysampler / reference", "ratio", "earlier rows"], lines)
        + "\n![ratios of all rows](history.svg)\n"
    )


def picture(rows: list[Row], stem: Path) -> None:
    """Draw the median and the quartiles of each ratio, by machine."""
    panels = []
    for name in RATIOS:
        lines: dict[str, Any] = {row["machine"]: ([], [], []) for row in rows}
        for at, row in enumerate(rows, 1):
            for line, value in enumerate(row["ratios"].get(name, ())):
                lines[row["machine"]][line].append((at, value))
        panels.append({"title": name, "x": "row", "y": "ratio", "curves": lines})
    curves.picture(stem, [panels[at : at + 2] for at in range(0, len(panels), 2)])


def main() -> None:
    defaults = {"only": RATIOS, **running.SLICES, "repetitions": 17, "seconds": 0.1}
    options = running.parse(__doc__, defaults, quick={"repetitions": 2, "seconds": 0.05})
    row = measured(options.only, options)
    rows = append(options.out / "history.jsonl", row) if options.out else [row]
    print(report(rows))
    if options.out:
        (options.out / "history.md").write_text(report(rows))
        picture(rows, options.out / "history")
        compared = any(before(rows, name) for name in row["ratios"])
        nothing = f"nothing fell by more than {MOST} quartile ranges"
        if row["load"] > 1:
            say(f"the load was {row['load']:.1f} before: other programs change ratios too")
        say("\n".join(drops(rows)) or (nothing if compared else "no earlier row of this machine"))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in (OURS, REFERENCE):
        pair = RATIOS[sys.argv[2]]
        running.answer(pair.ours if sys.argv[1] == OURS else pair.reference)
    else:
        main()
