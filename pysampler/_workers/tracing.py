"""The memory of a pool's trace (csrc/trace.h): where it lies, and how another process reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler.sync import Segment

__all__ = ["SLICE", "TraceMemory", "TraceReader"]

# A slice: what one process did from when to when, in ns of ``now()``.
SLICE = np.dtype([("begin", "<i8"), ("end", "<i8"), ("kind", "<u4"), ("id", "<u4")])


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
    """

    def __init__(self, segment: npt.NDArray[np.uint8], offset: int, index: int) -> None:
        self._reader = _core.TraceReader(segment, offset, index)

    def read(self) -> npt.NDArray[Any]:
        """Return the slices that ended since the last call, those that ended first first."""
        return np.frombuffer(self._reader.read(), SLICE)

    @property
    def missed(self) -> int:
        """How many slices were overwritten before they were read."""
        return self._reader.missed
