"""Speeds of vector envs as fractions of the ideal: processes that never communicate.

All contenders of a case are started, then measured in turn, repeatedly; the ideal, the same envs in
as many processes, is measured before and after each.

    python benchmarks/vector.py                         # every case; writes results
    python benchmarks/vector.py --case "CartPole-v1, 64" --repetitions 3
    python benchmarks/vector.py --workers 8             # where there are more CPUs
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

import footprint
from envs import CASES, Case
from running import Contender, heading, machine, say, spread, stolen_share, table, write

HERE = Path(__file__).parent
OURS = ["pysampler"]
PEERS = [
    *("gymnasium SyncVectorEnv", "gymnasium AsyncVectorEnv", "SB3 SubprocVecEnv"),
    *("Tianshou ShmemVectorEnv", "EnvPool (its own C++ envs)"),
]


def contenders_of(case: Case, *, peers: bool) -> list[str]:
    names = list(OURS)
    if "image" in case.name:
        names.append("pysampler, copy=False")
    if case.env == "HalfCheetah-v5":
        names.append('pysampler, infos="none"')
    if peers and case.peers:
        others = PEERS if case.env[:4] != "Busy" else PEERS[:-1]
        names += others[:2] if "image" in case.name else others
    return names


def measure(case: Case, names: list[str], repetitions: int, seconds: float) -> dict[str, Any]:
    running = {
        name: Contender(HERE / "contenders.py", name, case.name, seconds, case.workers)
        for name in ["ideal", *names]
    }
    try:
        for name in list(running):
            if running[name].trouble:
                say(f"  {name} does not run: {running[name].trouble}")
                running.pop(name).end()
        ideal = running.pop("ideal")
        try:
            return _in_turn(ideal, running, repetitions)
        finally:
            ideal.end()
    finally:
        for contender in running.values():
            contender.end()


def _in_turn(ideal: Contender, running: dict[str, Contender], repetitions: int) -> dict[str, Any]:
    fractions: dict[str, list[float]] = {name: [] for name in running}
    of_contenders: dict[str, list[float]] = {name: [] for name in running}
    where: list[dict[str, float]] = []
    rates = [rate(ideal.measure())]
    for repetition in range(repetitions):
        for name, contender in running.items():
            result = contender.measure()
            assert result is not None, contender.trouble
            rates.append(rate(ideal.measure()))
            of_contenders[name].append(rate(result))
            fractions[name].append(rate(result) / statistics.mean(rates[-2:]))
            if name == "pysampler":
                where.append(result["where"])
        say(f"  {repetition + 1}/{repetitions}", end="\r")
    return {
        "ideal": statistics.median(rates),
        "ideal_spread": [min(rates), max(rates)],
        "fractions": fractions,
        "rates": of_contenders,
        "where": {k: statistics.median(row[k] for row in where) for k in where[0]},
    }


def rate(result: dict[str, Any] | None) -> float:
    assert result is not None, "a contender has ended"
    return float(result["steps"] / result["seconds"])


def tables(results: dict[str, Any]) -> str:
    names = ["pysampler", "pysampler, copy=False", 'pysampler, infos="none"', *PEERS]
    present = [n for n in names if any(n in c["fractions"] for c in results["cases"].values())]
    workers = results["workers"]
    parts = [
        heading("Vector envs", results["machine"]),
        (
            f"Fractions of the ideal: the same envs in {workers} processes that never talk. Median "
            f"[least, most] of repetitions taken in turn; {workers} workers, or a process for each "
            "env where that is the design. *target* is what we aim at.\n"
        ),
    ]
    rows = []
    for name, case in results["cases"].items():
        row = [name, f"{case['ideal']:,.0f}", f"{CASES[name].target:.2f}"]
        for contender in present:
            values = case["fractions"].get(contender)
            row.append("-" if not values else spread(values))
        rows.append(row)
    parts.append(table(["env, envs", "ideal steps/s", "target", *present], rows))
    parts.append(
        "## Where a round goes, us\n\n"
        "The parent sends actions, workers wake (*wake* ends where the last one begins, and holds "
        "what each does around its envs), envs step (*step*, the mean of the workers; *alone* is "
        "what the same envs take in the ideal), the slowest worker is waited for, the parent "
        "notices and reads.\n"
    )
    keys = ["send", "wake", "step", "slowest", "notice", "read"]
    rows = []
    for name, case in results["cases"].items():
        envs_alone = CASES[name].envs / case["ideal"] * 1e6
        rows.append([name, *(f"{case['where'][k]:.1f}" for k in keys), f"{envs_alone:.1f}"])
    parts.append(table(["", *keys, "alone"], rows))
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
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, help="folder to write results to")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "workers": options.workers, "cases": {}}
    with stolen_share(results["machine"]):
        for name in options.case or list(CASES):
            case = dataclasses.replace(CASES[name], workers=options.workers)
            say(name)
            contenders = contenders_of(case, peers=not options.no_peers)
            results["cases"][name] = measure(case, contenders, options.repetitions, options.seconds)
        if options.out:
            say("start and memory")
            results["footprint"] = footprint.measure()
    text = tables(results)
    print(text)
    if options.out:
        write(options.out, "vector", results, text)


if __name__ == "__main__":
    main()
