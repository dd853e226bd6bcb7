"""The dump of a trace: all that the processes of a program record, as it comes.

It is a sequence of NumPy arrays. Whatever ends the recording leaves whole ones and at most half of
one, which the reader drops.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from pysampler._cli.recorder import SLICE
from pysampler._common.closing import Closing
from pysampler._common.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from pysampler._cli.programs import Pool

__all__ = ["DumpWriter", "PoolDump", "is_dump", "read_dump"]

# Slices of a pool's processes: of the workers, then of the parent.
_SLICES = np.dtype([("pool", "<u2"), ("track", "<u2"), ("slice", SLICE)])
# The env steps of a pool and the seconds that its workers were at work, until a time.
_COUNTS = np.dtype([("pool", "<u2"), ("at", "<i8"), ("steps", "<i8"), ("busy", "<f8")])
_ROWS = 512  # slices of an array: half an array is lost


class DumpWriter(Closing):
    """Writes a dump.

    Args:
        path: The file, which is made.
        about: The program that is traced.
    """

    def __init__(self, path: Path, **about: Any) -> None:
        self._file = path.open("xb")
        self._pools = 0
        self._describe(about)

    def add_pool(self, pool: Pool) -> int:
        """Add a pool; return its number in the dump."""
        workers = len(pool.about.envs) - pool.about.main
        self._describe({"name": pool.name, "workers": workers, "groups": pool.about.groups})
        self._pools += 1
        return self._pools - 1

    def add_slices(self, pool: int, tracks: Sequence[npt.NDArray[Any]]) -> None:
        """Add slices of each of a pool's processes."""
        rows = np.empty(sum(map(len, tracks)), _SLICES)
        rows["pool"], rows["slice"] = pool, np.concatenate(tracks)
        rows["track"] = np.repeat(np.arange(len(tracks)), [len(slices) for slices in tracks])
        # In order, so that half a dump has whole rounds.
        rows = rows[np.argsort(rows["slice"]["begin"], kind="stable")]
        for at in range(0, len(rows), _ROWS):
            self._add(rows[at : at + _ROWS])

    def add_counts(self, pool: int, at: int, steps: int, busy: float) -> None:
        """Add the env steps and the seconds at work of a pool until a time."""
        self._add(np.array([(pool, at, steps, busy)], _COUNTS))

    def add_hole(self, pool: int, hole: tuple[int, int]) -> None:
        """Add a period in which slices may be missing."""
        self._describe({"pool": pool, "hole": hole})

    def _describe(self, about: dict[str, Any]) -> None:
        self._add(np.frombuffer(json.dumps(about).encode(), np.uint8))

    def _add(self, array: npt.NDArray[Any]) -> None:
        part = io.BytesIO()
        np.save(part, array, allow_pickle=False)
        self._file.write(part.getbuffer())

    def close(self) -> None:
        """Write the rest to the file."""
        self._file.close()


@dataclass
class PoolDump:
    """The part of one pool.

    Attributes:
        name: The name of its env.
        workers: The number of its workers.
        groups: The sizes of the groups of each process.
        tracks: The slices of each worker, then those of the parent.
        counts: Times, env steps until then, and seconds at work.
        holes: Periods in which slices may be missing, as (begin, end) in ns.
    """

    name: str
    workers: int
    groups: list[list[int]]
    tracks: list[npt.NDArray[Any]] = field(default_factory=list)
    counts: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, _COUNTS))
    holes: list[tuple[int, int]] = field(default_factory=list)


def is_dump(path: Path) -> bool:
    """Return whether a file begins like a dump."""
    with open_regular(path, lambda kind: ValueError(f"{path} is {kind}")) as file:
        return file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX


def read_dump(path: Path) -> tuple[dict[str, Any], list[PoolDump], int]:
    """Return the program, its pools, and how many bytes at the end are not whole arrays.

    Raises:
        ValueError: The file is no dump.
    """
    abouts, slices, counts = [], [np.empty(0, _SLICES)], [np.empty(0, _COUNTS)]
    size = path.stat().st_size
    with open_regular(path, lambda kind: ValueError(f"{path} is {kind}")) as file:
        read = 0
        while read < size:
            try:
                array = np.lib.format.read_array(file, allow_pickle=False)
                if array.dtype == np.uint8:
                    abouts.append(dict(json.loads(array.tobytes())))
                else:
                    {_SLICES: slices, _COUNTS: counts}[array.dtype].append(array)
            except Exception:  # half an array, or damage
                break
            read = file.tell()
    try:
        program, *others = abouts
        pools = [PoolDump(**about) for about in others if "hole" not in about]
        for about in others:
            if "hole" in about:
                pools[about["pool"]].holes.append(tuple(about["hole"]))
    except Exception as error:
        raise ValueError(f"{path} is not the dump of a trace") from error
    rows, counted = np.concatenate(slices), np.concatenate(counts)
    for number, pool in enumerate(pools):
        own = rows[rows["pool"] == number]
        pool.tracks = [own["slice"][own["track"] == track] for track in range(pool.workers + 1)]
        pool.counts = counted[counted["pool"] == number]
    return program, pools, size - read
