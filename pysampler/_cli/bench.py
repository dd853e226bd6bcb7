"""``pysampler bench``: compares vector envs on this machine, for one environment.

All contenders take turns and are compared with the *ideal*: the same envs in plain loops, in
processes that never communicate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

from pysampler._cli import measuring, turns
from pysampler._cli.measuring import SHORTEST, clearly_faster
from pysampler._cli.rounds import shown
from pysampler._cli.screen import Display
from pysampler._cli.turns import Measured, MeasureError, Spread
from pysampler._workers.counters import with_unit
from pysampler.sync import usable_cpus

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pysampler._cli.measuring import Setting

__all__ = ["HELP", "add_arguments", "advice_of", "run"]

HELP = "compare the speed of pysampler and gymnasium's vector envs, for an env"

IDEAL, DEFAULT, AUTO = "ideal", "pysampler", 'pysampler, num_workers="auto"'
SYNC, ASYNC = "gymnasium SyncVectorEnv", "gymnasium AsyncVectorEnv"
_NAMES = [IDEAL, DEFAULT, AUTO, SYNC, ASYNC]

_TURNS = 10  # turns that should fit the time
_TRACED = 0.5  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    measuring.add_setting(parser, seconds=20)


def run(options: argparse.Namespace) -> int:
    """Measure and print the results; return 1 if a contender does not run."""
    end = time.monotonic() + options.seconds
    measured = {name: Measured() for name in _NAMES}
    with (
        Display(quiet=options.json) as display,
        turns.started(_NAMES, options.env, options.limit) as contenders,
    ):
        ideal = contenders[IDEAL]
        setting = measuring.looked_at(ideal, options)
        for name, order in _orders(setting).items():
            display.show(_lines(setting, measured), f"starting {name}")
            order |= {"envs": setting.envs, "warm": SHORTEST}
            turns.make(contenders[name], order, measured)
            if trouble := measured[IDEAL].trouble:
                raise MeasureError(f"cannot measure {options.env}: {IDEAL}: {trouble}")
        alone: list[float] = []
        seconds = measuring.slice_of(options.seconds, _TURNS * 2 * len(contenders))

        def run_alone() -> None:
            alone.append(turns.rate_of(ideal.ask("run", seconds=seconds, only=1)))

        for progress in turns.turns_until(end, ideal, contenders, measured, seconds, run_alone):
            setting = dataclasses.replace(setting, step_seconds=1 / Spread.of(alone).middle)
            display.show(_lines(setting, measured), progress)
        ours = _best_of_ours(measured)
        lines, parts = _lines(setting, measured), {}
        with contextlib.suppress(MeasureError):
            if not measured[ours].trouble:
                parts = contenders[ours].ask("parts", seconds=_TRACED)
        if parts:  # in seconds; unknown without workers
            lines += ["", f"a round of {ours} takes {with_unit(sum(parts.values()))}:"]
            lines += shown(parts)
        advice, call = advice_of(setting, measured, alone)
        if options.json:
            report = {
                **setting.to_dict(),
                "scaling": scaling(setting, measured[IDEAL], alone),
                "contenders": {n: one.to_dict(measured[IDEAL]) for n, one in measured.items()},
                "round": parts,
                "advice": advice,
                "lines": call,
            }
            print(json.dumps(report))
        display.end([*lines, *measuring.remarks(setting, measured[ours], advice, call)])
    return int(any(one.trouble for one in measured.values()))


def _orders(setting: Setting) -> dict[str, dict[str, Any]]:
    """Return the order that makes each contender."""
    workers, auto = dict(setting.isolating), {"num_workers": "auto", **setting.isolating}
    if setting.limited:
        workers["num_workers"] = auto["max_concurrency"] = setting.workers
    return {
        IDEAL: {"kind": "ideal", "workers": setting.workers},
        DEFAULT: {"kind": "pysampler", "options": workers},
        AUTO: {"kind": "pysampler", "options": auto},
        SYNC: {"kind": "sync"},
        ASYNC: {"kind": "async"},
    }


def _lines(setting: Setting, measured: Mapping[str, Measured]) -> list[str]:
    ideal = f"ideal: {measuring.counted(setting.workers, 'process', 'es')} that never communicate"
    return [*setting.heading(), ideal, "", *measuring.table(measured, IDEAL)]


# -- advice ----------------------------------------------------------------------------------------


def scaling(setting: Setting, ideal: Measured, alone: list[float]) -> float | None:
    """Return the speed of the ideal as a share of its processes' speed if each ran alone."""
    if setting.workers == 1 or not alone or not ideal.rates:
        return None
    return ideal.rate / (setting.workers * Spread.of(alone).middle)


def _best_of_ours(measured: Mapping[str, Measured]) -> str:
    same = measured[AUTO].about == measured[DEFAULT].about  # then any difference is noise
    faster = not same and clearly_faster(measured[AUTO], measured[DEFAULT])
    return AUTO if faster else DEFAULT


def advice_of(
    setting: Setting, measured: Mapping[str, Measured], alone: list[float]
) -> tuple[str, list[str]]:
    """Return advice, and the lines of a program that follows it, if any."""
    ours = _best_of_ours(measured)
    best = measured[ours]
    if best.trouble or not best.rates:
        return f"pysampler does not run: {best.trouble}", []
    advice = []
    others = [ASYNC] if setting.isolate else [SYNC, ASYNC]
    theirs = [name for name in others if clearly_faster(measured[name], best)]
    if theirs:
        fastest = max(theirs, key=lambda name: measured[name].fraction.middle)
        times = measured[fastest].fraction.middle / best.fraction.middle
        untried = fastest == SYNC and measured[AUTO].about.get("num_workers") != 0
        advice.append(
            f"{fastest} is {times:.2f} times as fast as pysampler here: use it, "
            f"{'try num_workers=0, ' * untried}or look for better options with pysampler tune."
        )
        return " ".join(advice), []
    if measured[DEFAULT].trouble:
        advice.append('The default does not run, but num_workers="auto" does.')
    elif best.about.get("num_workers") == 0:
        advice.append("Envs this fast need no workers: the program's own process steps them all.")
    elif ours == AUTO:
        times = best.fraction.middle / measured[DEFAULT].fraction.middle
        advice.append(
            f'num_workers="auto" is {times:.2f} times as fast as the default: it '
            f"{measuring.division_of(best.about)}."
        )
    elif best.fraction.middle > 1.05 and best.about.get("native"):
        advice.append("Workers simulate these envs together; the ideal steps them one by one.")
    elif best.fraction.middle >= 0.85:
        help_by = "only faster envs or more CPUs can help."
        if setting.waits:
            help_by = "envs wait for something other than a CPU, so try more workers than CPUs."
        advice.append(f"The default is close to the ideal: {help_by}")
    else:
        advice.append("Workers wait part of the time: try more envs.")
    for name in others:
        if measured[name].rates and measured[name].fraction.middle > best.fraction.middle:
            advice.append(f"{name} may be as fast: the difference is within the spread.")
            break
    advice += measuring.busy_remark(measured[IDEAL])
    share = scaling(setting, measured[IDEAL], alone)
    most = min(1.0, usable_cpus() / setting.workers)
    if share is not None and share < 0.7 * most:
        advice.append(
            f"{setting.workers} independent processes are only {share * setting.workers:.1f} "
            "times as fast as one: memory, clock speeds or other programs limit every row."
        )
    return " ".join(advice), setting.lines_with(_orders(setting)[ours]["options"])
