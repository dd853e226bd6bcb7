"""The memory of a pool's trace (csrc/trace.h): where it lies, and how another process reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._workers.header import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler.sync import Segment

__all__ = ["SLICE", "TraceMemory", "TraceReader"]

# A slice: what one process did from when to when, in ns of ``now()``.
SLICE = np.dtype(
    [("begin", "<i8"), ("end", "<i8"), ("kind", "<u4"), ("id", "<u4"), ("number", "<u8")]
)
_RING = LINE + _core.Track.SLICES * SLICE.itemsize
# Of the newest slices, how many may have been claimed and not written yet.
_UNDER_WAY = 64


class TraceMemory:
    """The memory of a trace in the segment of a pool.

    It is the segment's room: it takes no memory until a reader asks for slices.

    Args:
        workers: How many there are. Each has a track; the last one is the parent's.
    """

    def __init__(self, workers: int) -> None:
        self.tracks = workers + 1
        self.size: int = _core.Track.size_of(self.tracks)

    def begins(self, segment: Segment) -> int:
        """Return where it begins in a segment that was made with this room."""
        return segment.size - self.size

    @staticmethod
    def wanted_until(offset: int) -> int:
        """Return where the time lies until which slices are wanted, an int64 in ns of ``now()``.

        Args:
            offset: Where the trace begins.
        """
        return offset


class TraceReader:
    """Reads the slices of one track, from now on.

    Args:
        segment: All bytes of the segment; they may be mapped to be read only.
        offset: Where the trace begins.
        index: The number of the track.

    Attributes:
        missed: How many slices were overwritten before they were read.
    """

    def __init__(self, segment: npt.NDArray[np.uint8], offset: int, index: int) -> None:
        at = offset + LINE + index * _RING
        self._claimed = segment[at : at + 8].view(np.uint64)
        self._slices: npt.NDArray[Any] = segment[at + LINE : at + _RING].view(SLICE)
        self._next = int(self._claimed[0])
        self.missed = 0

    def read(self) -> npt.NDArray[Any]:
        """Return the slices that ended since the last call, those that ended first first."""
        end = int(self._claimed[0])
        begin = max(self._next, end - len(self._slices))
        self.missed += begin - self._next
        numbers = np.arange(begin, end, dtype=np.uint64)
        at = numbers % np.uint64(len(self._slices))
        # SYNC: before and after the copy, as csrc/trace.h says.
        whole = self._slices["number"][at] == numbers + np.uint64(1)
        slices = self._slices[at]
        whole &= self._slices["number"][at] == numbers + np.uint64(1)
        # One that is being written comes with the next call, unless its writer has died in it.
        being_written = np.flatnonzero(~whole & (numbers + np.uint64(_UNDER_WAY) >= end))
        if len(being_written):
            end = begin + int(being_written[0])
        self._next = end
        count = end - begin
        self.missed += int(count - whole[:count].sum())
        read: npt.NDArray[Any] = slices[:count][whole[:count]]
        return read
