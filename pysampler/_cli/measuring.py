"""Shared by ``pysampler bench`` and ``tune``: arguments, settings, and the table of results."""

from __future__ import annotations

import json
import statistics
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pysampler._cli.screen import bar, count, positive, width
from pysampler._cli.sources import Call
from pysampler._cli.turns import LEAST_TURNS, Contender, MeasureError, Spread
from pysampler._workers.counters import with_unit
from pysampler.sync import usable_cpus

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any

    from pysampler._cli.turns import Measured

__all__ = [
    "SHORTEST",
    "Setting",
    "add_setting",
    "busy_remark",
    "clearly_faster",
    "counted",
    "division_of",
    "looked_at",
    "remarks",
    "slice_of",
    "table",
]

SHORTEST = 0.02  # seconds of a slice
_LONGEST = 0.4  # seconds of a slice
_CLEAR = 1.03  # a speed-up counts from this factor, if the quartiles agree
_BUSY = 0.4  # a machine is busy if the quartiles are this far apart, as a share of the median
_USED = 0.2  # a machine is busy if other programs use this share of its CPUs
_DEFAULT_ENVS = 64
_CHECK = 60.0  # seconds that the check of the env may take, besides those for any answer
_NAME, _RATE, _SPREAD = 29, 11, 19  # widths of columns; the first is a minimum


