"""What the processes of a pool do, read from its trace while they do it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from pysampler._cli.programs import AttachError
from pysampler._workers.tracing import TraceMemory, TraceReader
from pysampler.sync import now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._cli.programs import Pool

__all__ = ["Recorder"]

# A program whose recorder has died traces for this long, in ns.
_LEASE = 1_000_000_000


class Recorder:
    """Asks the processes of a pool for slices, and reads them.

    That takes memory for the slices, and writes one number to the pool's memory: until when they
    are wanted. All else is read only.

    Args:
        pool: The pool.

    Raises:
        AttachError: The pool has ended, or there is no memory.
    """

    def __init__(self, pool: Pool) -> None:
        at = pool.about.trace
        memory = TraceMemory(len(pool.about.members) - pool.about.main)
        self._wanted_at = memory.wanted_until(at)
        self._fd = -1
        try:
            self._fd = os.open(pool.descriptor, os.O_RDWR | os.O_CLOEXEC)
            os.posix_fallocate(self._fd, at, memory.size)
            self._readers = [TraceReader(pool.memory, at, i) for i in range(memory.tracks)]
        except OSError as error:
            self.close()
            raise AttachError(f"cannot trace {pool.name}: {error.strerror}") from None

    def _want(self, until: int) -> None:
        os.pwrite(self._fd, until.to_bytes(8, "little"), self._wanted_at)

    def read(self) -> list[npt.NDArray[Any]]:
        """Return the slices of each worker since the last call; the parent's are the last.

        The first call returns none, and each asks for slices for another second, until ``close``.
        """
        if self._fd >= 0:
            self._want(now() + _LEASE)
        return [reader.read() for reader in self._readers]

    @property
    def missed(self) -> int:
        """How many slices came faster than they were read."""
        return sum(reader.missed for reader in self._readers)

    def close(self) -> None:
        """Ask for no more slices. May be repeated."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._want(0)
            os.close(self._fd)
            self._fd = -1
