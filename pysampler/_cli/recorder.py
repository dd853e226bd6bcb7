"""Reads the trace of a pool's processes while they run."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._cli.programs import AttachError
from pysampler._common.closing import Closing
from pysampler._workers.header import HEADER
from pysampler.sync import now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._cli.programs import Pool

__all__ = ["SLICE", "Recorder"]

# A slice: one activity of a process, and its begin and end in ns of ``now()``.
SLICE = np.dtype([("begin", "<i8"), ("end", "<i8"), ("kind", "<u4"), ("id", "<u4")])
# A program continues to trace for this long, in ns, after its recorder has died.
_LEASE = 1_000_000_000


class Recorder(Closing):
    """Asks the processes of a pool for slices, and reads them.

    This allocates memory for the slices, which the pool keeps, and writes one number to the pool's
    segment: the time until which slices are wanted. Everything else is only read.

    Args:
        pool: The pool.

    Attributes:
        pool: The pool.
        holes: Periods in which slices may be missing, as (begin, end) in ns.
        reasons: Why there are holes, each in a few words.

    Raises:
        AttachError: The pool has ended, or memory is exhausted.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool, at = pool, pool.about.trace
        tracks = len(pool.about.envs) - pool.about.main + 1  # of the workers, then the parent's
        self._until = self._read_at = 0
        self.holes: list[tuple[int, int]] = []
        self.reasons: set[str] = set()
        self._shared = False  # whether another recorder has asked for slices, too
        self._wanted = pool.memory[at : at + 8].view("<i8")
        self._fd = -1
        try:
            self._fd = os.open(pool.descriptor, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            # The descriptor may refer to another file by now.
            if os.pread(self._fd, HEADER.itemsize, 0) != pool.memory[: HEADER.itemsize].tobytes():
                raise AttachError(f"cannot trace {pool.name}: it was closed")
            os.posix_fallocate(self._fd, at, _core.Track.size_of(tracks))
            self._readers = [_core.TraceReader(pool.memory, at, i) for i in range(tracks)]
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise AttachError(f"cannot trace {pool.name}: {error.strerror}") from None
            raise

    def _want(self, until: int) -> None:
        self._until = until
        os.pwrite(self._fd, until.to_bytes(8, "little"), self.pool.about.trace)

    def read(self) -> list[npt.NDArray[Any]]:
        """Return the slices of each worker since the last call, then those of the parent.

        The first call returns none. Each call asks for slices for another second.
        """
        at, wanted = now(), int(self._wanted[0])
        # The request has expired if this call is late, or if another recorder has closed.
        lapsed = self._until != 0 and wanted < at
        others = wanted > at if self._until == 0 else wanted != self._until
        self._shared = self._shared or others
        if self._fd >= 0:
            self._want(at + _LEASE)
        missed = self.missed
        read = [np.frombuffer(reader.read(), SLICE) for reader in self._readers]
        if lapsed:
            late = "this command got no CPU for a second"
            self.reasons.add("another trace of the program ended" if others else late)
        if self.missed > missed:
            self.reasons.add("slices came faster than this command reads them")
        if lapsed or self.missed > missed:
            self.holes.append((self._read_at, now()))
        self._read_at = at
        return read

    @property
    def missed(self) -> int:
        """The number of slices that were overwritten before they were read."""
        return sum(reader.missed for reader in self._readers)

    def close(self) -> None:
        """Stop the recording of slices. May be repeated."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                # A request that other recorders renew expires with them.
                if self._until and not self._shared and self._wanted[0] <= self._until:
                    self._want(0)
            self._until = 0
            os.close(self._fd)
            self._fd = -1
