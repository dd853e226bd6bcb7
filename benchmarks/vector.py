"""Speeds of vector envs as fractions of the ideal: processes that never communicate.

All contenders of a case are started, then take turns in short slices: the ideal, a contender, the
ideal, the next. The others are parked meanwhile. A slice is compared with the ideal's slices before
and after it: with its speed, and with that of the same rounds at a barrier which costs nothing, the
*ideal barrier* of a ``step()`` that returns when all envs have stepped.

    python benchmarks/vector.py                         # every case; writes results
    python benchmarks/vector.py --case "CartPole-v1, 64" --slices 8
    python benchmarks/vector.py --repetitions 3         # start the contenders three times
    python benchmarks/vector.py --workers 8             # where there are more CPUs
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import footprint
from contenders import CONTENDERS
from envs import CASES, Case
from running import Contender, Options, columns, quartiles, rate_of, say, started, study, table

PROGRAM = Path(__file__).parent / "contenders.py"
SLICES = {"slices": 24, "seconds": 0.25, "no_peers": False}  # options
ROUND = ["send", "wake", "step", "slowest", "notice", "read"]  # its parts
OURS = ["pysampler", 'pysampler, main_envs="auto"']
PEERS = [
    *("gymnasium SyncVectorEnv", "gymnasium AsyncVectorEnv", "SB3 SubprocVecEnv"),
    *("Tianshou ShmemVectorEnv", "PufferLib", "EnvPool (its own C++ envs)"),
]


def contenders_of(case: Case, *, peers: bool) -> list[str]:
    names = list(OURS)
    if "image" in case.name:
        names.append("pysampler, copy=False")
    if case.env == "HalfCheetah-v5":
        names.append('pysampler, infos="none"')
    if peers and case.peers:
        is_known = case.env[:4] != "Busy"  # to EnvPool, and native
        names += ["pysampler, native"] * is_known
        others = PEERS if is_known else PEERS[:-1]
        names += others[:2] if "image" in case.name else others
    return names


def measured(
    case: Case, names: list[str], slices: int, seconds: float, repetitions: int = 1
) -> dict[str, Any]:
    found: dict[str, Any] = {"rates": {}, "fractions": {}, "of_barrier": {}}
    found |= {"ideal": [], "barrier": []}
    where = []
    what = case.name, case.workers, case.envs
    arguments = {name: (name, *what) for name in ["ideal", *names]}
    for _ in range(repetitions):
        with started(PROGRAM, arguments) as running:
            for name, contender in running.items():
                if contender.trouble:
                    say(f"  {name} does not run: {contender.trouble}")
            ideal = running.pop("ideal")
            able = {name: one for name, one in running.items() if not one.trouble}
            take_turns(ideal, able, slices, seconds, found)
            if "pysampler" in able:
                where.append(able["pysampler"].ask(where=100))
    return {
        **found,
        "ideal": statistics.median(found["ideal"]),
        "ideal_spread": [min(found["ideal"]), max(found["ideal"])],
        "where": {k: statistics.median(row[k] for row in where) for k in ROUND if where},
    }


def take_turns(
    ideal: Contender, running: dict[str, Contender], slices: int, seconds: float, found: Any
) -> None:
    """Measure slices of contenders, each between two of the ideal; add them to what was found."""

    def next_ideal() -> tuple[float, float]:
        result = ideal.ask(seconds=seconds)
        speeds = rate_of(result), result["barrier"]
        found["ideal"].append(speeds[0])
        found["barrier"].append(speeds[1] / speeds[0])
        return speeds

    before = next_ideal()
    for turn in range(slices):
        for name, contender in running.items():
            taken = contender.rate(seconds=seconds)
            after = next_ideal()
            alone, barrier = (statistics.mean(pair) for pair in zip(before, after, strict=True))
            found["rates"].setdefault(name, []).append(taken)
            found["fractions"].setdefault(name, []).append(taken / alone)
            found["of_barrier"].setdefault(name, []).append(taken / barrier)
            before = after
        say(f"  {turn + 1}/{slices}", end="\r")


def report(results: dict[str, Any]) -> list[str]:
    cases, workers = results["cases"], results["workers"]
    present = [n for n in CONTENDERS if any(n in case["fractions"] for case in cases.values())]

    def fractions(key: str) -> dict[str, Callable[[Any], str]]:
        return {n: lambda row, n=n: quartiles(row[1][key].get(n, [])) for n in present}

    about = (
        f"The *ideal*: the same envs in {workers} processes that never talk. The *ideal "
        "barrier*: the same rounds of these processes, each as long as that of the slowest, "
        "for which the others wait at no cost: what a `step()` that returns when all envs have "
        "stepped could reach. Targets of `step()` are of the ideal barrier.\n\n"
        f"Contenders take turns with the ideal in slices of {results['slice_seconds']:g} s; "
        "each is compared with the ideal's slices before and after. Median [quartiles]. "
        f"{workers} workers, or a process for each env where that is the design.\n"
    )
    case: dict[str, Callable[[Any], Any]] = {"env, envs": lambda row: row[0]}
    of_ideal = {
        "ideal steps/s": lambda row: f"{row[1]['ideal']:,.0f}",
        "ideal barrier": lambda row: quartiles(row[1]["barrier"]),
    }
    target = {"target": lambda row: CASES[row[0]].target or "-"}
    spent = {part: lambda row, part=part: f"{row[1]['where'][part]:.1f}" for part in ROUND}
    alone = {"alone": lambda row: f"{CASES[row[0]].envs / row[1]['ideal'] * 1e6:.1f}"}
    parts = [
        about,
        "## Fractions of the ideal\n",
        columns(cases.items(), {**case, **of_ideal, **fractions("fractions")}),
        "## Fractions of the ideal barrier\n",
        columns(cases.items(), {**case, **target, **fractions("of_barrier")}),
    ]
    parts.append(
        "## Where a round goes, us\n\nThe parent sends actions, workers wake (*wake* ends where "
        "the last one begins, and holds what each does around its envs), envs step (*step*, the "
        "mean of the workers; *alone* is what the same envs take in the ideal), the slowest worker "
        "is waited for, the parent notices and reads.\n"
    )
    parts.append(columns(cases.items(), {"": lambda row: row[0], **spent, **alone}))
    if footprint_ := results.get("footprint"):
        rows = [
            [name, f"{first:.2f}", f"{second:.2f}"]
            for name, (first, second) in footprint_["start"].items()
        ]
        rows.append(["making them alone, two processes", "", f"{footprint_['making_alone']:.2f}"])
        parts.append(
            "## Starting with 64 HalfCheetah-v5, s\n\n"
            + table(["", "the first in a program, and reset", "the second"], rows)
        )
        growth = ", ".join(f"{kib:.0f}" for kib in footprint_["growth_KiB"])
        parts.append(
            "## Memory\n\nGrowth over 10^6 steps of CartPole-v1, parent and workers: "
            f"{growth} KiB.\n"
        )
    return parts


def measure(options: Options) -> dict[str, Any]:
    found = {}
    for name in options.case:
        case = dataclasses.replace(CASES[name], workers=options.workers)
        say(name)
        names = contenders_of(case, peers=not options.no_peers)
        found[name] = measured(case, names, options.slices, options.seconds, options.repetitions)
    results = {"workers": options.workers, "slice_seconds": options.seconds, "cases": found}
    if options.out:
        say("start and memory")
        results["footprint"] = footprint.measure()
    return results


if __name__ == "__main__":
    study(
        *("Vector envs", measure, report),
        case=CASES,
        workers=2,
        repetitions=1,
        **SLICES,
    )
