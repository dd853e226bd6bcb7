"""``pysampler top`` and ``pysampler dump``: the activity of a running program's workers."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
from dataclasses import asdict, replace
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING

from pysampler._cli.look import PoolLooks
from pysampler._cli.programs import AttachError, find, is_running
from pysampler._cli.screen import rich_modules, seconds
from pysampler._workers.counters import with_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from pysampler._cli.look import Look, WorkerLook
    from pysampler._cli.programs import Program

__all__ = ["DUMP_HELP", "HELP", "add_arguments", "run", "run_dump"]

HELP = "show live how busy the workers of a running program are"
DUMP_HELP = "print once how busy the workers of a running program are, for example if it hangs"

_NARROWEST = 10  # columns of a terminal
_UNBOUNDED = 160  # columns where there is no terminal
_LOWEST = 4  # the fewest lines of a terminal that has one for the number of hidden lines
_SILENT = 2.0  # dump announces itself if it takes longer than this many seconds
_PATIENCE = 10.0  # seconds for which a program may have no workers, while one is replaced
# The name, the width and the rank of each column. A narrow terminal shows the lowest ranks only.
_COLUMNS = [
    *(("worker", 6, 0), ("pid", 9, 4), ("cpu", 4, 10), ("at", 18, 3)),
    *(("steps/s", 10, 2), ("p50", 10, 9), ("p99", 10, 5)),
    *(("reset p50", 10, 11), ("p99", 10, 12), ("busy", 6, 1)),
    *(("blocked", 8, 6), ("lag", 5, 8), ("restarts", 9, 7)),
]
# Columns that are left out if each worker has this value.
_EMPTY = {"blocked": None, "lag": None, "restarts": 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of both subcommands."""
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=1.0,
        metavar="S",
        help="interval between two looks (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Show the activity until Ctrl-C or the end of the program."""
    if (rich := rich_modules()) is None:
        raise AttachError("top needs rich: pip install 'pysampler[cli]', or use pysampler dump")
    if not sys.stdout.isatty():
        raise AttachError("top needs a terminal; use pysampler dump, or dump --json")
    console = rich.console.Console(highlight=False)
    if console.is_dumb_terminal:
        raise AttachError("top needs a terminal that can redraw, got TERM=dumb; use pysampler dump")
    program = find(options.pid)
    with rich.live.Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            for lines in _screens(program, options.seconds, console):
                text = rich.text.Text("\n".join(lines), no_wrap=True, overflow="crop")
                live.update(text, refresh=True)
        except KeyboardInterrupt:
            return 0
    print(f"program {program.pid} ended, or closed its vector envs")
    return 0


def _screens(program: Program, seconds: float, console: Console) -> Iterator[list[str]]:
    """Yield the lines of each screen until the program has no workers any more."""
    looks = {pool.number: PoolLooks(pool) for pool in program.pools}
    yield _cut(_lines(replace(program, pools=[]), [], console.width), console.height)
    seen = time.monotonic()
    while True:
        time.sleep(seconds)
        try:
            program = find(program.pid)  # it may have other pools, and other workers in them
        except AttachError:
            if time.monotonic() > seen + _PATIENCE or not is_running(program.pid):
                return
            continue  # its only worker is being replaced
        seen = time.monotonic()
        looks = {pool.number: looks.get(pool.number) or PoolLooks(pool) for pool in program.pools}
        for pool in program.pools:
            looks[pool.number].follow(pool)
        taken = [one.look() for one in looks.values()]
        yield _cut(_lines(program, taken, console.width), console.height)


