"""What workers that act report while they do, and the flags that stop or pause them."""

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

    The line of a group is written by its worker; by the parent only while no rollout is under way.
    Any process may set the flags: an env that stops all actors does so in a worker.
    """

    def __init__(self, groups: int, segment: Segment, offset: int | None = None) -> None:
        self.offset, self._lines = segment.array((groups + 1, _WORDS), np.dtype(np.int64), offset)
        self.steps = self._lines[:-1, 0]  # below 0 until the first frame has been carried over
        self.blocked_ns = self._lines[:-1, 1]  # by a full ring: of the first group of each worker
        self.acting_ns = self._lines[:-1, 2]
        self.refreshing_ns = self._lines[:-1, 3]
        self.blocked = self._lines[:-1, 4]  # whether a full ring blocks it now

    @staticmethod
    def size_of(groups: int) -> int:
        """Return how many bytes of a segment it takes, wherever it begins."""
        return (groups + 2) * _WORDS * 8

    def cells(self, group: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the steps of a group, and whether all are stopped, as arrays of one number."""
        return self._lines[group, :1], self._lines[-1, :1]

    @property
    def stopped(self) -> bool:
        """Whether what is under way is to end where it is."""
        return bool(self._lines[-1, 0])

    @property
    def dropped(self) -> bool:
        """Whether what has been made and not been handed over is dropped too."""
        return bool(self._lines[-1, 1])

    @property
    def paused(self) -> bool:
        """Whether nothing is to be begun, because the learner learns."""
        return bool(self._lines[-1, 2])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._lines[-1, 2] = value

    def stop(self, *, drop: bool = False) -> None:
        """Stop what is under way; ``drop`` what has not been handed over."""
        if drop:
            self._lines[-1, 1] = True
        self._lines[-1, 0] = True
