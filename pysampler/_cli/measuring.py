"""What ``pysampler bench`` and ``tune`` share: arguments, what is measured, the table."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pysampler._cli.screen import bar, width
from pysampler._cli.sources import Call
from pysampler._cli.turns import MeasureError, Spread
from pysampler._workers.counters import with_unit
from pysampler.sync import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pysampler._cli.turns import Contender, Measured

__all__ = [
    "LEAST_TURNS",
    "SHORTEST",
    "Setting",
    "add_setting",
    "busy_remark",
    "clearly_faster",
    "counted",
    "looked_at",
    "positive",
    "slice_of",
    "table",
]

SHORTEST = 0.02  # seconds of a slice
LEAST_TURNS = 4  # fewer have no quartiles to speak of
_LONGEST = 0.4
_CLEAR = 1.03  # times as fast from which a difference counts, if the quartiles agree
_BUSY = 0.4  # the spread of the quartiles from which a machine is busy
_USED = 0.2  # the share of the CPUs that other programs use from which a machine is busy
_DEFAULT_ENVS = 64
_NAME, _RATE, _SPREAD = 29, 11, 19  # widths of columns, of the first at least


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        env: What the command was given.
        envs: The number of envs.
        workers: The number of processes that may step them.
        call: How a program makes a vector env of them.
        step_seconds: How long a step of one env takes.
        waits: Whether a step waits for something else than a CPU.
        kept: Options that a program has set, as they are written.
    """

    env: str
    envs: int
    workers: int
    call: Call
    step_seconds: float
    waits: bool = False
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it in words."""
        return (
            f"{self.env}, {counted(self.envs, 'env')}, {counted(self.workers, 'process', 'es')}; "
            f"a step of one env takes {with_unit(self.step_seconds)}"
        )

    def lines_with(self, options: Mapping[str, Any]) -> list[str]:
        """Return the lines with which a program makes a vector env with these options."""
        written = {**self.kept, **{name: json.dumps(value) for name, value in options.items()}}
        return [self.call.imported, f"envs = {self.call.written(self.envs, written)}"]


def counted(count: int, noun: str, plural: str = "s") -> str:
    """Return a number of things in words."""
    return f"{count} {noun}{plural * (count != 1)}"


def add_setting(parser: argparse.ArgumentParser, seconds: int) -> None:
    """Add what both subcommands take."""
    parser.add_argument(
        "--envs", type=_count, metavar="N", help=f"how many of it (default: {_DEFAULT_ENVS})"
    )
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="processes (default: one a CPU)"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=seconds,
        metavar="S",
        help="about how long in total (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        type=positive,
        default=60,
        metavar="S",
        help="an env that takes longer hangs (default: %(default)s)",
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count}, expected at least 1")
    return count


def positive(text: str) -> float:
    """Return a number above 0, of an argument."""
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text}, expected more than 0")
    return seconds


def looked_at(contender: Contender, options: argparse.Namespace) -> Setting:
    """Have one env made and stepped; return what is known then, or raise MeasureError."""
    try:
        found = contender.ask("look")
    except MeasureError as error:
        raise MeasureError(f"cannot measure {options.env}: {error}") from None
    envs = options.envs or found["envs"] or _DEFAULT_ENVS
    if found["different"] and envs != found["envs"]:
        raise MeasureError(
            f"cannot measure {envs} envs: {options.env} has {found['envs']} different ones"
        )
    return Setting(
        env=options.env,
        envs=envs,
        workers=min(options.workers or usable_cpus(), envs),
        call=Call(**found["call"]),
        **{name: found[name] for name in ("step_seconds", "waits", "kept")},
    )


def slice_of(seconds: float, slices: int) -> float:
    """Return how long each of some slices lasts, which together should fit some seconds."""
    return min(_LONGEST, max(SHORTEST, seconds / slices))


def table(measured: Mapping[str, Measured], of: str) -> list[str]:
    """Return a row for each contender: env steps a second, and fractions of another's.

    Args:
        measured: What was found, by the names of contenders.
        of: The name of that other one.
    """
    wide, names = width(), max(_NAME, *(len(name) + 1 for name in measured))
    cells = wide - names - _RATE - _SPREAD - 2
    full = max([1.0, *(one.fraction.middle for one in measured.values() if one.fractions)])
    lines = [f"{'':<{names}}{'steps/s':>{_RATE}}  of {of} [quartiles]"[:wide]]
    for name, one in measured.items():
        head = f"{name:<{names}}"
        if one.trouble:
            text = f"{head}does not run: {one.trouble}"
            lines += textwrap.wrap(text, wide, subsequent_indent="  ")
        elif not one.rates:
            lines.append(name)
        else:
            rate = one.rate_beside(measured[of])
            row = f"{head}{rate:>{_RATE},.0f}  {one.fraction!s:<{_SPREAD}}"
            shown = bar(one.fraction.middle / full, max(0, cells))
            lines.append((row + shown).rstrip())
    return lines


def busy_remark(*references: Measured) -> list[str]:
    """Return what to say where other programs use the CPUs, or speed changes much.

    Args:
        *references: What others are compared with, in each stage.
    """
    others = [used for one in references for used in one.others]
    if others and (used := statistics.fmean(others)) > _USED * usable_cpus():
        said = f"other programs use {used:.1f} of {usable_cpus()} CPUs"
        return [f"This machine is busy: {said}. Measure again when they do not."]
    spread = Spread.of([rate for one in references for rate in one.rates])
    if spread.high - spread.low < _BUSY * spread.middle:
        return []
    return ["This machine is busy with other things: measure again when it is not, or longer."]


def clearly_faster(one: Measured, other: Measured) -> bool:
    """Return whether the difference is more than the spread of turns."""
    if one.trouble or not one.rates:
        return False
    if other.trouble or not other.rates:
        return True
    ratios = [a / b for a, b in zip(one.fractions, other.fractions, strict=False)]
    spread = Spread.of(ratios)
    return len(ratios) >= LEAST_TURNS and spread.middle > _CLEAR and spread.low > 1
