"""Round trips from Python: pysampler, multiprocessing and others, in turn in one run."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time

import numpy as np
from peers import INSTALLED, STANDARD, Call, Make
from running import say, table

ROUNDS = 3  # of every peer in turn; the median of each percentile is reported
COLUMNS = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}


def answer(pong: Call, trips: int) -> None:
    for _ in range(trips):
        pong()


def installed(peers: dict[str, Make]) -> dict[str, Make]:
    """Return the peers whose packages are installed; print which are not."""
    found = {}
    for name, make in peers.items():
        try:
            make(multiprocessing.get_context("fork"))
        except ModuleNotFoundError as error:
            say(f"without {name}: {error}")
        else:
            found[name] = make
    return found


def measure(make: Make, seconds: float) -> dict[str, float]:
    """Return percentiles of a round trip, in us."""
    context = multiprocessing.get_context("fork")
    ping, pong = make(context)
    # A few trips tell how many fit into the time; the child must know the number beforehand.
    trial = 50
    child = context.Process(target=answer, args=(pong, trial))
    child.start()
    start = time.perf_counter()
    for _ in range(trial):
        ping()
    trips = max(100, int(seconds / ((time.perf_counter() - start) / trial)))
    child.join()
    child = context.Process(target=answer, args=(pong, trips))
    child.start()
    ping()  # the child is there
    took = np.empty(trips - 1)
    for i in range(trips - 1):
        start_ns = time.perf_counter_ns()
        ping()
        took[i] = time.perf_counter_ns() - start_ns
    child.join()
    return {name: float(np.percentile(took, q)) / 1e3 for name, q in COLUMNS.items()}


def run(peers: dict[str, Make], seconds: float) -> dict[str, dict[str, float]]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    for round_ in range(ROUNDS):
        for name, make in peers.items():
            say(f"{round_ + 1}/{ROUNDS} {name}")
            runs[name].append(measure(make, seconds))
    return {
        name: {column: float(np.median([r[column] for r in results])) for column in COLUMNS}
        for name, results in runs.items()
    }


def show(results: dict[str, dict[str, float]]) -> None:
    ours = next(iter(results.values()))["p50"]
    rows = [
        [name, *(f"{row[column]:.1f}" for column in COLUMNS), f"{row['p50'] / ours:.0f}"]
        for name, row in results.items()
    ]
    print("There and back between two processes, from Python, in us\n")
    print(table(["", *COLUMNS, "p50, ours = 1"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, for core.py")
    options = parser.parse_args()
    results = run(STANDARD | installed(INSTALLED), 1.0)
    if options.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    main()
