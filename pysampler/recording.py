"""Which groups formed each batch of ``recv``, written to a file, and read from it again.

A line of JSON says what it belongs to; then follows for each batch how many groups it had and which
they were, each a number of seven bits a byte, the lowest first.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Recorder", "Replayer"]

_FORMAT = "pysampler recording 1"


class Recorder:
    """Writes a batch at a time, at once and without a buffer that a fork could write too."""

    def __init__(self, path: str | os.PathLike[str], groups: Sequence[range]) -> None:
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115
        header = json.dumps({"format": _FORMAT, "groups": [len(group) for group in groups]})
        self._file.write(header.encode() + b"\n")
        self._done = 0, len(header) + 1  # batches, and bytes they take

    def write(self, batch: int, groups: Sequence[int]) -> None:
        """Batch number ``batch``, unless it has been written."""
        batches, at = self._done
        if batch == batches:
            # Where it was written and not noted, the same is written to the same place.
            at += os.pwrite(self._file.fileno(), b"".join(map(_number, (len(groups), *groups))), at)
            self._done = batches + 1, at

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


class Replayer:
    """Reads a batch at a time."""

    def __init__(self, path: str | os.PathLike[str], groups: Sequence[range]) -> None:
        header, _, self._batches = Path(path).read_bytes().partition(b"\n")
        found: Any = None
        with contextlib.suppress(ValueError):
            found = json.loads(header)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise ReplayError(f"cannot replay {path}: not a recording of this version of pysampler")
        if found["groups"] != [len(group) for group in groups]:
            raise ReplayError(
                f"cannot replay {path}: it is of {sum(found['groups'])} envs in groups of "
                f"{found['groups']}, these are {sum(map(len, groups))} in groups of "
                f"{[len(group) for group in groups]}; pass the same num_workers and groups"
            )
        self._path = path
        self._groups = len(groups)
        self._at = self._next = 0
        self.batch = 0  # how many are done

    def read(self) -> list[int]:
        """The next batch; the same again until it is ``done``."""
        self._at = self._next
        if self._at == len(self._batches):
            raise ReplayError(f"cannot replay {self._path}: it ends after {self.batch} batches")
        groups = [self._number() for _ in range(self._number())]
        if any(group >= self._groups for group in groups):
            raise self.damaged()
        return groups

    def done(self, batch: int) -> None:
        """Batch number ``batch`` has been returned."""
        if batch == self.batch:
            self.read()  # from where the last one ended: interrupted, it is gone through again
            self._next, self.batch = self._at, batch + 1

    def damaged(self) -> ReplayError:
        """What to raise where a recording makes no sense."""
        return ReplayError(f"cannot replay {self._path}: damaged after batch {self.batch}")

    def _number(self) -> int:
        value = shift = 0
        while self._at < len(self._batches):
            byte = self._batches[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
        raise self.damaged()


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
