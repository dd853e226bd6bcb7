"""Traces as chrome://tracing and torch.profiler write them: JSON of events."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._cli.rounds import PROGRAM
from pysampler._files import atomic_write
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from pysampler._cli.trace_file import TraceFile

__all__ = ["ChromeWriter", "merge"]

# What an arrow does at a slice: it begins there, or ends there, or else goes through.
_PHASES = {_core.Track.SEND: "s", _core.Track.READ: "f", PROGRAM: "f"}
# Threads of ours have numbers that no thread of the system has, beside those of torch.profiler.
_THREADS = 1 << 40
_FILE = 1 << 32  # numbers of one file that is merged with others


class ChromeWriter:
    """Writes tracks of slices and of numbers.

    Times are in us since ``baseTimeNanoseconds``, which is a time of the system's clock, as those
    of torch.profiler are.

    Args:
        file: Where it is written to.
        name_of: Returns the name of a slice of a kind and an id.

    Attributes:
        quick: Whether slices are written as quickly as they come.
        slice_bytes: How many bytes a slice takes in the file, about.
    """

    quick = False
    slice_bytes = 155

    def __init__(self, file: TraceFile, name_of: Callable[[int, int], str]) -> None:
        self._file = file
        self._name_of = name_of
        self._pids: dict[int, int] = {}  # of processes, by number
        self._process_of: dict[int, int] = {}  # pids, by track
        unix = time.time_ns()
        base = unix // 1_000_000_000 * 1_000_000_000
        self._offset = unix - now() - base  # what is added to times of ours
        file.end = b"\n]}\n"
        self._write(
            f'{{"displayTimeUnit": "ms", "baseTimeNanoseconds": {base}, "traceEvents": [\n'
            '{"ph": "M", "name": "trace", "pid": 0}'
        )

    def process(self, number: int, pid: int, name: str) -> None:
        """Add a process, which has tracks."""
        self._pids[number] = pid
        self._event({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})

    def track(self, number: int, name: str, process: int) -> None:
        """Add a track of slices."""
        pid = self._process_of[number] = self._pids[process]
        place = {"pid": pid, "tid": _THREADS + number}
        self._event({"ph": "M", "name": "thread_name", **place, "args": {"name": name}})
        index = {"sort_index": number}
        self._event({"ph": "M", "name": "thread_sort_index", **place, "args": index})

    def counter(
        self,
        number: int,  # noqa: ARG002
        name: str,
        process: int,
        at: npt.NDArray[np.int64],
        values: npt.NDArray[np.float64],
    ) -> None:
        """Add a track of numbers, each from a time on."""
        pid = self._pids[process]
        for ns, value in zip(at.tolist(), values.tolist(), strict=True):
            args = {"value": value}
            self._event({"ph": "C", "name": name, "pid": pid, "ts": self._us(ns), "args": args})

    def slices(
        self,
        number: int,
        slices: npt.NDArray[Any],
        flows: npt.NDArray[np.uint64] | None = None,
        phases: Iterable[str] | None = None,
    ) -> None:
        """Add slices to a track, of which none overlaps another in part.

        Args:
            number: The track.
            slices: As ``SLICE``.
            flows: [slices, n] numbers of arrows that come from or go to a slice; 0 is none.
            phases: Whether these begin ("s"), end ("f") or go on ("t") at each slice; by default
                that is so for each kind.
        """
        place = f'"pid": {self._process_of[number]}, "tid": {_THREADS + number}'
        columns = (slices[name].tolist() for name in ("begin", "end", "kind", "id"))
        arrows: Iterable[list[int]] = [[]] * len(slices) if flows is None else flows.tolist()
        if phases is None:
            phases = [_PHASES.get(kind, "t") for kind in slices["kind"].tolist()]
        for begin, end, kind, id_, own, phase in zip(*columns, arrows, phases, strict=True):
            name, ts = json.dumps(self._name_of(kind, id_)), self._us(begin)
            self._write(
                f',\n{{"ph": "X", "cat": "pysampler", "name": {name}, {place}, "ts": {ts}, '
                f'"dur": {(end - begin) / 1e3:.3f}}}'
            )
            for flow in filter(None, own):
                self._write(
                    f',\n{{"ph": "{phase}", "cat": "pysampler", "name": "command", {place}, '
                    f'"ts": {ts}, "id": {flow}, "bp": "e"}}'
                )

    def _us(self, ns: int) -> str:
        return f"{(ns + self._offset) / 1e3:.3f}"

    def _event(self, event: dict[str, Any]) -> None:
        if "ts" in event:
            event["ts"] = float(event["ts"])
        self._write(",\n" + json.dumps(event))

    def _write(self, text: str) -> None:
        self._file.write(text.encode())


def merge(paths: Iterable[Path], into: Path) -> int:
    """Write the events of several traces in JSON as one; return how many there are.

    Raises:
        ValueError: One of them is no such trace.
        OSError: One cannot be read, or the result cannot be written.
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
                event["ph"]  # which every event has
                if "ts" in event:
                    event["ts"] += later
                _renumber(event, number)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} is no trace in JSON") from None
        if merged:
            merged["traceEvents"] += events
        else:
            merged = trace
    with atomic_write(into, lambda what: ValueError(f"cannot write {into}: it is {what}")) as file:
        file.write(json.dumps(merged).encode())
    return len(merged["traceEvents"])


def _renumber(event: dict[str, Any], number: int) -> None:
    """Give tracks and arrows of ours other numbers than those of another file have."""
    if isinstance(event.get("tid"), int) and event["tid"] >= _THREADS:
        event["tid"] += number * _FILE
    if event.get("cat") == "pysampler" and "id" in event:
        event["id"] += number * _FILE
