"""``pysampler trace``: records a timeline of the processes of a running program.

Slices of envs are written as they come; all others are kept in memory until the end, when the
sends, commands and reads of a round can be linked by arrows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from pysampler import _core
from pysampler._cli.chrome import ChromeWriter, merge
from pysampler._cli.programs import AttachError, find, is_running
from pysampler._cli.recorder import SLICE, Recorder
from pysampler._cli.rounds import (
    IDLE,
    PROGRAM,
    flows_of,
    idle,
    means_of,
    of_program,
    rounds_of,
    shown,
)
from pysampler._cli.screen import positive, reason_of, seconds
from pysampler._cli.trace_file import open_trace
from pysampler._workers.counters import slow_envs, with_unit
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._cli.programs import Pool, Program
    from pysampler._cli.trace_file import TraceFile

__all__ = ["HELP", "add_arguments", "run"]

HELP = "record a timeline of a running program's processes, for ui.perfetto.dev"

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
    PROGRAM: "program",
    IDLE: "waits for a command",
}
_OF_ENVS = _KIND.STEP, _KIND.RESET
_OF_GROUPS = _KIND.SEND, _KIND.WAIT  # their ids are the number of groups
_SLOW, _ENOUGH = 2.0, 20  # report envs this many times slower, after this many steps of each
_PAUSE = 0.03  # seconds between two reads, in which a ring must not overflow
_OFTEN = 0.1  # seconds between two writes to the file and progress messages
_SELDOM = 1.0  # seconds between two searches for other pools
_WIDTH = 80  # columns of the heading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "pid",
        type=int,
        nargs="?",
        help="pid of the program or of a worker (default: your only program)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: trace-PID.json)",
    )
    parser.add_argument("--seconds", type=seconds, metavar="S", help="duration (default: 5)")
    parser.add_argument(
        "--megabytes",
        type=positive,
        default=1000,
        metavar="MB",
        help="stop at this size of the file (default: %(default)s)",
    )
    parser.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="join traces instead, for example one of pysampler and one of torch.profiler",
    )
    # For VectorEnv(trace=...): trace one pool until stdin has data or ends.
    parser.add_argument("--pool", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Write a trace; Ctrl-C ends it early."""
    try:
        return _merged(options) if options.merge else _traced(options)
    except BrokenPipeError:
        raise
    except (AttachError, OSError, ValueError) as error:
        if options.until_eof:  # the program that started this reads the reason, if it still runs
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            with contextlib.suppress(BrokenPipeError):
                os.write(sys.stdout.fileno(), f"{why}\n".encode())
                return 1
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        raise AttachError(why) from None


def _merged(options: argparse.Namespace) -> int:
    if options.output is None:
        raise AttachError("--merge needs -o FILE")
    count = merge(options.merge, options.output)
    print(f"{options.output}: {count:,} events; open it in https://ui.perfetto.dev")
    return 0


