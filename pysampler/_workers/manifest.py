"""The manifest of a pool's segment: the offsets of its contents, for observing programs.

It follows the header of the segment: a length, then JSON, so that readers need no C++ module and
can recognize other versions. Readers do not trust it: the bytes may belong to another program.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import pysampler
from pysampler._workers.header import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["SegmentManifest"]

_FORM = 2  # version of the JSON; increased when older readers would misunderstand it
_SLACK = 512  # bytes for all fields that do not grow with workers or groups
_LENGTH = np.dtype("<u4")
_MAX_LENGTH = 1 << 20
_MAX_ENVS = 1 << 20


@dataclass(frozen=True)
class SegmentManifest:
    """The contents of a pool's segment.

    Attributes:
        version: The version of pysampler that made the segment.
        noun: The word for an env: "env".
        envs: The envs of each worker, as (first, end).
        groups: The sizes of each worker's groups.
        main: Whether the last entry of ``envs`` and ``groups`` is the parent, not a worker.
        counters: The offset of the counters.
        gauges: The offset of the gauges.
        trace: The offset of the trace.
    """

    version: str
    noun: str
    envs: list[tuple[int, int]]
    groups: list[list[int]]
    main: bool
    counters: int
    gauges: int
    trace: int

    @staticmethod
    def room_for(workers: int, groups: int) -> int:
        """Return the most bytes that a manifest takes in the segment."""
        return _SLACK + 48 * workers + 8 * groups

    @classmethod
    def made_here(cls, **parts: Any) -> SegmentManifest:
        """Return a manifest with the version of this pysampler."""
        return cls(version=pysampler.__version__, **parts)

    def write(self, memory: npt.NDArray[np.uint8]) -> None:
        """Write the manifest; the length last, so that a reader finds all of it or nothing."""
        text = json.dumps({"form": _FORM, **dataclasses.asdict(self)}).encode()
        memory[_LENGTH.itemsize :][: len(text)] = np.frombuffer(text, np.uint8)
        memory[: _LENGTH.itemsize].view(_LENGTH)[0] = len(text)

    @classmethod
    def read(cls, segment: npt.NDArray[np.uint8]) -> SegmentManifest | None:
        """Return the manifest of a segment; None if it has none, or one of another form.

        Args:
            segment: All bytes of the segment, including its header.
        """
        begin = LINE + _LENGTH.itemsize
        if len(segment) < begin:
            return None
        length = int(segment[LINE:begin].view(_LENGTH)[0])
        if length > _MAX_LENGTH:  # not a manifest
            return None
        try:
            fields = json.loads(segment[begin : begin + length].tobytes())
            if fields.pop("form") != _FORM:
                return None
            manifest = cls(**fields)
            return manifest if manifest._fits(len(segment)) else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _fits(self, size: int) -> bool:
        """Return whether the fields are consistent with a segment of this size.

        May raise TypeError or ValueError if fields have unexpected types.
        """
        places = self.counters, self.gauges, self.trace
        numbers = [*places, *itertools.chain(*self.envs, *self.groups)]
        ends = [0, *(end for _, end in self.envs)]
        return (
            all(type(number) is int for number in numbers)
            and all(LINE <= at < size for at in places)
            and ends[:-1] == [first for first, _ in self.envs]
            and all(first < end <= _MAX_ENVS for first, end in itertools.pairwise(ends))
            and [sum(sizes) for sizes in self.groups] == [b - a for a, b in self.envs]
            and all(size > 0 for size in itertools.chain(*self.groups))
            and isinstance(self.noun, str)
            and isinstance(self.main, bool)
            and len(self.envs) > self.main
        )
