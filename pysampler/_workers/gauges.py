"""Gauges: numbers in shared memory that observing programs read, beside the counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pysampler._workers.header import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NO_VERSION", "Gauges", "WorkerGauges"]

NO_VERSION = -1


class Gauges:
    """A cache line of numbers per worker, and one for all, in ``size_of`` bytes of memory.

    The process that knows a number stores it without waiting or locks. So each number was right a
    moment ago, and several together may be of different moments.

    Args:
        workers: The number of workers.
        memory: The memory of the numbers; initially zero.

    Attributes:
        restarts: How often each worker was lost and replaced. Written by the parent.
        versions: The version of the weights that each worker acts with: 0 until it has loaded any,
            ``NO_VERSION`` without a policy. Written by the worker; between samplers by the parent.
        blocked_ns: How long a full ring has blocked each actor. Written by the same processes.
        waited_ns: How long the parent has waited for workers: one number, written by the parent.
    """

    def __init__(self, workers: int, memory: npt.NDArray[np.uint8]) -> None:
        self._lines = memory.view(np.int64).reshape(workers + 1, LINE // 8)
        self.restarts = self._lines[:-1, 0]
        self.versions = self._lines[:-1, 1]
        self.blocked_ns = self._lines[:-1, 2]
        self.waited_ns = self._lines[-1, 3:4]

    @staticmethod
    def size_of(workers: int) -> int:
        """Return the size of the gauges in bytes."""
        return (workers + 1) * LINE

    def of(self, worker: int) -> WorkerGauges:
        """Return the gauges that one worker writes."""
        return WorkerGauges(self._lines[worker], self._lines[-1])

    def clear(self) -> None:
        """Reset the gauges of samplers, when none uses the workers. No worker may be at work."""
        self.versions[:] = NO_VERSION
        self.blocked_ns[:] = 0
        self._lines[-1, :3] = NO_VERSION, 0, 0

    @property
    def newest(self) -> int:
        """The newest version of the weights, written by the parent; ``NO_VERSION`` if none."""
        return int(self._lines[-1, 0])

    @newest.setter
    def newest(self, version: int) -> None:
        self._lines[-1, 0] = version

    @property
    def records(self) -> int:
        """The number of records in the actors' ring, written by each process that changes it."""
        return int(self._lines[-1, 1])

    @records.setter
    def records(self, count: int) -> None:
        self._lines[-1, 1] = count

    @property
    def most_records(self) -> int:
        """The number of records at which actors block, written by the parent; 0: no ring."""
        return int(self._lines[-1, 2])

    @most_records.setter
    def most_records(self, count: int) -> None:
        self._lines[-1, 2] = count


class WorkerGauges:
    """The gauges that one worker writes."""

    def __init__(self, line: npt.NDArray[np.int64], common: npt.NDArray[np.int64]) -> None:
        self._line, self._common = line, common

    def version(self, version: int) -> None:
        """Store the version of the weights that the worker acts with."""
        self._line[1] = version

    def blocked_ns(self, ns: int) -> None:
        """Store how long a full ring has blocked the worker."""
        self._line[2] = ns

    def records(self, count: int) -> None:
        """Store the number of records in the actors' ring."""
        self._common[1] = count
