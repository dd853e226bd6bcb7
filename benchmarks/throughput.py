"""Throughput of rings and queues, in records/s and GB/s, with one producer and with four.

Each is used in its fastest way: in batches where it has calls for batches. pysampler's copy from
and to NumPy arrays; the queues carry bytes objects. Measured in turn in one run; medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pysampler import sync

ROUNDS = 3
BATCH = 64
SIZES = {"64 B": 64, "4 KiB": 4096, "1 MiB": 1 << 20}
RING_BYTES = 16 << 20
# Send n records; receive some and return how many.
Pair = tuple[Callable[[int], None], Callable[[], int]]


def _batch(size: int) -> int:
    return max(1, min(BATCH, RING_BYTES // 4 // size))


def _slots(size: int) -> int:
    return max(4, min(1 << 14, RING_BYTES // size))


def ring(size: int, _: Any) -> Pair:
    one = sync.Ring(_slots(size), np.uint8, size)
    return _ring_pair(one, size)


def shared_ring(size: int, _: Any) -> Pair:
    return _ring_pair(sync.SharedRing(_slots(size), np.uint8, size), size)


def _ring_pair(one: Any, size: int) -> Pair:
    records = np.zeros((_batch(size), size), np.uint8)

    def receive() -> int:
        return len(one.pop_many(len(records)))

    return lambda n: one.push_many(records[:n]), receive


def ring_views(size: int, _: Any) -> Pair:
    one = sync.Ring(_slots(size), np.uint8, size)
    record = np.zeros(size, np.uint8)
    out = np.empty((BATCH, size), np.uint8)

    def send(n: int) -> None:
        while n > 0:
            slots = one.claim(n)
            slots[:] = record
            one.publish()
            n -= len(slots)

    def receive() -> int:
        slots = one.peek(BATCH)
        out[: len(slots)] = slots
        one.release()
        return len(slots)

    return send, receive


def byte_ring(size: int, _: Any) -> Pair:
    one = sync.ByteRing(RING_BYTES)
    message = bytes(size)

    def send(n: int) -> None:
        for _ in range(n):
            one.send(message)

    def receive() -> int:
        one.recv()
        return 1

    return send, receive


def faster_fifo(size: int, _: Any) -> Pair:
    import faster_fifo as peer

    one = peer.Queue(max_size_bytes=2 * RING_BYTES)
    messages = [bytes(size)] * _batch(size)
    return (
        lambda n: one.put_many(messages[:n], timeout=100),
        lambda: len(one.get_many(timeout=100)),
    )


def queue(size: int, context: Any) -> Pair:
    one = context.Queue(maxsize=_slots(size))
    message = bytes(size)

    def send(n: int) -> None:
        for _ in range(n):
            one.put(message)

    def receive() -> int:
        one.get()
        return 1

    return send, receive


ONE = {
    "pysampler Ring, batches": ring,
    "pysampler Ring, views": ring_views,
    "pysampler ByteRing": byte_ring,
    "faster-fifo, batches": faster_fifo,
    "multiprocessing Queue": queue,
}
MANY = {
    "pysampler SharedRing, batches": shared_ring,
    "faster-fifo, batches": faster_fifo,
    "multiprocessing Queue": queue,
}


def _produce(send: Callable[[int], None], total: int, batch: int) -> None:
    while total > 0:
        n = min(total, batch)
        send(n)
        total -= n


def _rate(make: Callable[[int, Any], Pair], size: int, producers: int, total: int) -> float:
    context = multiprocessing.get_context("fork")
    send, receive = make(size, context)
    each = max(1, total // producers)
    children = [
        context.Process(target=_produce, args=(send, each, _batch(size))) for _ in range(producers)
    ]
    for child in children:
        child.start()
    got = receive()  # the producers have started
    start, first = time.perf_counter(), got
    while got < each * producers:
        got += receive()
    took = time.perf_counter() - start
    for child in children:
        child.join()
    return (got - first) / took


def measure(make: Callable[[int, Any], Pair], size: int, producers: int, seconds: float) -> float:
    """Return the records per second; a short trial tells how many fit into ``seconds``."""
    trial = 4 * BATCH
    rate = _rate(make, size, producers, trial)
    return _rate(make, size, producers, max(trial, int(rate * seconds)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    results = []
    for producers, peers in ((1, ONE), (4, MANY)):
        for label, size in SIZES.items():
            rates: dict[str, list[float]] = {name: [] for name in peers}
            for _ in range(ROUNDS):
                for name, make in peers.items():
                    rates[name].append(measure(make, size, producers, options.seconds))
            for name, values in rates.items():
                median = float(np.median(values))
                results.append(
                    {
                        "producers": producers,
                        "record": label,
                        "peer": name,
                        "records_per_s": median,
                        "GB_per_s": median * size / 1e9,
                        "spread": [min(values), max(values)],
                    }
                )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
