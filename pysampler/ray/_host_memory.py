"""The memory of a host on the driver's machine, from which the driver reads rollouts in place.

A host's frames are in a segment. A driver that may open the host's files maps that segment, so that
an answer names the arrays of a rollout instead of carrying them through Ray. It then copies them to
its own buffer, as it copies arrays in Ray's store. On 2 CPUs, Ray takes 18 ms of CPU time for 8 MB,
most of it in raylets, and this copy takes 0.5 ms (docs/results/hosts.md).

- The driver decides, because only it knows what it can open: containers number their processes
  separately, and another user's files are closed to it. Each answer names the segment; the driver
  tries to map it, and its later requests say whether it has.
- A host keeps a rollout until a request says that the driver has copied it.
- If either process dies, the system frees its mapping. The driver can read a rollout that it has
  mapped after the host has died.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.errors import LayoutError
from pysampler.sync import Segment

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._vector.core import VectorCore

__all__ = ["HostMemory", "Part"]

_NAME = "/memfd:pysampler (deleted)"  # of all segments (csrc/segment.cpp)


@dataclass(frozen=True)
class Part:
    """An array in the memory of a host."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self, memory: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return a view of the array."""
        end = self.offset + math.prod(self.shape) * self.dtype.itemsize
        return memory[self.offset : end].view(self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class HostMemory:
    """Names the memory of a host's frames, for processes of the same machine and user.

    Attributes:
        pid: The process id of the host.
        fd: Its descriptor of the segment with the frames.
        id: The id of the segment.
        offset: The offset of the frames in the segment.
        address: Their address in the host.
        size: Their size in bytes.
    """

    pid: int
    fd: int
    id: int
    offset: int
    address: int
    size: int

    @classmethod
    def of(cls, core: VectorCore) -> HostMemory:
        """Return the memory of the current frames."""
        _, segment = core.pool.current_layout()
        frames, memory = core.results.frames, core.results.frames.memory
        place = frames.offset, _begin_of(memory), memory.nbytes
        return cls(os.getpid(), segment.fd, segment.id, *place)

    def part(self, array: npt.NDArray[Any]) -> npt.NDArray[Any] | Part:
        """Return the place of an array in this memory; the array itself if it is elsewhere."""
        offset = _begin_of(array) - self.address
        if array.flags.c_contiguous and 0 <= offset <= self.size - array.nbytes:
            return Part(offset, array.shape, array.dtype)
        return array

    def map(self) -> Segment | None:
        """Map the segment in this process; return None if it cannot be opened here."""
        path = f"/proc/{self.pid}/fd/{self.fd}"
        try:
            # On another machine this may be any file: opening a device could have effects.
            if os.readlink(path) != _NAME:  # noqa: PTH115
                return None
            # Closed even if a signal handler raises before it is assigned.
            with open(path, "rb+", buffering=0) as file:  # noqa: PTH123
                segment = Segment.from_fd(file.fileno())
        except (LayoutError, OSError, MemoryError):
            return None
        return segment if segment.id == self.id else None

    def view(self, segment: Segment) -> npt.NDArray[np.uint8]:
        """Return the frames as bytes, in the mapped segment."""
        view: npt.NDArray[np.uint8] = segment.array((self.size,), np.dtype(np.uint8), self.offset)[
            1
        ]
        return view


def _begin_of(array: npt.NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]