def _traced(options: argparse.Namespace) -> int:
    program = _chosen(find(options.pid), options.pool)
    path = options.output or Path(f"trace-{program.pid}.json")
    say = _say_to(sys.stderr if options.until_eof else sys.stdout)
    name = "pysampler: " if options.until_eof else ""  # on the stderr of another program
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(contextlib.closing(_PoolTrace(p))) for p in program.pools]
        file = stack.enter_context(open_trace(path))
        trace = _Trace(program, pools, file)
        stack.callback(trace.stop)
        trace.read()
        end = _End(options)
        print(f"tracing program {program.pid}: {program.command}"[:_WIDTH], flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            _record(trace, program, end, options.pool)
        trace.stop()
        seconds_traced = end.elapsed
        trace.close()
    size = path.stat().st_size / 1e6
    say(f"{name}{path}: {size:.1f} MB, {trace.count:,} slices in {seconds_traced:.1f} s{end.why}")
    if not trace.count:
        say("it is empty, for no step ended meanwhile: pysampler dump shows what the workers do")
    if trace.holes:
        say(f"{trace.holes:.2f} s of it are incomplete: {', and '.join(trace.reasons)}")
    for line in trace.summary():
        say(line)
    say("open it in https://ui.perfetto.dev")
    return 0


def _chosen(program: Program, pool: int | None) -> Program:
    """Return a program with only this pool; None for all of its pools."""
    if pool is not None:
        program.pools = [one for one in program.pools if one.number == pool]
        if not program.pools:
            raise AttachError("the vector env was closed")
    return program


def _record(trace: _Trace, program: Program, end: _End, pool: int | None) -> None:
    wrote = looked = time.monotonic()
    while not end.reached(trace):
        trace.read()
        if time.monotonic() - wrote > _OFTEN:
            wrote = time.monotonic()
            trace.write()
            end.show(trace)
        if time.monotonic() - looked > _SELDOM:
            looked = time.monotonic()
            try:
                trace.follow(_chosen(find(program.pid), pool))
            except AttachError:  # it may have no workers while one is replaced
                if not is_running(program.pid):
                    end.why = "; the program ended"
                    return


def _say_to(stream: TextIO) -> Callable[[str], None]:
    return lambda line: print(line, file=stream, flush=True)


class _End:
    """Decides when a trace ends.

    Attributes:
        why: The reason, if it ended early, as the end of a sentence.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        default = float("inf") if options.until_eof else 5.0
        self._seconds = options.seconds or default
        self._bytes = options.megabytes * 1e6
        self._stdin = [sys.stdin] if options.until_eof else []
        self._began = time.monotonic()
        self.why = ""

    @property
    def elapsed(self) -> float:
        """Seconds since the trace began."""
        return time.monotonic() - self._began

    def reached(self, trace: _Trace) -> bool:
        """Wait for ``_PAUSE``, then return whether it is time to end."""
        if select.select(self._stdin, [], [], _PAUSE)[0]:
            return True
        if trace.size > self._bytes:
            self.why = f"; the file has its largest size (--megabytes {self._bytes / 1e6:g})"
        return bool(self.why) or self.elapsed >= self._seconds

    def show(self, trace: _Trace) -> None:
        """Print the progress on a terminal."""
        if sys.stdout.isatty():
            print(f"\r{self.elapsed:.1f} s, {trace.count:,} slices ", end="\r", flush=True)


class _Trace:
    """A file with the slices of all pools of a program.

    Args:
        program: The program.
        pools: Its pools.
        file: The file to write.

    Attributes:
        count: The number of slices.
        writer: Writes the file.
        flows: The number of the next arrow.
    """

    def __init__(self, program: Program, pools: Sequence[_PoolTrace], file: TraceFile) -> None:
        name = f"pysampler: {program.command[:100]}"
        self.writer = ChromeWriter(file, program.pid, name, _name_of)
        self._pools: dict[int, _PoolTrace] = {}  # by the numbers of their segments
        self._numbers = itertools.count(1)
        self.count, self.flows = 0, 1
        for pool in pools:
            self._add(pool)

    def _add(self, pool: _PoolTrace) -> None:
        self._pools[pool.number] = pool
        pool.add_tracks(self)

    def follow(self, program: Program) -> None:
        """Add pools that the program has created since."""
        for pool in program.pools:
            if pool.number not in self._pools:
                with contextlib.suppress(AttachError):  # it has ended meanwhile
                    self._add(_PoolTrace(pool))

    @property
    def holes(self) -> float:
        """Seconds in which slices may be missing."""
        holes = [hole for pool in self._pools.values() for hole in pool.recorder.holes]
        return sum(end - begin for begin, end in holes) / 1e9

    @property
    def reasons(self) -> list[str]:
        """Why slices may be missing, each in a few words."""
        return sorted(set().union(*(pool.recorder.reasons for pool in self._pools.values())))

    @property
    def size(self) -> int:
        """The approximate size of the file, in bytes."""
        return self.count * self.writer.slice_bytes

    def read(self) -> None:
        """Read the new slices."""
        for pool in self._pools.values():
            self.count += pool.read()

    def write(self) -> None:
        """Write the slices of envs that were read."""
        for pool in self._pools.values():
            pool.write(self.writer)

    def stop(self) -> None:
        """Stop the recording of slices."""
        for pool in self._pools.values():
            pool.close()

    def close(self) -> None:
        """Read and write everything that is left."""
        self.read()
        self.write()
        for pool in self._pools.values():
            pool.write_links(self)

    def summary(self) -> list[str]:
        """Return lines on the time that the rounds of each pool spent in each part."""
        return [line for pool in self._pools.values() for line in pool.summary()]

    def add_track(self, name: str) -> int:
        """Add a track; return its number."""
        number = next(self._numbers)
        self.writer.track(number, name)
        return number


class _PoolTrace:
    """The slices of one pool."""

    def __init__(self, pool: Pool) -> None:
        self.number = pool.number
        self.recorder = Recorder(pool)
        self._name = pool.name
        self._workers = len(pool.about.envs) - pool.about.main
        self._groups = sum(map(len, pool.about.groups[: self._workers]))
        self._sizes = [*itertools.chain(*pool.about.groups)]
        self._tracks: list[int] = []
        self._new: list[list[npt.NDArray[Any]]] = [[] for _ in range(self._workers + 1)]
        # Slices other than those of envs; linked by ``write_links`` at the end.
        self._rest: list[list[npt.NDArray[Any]]] = [[] for _ in self._new]
        self._counters = pool.counters
        self._before = pool.counters.envs["steps"].copy()
        # The time of each read, and the env steps and the seconds at work until then.
        self._counted: list[tuple[int, int, float]] = []
        self._rounds: dict[str, npt.NDArray[np.int64]] = {}

    def add_tracks(self, trace: _Trace) -> None:
        """Add a track for each process to the file."""
        # The main process has the first track in the file, but comes last in ``read``.
        main = trace.add_track(f"main process, {self._name}")
        workers = range(self._workers)
        self._tracks = [trace.add_track(f"worker {i}, {self._name}") for i in workers]
        self._tracks.append(main)

    def close(self) -> None:
        """Stop the recording of slices. May be repeated."""
        self.recorder.close()

    def read(self) -> int:
        """Read the new slices; return how many there are."""
        read = self.recorder.read()
        steps = int(self._counters.envs["steps"]["count"].sum())
        self._counted.append((now(), steps, self._counters.busy_seconds()))
        for new, slices in zip(self._new, read, strict=True):
            if len(slices):
                new.append(slices)
        return sum(map(len, read))

    def write(self, writer: ChromeWriter) -> None:
        """Write slices of envs."""
        for number, new, rest in zip(self._tracks, self._new, self._rest, strict=True):
            slices = _joined(new)
            new.clear()
            of_envs = np.isin(slices["kind"], _OF_ENVS)
            rest.append(slices[~of_envs])
            writer.slices(number, slices[of_envs])

    def write_links(self, trace: _Trace) -> None:
        """Write the other slices, with arrows between them, and the counters."""
        writer, holes = trace.writer, self.recorder.holes
        *workers, parent = (_joined(rest) for rest in self._rest)
        self._rounds = rounds_of(parent, workers, self._groups, holes)
        is_mark = np.isin(parent["kind"], [_KIND.SENT, _KIND.TAKEN])
        marks, parent = parent[is_mark], parent[~is_mark]
        parent = np.concatenate([parent, of_program(parent, holes)])
        parent = parent[np.argsort(parent["begin"], kind="stable")]
        commands = [one[np.isin(one["kind"], [_KIND.COMMAND, _KIND.JOB])] for one in workers]
        arrows: list[list[int]] = [[] for _ in parent]
        linked = zip(
            self._tracks, workers, commands, flows_of(parent, marks, commands, holes), strict=False
        )
        for number, all_of_them, own, (senders, readers) in linked:
            flows = np.arange(trace.flows, trace.flows + len(own), dtype=np.uint64)
            trace.flows += len(own)
            for flow, sender, reader in zip(flows.tolist(), senders, readers, strict=True):
                for at in (sender, reader):
                    if at >= 0:
                        arrows[at].append(flow)
            # The program does not read the results of some commands, such as the last.
            phases = np.where(readers < 0, b"f", np.where(senders < 0, b"s", b"t"))
            flows[(senders < 0) & (readers < 0)] = 0
            writer.slices(number, own, flows[:, None], phases)
            inside = all_of_them[np.isin(all_of_them["kind"], [_KIND.POLICY, _KIND.ROOM])]
            writer.slices(number, np.concatenate([inside, idle(own, holes)]))
        most = max([1, *map(len, arrows)])
        padded = [own + [0] * (most - len(own)) for own in arrows]
        writer.slices(self._tracks[-1], parent, np.array(padded, np.uint64).reshape(-1, most))
        self._write_counters(trace)

    def _write_counters(self, trace: _Trace) -> None:
        at, steps, busy = (np.array(column) for column in zip(*self._counted, strict=True))
        seconds = np.diff(at) / 1e9
        speed, work = np.diff(steps) / seconds, np.diff(busy) / seconds
        at = at[:-1]
        trace.writer.counter(f"env steps/s, {self._name}", at, speed)
        trace.writer.counter(f"workers at work, {self._name}", at, work)

    def summary(self) -> list[str]:
        """Return lines on the parts of a round, or one that says that there were no rounds."""
        means = means_of(self._rounds)
        if not means:
            return [f"{self._name}: no round stepped all envs"]
        count = len(self._rounds["send"])
        rounds = f"{count:,} round" + "s" * (count > 1)
        head = f"{self._name}: {rounds} of {with_unit(sum(means.values()))}, of which"
        return [head, *shown(means), *self._slow()]

    def _slow(self) -> list[str]:
        """Return a line about the slowest env, if it is much slower than the others."""
        rows = self._counters.envs["steps"]
        count = rows["count"] - self._before["count"]
        ns = rows["total_ns"] - self._before["total_ns"]
        mean = ns / np.maximum(count, 1) / 1e9
        slow = slow_envs(count, mean, self._sizes, _SLOW, _ENOUGH)
        return [f"env {env} takes {times:.1f} times the usual" for env, times in slow[:1]]


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, SLICE)


def _name_of(kind: int, number: int) -> str:
    name = _NAMES.get(kind, "?").format(number)
    return name.removesuffix("s") if number == 1 and kind in _OF_GROUPS else name
