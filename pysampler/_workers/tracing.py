"""The memory of a pool's trace (csrc/trace.h): its place in the segment, and a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler.sync import Segment

__all__ = ["SLICE", "TraceMemory", "TraceReader"]

# A slice: one activity of a process, and its begin and end in ns of ``now()``.
SLICE = np.dtype([("begin", "<i8"), ("end", "<i8"), ("kind", "<u4"), ("id", "<u4")])


class TraceMemory:
    """The memory of a trace in the segment of a pool.

    It is reserved space, which takes no memory until a reader asks for slices.

    Args:
        workers: The number of workers. Each has a track, and a last track belongs to the parent.
    """

    def __init__(self, workers: int) -> None:
        self.tracks = workers + 1
        self.size: int = _core.Track.size_of(self.tracks)

    def begins(self, segment: Segment) -> int:
        """Return the offset of the trace in a segment that was made with space for it."""
        return segment.size - self.size

    @staticmethod
    def wanted_until(offset: int) -> int:
        """Return the offset of the time until which readers want slices: int64, ns of ``now()``.

        Args:
            offset: The offset of the trace.
        """
        return offset


class TraceReader:
    """Reads the slices of one track, beginning now.

    Args:
        segment: All bytes of the segment; a read-only mapping suffices.
        offset: The offset of the trace.
        index: The number of the track.
    """

    def __init__(self, segment: npt.NDArray[np.uint8], offset: int, index: int) -> None:
        self._reader = _core.TraceReader(segment, offset, index)

    def read(self) -> npt.NDArray[Any]:
        """Return the slices that ended since the last call, in the order of their ends."""
        return np.frombuffer(self._reader.read(), SLICE)

    @property
    def missed(self) -> int:
        """The number of slices that were overwritten before they were read."""
        return self._reader.missed
