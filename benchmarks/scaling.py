"""How vector envs scale: steps a second and fractions of the ideal, with 1, 2, 4, ... workers.

For machines with many CPUs. The number of envs stays the same.

    python benchmarks/scaling.py --out benchmarks/results
    python benchmarks/scaling.py --most 8 --case "CartPole-v1, 64"
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from typing import Any

from envs import CASES
from running import Options, quartiles, say, study, table
from vector import SLICES, measured

CONTENDERS = ["pysampler", "gymnasium AsyncVectorEnv", "EnvPool (its own C++ envs)"]


def report(results: dict[str, Any]) -> list[str]:
    parts = [
        (
            "Fractions of the ideal, the same envs in as many processes that never talk, and of "
            "the *ideal barrier*, where each round of these processes is as long as that of the "
            "slowest: median [quartiles] of slices in turn with the ideal. AsyncVectorEnv has a "
            "process for each env.\n"
        )
    ]
    for name, by_workers in results["cases"].items():
        present = [n for n in CONTENDERS if any(n in c["fractions"] for c in by_workers.values())]
        rows = []
        for workers, case in by_workers.items():
            row = [workers, str(case["envs"]), f"{case['ideal']:,.0f}"]
            row += [quartiles(case["fractions"].get(contender, [])) for contender in present]
            of_barrier, rates = case["of_barrier"]["pysampler"], case["rates"]["pysampler"]
            rows.append([*row, quartiles(of_barrier), f"{statistics.median(rates):,.0f}"])
        ours = "pysampler, of the ideal barrier", "pysampler steps/s"
        header = ["workers", "envs", "ideal steps/s", *present, *ours]
        parts.append(f"## {name}\n\n" + table(header, rows))
    return parts


def measure(options: Options) -> dict[str, Any]:
    most = options.most or len(os.sched_getaffinity(0))
    counts = [2**n for n in range(most.bit_length()) if 2**n <= most]
    cases: dict[str, dict[int, Any]] = {name: {} for name in options.case}
    for name, by_workers in cases.items():
        for workers in counts:
            case = dataclasses.replace(CASES[name], workers=workers)
            names = CONTENDERS[:1] if options.no_peers else CONTENDERS
            names = [n for n in names if "EnvPool" not in n or case.env[:4] != "Busy"]
            say(f"{name}: {workers} workers")
            found = measured(case, names, options.slices, options.seconds)
            by_workers[workers] = {**found, "envs": case.envs}
    return {"cases": cases}


if __name__ == "__main__":
    study(
        *("Scaling with workers", measure, report),
        choices={"case": CASES},
        case=["CartPole-v1, 64", "HalfCheetah-v5, 64", "20 us of work, 64"],
        most=int,
        **SLICES,
    )
