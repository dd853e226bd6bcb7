"""``pysampler trace``: records a timeline of the processes of a running program.

Slices go to a dump as they come, which becomes a JSON trace at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pysampler._cli.chrome import SLICE_BYTES, convert, merge
from pysampler._cli.programs import AttachError, find, is_running
from pysampler._cli.recorder import Recorder
from pysampler._cli.screen import positive, reason_of, seconds
from pysampler._cli.trace_dump import DumpWriter
from pysampler._common.files import why_not_regular
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable

    from pysampler._cli.programs import Pool, Program

__all__ = ["HELP", "add_arguments", "run"]

HELP = "record a timeline of a running program's processes, for ui.perfetto.dev"

_RAW = ".raw"  # added to the name of a trace: its dump
_PAUSE = 0.03  # seconds between two reads, in which a ring must not overflow
_OFTEN = 0.1  # seconds between two progress messages
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
        help="join traces instead, for example one of pysampler and one of torch.profiler; or "
        "convert a dump (.raw) that a killed trace has left",
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
    first, *others = options.merge
    if first.suffix == _RAW and not others:
        print(*convert(first, options.output), sep="\n")
    else:
        count = merge(options.merge, options.output)
        print(f"{options.output}: {count:,} events")
    print("open it in https://ui.perfetto.dev")
    return 0


def _traced(options: argparse.Namespace) -> int:
    program = _chosen(find(options.pid), options.pool)
    path = options.output or Path(f"trace-{program.pid}.json")
    if path.exists() and (kind := why_not_regular(path)) is not None:
        raise AttachError(f"{path} is {kind}")
    say = _say_to(sys.stderr if options.until_eof else sys.stdout)
    name = "pysampler: " if options.until_eof else ""  # on the stderr of another program
    raw = path.with_name(path.name + _RAW)
    dump = DumpWriter(raw, pid=program.pid, command=program.command, base=time.time_ns() - now())
    try:
        with dump, contextlib.closing(_Trace(program, dump)) as trace:
            end = _End(options)
            print(f"tracing program {program.pid}: {program.command}"[:_WIDTH], flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                _record(trace, program, end, options.pool)
            seconds_traced = end.elapsed
        summary = convert(raw, path)
    except OSError as error:
        how = f"pysampler trace --merge {raw} -o FILE converts the slices until then"
        raise AttachError(f"{error.strerror or error}; {how}") from error
    raw.unlink()
    size = path.stat().st_size / 1e6
    say(f"{name}{path}: {size:.1f} MB, {trace.count:,} slices in {seconds_traced:.1f} s{end.why}")
    if not trace.count:
        say("it is empty, for no step ended meanwhile: pysampler dump shows what the workers do")
    if trace.holes:
        say(f"{trace.holes:.2f} s of it are incomplete: {', and '.join(trace.reasons)}")
    for line in summary:
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
    showed = looked = time.monotonic()
    while not end.reached(trace):
        trace.read()
        if time.monotonic() - showed > _OFTEN:
            showed = time.monotonic()
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
        if trace.count * SLICE_BYTES > self._bytes:
            self.why = f"; the file has its largest size (--megabytes {self._bytes / 1e6:g})"
        return bool(self.why) or self.elapsed >= self._seconds

    def show(self, trace: _Trace) -> None:
        """Print the progress on a terminal."""
        if sys.stdout.isatty():
            print(f"\r{self.elapsed:.1f} s, {trace.count:,} slices ", end="\r", flush=True)


class _Trace:
    """Records the slices of all pools of a program.

    Args:
        program: The program.
        dump: The dump to write them to.

    Attributes:
        count: The number of slices.
    """

    def __init__(self, program: Program, dump: DumpWriter) -> None:
        self._dump = dump
        self._pools: dict[int, tuple[int, Pool, Recorder]] = {}  # by the numbers of their segments
        self.count = 0
        try:
            for pool in program.pools:
                self._add(pool)
            self.read()
        except BaseException:
            self.close()
            raise

    def _add(self, pool: Pool) -> None:
        recorder = Recorder(pool)
        self._pools[pool.number] = self._dump.add_pool(pool), pool, recorder

    def follow(self, program: Program) -> None:
        """Add pools that the program has created since."""
        for pool in program.pools:
            if pool.number not in self._pools:
                with contextlib.suppress(AttachError):  # it has ended meanwhile
                    self._add(pool)

    @property
    def holes(self) -> float:
        """Seconds in which slices may be missing."""
        holes = [hole for *_, recorder in self._pools.values() for hole in recorder.holes]
        return sum(end - begin for begin, end in holes) / 1e9

    @property
    def reasons(self) -> list[str]:
        """Why slices may be missing, each in a few words."""
        return sorted(set().union(*(recorder.reasons for *_, recorder in self._pools.values())))

    def read(self) -> None:
        """Write the new slices to the dump."""
        for number, pool, recorder in self._pools.values():
            holes = len(recorder.holes)
            tracks = recorder.read()
            self.count += sum(map(len, tracks))
            self._dump.add_slices(number, tracks)
            steps = int(pool.counters.envs["steps"]["count"].sum())
            self._dump.add_counts(number, now(), steps, pool.counters.busy_seconds())
            for hole in recorder.holes[holes:]:
                self._dump.add_hole(number, hole)

    def close(self) -> None:
        """Stop the recording, and read what is left."""
        for *_, recorder in self._pools.values():
            recorder.close()
        self.read()
