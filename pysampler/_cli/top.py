"""``pysampler top`` and ``pysampler dump``: what the workers of a running program do."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import textwrap
import time
from itertools import compress
from typing import TYPE_CHECKING

from pysampler._cli.look import PoolLooks
from pysampler._cli.programs import AttachError, find
from pysampler._cli.screen import seconds
from pysampler._workers.counters import with_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pysampler._cli.look import Look, WorkerLook
    from pysampler._cli.programs import Program

__all__ = ["DUMP_HELP", "HELP", "add_arguments", "run", "run_dump"]

HELP = "show live what the workers of a running program do"
DUMP_HELP = "print once what the workers of a running program do, as when it hangs"

_NARROWEST, _WIDE = 60, 100
# The names of the columns, their widths, and whether a narrow terminal has them.
_COLUMNS = [
    *(("worker", 6, True), ("pid", 9, True), ("cpu", 4, False), ("at", 18, True)),
    *(("steps/s", 10, True), ("p50", 10, False), ("p99", 10, True)),
    *(("reset p50", 10, False), ("p99", 10, False), ("busy", 6, True)),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what both subcommands take."""
    parser.add_argument(
        "pid", type=int, nargs="?", help="of the program or of a worker; none: the only one"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=1.0, help="between two looks (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Show what happens until Ctrl-C or the end of the program."""
    try:
        from rich.console import Console  # noqa: PLC0415 - of the extra "cli"
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return _refuse("top needs rich: pip install 'pysampler[cli]'; dump does without")
    if options.json or not sys.stdout.isatty():
        return _refuse("top needs a terminal; pysampler dump prints once, --json for programs")
    program = find(options.pid)
    looks = {pool.number: PoolLooks(pool) for pool in program.pools}
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(options.seconds)
                program = find(program.pid)  # it may have other pools, and other workers in them
                for pool in program.pools:
                    if pool.number in looks:
                        looks[pool.number].follow(pool)
                    else:
                        looks[pool.number] = PoolLooks(pool)
                taken = [looks[pool.number].look() for pool in program.pools]
                lines = _lines(program, taken, max(_NARROWEST, console.width))
                live.update(Text("\n".join(lines[: console.height])), refresh=True)
        except AttachError:
            pass
        except KeyboardInterrupt:
            return 0
    print(f"program {program.pid} has no workers any more")
    return 0


def run_dump(options: argparse.Namespace) -> int:
    """Print what happened within some seconds."""
    program = find(options.pid)
    looks = [PoolLooks(pool) for pool in program.pools]
    time.sleep(options.seconds)
    taken = [one.look() for one in looks]
    if options.json:
        pools = [
            {"name": pool.name, **dataclasses.asdict(look)}
            for pool, look in zip(program.pools, taken, strict=True)
        ]
        print(json.dumps({"pid": program.pid, "command": program.command, "pools": pools}))
        return 0
    width = shutil.get_terminal_size().columns
    print("\n".join(_lines(program, taken, max(_NARROWEST, width))))
    for look in taken:
        for worker in look.workers:
            if worker.env is not None and worker.pid is not None and worker.since > options.seconds:
                print(f"its Python stack: py-spy dump --pid {worker.pid}")
    return 0


def _refuse(why: str) -> int:
    print(f"pysampler: {why}", file=sys.stderr)
    return 2


def _lines(program: Program, looks: Sequence[Look], width: int) -> list[str]:
    """Return what there is to show, in lines that fit."""
    shown = [narrow or width >= _WIDE for _, _, narrow in _COLUMNS]

    def row(cells: Iterable[str]) -> str:
        padded = (f"{cell:>{size}}" for cell, (_, size, _) in zip(cells, _COLUMNS, strict=True))
        return "".join(compress(padded, shown))

    lines = textwrap.wrap(f"program {program.pid}: {program.command}", width)[:2]
    for pool, look in zip(program.pools, looks, strict=True):
        members = pool.about.members[-1][1]
        lines += [
            "",
            *textwrap.wrap(
                f"{pool.name}, {members} {pool.about.noun}s in {len(look.workers)} workers: "
                f"{look.steps:,.0f} steps/s, {look.busy:.0%} of what the workers could",
                width,
            ),
            *textwrap.wrap(look.verdict, width),
            row(name for name, _, _ in _COLUMNS),
        ]
        for index, worker in enumerate(look.workers):
            lines.append(row(_cells(index, worker, pool.about.noun)))
    return lines


def _cells(index: int, worker: WorkerLook, noun: str) -> list[str]:
    where = f"{noun} {worker.env}, " if worker.env is not None else "waits, "
    if worker.pid is None or worker.cpu is None:
        return [str(index), "ended", *[""] * (len(_COLUMNS) - 2)]
    return [
        str(index),
        str(worker.pid),
        str(worker.cpu),
        where + with_unit(worker.since),
        f"{worker.steps:,.0f}",
        *(with_unit(value) if value else "-" for value in (worker.step_p50, worker.step_p99)),
        *(with_unit(value) if value else "-" for value in (worker.reset_p50, worker.reset_p99)),
        f"{worker.busy:.0%}",
    ]
