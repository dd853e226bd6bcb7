"""Recordings of ``recv``: which groups formed each batch.

A file begins with a line of JSON that says which groups there are. Each batch follows as the number
of its groups and their indices, each a number of seven bits a byte, the lowest first. After the
line and after each batch come four bytes, the lowest first: the CRC-32 of all bytes before them
that are not checksums.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pysampler._files import open_regular, why_not_regular
from pysampler.errors import RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BatchRecorder", "BatchReplayer"]

_FORMAT = "pysampler recording 2"
_LONGEST_HEADER = 1 << 20


class BatchRecorder:
    """Writes batches to a file, each at once and without a buffer that a fork could write, too.

    A batch that the disk has no room for is an OSError, and may be written again.
    """

    def __init__(self, path: str | os.PathLike[str], groups: Sequence[range]) -> None:
        path = Path(path)
        with contextlib.suppress(FileNotFoundError):
            if (wrong := why_not_regular(path)) is not None:
                raise ValueError(f"cannot record to {path}: it is {wrong}")
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._done = 0, 0, 0  # batches, bytes they take, and their checksum
        self._done = 0, *self._written(_header(groups))

    def write(self, batch: int, groups: Sequence[int]) -> None:
        """Write the groups of batch number ``batch``, unless they have been written."""
        if batch == self._done[0]:
            # If an earlier call was interrupted, the same is written to the same place.
            written = self._written(_batch(groups))
            self._done = batch + 1, *written

    def _written(self, part: bytes) -> tuple[int, int]:
        """Write a part and the checksum; return where it ends, and the checksum."""
        _, at, checksum = self._done
        checksum = zlib.crc32(part, checksum)
        rest = part + _bytes_of(checksum)
        try:
            while rest:  # a disk that is almost full takes some of it
                count = os.pwrite(self._file.fileno(), rest, at)
                at, rest = at + count, rest[count:]
        except OSError as error:
            self._file.truncate(self._done[1])
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error
        return at, checksum

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class BatchReplayer:
    """Reads batches from a file that a ``Recorder`` wrote."""

    def __init__(self, path: str | os.PathLike[str], groups: Sequence[range]) -> None:
        self._path = path
        self._groups = len(groups)
        with open_regular(Path(path), lambda what: self._refusal(f"it is {what}")) as file:
            whole = list(self._whole_batches(file, self._check_header(file, groups)))
            self._complete = not file.peek(1)
        self._batches = io.BytesIO(b"".join(whole))
        self._at = self._next = 0
        self.batch = 0  # how many are done

    def read(self) -> list[int]:
        """Return the groups of the next batch; the same again until it is ``done``."""
        self._batches.seek(self._next)
        groups = _read_batch(self._batches, self._groups)
        if groups is None:
            raise self._refusal(
                f"it ends after {self.batch} batches"
                if self._complete
                else f"damaged after batch {self.batch}"
            )
        self._at = self._batches.tell()
        return groups

    def done(self, batch: int) -> None:
        """Go on to the next batch, after number ``batch`` has been returned."""
        if batch == self.batch:
            self.read()  # sets _at; an interrupted call is repeated
            self._next, self.batch = self._at, batch + 1

    def _check_header(self, file: IO[bytes], groups: Sequence[range]) -> int:
        """Read the first line and return its checksum, or raise RecordingError."""
        line = file.readline(_LONGEST_HEADER)
        checksum = zlib.crc32(line)
        found: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("format"), str):
            raise self._refusal("not a recording of pysampler's, or its first line is damaged")
        if found["format"] != _FORMAT:
            raise self._refusal(
                f"format {found['format'][:99]!r}, expected {_FORMAT!r}; record it again with this "
                "version of pysampler"
            )
        if file.read(4) != _bytes_of(checksum):
            raise self._refusal("its first line is damaged")
        sizes = [len(group) for group in groups]
        if (there := found.get("groups")) != sizes:
            raise self._refusal(
                f"it is of envs in groups of {there}, these are {sum(sizes)} in groups of {sizes}; "
                "pass the same num_workers and groups"
            )
        return checksum

    def _whole_batches(self, file: IO[bytes], checksum: int) -> Iterator[bytes]:
        """Yield each batch without its checksum, up to where the file ends or is damaged."""
        begin = file.tell()
        while (groups := _read_batch(file, self._groups)) is not None:
            batch = _batch(groups)
            checksum = zlib.crc32(batch, checksum)
            if file.read(4) != _bytes_of(checksum):
                break
            yield batch
            begin = file.tell()
        file.seek(begin)

    def _refusal(self, why: str) -> RecordingError:
        return RecordingError(f"cannot replay {self._path}: {why}")


def _header(groups: Sequence[range]) -> bytes:
    header = json.dumps({"format": _FORMAT, "groups": [len(group) for group in groups]})
    return header.encode() + b"\n"


def _bytes_of(checksum: int) -> bytes:
    return checksum.to_bytes(4, "little")


def _batch(groups: Sequence[int]) -> bytes:
    return b"".join(map(_number, (len(groups), *groups)))


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_batch(file: IO[bytes], count: int) -> list[int] | None:
    """Return which of ``count`` groups form the batch that comes next; None if none does."""
    size = _read_number(file)
    if size is None or size > count:
        return None
    groups = [_read_number(file) for _ in range(size)]
    known = [group for group in groups if group is not None and group < count]
    return known if len({*known}) == size else None


def _read_number(file: IO[bytes]) -> int | None:
    value = 0
    for shift in range(0, 63, 7):
        if not (byte := file.read(1)):
            return None
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    return None
