"""Round trips from Python: pysampler, multiprocessing and others, in turn in one run."""

from __future__ import annotations

import multiprocessing
import time

import numpy as np
from peers import INSTALLED, STANDARD, Call, Make
from running import in_turn, say

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


def round_trips(seconds: float) -> dict[str, dict[str, float]]:
    """Return percentiles of the round trips of each peer, in us."""
    peers = STANDARD | installed(INSTALLED)

    def measured(name: str, turn: int) -> dict[str, float]:
        say(f"{turn + 1}/{ROUNDS} {name}")
        return measure(peers[name], seconds)

    return {
        name: {column: float(np.median([r[column] for r in results])) for column in COLUMNS}
        for name, results in in_turn(peers, range(ROUNDS), measured).items()
    }
