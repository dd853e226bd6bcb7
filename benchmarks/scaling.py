"""How vector envs scale: steps a second and fractions of the ideal, with 1, 2, 4, ... workers.

For machines with many CPUs. The number of envs stays the same.

    python benchmarks/scaling.py --out benchmarks/results
    python benchmarks/scaling.py --most 8 --case "CartPole-v1, 64"
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

from envs import CASES
from running import heading, machine, publish, quartiles, say, stolen_share, table
from vector import measure

CONTENDERS = ["pysampler", "gymnasium AsyncVectorEnv", "EnvPool (its own C++ envs)"]


def tables(results: dict[str, Any]) -> str:
    parts = [
        heading("Scaling with workers", results["machine"]),
        (
            "Fractions of the ideal, the same envs in as many processes that never talk, and of "
            "the *ideal barrier*, where each round of these processes is as long as that of the "
            "slowest: median [quartiles] of slices in turn with the ideal. AsyncVectorEnv has a "
            "process for each env.\n"
        ),
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
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--most", type=int, help="workers; by default as many as CPUs")
    parser.add_argument("--slices", type=int, default=24, help="of each contender")
    parser.add_argument("--seconds", type=float, default=0.25, help="of a slice")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, help="folder to write results to")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "cases": {}}
    most = options.most or results["machine"]["cpus"]
    counts = [2**n for n in range(most.bit_length()) if 2**n <= most]
    with stolen_share(results["machine"]):
        for name in options.case or ["CartPole-v1, 64", "HalfCheetah-v5, 64", "20 us of work, 64"]:
            by_workers = results["cases"][name] = {}
            for workers in counts:
                case = dataclasses.replace(CASES[name], workers=workers)
                names = CONTENDERS[:1] if options.no_peers else CONTENDERS
                names = [n for n in names if "EnvPool" not in n or case.env[:4] != "Busy"]
                say(f"{name}: {workers} workers")
                measured = measure(case, names, slices=options.slices, seconds=options.seconds)
                by_workers[str(workers)] = {**measured, "envs": case.envs}
    text = tables(results)
    publish(options, "scaling", results, text)


if __name__ == "__main__":
    main()
