"""Traces in the JSON format of chrome://tracing and torch.profiler: from dumps, and merged."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._cli import rounds
from pysampler._cli.trace_dump import is_dump, read_dump
from pysampler._common.files import atomic_write
from pysampler._workers.counters import slow_envs, with_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

    import numpy.typing as npt

    from pysampler._cli.trace_dump import PoolDump

__all__ = ["SLICE_BYTES", "convert", "merge"]

SLICE_BYTES = 100  # approximate size of a slice in the file

_KIND = _core.Track
_NAMES = {
    _KIND.STEP: "step {}",
    _KIND.RESET: "reset {}",
    _KIND.COMMAND: "group {}",
    _KIND.JOB: "job of group {}",
    _KIND.POLICY: "policy",
    _KIND.SEND: "send to {} groups",
    _KIND.WAIT: "wait for {} groups",
    _KIND.READ: "read results",
    _KIND.RECORDS: "waits for records",
    _KIND.ROOM: "waits for room for records",
    rounds.PROGRAM: "program",
    rounds.IDLE: "waits for a command",
}
_OF_GROUPS = _KIND.SEND, _KIND.WAIT  # their ids are the number of groups
# The phase of an arrow at a slice: it begins (s), ends (f), or else passes through (t).
_PHASES = {_KIND.SEND: "s", _KIND.READ: "f", rounds.PROGRAM: "f"}
_SLOW, _ENOUGH = 2.0, 20  # report envs this many times slower, after this many steps of each
# Track numbers are above all thread ids (pid_max is at most 1 << 22), which torch.profiler writes,
# and fit 32 bits, which is the limit of viewers.
_THREADS = _FILE_THREADS = 1 << 23
_ROWS = 50_000  # slices that become Python's objects at a time
_FILE_FLOWS = 1 << 32  # the range of arrow numbers for each merged file


def convert(dump: Path, into: Path) -> list[str]:
    """Write the JSON trace of a dump; return lines on where the time of its rounds goes.

    Times are those of ``now()`` in us. ``baseTimeNanoseconds`` is the system time at which that
    clock was 0, so that ``merge`` can align them with those of torch.profiler.

    Raises:
        ValueError: The file is no dump.
        OSError: The trace cannot be written; ``into`` is then as it was.
    """
    about, pools, unread = read_dump(dump)
    summary = [f"{unread:,} bytes at the end of {dump} are damaged"] * (unread > 0)
    with _writing(into) as file:
        base = f'"baseTimeNanoseconds":{about["base"]}'
        file.write(f'{{"displayTimeUnit":"ms",{base},"traceEvents":[\n'.encode())
        writer = _Writer(file, about["pid"], f"pysampler: {about['command'][:100]}")
        for pool in pools:
            summary += writer.add(pool)
        file.write(b"\n]}\n")
    return summary


def _writing(path: Path) -> Any:
    return atomic_write(path, lambda kind: ValueError(f"cannot write {path}: it is {kind}"))


class _Writer:
    """Writes the events of a trace.

    Args:
        file: The file.
        pid: The process that the tracks belong to.
        name: The name of that process.
    """

    def __init__(self, file: IO[bytes], pid: int, name: str) -> None:
        self._file = file
        self._pid = pid
        self._numbers, self._flows = itertools.count(1), itertools.count(1)
        event = {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        file.write(json.dumps(event).encode())

    def add(self, pool: PoolDump) -> list[str]:
        """Write the slices, arrows and counters of a pool; return lines on its rounds."""
        *workers, parent = pool.tracks
        main = self._track(f"main process, {pool.name}")
        tracks = [self._track(f"worker {i}, {pool.name}") for i in range(pool.workers)]
        parts = rounds.rounds_of(parent, workers, sum(map(len, pool.groups)), pool.holes)
        is_mark = np.isin(parent["kind"], [_KIND.SENT, _KIND.TAKEN])
        marks, parent = parent[is_mark], parent[~is_mark]
        parent = np.concatenate([parent, rounds.of_program(parent, pool.holes)])
        parent = parent[np.argsort(parent["begin"], kind="stable")]
        are_commands = [np.isin(one["kind"], [_KIND.COMMAND, _KIND.JOB]) for one in workers]
        commands = [one[own] for one, own in zip(workers, are_commands, strict=True)]
        others = [one[~own] for one, own in zip(workers, are_commands, strict=True)]
        arrows: dict[int, list[tuple[int, str]]] = {}  # by the index of a slice of the parent
        linked = rounds.flows_of(parent, marks, commands, pool.holes)
        for track, own, rest, ends in zip(tracks, commands, others, linked, strict=True):
            here: dict[int, list[tuple[int, str]]] = {}
            pairs = zip(*(indexes.tolist() for indexes in ends), strict=True)
            for at, (sender, reader) in enumerate(pairs):
                if sender < 0 and reader < 0:
                    continue
                flow = next(self._flows)
                # The program does not read the results of some commands, such as the last.
                here[at] = [(flow, "f" if reader < 0 else "s" if sender < 0 else "t")]
                for index in (sender, reader):
                    if index >= 0:
                        phase = _PHASES.get(int(parent["kind"][index]), "t")
                        arrows.setdefault(index, []).append((flow, phase))
            self._slices(track, own, here)
            self._slices(track, np.concatenate([rest, rounds.idle(own, pool.holes)]))
        self._slices(main, parent, arrows)
        self._counters(pool)
        return _summary(pool, parts)

    def _track(self, name: str) -> int:
        """Add a track of slices; return its number."""
        number = next(self._numbers)
        place = {"pid": self._pid, "tid": _THREADS + number}
        self._event({"ph": "M", "name": "thread_name", **place, "args": {"name": name}})
        index = {"sort_index": number}
        self._event({"ph": "M", "name": "thread_sort_index", **place, "args": index})
        return _THREADS + number

    def _counters(self, pool: PoolDump) -> None:
        """Add tracks of numbers, each valid from a time on."""
        counts = pool.counts
        seconds = np.diff(counts["at"]) / 1e9
        for name, column in (("env steps/s", "steps"), ("workers at work", "busy")):
            # The step of a worker that is replaced ends uncounted.
            values = np.maximum(np.diff(counts[column]), 0) / seconds
            for at, value in zip(counts["at"].tolist(), values.tolist(), strict=False):
                about = {"ph": "C", "name": f"{name}, {pool.name}", "pid": self._pid}
                self._event({**about, "ts": at / 1e3, "args": {"value": value}})

    def _slices(
        self,
        track: int,
        slices: npt.NDArray[Any],
        arrows: Mapping[int, Sequence[tuple[int, str]]] | None = None,
    ) -> None:
        """Add slices to a track, where two must be nested or disjoint, and the arrows at each."""
        place = f'"pid":{self._pid},"tid":{track}'
        command = f'"cat":"pysampler","name":"command","bp":"e",{place}'
        names: dict[tuple[int, int], str] = {}
        write = self._file.write
        parts = (slices[at : at + _ROWS].tolist() for at in range(0, len(slices), _ROWS))
        for begin, end, kind, number in itertools.chain.from_iterable(parts):
            if (name := names.get((kind, number))) is None:
                name = names[kind, number] = json.dumps(_name_of(kind, number))
            ts, duration = f"{begin / 1e3:.3f}", f"{(end - begin) / 1e3:.3f}"
            write(f',\n{{"ph":"X","name":{name},{place},"ts":{ts},"dur":{duration}}}'.encode())
        for at, flows in (arrows or {}).items():
            ts = f"{int(slices['begin'][at]) / 1e3:.3f}"
            for flow, phase in flows:
                write(f',\n{{"ph":"{phase}",{command},"ts":{ts},"id":{flow}}}'.encode())

    def _event(self, event: dict[str, Any]) -> None:
        self._file.write(b",\n" + json.dumps(event).encode())


def _name_of(kind: int, number: int) -> str:
    name = _NAMES.get(kind, "?").format(number)
    return name.removesuffix("s") if number == 1 and kind in _OF_GROUPS else name


def _summary(pool: PoolDump, parts: Mapping[str, npt.NDArray[np.int64]]) -> list[str]:
    """Return lines on the parts of a round, or one that says that there were no rounds."""
    means = rounds.means_of(parts)
    if not means:
        return [f"{pool.name}: no round stepped all envs"]
    count = len(parts["send"])
    text = f"{count:,} round" + "s" * (count > 1)
    head = f"{pool.name}: {text} of {with_unit(sum(means.values()))}, of which"
    sizes = [*itertools.chain(*pool.groups)]
    steps = np.concatenate(pool.tracks)
    steps = steps[steps["kind"] == _KIND.STEP]
    made = np.bincount(steps["id"], minlength=sum(sizes)).astype(np.uint64)
    took = np.bincount(steps["id"], steps["end"] - steps["begin"], sum(sizes)) / 1e9
    slow = slow_envs(made, took / np.maximum(made, 1), sizes, _SLOW, _ENOUGH)
    more = [f"env {env} takes {times:.1f} times the usual" for env, times in slow[:1]]
    return [head, *rounds.shown(means), *more]


def merge(paths: Iterable[Path], into: Path) -> int:
    """Merge several traces, in JSON or dumps, into one file; return the number of events.

    Raises:
        ValueError: A file is not a JSON trace.
        OSError: A file cannot be read, or the result cannot be written.
    """
    merged: dict[str, Any] = {}
    number = 0  # of the file, among all whose tracks and arrows were ever numbered
    for path in paths:
        try:
            trace = json.loads(_json_of(path))
            trace = {"traceEvents": trace} if isinstance(trace, list) else trace
            events, base = list(trace["traceEvents"]), trace.get("baseTimeNanoseconds", 0)
            first_base = merged.get("baseTimeNanoseconds", 0) if merged else base
            later = (base - first_base) / 1e3
            for event in events:
                event["ph"]  # every event has one
                if "ts" in event:
                    event["ts"] += later
            number += max((_renumber(event, number) for event in events), default=0) + 1
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} is not a JSON trace") from None
        if merged:
            merged["traceEvents"] += events
        else:
            merged = trace
    with _writing(into) as file:
        file.write(json.dumps(merged).encode())
    return len(merged["traceEvents"])


def _json_of(path: Path) -> bytes:
    """Return the JSON trace in a file, which may be a dump."""
    if not is_dump(path):
        return path.read_bytes()
    with tempfile.TemporaryDirectory(prefix="pysampler-") as folder:
        into = Path(folder) / "trace.json"
        convert(path, into)
        return into.read_bytes()


def _renumber(event: dict[str, Any], number: int) -> int:
    """Give the tracks and arrows that pysampler wrote numbers that differ between files.

    Returns:
        How many files it had been merged with, as its number in the file shows.
    """
    before = 0
    if isinstance(event.get("tid"), int) and event["tid"] >= _THREADS:
        before = (event["tid"] - _THREADS) // _FILE_THREADS
        event["tid"] += number * _FILE_THREADS
    if event.get("cat") == "pysampler" and "id" in event:
        event["id"] += number * _FILE_FLOWS
    return int(before)
