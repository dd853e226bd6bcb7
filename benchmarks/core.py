"""Run every benchmark of the core, one at a time; write results with machine, kernel and date.

benchmarks/results/<date>.json holds the numbers, .md the tables, .png the picture.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from primitives import round_trips
from running import Options, pyplot, run, say, study, table

RESULTS = Path(__file__).parent / "results"


def lines(command: list[str], minutes: float) -> list[Any]:
    """Run a command, and return the JSON of each line that it prints."""
    say(f"{' '.join(command)} ...")
    done = run(command, 60 * minutes)
    done.check_returncode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure(options: Options) -> dict[str, Any]:
    if options.native is None:
        raise SystemExit("--native must name the folder of the native benchmarks")
    waiting = ["20,150", "1,2", "5,5000", "1", "50"] if options.quick else []
    return {
        "latency": lines([f"{options.native}/bench_latency"], 5),
        "waiting": lines([f"{options.native}/bench_waiting", *waiting], 15),
        "round_trips": round_trips(1.0),
    }


# -- what it says ----------------------------------------------------------------------------------


def us(ns: float) -> str:
    return f"{ns / 1e3:.2f}" if ns < 1e5 else f"{ns / 1e3:.0f}"


def cells(waiting: list[dict[str, Any]]) -> dict[tuple[int, int, int], dict[str, dict[str, Any]]]:
    """Return results by (work, workers, think), then by strategy."""
    by_cell: dict[tuple[int, int, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in waiting:
        by_cell[row["work_us"], row["workers"], row["think_us"]][row["strategy"]] = row
    return by_cell


def report(results: dict[str, Any]) -> list[str]:
    parts = ["Peers in turn in one run; medians.\n"]
    latency = defaultdict(list)
    for row in results["latency"]:
        latency[row["bench"]].append(row)
    percentiles = ["p50_ns", "p99_ns", "p99.9_ns"]
    columns = ["p50", "p99", "p99.9"]
    trips = results["round_trips"].items()
    rows = [[name, *(f"{row[c]:.2f}" for c in columns)] for name, row in trips]
    from_python = "## Round trip from Python, us\n\n" + table(["", *columns], rows)
    sections: list[tuple[str, str, str, dict[str, Callable[[Any], str]]]] = [
        ("round_trip", "Round trip in C++, both sides awake, us", "", {}),
        (
            *("deadline", "Past the deadline, us, and CPU time a wait", ""),
            {"CPU": lambda row: us(row["cpu_ns"])},
        ),
        (
            *("fan_in", "Doorbell: from go to all posted, us, and wake system calls a batch"),
            *("posters", {"wakes": lambda row: f"{row['wakes_per_batch']:.3f}"}),
        ),
        ("notice", "Watch: from the kill of a process to the action, us", "kills", {}),
    ]
    for bench, title, first, more in sections:
        shown = [*((lambda row, p=p: us(row[p])) for p in percentiles), *more.values()]
        rows = [[row["case"], *(cell(row) for cell in shown)] for row in latency[bench]]
        parts.append(f"## {title}\n\n" + table([first, *columns, *more], rows))
    parts.insert(2, from_python)
    rows = []
    for (work, workers, think), strategies in cells(results["waiting"]).items():
        ours = strategies["adaptive"]
        best = min(
            (r for name, r in strategies.items() if name != "adaptive"), key=lambda r: r["round_ns"]
        )
        rows.append(
            [
                *(str(work), str(workers), str(think), us(ours["round_ns"]), us(best["round_ns"])),
                *(best["strategy"], f"{best['round_ns'] / ours['round_ns']:.2f}"),
                f"{ours['worker_cpu_ns'] / (10 * think):.1f}",
            ]
        )
    header = ["work us", "workers", "think us", "adaptive us", "best fixed us", "which"]
    parts.append(
        "## Ways of waiting: a round, adaptive against the best of six fixed strategies\n\n"
        "The last column is the workers' CPU time while waiting, in % of the thinking time.\n\n"
        + table([*header, "best / adaptive", "waiting %"], rows)
    )
    return parts


def draw(results: dict[str, Any], stem: Path) -> None:
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(13, 5))
    trips = results["round_trips"]
    names = list(trips)
    for offset, column in ((0.2, "p50"), (-0.2, "p99")):
        left.barh(
            [i + offset for i in range(len(names))],
            [trips[name][column] for name in names],
            height=0.38,
            label=column,
        )
    left.set(yticks=range(len(names)), yticklabels=names, xscale="log", xlabel="us")
    left.set_title("There and back from Python")
    left.invert_yaxis()
    left.legend()

    late = [r for r in results["latency"] if r["bench"] == "deadline"]
    for kind in ("kernel", "precise"):
        rows = [r for r in late if r["case"].endswith(kind)]
        lengths = [int(r["case"].split()[0]) for r in rows]
        [line] = right.plot(lengths, [r["p50_ns"] / 1e3 for r in rows], "o-", label=f"{kind} p50")
        right.plot(
            lengths,
            [r["p99_ns"] / 1e3 for r in rows],
            "o--",
            color=line.get_color(),
            label=f"{kind} p99",
        )
    right.set(xscale="log", yscale="log", xlabel="wait, us", ylabel="past the deadline, us")
    right.set_title("How late a wait ends")
    right.legend()
    m = results["machine"]
    figure.suptitle(f"{m['processor']}, {m['cpus']} CPUs, Linux {m['kernel']}, {m['date']}")
    figure.savefig(stem.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    study("The core", measure, report, picture=draw, quick={}, out=RESULTS, native=str)
