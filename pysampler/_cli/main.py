"""The command line of ``pysampler``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from typing import TYPE_CHECKING

from pysampler._cli import bench, doctor, evaluate, top, trace, tune
from pysampler._cli.hangs import own_frames
from pysampler._cli.programs import AttachError
from pysampler._cli.screen import reason_of
from pysampler._cli.sources import SourceError
from pysampler._cli.turns import MeasureError
from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]

# The name of each subcommand: its help, the function that adds its arguments, the one that runs it.
_COMMANDS = {
    "doctor": (doctor.HELP, doctor.add_arguments, doctor.run),
    "bench": (bench.HELP, bench.add_arguments, bench.run),
    "tune": (tune.HELP, tune.add_arguments, tune.run),
    "evaluate": (evaluate.HELP, evaluate.add_arguments, evaluate.run),
    "top": (top.HELP, top.add_arguments, top.run),
    "trace": (trace.HELP, trace.add_arguments, trace.run),
    "dump": (top.DUMP_HELP, top.add_arguments, top.run_dump),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 success, 1 something is broken, 2 bad usage.

    Args:
        arguments: The command line; None for that of this process.
    """
    parser = argparse.ArgumentParser(
        prog="pysampler",
        description="Check and tune sampling, evaluate policies, and inspect running programs.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (help_text, add_arguments, run) in _COMMANDS.items():
        one = commands.add_parser(name, help=help_text, description=help_text)
        if name in ("top", "trace", "dump"):
            about = "pid of the program or of a worker (default: your only program)"
            one.add_argument("pid", type=int, nargs="?", help=about)
        if name not in ("top", "trace"):
            one.add_argument("--json", action="store_true", help="print JSON")
        add_arguments(one)
        one.set_defaults(run=run)
    options = parser.parse_args(arguments)
    try:
        with _output():
            return int(options.run(options))
    except (AttachError, MeasureError, SourceError) as error:
        print(f"pysampler: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        _print_notes(error)
        return 130  # the status of shells for SIGINT
    except OSError as error:
        if _is_theirs(error):
            raise
        _drop_output()
        if isinstance(error, BrokenPipeError):  # the reader has stopped reading, for example head
            return 0
        print(f"pysampler: {reason_of(error)}", file=sys.stderr)  # for example a full disk
        _print_notes(error)
        return 2


def _is_theirs(error: OSError) -> bool:
    """Return whether an env or a policy raised an error, which then needs its traceback."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, EnvError) or bool(own_frames(frames))


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        print(f"pysampler: {note}", file=sys.stderr)


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Make printing safe during the block, and flush the output after it."""
    if sys.stdout is None:  # closed
        with open(os.devnull, "w") as sys.stdout:  # noqa: PTH123
            yield
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal may lack characters
    yield
    sys.stdout.flush()


def _drop_output() -> None:
    """Discard the unprinted output, which Python would try to flush again at exit."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
