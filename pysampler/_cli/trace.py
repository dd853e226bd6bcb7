"""``pysampler trace``: records a timeline of the processes of a running program.

Slices go to a dump as they come, which becomes a JSON trace at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pysampler._cli.chrome import SLICE_BYTES, convert, merge
from pysampler._cli.look import running_ns
from pysampler._cli.programs import AttachError, find, is_running
from pysampler._cli.recorder import Recorder
from pysampler._cli.screen import positive, reason_of, seconds
from pysampler._cli.trace_dump import DumpWriter, is_dump
from pysampler._common.files import why_not_regular
from pysampler._workers.tracer import dump_of, how_to_convert
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pysampler._cli.programs import Program

__all__ = ["HELP", "add_arguments", "run"]

HELP = "record a timeline of a running program's processes, for ui.perfetto.dev"

_PAUSE = 0.03  # seconds between two reads, in which a ring must not overflow
_OFTEN = 0.1  # seconds between two progress messages
_SELDOM = 1.0  # seconds between two searches for other pools
_WIDTH = 80  # columns of the heading


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="file to write (default: trace-PID.json)"
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
    if not others and is_dump(first):
        print(*convert(first, options.output), sep="\n")
    else:
        count = merge(options.merge, options.output)
        print(f"{options.output}: {count:,} events")
    print("open it in https://ui.perfetto.dev")
    return 0


def _traced(options: argparse.Namespace) -> int:
    program = _chosen(find(options.pid), options.pool)
    path = options.output or Path(f"trace-{program.pid}.json")
    say = partial(print, file=sys.stderr if options.until_eof else sys.stdout, flush=True)
    name = "pysampler: " if options.until_eof else ""  # on the stderr of another program
    _handle(signal.default_int_handler)
    with _alone(path) as into, contextlib.ExitStack() as stack:
        recorders = [stack.enter_context(Recorder(pool)) for pool in program.pools]
        raw = dump_of(path, os.getpid())
        try:
            began = time.time_ns() - now()
            with DumpWriter(raw, pid=program.pid, command=program.command, base=began) as dump:
                trace = _Trace(recorders, dump)
                end = _End(options)
                _handle(end.ask)  # an exception could leave half of an array in the dump
                print(f"tracing program {program.pid}: {program.command}"[:_WIDTH], flush=True)
                _record(trace, program, end, options.pool)
                seconds_traced = end.elapsed
                trace.end()
            _handle(signal.default_int_handler)
            summary = convert(raw, into)
        except (OSError, ValueError, MemoryError, KeyboardInterrupt) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise AttachError(f"{why or type(error).__name__}; {how_to_convert(raw)}") from error
        raw.unlink()
    size = f"{path.stat().st_size / 1e6:.1f} MB, {trace.count:,} slices"
    say(f"{name}{path}: {size} in {seconds_traced:.1f} s{end.why}")
    if not trace.count:
        say("it is empty, for no step ended meanwhile: pysampler dump shows what the workers do")
    if trace.holes:
        say(f"{trace.holes:.2f} s of it are incomplete: {', and '.join(trace.reasons)}")
    say(*summary, "open it in https://ui.perfetto.dev", sep="\n")
    return 0


def _handle(by: Callable[..., object]) -> None:
    """Handle the signals that end a trace."""
    signal.signal(signal.SIGINT, by)
    signal.signal(signal.SIGTERM, by)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Yield the file that a path is or links to, while no other trace may be written to it."""
    with open(path, "ab", opener=_open_now) as lock:
        into = path.resolve()
        if (kind := why_not_regular(into)) is not None:
            raise AttachError(f"{path} is {kind}")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AttachError(f"another trace writes to {path}; choose another file") from None
        yield into


def _open_now(path: str, flags: int) -> int:
    """Open a file without blocking: if it is a pipe without a reader, fail."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


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


class _End:
    """Decides when a trace ends.

    Attributes:
        why: The reason, if it ended early, as the end of a sentence.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._seconds = options.seconds or (float("inf") if options.until_eof else 5.0)
        self._bytes = options.megabytes * 1e6
        self._stdin = [sys.stdin] if options.until_eof else []
        self._began = time.monotonic()
        self.why = ""

    def ask(self, *_: object) -> None:
        """End the trace: the handler of a signal."""
        self._seconds = 0.0

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
        recorders: The recorders of the pools.
        dump: The dump to write them to.

    Attributes:
        count: The number of slices.
    """

    def __init__(self, recorders: list[Recorder], dump: DumpWriter) -> None:
        self._dump = dump
        self._recorders = {dump.add_pool(one.pool): one for one in recorders}  # by its number there
        self.count = 0
        self.read()

    def follow(self, program: Program) -> None:
        """Add pools that the program has created since."""
        known = {one.pool.number for one in self._recorders.values()}
        for pool in program.pools:
            if pool.number not in known:
                with contextlib.suppress(AttachError):  # it has ended meanwhile
                    recorder = Recorder(pool)
                    self._recorders[self._dump.add_pool(pool)] = recorder

    @property
    def holes(self) -> float:
        """Seconds in which slices may be missing."""
        known, total = 0, 0  # where the holes so far end, and how long they are
        for begin, end in sorted(hole for one in self._recorders.values() for hole in one.holes):
            total += max(0, end - max(begin, known))
            known = max(known, end)
        return total / 1e9

    @property
    def reasons(self) -> list[str]:
        """Why slices may be missing, each in a few words."""
        return sorted(set().union(*(one.reasons for one in self._recorders.values())))

    def read(self) -> None:
        """Write the new slices to the dump."""
        for number, recorder in self._recorders.items():
            holes, counters = len(recorder.holes), recorder.pool.counters
            tracks = recorder.read()
            self.count += sum(map(len, tracks))
            self._dump.add_slices(number, tracks)
            steps = int(counters.envs["steps"]["count"].sum())
            at = now()
            running = running_ns(*counters.at_work(), at).sum() / 1e9
            self._dump.add_counts(number, at, steps, counters.busy_seconds() + running)
            for hole in recorder.holes[holes:]:
                self._dump.add_hole(number, hole)

    def end(self) -> None:
        """Stop the recording, and read what is left."""
        for recorder in self._recorders.values():
            recorder.close()
        self.read()
