"""What a pool's segment says of itself, for programs that look on from outside.

It lies at the beginning of the segment, behind its header: a length, and JSON. A program that
opens the segment reads there what else lies in it, and where.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._workers.header import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["SegmentManifest"]

_FORM = 1  # of the JSON: another number where a reader would misunderstand it
_SLACK = 512  # bytes for what is not a worker's
_LENGTH = np.dtype("<u4")
_LONGEST = 1 << 20
_MOST = 1 << 20  # envs


@dataclass(frozen=True)
class SegmentManifest:
    """What lies in the segment of a pool.

    Attributes:
        version: The version of pysampler that made it.
        noun: What envs are called: "env".
        envs: The envs of each worker, as (first, end).
        groups: The sizes of each worker's groups.
        main: Whether the last of these is no worker, but the parent itself.
        counters: Where the counters lie.
        gauges: Where the gauges lie.
        trace: Where the trace lies.
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
        """Return how many bytes it takes in the segment, at most."""
        return _SLACK + 48 * workers + 8 * groups

    @classmethod
    def made_here(cls, **parts: Any) -> SegmentManifest:
        """Return one for a pool that this version of pysampler makes."""
        return cls(version=importlib.metadata.version("pysampler"), **parts)

    def write(self, memory: npt.NDArray[np.uint8]) -> None:
        """Write it; the length comes last, so that a reader finds all or nothing."""
        text = json.dumps({"form": _FORM, **dataclasses.asdict(self)}).encode()
        memory[_LENGTH.itemsize :][: len(text)] = np.frombuffer(text, np.uint8)
        memory[: _LENGTH.itemsize].view(_LENGTH)[0] = len(text)

    @classmethod
    def read(cls, segment: npt.NDArray[np.uint8]) -> SegmentManifest | None:
        """Return what a segment says of itself; None if it says nothing, or in another form.

        Args:
            segment: All bytes of it, from its header on.
        """
        begin = LINE + _LENGTH.itemsize
        if len(segment) < begin:
            return None
        length = int(segment[LINE:begin].view(_LENGTH)[0])
        if length > _LONGEST:  # other bytes lie there
            return None
        try:
            told = json.loads(segment[begin : begin + length].tobytes())
            if told.pop("form") != _FORM:
                return None
            about = cls(**told)
            return about if about._fits(len(segment)) else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _fits(self, size: int) -> bool:
        """Return whether a segment of this size can be so; may raise what comparisons raise."""
        places = self.counters, self.gauges, self.trace
        numbers = [*places, *itertools.chain(*self.envs, *self.groups)]
        ends = [0, *(end for _, end in self.envs)]
        return (
            all(type(number) is int for number in numbers)
            and all(LINE <= at < size for at in places)
            and ends[:-1] == [first for first, _ in self.envs]
            and all(first < end <= _MOST for first, end in itertools.pairwise(ends))
            and [sum(sizes) for sizes in self.groups] == [b - a for a, b in self.envs]
            and all(size > 0 for size in itertools.chain(*self.groups))
            and isinstance(self.noun, str)
            and isinstance(self.main, bool)
            and len(self.envs) > self.main
        )
