"""``pysampler bench``: compares vector envs on this machine, for one environment."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pysampler._cli.screen import Display, bar, width
from pysampler._cli.turns import Measured, MeasureError, Spread, rate_of, started, take_turns
from pysampler.sync import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pysampler._cli.turns import Contender

__all__ = [
    "HELP",
    "Setting",
    "add_arguments",
    "add_setting",
    "advice_of",
    "counted",
    "heading",
    "looked_at",
    "pasted",
    "run",
    "table",
]

HELP = "compare pysampler with gymnasium's vector envs and the ideal, for one env"

IDEAL, DEFAULT, AUTO = "ideal", "pysampler", 'pysampler, num_workers="auto"'
SYNC, ASYNC = "gymnasium SyncVectorEnv", "gymnasium AsyncVectorEnv"
_NAMES = [IDEAL, DEFAULT, AUTO, SYNC, ASYNC]

_SHORTEST, _LONGEST = 0.02, 0.4  # a slice, in seconds
_TURNS = 10  # that should fit the time, at least
_CLEAR = 1.03  # times as fast from which a difference counts, if the quartiles agree
_NAME, _RATE, _SPREAD = 31, 11, 20  # widths of columns


@dataclass(frozen=True)
class Setting:
    """What an env is, as far as it is known here.

    Attributes:
        env: What the command was given.
        envs: The number of envs.
        workers: The number of processes that may step them.
        call: How a program makes a vector env of them, but for its options.
        keyword: Whether options go into ``vector_kwargs`` there.
        step_seconds: How long a step of one env takes.
    """

    env: str
    envs: int
    workers: int
    call: str
    keyword: bool
    step_seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the subcommand takes."""
    parser.add_argument(
        "env", metavar="ENV", help="CartPole-v1, module:Id-v0, module:function, file.py:function"
    )
    add_setting(parser, seconds=20)


def add_setting(parser: argparse.ArgumentParser, seconds: int) -> None:
    """Add what both subcommands take that measure envs."""
    parser.add_argument("--envs", type=_count, metavar="N", help="how many of it (default: 64)")
    parser.add_argument(
        "--workers", type=_count, metavar="N", help="processes (default: one a CPU)"
    )
    parser.add_argument(
        "--seconds",
        type=_positive,
        default=seconds,
        metavar="S",
        help="about how long in total (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        type=_positive,
        default=60,
        metavar="S",
        help="an env that takes longer hangs (default: %(default)s)",
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count}, expected at least 1")
    return count


def _positive(text: str) -> float:
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
    envs = found["envs"] or options.envs or 64
    workers = min(options.workers or usable_cpus(), envs)
    return Setting(
        options.env, envs, workers, found["call"], found["keyword"], found["step_seconds"]
    )


def run(options: argparse.Namespace) -> int:
    """Measure, and print what was found; return 1 if something does not run."""
    begun = time.monotonic()
    measured = {name: Measured() for name in _NAMES}
    with (
        Display(quiet=options.json) as display,
        started(_NAMES, options.env, options.limit) as contenders,
    ):
        setting = looked_at(contenders[IDEAL], options)
        orders = _orders(setting)
        for name in _NAMES:
            display.show(_lines(setting, measured), f"starting {name}")
            try:
                measured[name].about = contenders[name].ask(
                    "make", envs=setting.envs, warm=_SHORTEST, **orders[name]
                )
            except MeasureError as error:
                if name == IDEAL:
                    raise MeasureError(f"cannot measure {options.env}: {name}: {error}") from None
                measured[name].trouble = str(error)
        ideal = contenders.pop(IDEAL)
        alone: list[float] = []
        seconds = _slice(options.seconds, 2 * len(contenders) + 2)
        end = begun + options.seconds
        turn = 0
        while turn < 2 or time.monotonic() < end:
            turn += 1
            alone.append(rate_of(ideal.ask("run", seconds=seconds, only=1)))
            for name in take_turns(ideal, contenders, measured, seconds):
                left = max(0.0, end - time.monotonic())
                lines = _lines(setting, measured)
                display.show(lines, f"turn {turn}: {name}; {left:.0f} s left")
        if options.json:
            print(json.dumps(_document(setting, measured, alone)))
        advice, line = advice_of(setting, measured, alone)
        lines = [*_lines(setting, measured), *round_parts(), "", *textwrap.wrap(advice, width())]
        display.end([*lines, *(["", line] if line else [])])
    return int(any(one.trouble for one in measured.values()))


def _slice(total: float, slices: int) -> float:
    """Return how long a slice lasts, if so many are a turn."""
    return min(_LONGEST, max(_SHORTEST, total / (slices * _TURNS)))


def _orders(setting: Setting) -> dict[str, dict[str, Any]]:
    """Return how each contender is made."""
    workers = {"num_workers": setting.workers}
    auto = {"num_workers": "auto", "max_concurrency": setting.workers}
    return {
        IDEAL: {"kind": "ideal", "workers": setting.workers},
        DEFAULT: {"kind": "pysampler", "options": workers},
        AUTO: {"kind": "pysampler", "options": auto},
        SYNC: {"kind": "sync"},
        ASYNC: {"kind": "async"},
    }


def round_parts() -> list[str]:
    """Return lines that say where a round goes; none as long as nothing measures it."""
    return []


# -- what is printed -------------------------------------------------------------------------------


