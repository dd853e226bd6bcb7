"""Recordings of ``recv``: the groups of each batch, in a file.

The file begins with a line of JSON that lists the sizes of all groups. Each batch follows as the
number of its groups and then their indices, as little-endian base-128 varints. After the line and
after each batch comes a little-endian CRC-32 of all previous bytes except checksums, so that a file
whose writer died is replayed up to its last whole batch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pysampler._common.files import open_regular, why_not_regular
from pysampler.errors import RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BatchRecorder", "BatchReplayer"]

_FORMAT = "pysampler recording 2"
_LONGEST_HEADER = 1 << 20


class BatchRecorder:
    """Writes each batch to a file at once: with a buffer, a fork could write it a second time.

    If the disk is full, ``write`` raises OSError and may be repeated.
    """

    def __init__(self, path: str | os.PathLike[str], groups: Sequence[range]) -> None:
        path = Path(path)
        with contextlib.suppress(FileNotFoundError):
            if (wrong := why_not_regular(path)) is not None:
                raise ValueError(f"cannot record to {path}: it is {wrong}")
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._done = 0, 0, 0  # batches, bytes and checksum so far
        self._done = 0, *self._written(_header(groups))

    def write(self, batch: int, groups: Sequence[int]) -> None:
        """Write the groups of batch number ``batch``, unless they were written before."""
        if batch == self._done[0]:
            # After an interrupted call, this writes the same bytes to the same place.
            written = self._written(_batch(groups))
            self._done = batch + 1, *written

    def _written(self, part: bytes) -> tuple[int, int]:
        """Write a part and the checksum; return the end of both and the checksum."""
        _, at, checksum = self._done
        checksum = zlib.crc32(part, checksum)
        rest = part + _bytes_of(checksum)
        try:
            while rest:  # a disk that is almost full may take only a part
                count = os.pwrite(self._file.fileno(), rest, at)
                at, rest = at + count, rest[count:]
        except OSError as error:
            self._file.truncate(self._done[1])
            raise OSError(error.errno, error.strerror, os.fspath(self._path)) from error
        return at, checksum

    def close(self) -> None:
        self._file.close()


class BatchReplayer:
    """Reads batches from a file that a ``BatchRecorder`` wrote."""

    def __init__(self, path: str | os.PathLike[str], groups: Sequence[range]) -> None:
        self._path = path
        self._groups = len(groups)
        with open_regular(Path(path), lambda what: self._refusal(f"it is {what}")) as file:
            whole = list(self._whole_batches(file, self._check_header(file, groups)))
            self._complete = not file.peek(1)
        self._batches = io.BytesIO(b"".join(whole))
        self._at = self._next = 0
        self.batch = 0  # the number of the next batch

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
        """Advance to the next batch, after batch number ``batch`` was returned."""
        if batch == self.batch:
            self.read()  # sets _at; after an interrupt, the call is repeated
            self._next, self.batch = self._at, batch + 1

    def _check_header(self, file: IO[bytes], groups: Sequence[range]) -> int:
        """Read the first line and return its checksum, or raise RecordingError."""
        line = file.readline(_LONGEST_HEADER)
        checksum = zlib.crc32(line)
        found: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
        if not isinstance(found, dict) or not isinstance(found.get("format"), str):
            raise self._refusal("not a pysampler recording, or its first line is damaged")
        if found["format"] != _FORMAT:
            raise self._refusal(
                f"format {found['format'][:99]!r}, expected {_FORMAT!r}; record it again with this "
                "version of pysampler"
            )
        if file.read(4) != _bytes_of(checksum):
            raise self._refusal("its first line is damaged")
        sizes = [len(group) for group in groups]
        if (recorded := found.get("groups")) != sizes:
            raise self._refusal(
                f"recorded with groups of {recorded} envs, got groups of {sizes}; pass the same "
                "num_workers and groups"
            )
        return checksum

    def _whole_batches(self, file: IO[bytes], checksum: int) -> Iterator[bytes]:
        """Yield each batch without its checksum, until the file ends or is damaged."""
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
    """Return the groups, out of ``count``, of the next batch; None at the end or if damaged."""
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
