"""The command line of ``pysampler``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pysampler._cli import bench, doctor, top
from pysampler._cli.programs import AttachError
from pysampler._cli.turns import MeasureError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

# The name of each subcommand: what it does, what it takes, and the function that runs it.
_COMMANDS = {
    "doctor": (doctor.HELP, doctor.add_arguments, doctor.run),
    "bench": (bench.HELP, bench.add_arguments, bench.run),
    "top": (top.HELP, top.add_arguments, top.run),
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
        one.add_argument("--json", action="store_true", help="print JSON, for programs")
        add_arguments(one)
        one.set_defaults(run=run)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (AttachError, MeasureError) as error:
        print(f"pysampler: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as shells say it
    except BrokenPipeError:  # the reader has seen enough, as head has
        sys.stderr.close()
        return 0
