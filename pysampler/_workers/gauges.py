"""Numbers that programs which look on from outside read beside the counters, in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pysampler._workers.header import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NO_VERSION", "Gauges", "WorkerGauges"]

NO_VERSION = -1


class Gauges:
    """A line of numbers for each worker, and one for all, in ``size_of`` bytes of memory.

    The process that changes what a number is about stores it, and waits for nothing. So each was
    right a moment ago, and several together may be of different moments.

    Args:
        workers: The number of workers.
        memory: Where the numbers lie; zero at first.

    Attributes:
        restarts: How often each worker was lost and replaced. The parent writes it.
        versions: The version of the weights that each worker acts with: 0 until it has loaded any,
            ``NO_VERSION`` if it has no policy. It writes it itself; the parent between samplers.
        blocked_ns: How long a full ring has blocked each actor, written likewise.
        waited_ns: How long the parent has waited for workers, in one number that it writes.
    """

    def __init__(self, workers: int, memory: npt.NDArray[np.uint8]) -> None:
        self._lines = memory.view(np.int64).reshape(workers + 1, LINE // 8)
        self.restarts = self._lines[:-1, 0]
        self.versions = self._lines[:-1, 1]
        self.blocked_ns = self._lines[:-1, 2]
        self.waited_ns = self._lines[-1, 3:4]

    @staticmethod
    def size_of(workers: int) -> int:
        """Return how many bytes of memory the gauges take."""
        return (workers + 1) * LINE

    @classmethod
    def unread(cls, workers: int) -> Gauges:
        """Return gauges in memory of this process, which no other can read."""
        return cls(workers, np.zeros(cls.size_of(workers), np.uint8))

    def of(self, worker: int) -> WorkerGauges:
        """Return what one worker writes."""
        return WorkerGauges(self._lines[worker], self._lines[-1])

    def clear(self) -> None:
        """Note that no sampler uses the workers. None may be at work."""
        self.versions[:] = NO_VERSION
        self.blocked_ns[:] = 0
        self._lines[-1, :3] = NO_VERSION, 0, 0

    @property
    def newest(self) -> int:
        """The newest version of the weights, written by the parent; ``NO_VERSION`` if none are."""
        return int(self._lines[-1, 0])

    @newest.setter
    def newest(self, version: int) -> None:
        self._lines[-1, 0] = version

    @property
    def records(self) -> int:
        """How many records lie in the ring of actors, written by all who push or release some."""
        return int(self._lines[-1, 1])

    @records.setter
    def records(self, count: int) -> None:
        self._lines[-1, 1] = count

    @property
    def most_records(self) -> int:
        """With how many records in the ring actors block, written by the parent; 0: no ring."""
        return int(self._lines[-1, 2])

    @most_records.setter
    def most_records(self, count: int) -> None:
        self._lines[-1, 2] = count


class WorkerGauges:
    """The gauges that one worker writes."""

    def __init__(self, line: npt.NDArray[np.int64], common: npt.NDArray[np.int64]) -> None:
        self._line, self._common = line, common

    def version(self, version: int) -> None:
        """Note the version of the weights that the worker acts with."""
        self._line[1] = version

    def blocked_ns(self, ns: int) -> None:
        """Note how long a full ring has blocked the worker."""
        self._line[2] = ns

    def records(self, count: int) -> None:
        """Note how many records lie in the ring of actors."""
        self._common[1] = count
