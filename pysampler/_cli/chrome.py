"""Writes traces in the JSON format of chrome://tracing and torch.profiler, and merges them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._cli.rounds import PROGRAM
from pysampler._common.files import atomic_write
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import numpy.typing as npt

    from pysampler._cli.trace_file import TraceFile

__all__ = ["ChromeWriter", "merge"]

# The phase of an arrow at a slice: it begins (s), ends (f), or else passes through (t).
_PHASES = {_core.Track.SEND: b"s", _core.Track.READ: b"f", PROGRAM: b"f"}
# Track numbers are above all thread ids (pid_max is at most 1 << 22), which torch.profiler writes,
# and fit 32 bits, which is the limit of viewers.
_THREADS = _FILE_THREADS = 1 << 23
_FILE_FLOWS = 1 << 32  # the range of arrow numbers for each merged file
_IDS = 1 << 32  # the range of ids of slices of one kind
_ROWS = 100  # slices after which the file may end


class ChromeWriter:
    """Writes tracks of slices and of numbers.

    Times are those of ``now()`` in us. ``baseTimeNanoseconds`` is the system time at which that
    clock was 0, so that ``merge`` can align them with those of torch.profiler. NumPy formats whole
    arrays of slices at once, because a loop could not keep up with many workers: numbers and names
    are padded with blanks, so that all rows have the same length.

    Args:
        file: The file to write.
        pid: The process that the tracks belong to.
        name: The name of that process.
        name_of: Returns the name of a slice of a kind and an id.
    """

    slice_bytes = 100  # approximate size of a slice in the file

    def __init__(
        self, file: TraceFile, pid: int, name: str, name_of: Callable[[int, int], str]
    ) -> None:
        self._file = file
        self._pid = pid
        self._name_of = name_of
        file.end = b"\n]}\n"
        base = time.time_ns() - now()
        self._write(f'{{"displayTimeUnit":"ms","baseTimeNanoseconds":{base},"traceEvents":[\n')
        self._write(_json({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}))

    def track(self, number: int, name: str) -> None:
        """Add a track of slices."""
        place = {"pid": self._pid, "tid": _THREADS + number}
        self._event({"ph": "M", "name": "thread_name", **place, "args": {"name": name}})
        index = {"sort_index": number}
        self._event({"ph": "M", "name": "thread_sort_index", **place, "args": index})

    def counter(
        self, name: str, at: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
    ) -> None:
        """Add a track of numbers, each valid from a time on."""
        for us, value in zip((at / 1e3).tolist(), values.tolist(), strict=True):
            args = {"value": value}
            self._event({"ph": "C", "name": name, "pid": self._pid, "ts": us, "args": args})

    def slices(
        self,
        number: int,
        slices: npt.NDArray[Any],
        flows: npt.NDArray[np.uint64] | None = None,
        phases: npt.NDArray[np.bytes_] | None = None,
    ) -> None:
        """Add slices to a track; two slices must be nested or disjoint.

        Args:
            number: The track.
            slices: An array of ``SLICE``.
            flows: [slices, n] numbers of the arrows at each slice; 0 for no arrow.
            phases: Whether these begin ("s"), end ("f") or pass through ("t") at each slice; by
                default this depends on the kind of the slice.
        """
        if len(slices) == 0:
            return
        place = f'"pid":{self._pid},"tid":{_THREADS + number},"ts":'.encode()
        begins = slices["begin"]
        durations = _us(slices["end"] - begins)
        head = b',\n{"ph":"X","name":'
        self._rows(head, self._names(slices), place, _us(begins), b',"dur":', durations, b"}")
        if flows is None:
            return
        if phases is None:
            kinds = slices["kind"].tolist()
            phases = np.array([_PHASES.get(kind, b"t") for kind in kinds])
        for column in flows.T:
            own = column != 0
            phase, ids = phases[own].view(np.uint8).reshape(-1, 1), _digits(column[own])
            about = b'","cat":"pysampler","name":"command","bp":"e",'
            at = _us(begins[own])
            self._rows(b',\n{"ph":"', phase, about + place, at, b',"id":', ids, b"}")

    def _names(self, slices: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """Return the names of slices in JSON, each followed by a comma."""
        keys = slices["kind"].astype(np.int64) * _IDS + slices["id"]
        keys, rows = np.unique(keys, return_inverse=True)
        names = [json.dumps(self._name_of(*divmod(key, _IDS))) + "," for key in keys.tolist()]
        width = max(map(len, names))
        padded = "".join(name.ljust(width) for name in names).encode()
        return np.frombuffer(padded, np.uint8).reshape(-1, width)[rows]

    def _rows(self, *parts: bytes | npt.NDArray[np.uint8]) -> None:
        """Write rows of these columns; a column of ``bytes`` is the same in each row."""
        count = next(len(part) for part in parts if not isinstance(part, bytes))
        columns = [
            np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part)))
            if isinstance(part, bytes)
            else part
            for part in parts
        ]
        whole = np.concatenate(columns, axis=1)
        for at in range(0, count, _ROWS):
            self._file.write(whole[at : at + _ROWS].tobytes())

    def _event(self, event: dict[str, Any]) -> None:
        self._write(",\n" + _json(event))

    def _write(self, text: str) -> None:
        self._file.write(text.encode())


def _json(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _digits(numbers: npt.NDArray[Any], least: int = 1) -> npt.NDArray[np.uint8]:
    """Return a row for each number: at least ``least`` digits, padded with blanks before them."""
    numbers = numbers.astype(np.int64)
    count = max(least, len(str(numbers.max(initial=0))))
    powers = 10 ** np.arange(count - 1, -1, -1)
    found = (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)
    found[:, : count - least][numbers[:, None] < powers[: count - least]] = ord(" ")
    return found


def _us(ns: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return a row for each time: in us, with three digits after the point."""
    return np.insert(_digits(ns, 4), -3, ord("."), axis=1)


def merge(paths: Iterable[Path], into: Path) -> int:
    """Merge several JSON traces into one file; return the number of events.

    Raises:
        ValueError: A file is not a JSON trace.
        OSError: A file cannot be read, or the result cannot be written.
    """
    merged: dict[str, Any] = {}
    for number, path in enumerate(paths):
        try:
            trace = json.loads(path.read_bytes())
            trace = {"traceEvents": trace} if isinstance(trace, list) else trace
            events, base = list(trace["traceEvents"]), trace.get("baseTimeNanoseconds", 0)
            first_base = merged.get("baseTimeNanoseconds", 0) if merged else base
            later = (base - first_base) / 1e3
            for event in events:
                event["ph"]  # every event has one
                if "ts" in event:
                    event["ts"] += later
                _renumber(event, number)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} is not a JSON trace") from None
        if merged:
            merged["traceEvents"] += events
        else:
            merged = trace
    with atomic_write(into, lambda kind: ValueError(f"cannot write {into}: it is {kind}")) as file:
        file.write(json.dumps(merged).encode())
    return len(merged["traceEvents"])


def _renumber(event: dict[str, Any], number: int) -> None:
    """Give the tracks and arrows that pysampler wrote numbers that differ between files."""
    if isinstance(event.get("tid"), int) and event["tid"] >= _THREADS:
        event["tid"] += number * _FILE_THREADS
    if event.get("cat") == "pysampler" and "id" in event:
        event["id"] += number * _FILE_FLOWS