@dataclass(frozen=True)
class Setting:
    """The envs and processes to measure.

    Attributes:
        env: The argument of the command.
        envs: The number of envs.
        workers: The number of processes that may step them.
        call: The call by which a program makes a vector env of them.
        step_seconds: The duration of a step of one env.
        waits: Whether a step waits for something other than a CPU.
        vector: Whether a vector env class is registered for the id of the envs.
        isolation: Whether envs may share a process, the verdict in words, and the reasons. Of
            ``tune`` also the same for "threads".
    """

    env: str
    envs: int
    workers: int
    call: Call
    step_seconds: float
    waits: bool = False
    vector: bool = False
    isolation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def isolate(self) -> bool:
        """Whether each env must have a process, as the check says."""
        return self.isolation.get("isolated") is False

    @property
    def threads(self) -> bool:
        """Whether envs may step in threads, as the check says."""
        return self.isolation.get("threads", {}).get("isolated") is True and not self.isolate

    @property
    def limited(self) -> bool:
        """Whether a program needs an option to use this number of processes."""
        return not self.isolate and self.workers != min(usable_cpus(), self.envs)

    @property
    def isolating(self) -> dict[str, Any]:
        """The option that gives each env a process, if it must have one."""
        return {"isolate": True} if self.isolate else {}

    def heading(self) -> list[str]:
        """Return the setting in words, in lines."""
        text = (
            f"{self.env}, {counted(self.envs, 'env')}, {counted(self.workers, 'process', 'es')}; "
            f"a step of one env takes {with_unit(self.step_seconds)}"
        )
        return textwrap.wrap(text, width())

    def lines_with(self, options: Mapping[str, Any]) -> list[str]:
        """Return the lines of a program that make a vector env with these options."""
        written = {name: json.dumps(value) for name, value in options.items()} | self.isolating
        return [self.call.imported, f"envs = {self.call.written(self.envs, written)}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the setting, for JSON."""
        return {
            "env": self.env,
            "envs": self.envs,
            "processes": self.workers,
            "step_seconds": self.step_seconds,
            "isolation": self.isolation,
        }


def counted(count: int, noun: str, plural: str = "s") -> str:
    """Return a count with its noun, such as "2 envs"."""
    return f"{count} {noun}{plural * (count != 1)}"


def division_of(about: Mapping[str, Any]) -> str:
    """Return how a vector env divides its envs, such as "starts 2 workers"."""
    own = about["main_envs"]
    here = f" and steps {counted(own, 'env')} in the program's own process"
    return f"starts {counted(about['num_workers'], 'worker')}{here * (own > 0)}"


def add_setting(parser: argparse.ArgumentParser, seconds: int) -> None:
    """Add the arguments of both subcommands."""
    source = "CartPole-v1, module:Id-v0, module:function or file.py:function"
    for name, kind, default, metavar, text in (
        ("env", str, None, "ENV", source),
        ("--envs", count, _DEFAULT_ENVS, "N", "number of envs (default: %(default)s)"),
        ("--workers", count, None, "N", "number of processes (default: one per CPU)"),
        ("--seconds", positive, seconds, "S", "approximate duration in total (%(default)s)"),
        ("--limit", positive, 60, "S", "give up on an env that takes longer (%(default)s)"),
    ):
        parser.add_argument(name, type=kind, default=default, metavar=metavar, help=text)


def looked_at(
    contender: Contender, options: argparse.Namespace, *, threads: bool = False
) -> Setting:
    """Have a contender make and step one env, and check it; return the setting.

    Args:
        contender: The contender.
        options: The arguments of the command.
        threads: Whether to check the env in threads too.

    Raises:
        MeasureError: The env does not run.
    """
    try:
        found = contender.ask("look")
    except MeasureError as error:
        raise MeasureError(f"cannot measure {options.env}: {error}") from None
    with Contender("the check", options.env, options.limit) as checker:
        isolation = checker.ask("check", seconds=_CHECK, threads=threads)
    return Setting(
        env=options.env,
        envs=options.envs,
        workers=min(options.workers or usable_cpus(), options.envs),
        isolation=isolation,
        **{**found, "call": Call(**found["call"])},
    )


def slice_of(seconds: float, slices: int) -> float:
    """Return the length of a slice such that ``slices`` of them fit ``seconds``."""
    return min(_LONGEST, max(SHORTEST, seconds / slices))


def table(measured: Mapping[str, Measured], of: str) -> list[str]:
    """Return a row for each contender: env steps per second, and the fraction of the reference.

    Args:
        measured: The results, by the names of contenders.
        of: The name of the reference.
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


def remarks(setting: Setting, ours: Measured, advice: str, call: list[str]) -> list[str]:
    """Return lines on how envs are stepped and whether they may share a process, and the advice.

    Args:
        setting: The envs and processes that were measured.
        ours: The results of the vector env that the advice is about.
        advice: The advice.
        call: The lines of a program that follows it, if any.
    """
    stepped: list[str] = ours.about.get("described", "").splitlines()
    usual = all(
        "in Python" in line and (": " not in line or " has no native counterpart" in line)
        for line in stepped
        if line.startswith("  ")
    )
    # Only if some are native or on batches, or might be.
    lines: list[str] = [] if usual else ["", "how pysampler steps the envs:", *stepped]
    if setting.isolation:
        lines.append("")
    for found in (setting.isolation, setting.isolation.get("threads")):
        if found:
            lines += textwrap.wrap(found["verdict"], width())
            for reason in found["reasons"]:
                lines += textwrap.wrap(f"- {reason}", width(), subsequent_indent="  ")
    return [*lines, "", *textwrap.wrap(advice, width()), *(["", *call] if call else [])]


def busy_remark(*references: Measured) -> list[str]:
    """Return a remark if other programs use the CPUs, or if the speed varies much.

    Args:
        *references: The results of the reference, in each stage.
    """
    others = [used for one in references for used in one.others]
    if others and (used := statistics.fmean(others)) > _USED * usable_cpus():
        use = f"other programs use {used:.1f} of {usable_cpus()} CPUs"
        return [f"This machine is busy: {use}. Measure again when they have ended."]
    spread = Spread.of([rate for one in references for rate in one.rates])
    if spread.high - spread.low < _BUSY * spread.middle:
        return []
    return [
        "This machine seems busy, for speeds vary: measure again when it is idle, or for longer."
    ]


def clearly_faster(one: Measured, other: Measured) -> bool:
    """Return whether one is faster than another by more than the spread of the turns."""
    if one.trouble or not one.rates:
        return False
    if other.trouble or not other.rates:
        return True
    ratios = [a / b for a, b in zip(one.fractions, other.fractions, strict=False)]
    spread = Spread.of(ratios)
    return len(ratios) >= LEAST_TURNS and spread.middle > _CLEAR and spread.low > 1
