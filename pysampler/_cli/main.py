"""The command line of ``pysampler``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING

from pysampler._cli import bench, doctor, top, trace, tune
from pysampler._cli.programs import AttachError
from pysampler._cli.turns import MeasureError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]

# The name of each subcommand: what it does, what it takes, and the function that runs it.
_COMMANDS = {
    "doctor": (doctor.HELP, doctor.add_arguments, doctor.run),
    "bench": (bench.HELP, bench.add_arguments, bench.run),
    "tune": (tune.HELP, tune.add_arguments, tune.run),
    "top": (top.HELP, top.add_arguments, top.run),
    "trace": (trace.HELP, trace.add_arguments, trace.run),
    "dump": (top.DUMP_HELP, top.add_arguments, top.run_dump),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status: 0 well, 1 something is broken, 2 bad usage.

    Args:
        arguments: Those of the command line; None: of this process.
    """
    parser = argparse.ArgumentParser(
        prog="pysampler",
        description="What this machine can do for sampling, and what running programs do.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, add_arguments, run) in _COMMANDS.items():
        one = commands.add_parser(name, help=what, description=what)
        if name not in ("top", "trace"):
            one.add_argument("--json", action="store_true", help="print JSON, for programs")
        add_arguments(one)
        one.set_defaults(run=run)
    options = parser.parse_args(arguments)
    try:
        with _output():
            return int(options.run(options))
    except (AttachError, MeasureError) as error:
        print(f"pysampler: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as shells say it
    except BrokenPipeError:  # the reader has seen enough, as head has
        _drop_output()
        return 0
    except OSError as error:  # a full disk
        _drop_output()
        print(f"pysampler: {error if error.filename else error.strerror}", file=sys.stderr)
        return 2


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Let anything be printed during the block, and have arrived after it."""
    if sys.stdout is None:  # it is closed
        with open(os.devnull, "w") as sys.stdout:  # noqa: PTH123
            yield
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of a terminal that has few characters
    yield
    sys.stdout.flush()


def _drop_output() -> None:
    """Let what could not be printed go nowhere when the process exits."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