def run_dump(options: argparse.Namespace) -> int:
    """Print the activity during some seconds."""
    program = find(options.pid)
    looks = [PoolLooks(pool) for pool in program.pools]
    if options.seconds > _SILENT:
        print(
            f"pysampler: watching program {program.pid} for {options.seconds:g} s", file=sys.stderr
        )
    time.sleep(options.seconds)
    taken = [one.look() for one in looks]
    if options.json:
        pools = [
            {"name": pool.name, **asdict(look)}
            for pool, look in zip(program.pools, taken, strict=True)
        ]
        about = {"pid": program.pid, "nspid": program.nspid, "command": program.command}
        print(json.dumps({**about, "pools": pools}))
        return 0
    width = shutil.get_terminal_size((_UNBOUNDED, 24)).columns
    print("\n".join(_lines(program, taken, width)))
    for look in taken:
        for worker in look.workers:
            if worker.env is not None and worker.pid is not None and worker.since > options.seconds:
                print(f"to see its Python stack: py-spy dump --pid {worker.pid}")
    return 0


def _lines(program: Program, looks: Sequence[Look], width: int) -> list[str]:
    """Return the screen, in lines that fit the width."""
    width = max(_NARROWEST, width)
    inner = f" ({program.nspid[-1]} in its container)" * (len(program.nspid) > 1)
    lines = textwrap.wrap(f"program {program.pid}{inner}: {program.command}", width)[:2]
    for pool, look in zip(program.pools, looks, strict=True):
        envs, workers = pool.about.envs[-1][1], len(look.workers) - pool.about.main
        summary = (
            f"{pool.name}, {envs} {pool.about.noun}s in {workers} worker{'s' * (workers > 1)}"
            f"{' and the program' * pool.about.main}: "
            f"{look.steps:,.0f} steps/s, workers {look.busy:.0%} busy"
        )
        if look.records is not None:
            summary += f"; {look.records:,} of {look.most_records:,} records wait"
        shown = _shown(look, width)
        rows = [
            [name for name, _, _ in _COLUMNS],
            *(_cells(index, one, pool.about.noun) for index, one in enumerate(look.workers)),
        ]
        lines += ["", *textwrap.wrap(summary, width), *textwrap.wrap(look.verdict, width)]
        for cells in rows:
            padded = (f"{cell:>{size}}" for cell, (_, size, _) in zip(cells, _COLUMNS, strict=True))
            lines.append("".join(compress(padded, shown)))
    return lines


def _shown(look: Look, width: int) -> list[bool]:
    """Return which columns fit and are not empty."""
    ranks = set()
    for name, size, rank in sorted(_COLUMNS, key=itemgetter(2)):
        if name in _EMPTY and all(getattr(one, name) == _EMPTY[name] for one in look.workers):
            continue
        width -= size
        if width < 0:
            break
        ranks.add(rank)
    return [rank in ranks for _, _, rank in _COLUMNS]


def _cut(lines: list[str], height: int) -> list[str]:
    """Return the lines that fit a terminal, the last of which counts the hidden ones."""
    if len(lines) <= height or height < _LOWEST:
        return lines[:height]
    left = len(lines) - height + 1
    return [*lines[: height - 1], f"... {left} more lines; pysampler dump prints all"]


def _cells(index: int, worker: WorkerLook, noun: str) -> list[str]:
    name = "main" if worker.main else str(index)
    if worker.pid is None or worker.cpu is None:
        ended = ("ended" if column in ("pid", "busy") else "" for column, _, _ in _COLUMNS[1:])
        return [name, *ended]
    where = "waits" if not worker.acts else f"no {noun}"
    if worker.env is not None:
        where = f"{noun} {worker.env}"
    return [
        name,
        str(worker.pid),
        str(worker.cpu),
        f"{where}, {with_unit(worker.since)}",
        f"{worker.steps:,.0f}",
        *(with_unit(value) if value else "-" for value in (worker.step_p50, worker.step_p99)),
        *(with_unit(value) if value else "-" for value in (worker.reset_p50, worker.reset_p99)),
        f"{worker.busy:.0%}",
        "-" if worker.blocked is None else f"{worker.blocked:.0%}",
        "-" if worker.lag is None else str(worker.lag),
        str(worker.restarts),
    ]
