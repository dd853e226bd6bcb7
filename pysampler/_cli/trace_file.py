"""The file of a trace: valid however the trace ends, even on a full disk."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
from typing import TYPE_CHECKING

from pysampler._cli.programs import AttachError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["TraceFile", "open_trace"]

_CHUNK = 1 << 16  # bytes that are buffered before they are written


class TraceFile:
    """Writes parts to a file; if a write fails, cuts it after a whole part and writes ``end``.

    Args:
        fd: A descriptor of the empty file.
        path: Its path, for errors.

    Attributes:
        end: The last bytes of a valid file in this format.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self.end = b""
        self._fd = fd
        self._path = path
        self._parts: list[bytes] = []
        self._waiting = 0  # bytes of the parts
        self._whole = [0, 0]  # the begin and the end of the last part that was written
        self._ended = False

    def write(self, part: bytes) -> None:
        """Add bytes after which the file may end."""
        self._parts.append(part)
        self._waiting += len(part)
        if self._waiting >= _CHUNK:
            self._flush()

    def finish(self) -> None:
        """Write the rest and the end. May be repeated."""
        if not self._ended:
            self._flush(self.end)
            self._ended = True

    def _flush(self, end: bytes = b"") -> None:
        bounds = [*itertools.accumulate(map(len, self._parts), initial=self._whole.pop())]
        bounds = [*self._whole, *bounds]
        written, rest = bounds[1], memoryview(b"".join([*self._parts, end]))
        self._parts, self._waiting, self._whole = [], 0, bounds[-2:]
        try:
            while rest:  # an almost full disk takes only some of it
                count = os.write(self._fd, rest)
                written, rest = written + count, rest[count:]
        except OSError as error:
            self._ended = True
            with contextlib.suppress(OSError):
                self._cut(max(at for at in bounds if at == 0 or at + len(self.end) <= written))
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error

    def _cut(self, at: int) -> None:
        """Truncate the file and write ``end``, which finds room only in place of parts."""
        os.ftruncate(self._fd, at)
        if at > 0:
            os.write(self._fd, self.end)


@contextlib.contextmanager
def open_trace(path: Path) -> Iterator[TraceFile]:
    """Open and empty a file, unless another trace is being written to it."""
    with open(path, "ab", buffering=0, opener=_open_now) as raw:
        try:
            fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AttachError(f"another trace writes to {path}; choose another file") from None
        if path.is_file():
            raw.truncate(0)
        file = TraceFile(raw.fileno(), path)
        try:
            yield file
        except BaseException:
            with contextlib.suppress(OSError):
                file.finish()
            raise
        file.finish()


def _open_now(path: str, flags: int) -> int:
    """Open a file without blocking: if it is a pipe without a reader, fail."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
