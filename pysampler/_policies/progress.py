"""WorkerProgress: counters that acting workers update, and flags that stop or pause them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pysampler._workers.header import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler.sync import Segment

__all__ = ["WorkerProgress"]

_WORDS = LINE // 8  # int64 of a line


class WorkerProgress:
    """A line of counters for each group, and one of flags for all, in a segment.

    The worker of a group writes its line; the parent does so only while no rollout is under way.
    Any process may set the flags: an env that stops all actors does so in a worker.
    """

    def __init__(self, segment: Segment, groups: int, offset: int | None = None) -> None:
        offset, self._lines = segment.array((groups + 1, _WORDS), np.dtype(np.int64), offset)
        self.place = groups, offset  # for workers
        self.steps = self._lines[:-1, 0]  # negative until the first frame has been copied
        self.blocked_ns = self._lines[:-1, 1]  # of each worker's first group
        self.acting_ns = self._lines[:-1, 2]
        self.refreshing_ns = self._lines[:-1, 3]
        self.blocked = self._lines[:-1, 4]  # whether the worker waits for room or is paused

    @staticmethod
    def size_of(groups: int) -> int:
        """Return the number of bytes to reserve in a segment, for any offset."""
        return (groups + 2) * _WORDS * 8

    def cells(self, group: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return a group's count of steps, and the stop flag, as arrays of one number."""
        return self._lines[group, :1], self._lines[-1, :1]

    @property
    def stopped(self) -> bool:
        """Whether the current work must end at its current step."""
        return bool(self._lines[-1, 0])

    @property
    def dropped(self) -> bool:
        """Whether actors must also drop records that they have not pushed yet."""
        return bool(self._lines[-1, 1])

    @property
    def paused(self) -> bool:
        """Whether actors may not begin a record, because the learner is learning."""
        return bool(self._lines[-1, 2])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._lines[-1, 2] = value

    def stop(self, *, drop: bool = False) -> None:
        """Stop the current work; with ``drop``, also drop records that were not pushed yet."""
        if drop:
            self._lines[-1, 1] = True
        self._lines[-1, 0] = True