def table(measured: Mapping[str, Measured], of: str) -> list[str]:
    """Return a row for each contender: env steps a second, and fractions of ``of``.

    Args:
        measured: What was found, by the names of contenders.
        of: What the fractions are of.
    """
    wide = width()
    cells = wide - _NAME - _RATE - _SPREAD - 2
    lines = [f"{'':<{_NAME}}{'steps/s':>{_RATE}}  {'of ' + of + ' [quartiles]':<{_SPREAD}}"]
    for name, one in measured.items():
        head = f"{name:<{_NAME}}"
        if one.trouble:
            lines += textwrap.wrap(
                f"{head}does not run: {one.trouble}", wide, subsequent_indent="  "
            )
        elif not one.rates:
            lines.append(head.rstrip())
        else:
            spread = one.fraction
            row = f"{head}{one.rate:>{_RATE},.0f}  {spread!s:<{_SPREAD}}"
            lines.append((row + bar(spread.middle, max(0, cells))).rstrip())
    return lines


def heading(setting: Setting) -> str:
    """Return what is measured."""
    return (
        f"{setting.env}, {setting.envs} envs, {counted(setting.workers, 'process', 'es')}; "
        f"a step of one env takes {setting.step_seconds * 1e6:.3g} us"
    )


def counted(count: int, noun: str, plural: str = "s") -> str:
    """Return a number of things in words."""
    return f"{count} {noun}{plural * (count != 1)}"


def _lines(setting: Setting, measured: Mapping[str, Measured]) -> list[str]:
    ideal = f"ideal: {counted(setting.workers, 'process', 'es')} that never talk to any other"
    return [*textwrap.wrap(heading(setting), width()), ideal, "", *table(measured, "ideal")]


def _document(
    setting: Setting, measured: Mapping[str, Measured], alone: list[float]
) -> dict[str, Any]:
    advice, line = advice_of(setting, measured, alone)
    return {
        "env": setting.env,
        "envs": setting.envs,
        "processes": setting.workers,
        "step_seconds": setting.step_seconds,
        "scaling": scaling(setting, measured[IDEAL], alone),
        "contenders": {name: one.to_dict() for name, one in measured.items()},
        "advice": advice,
        "line": line,
    }


def pasted(setting: Setting, options: Mapping[str, Any]) -> str:
    """Return the line of a program that makes a vector env with these options."""
    call = setting.call.format(setting.envs)
    written = {name: json.dumps(value) for name, value in options.items()}
    if setting.keyword:
        inner = ", ".join(f'"{name}": {value}' for name, value in written.items())
        return f"envs = {call}, vector_kwargs={{{inner}}})" if options else f"envs = {call})"
    return f"envs = {', '.join([call, *(f'{name}={value}' for name, value in written.items())])})"


# -- what to make of it ----------------------------------------------------------------------------


def scaling(setting: Setting, ideal: Measured, alone: list[float]) -> float | None:
    """Return what the processes of the ideal make together, as a share of as many alone."""
    if setting.workers == 1 or not alone or not ideal.rates:
        return None
    return ideal.rate / (setting.workers * Spread.of(alone).middle)


def _clearly_faster(one: Measured, other: Measured) -> bool:
    """Return whether the difference is more than the spread of turns."""
    if one.trouble or not one.rates:
        return False
    if other.trouble or not other.rates:
        return True
    ratios = [a / b for a, b in zip(one.fractions, other.fractions, strict=False)]
    spread = Spread.of(ratios)
    return spread.middle > _CLEAR and spread.low > 1


def advice_of(
    setting: Setting, measured: Mapping[str, Measured], alone: list[float]
) -> tuple[str, str]:
    """Return what to do, and the line to paste; that is empty if there is none."""
    ours = AUTO if _clearly_faster(measured[AUTO], measured[DEFAULT]) else DEFAULT
    best = measured[ours]
    if best.trouble or not best.rates:
        return f"pysampler does not run: {best.trouble}", ""
    options: dict[str, Any] = {"num_workers": "auto"} if ours == AUTO else {}
    if setting.workers != usable_cpus():
        name = "max_concurrency" if ours == AUTO else "num_workers"
        options[name] = setting.workers
    said = []
    theirs = [name for name in (SYNC, ASYNC) if _clearly_faster(measured[name], best)]
    if theirs:
        fastest = max(theirs, key=lambda name: measured[name].rate)
        times = measured[fastest].fraction.middle / best.fraction.middle
        said.append(f"{fastest} is {times:.2f} times as fast as pysampler here: take that.")
    elif ours == AUTO and best.about["num_workers"] == 0:
        said.append("Envs this fast need no workers: this process steps them all.")
    elif ours == AUTO:
        times = best.fraction.middle / measured[DEFAULT].fraction.middle
        said.append(
            f'num_workers="auto" is {times:.2f} times as fast as the default: '
            f"{counted(best.about['num_workers'], 'worker')}, and "
            f"{counted(best.about['main_envs'], 'env')} in the program's own process."
        )
    elif best.fraction.middle > 1.05 and best.about.get("native"):
        said.append("Envs that are simulated together beat processes that step them one by one.")
    elif best.fraction.middle >= 0.85:
        said.append(
            "The default is close to the ideal: only faster envs or more CPUs make it faster."
        )
    else:
        said.append("The default is the best of these; workers wait: more envs for each may help.")
    share = scaling(setting, measured[IDEAL], alone)
    if share is not None and share < 0.7:
        said.append(
            f"{setting.workers} processes that never talk make only {share * setting.workers:.1f} "
            "times the steps of one: memory, clocks or other programs limit all of this."
        )
    return " ".join(said), pasted(setting, options)
