"""``pysampler tune``: finds the best options of a vector env by short trials.

Each choice is tried in a few short slices; then the best ones take turns with the default. The
advice is based on these turns alone: the best of many short slices owes part of its lead to luck.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from pysampler._cli import measuring, turns
from pysampler._cli.choices import DEFAULT, Choice, choices_for
from pysampler._cli.measuring import clearly_faster
from pysampler._cli.screen import Display, positive
from pysampler._cli.turns import Contender, Measured, MeasureError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pysampler._cli.measuring import Setting

__all__ = ["HELP", "add_arguments", "advice_of", "run"]

HELP = "try options of the vector env, for an env, and print the best"

_FIRST = 0.45  # the share of the time for the first trials of every choice
_TRIES = 3  # slices of each choice in these trials
_FINALISTS = 3
_TURNS = 10  # turns of the finalists that should fit the time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--policy-ms", type=positive, metavar="MS", help="duration of each call of the policy"
    )
    measuring.add_setting(parser, seconds=30)


def run(options: argparse.Namespace) -> int:
    """Try the choices and print the results."""
    begun = time.monotonic()
    with (
        Display(quiet=options.json) as display,
        Contender(DEFAULT, options.env, options.limit) as default,
    ):
        tuning = _Tuning(options, default, display)
        tuning.try_all(begun + _FIRST * options.seconds)
        tuning.turn_by_turn(begun + options.seconds)
        advice, lines = advice_of(tuning.setting, tuning.choices, tuning.finals, tuning.tried)
        if options.json:
            print(json.dumps({**tuning.to_dict(), "advice": advice, "lines": lines}))
        found = measuring.remarks(tuning.setting, tuning.measured[DEFAULT], advice, lines)
        display.end([*tuning.lines(), *found])
    return 0


class _Tuning:
    """Tries choices, the best of them for longer than the others.

    Args:
        options: The arguments of the command.
        default: The contender that all others are compared with.
        display: Shows the results so far.

    Attributes:
        setting: The envs and processes to measure.
        choices: The choices by name.
        measured: The latest results of each choice.
        tried: The results of the default in the first trials.
        finals: The results of the last turns, of the choices that took part.
    """

    def __init__(self, options: argparse.Namespace, default: Contender, display: Display) -> None:
        self._options, self._default, self._display = options, default, display
        self._policy_seconds = (options.policy_ms or 0.0) / 1e3
        self.setting = measuring.looked_at(default, options, threads=True)
        self.tried = Measured()
        turns.make(default, self._order(Choice()), {DEFAULT: self.tried})
        if self.tried.trouble:
            raise MeasureError(f"cannot measure {options.env}: {self.tried.trouble}")
        policy, native = self._policy_seconds > 0, self.tried.about.get("native", False)
        self.choices = choices_for(self.setting, policy=policy, native=native)
        self.measured = {name: Measured() for name in self.choices} | {DEFAULT: self.tried}
        self.finals: dict[str, Measured] = {}

    def _order(self, choice: Choice) -> dict[str, Any]:
        return choice.order(self.setting, self._policy_seconds, self._options.seconds)

    def _show(self, progress: str) -> None:
        self._display.show(self.lines(), progress)

    def try_all(self, end: float) -> None:
        """Try every choice, in slices that should fit the time until ``end``."""
        orders = {name: self._order(choice) for name, choice in self.choices.items()}
        warm = sum(order["warm"] for order in orders.values())
        seconds = measuring.slice_of(end - time.monotonic() - warm, 2 * _TRIES * len(orders))
        del orders[DEFAULT]
        env, limit = self._options.env, self._options.limit
        with contextlib.ExitStack() as stack:
            trial: Contender | None = None
            for name, order in orders.items():
                self._show(f"trying {name}")
                if trial is None:
                    trial = stack.enter_context(Contender(name, env, limit))
                trial.name = name
                turns.make(trial, order, self.measured)
                for _ in range(_TRIES):
                    if self.measured[name].trouble:
                        break
                    for _ in turns.take_turns(self._default, {name: trial}, self.measured, seconds):
                        self._show(f"trying {name}")
                if self.measured[name].trouble:  # its process has ended: the next gets a fresh one
                    trial = None

    def turn_by_turn(self, end: float) -> None:
        """Let the best take turns with the default until ``end``."""
        best = _best(self.choices, self.measured)
        self.finals = finals = {name: Measured() for name in [DEFAULT, *best]}
        finals[DEFAULT].about = self.tried.about
        with turns.started(best, self._options.env, self._options.limit) as contenders:
            for name, contender in contenders.items():
                self._show(f"starting {name} for the last turns")
                turns.make(contender, self._order(self.choices[name]), finals)
            seconds = measuring.slice_of(end - time.monotonic(), _TURNS * (2 * len(best) + 1))
            for progress in turns.turns_until(end, self._default, contenders, finals, seconds):
                self.measured |= {n: one for n, one in finals.items() if one.rates or one.trouble}
                self._show(f"last {progress}")

    def lines(self) -> list[str]:
        """Return the setting and the table of results."""
        return [*self.setting.heading(), "", *measuring.table(self.measured, DEFAULT)]

    def to_dict(self) -> dict[str, Any]:
        """Return the results, for JSON."""
        return {
            **self.setting.to_dict(),
            "policy_seconds": self._policy_seconds,
            "choices": {
                name: {
                    "loop": self.choices[name].loop,
                    "last_turns": name in self.finals,
                    **one.to_dict(self.measured[DEFAULT]),
                }
                for name, one in self.measured.items()
            },
        }


def _best(choices: Mapping[str, Choice], measured: Mapping[str, Measured]) -> list[str]:
    """Return the choices for the last turns: the best ones, and the best that calls ``step``."""
    able = [name for name in list(choices)[1:] if not measured[name].trouble]
    able.sort(key=lambda name: -measured[name].fraction.middle)
    stepped = [name for name in able if choices[name].loop == "step"]
    return list(dict.fromkeys(able[:_FINALISTS] + stepped[:1]))


def advice_of(
    setting: Setting,
    choices: Mapping[str, Choice],
    finals: Mapping[str, Measured],
    *earlier: Measured,
) -> tuple[str, list[str]]:
    """Return advice, and the lines of a program that follows it.

    Args:
        setting: The envs and processes that were measured.
        choices: All choices.
        finals: The results of the last turns: of the default and of the best choices.
        *earlier: Earlier results of the default.
    """
    default = finals[DEFAULT]
    better = [name for name, one in finals.items() if clearly_faster(one, default)]
    better.sort(key=lambda name: -finals[name].fraction.middle)
    busy = " ".join(["", *measuring.busy_remark(*earlier, default)])
    if setting.isolate:
        busy += " Only choices with a process for each env were tried (isolate=True)."
    if not better:
        advice = "Nothing beats the default by more than the spread of the turns."
        return advice + busy, choices[DEFAULT].lines(setting)
    best = better[0]
    advice = f"{best} is {finals[best].fraction} times as fast as the default."
    if "auto" in choices[best].options.values():
        advice += f" It {measuring.division_of(finals[best].about)}."
    if choices[best].options.get("context") == "threads":
        advice += (
            " Its envs share the program: read what they must not do, in the guide on threads."
        )
    lines = choices[best].lines(setting)
    if choices[best].loop != "step":
        how = "calls recv and send" if choices[best].loop == "recv" else "iterates over rollouts"
        advice += f" The program then {how}. If it calls step, "
        stepped = [name for name in better if choices[name].loop == "step"]
        if stepped:
            advice += f"{stepped[0]} is {finals[stepped[0]].fraction} times as fast."
            lines += ["", "# with step", *choices[stepped[0]].lines(setting)[1:]]
        else:
            advice += "nothing beats the default."
    return advice + busy, lines
