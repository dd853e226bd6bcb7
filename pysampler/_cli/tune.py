"""``pysampler tune``: finds the best options of a vector env by short trials.

Each choice is tried in a few short slices; then the best ones take turns with the *reference*: the
vector env of the script, or the default options if there is no script. The advice is based on these
turns alone: the best of many short slices owes part of its lead to luck.
"""

from __future__ import annotations

import contextlib
import json
import textwrap
import time
from typing import TYPE_CHECKING, Any

from pysampler._cli.choices import DEFAULT, Choice, choices_for
from pysampler._cli.isolation import isolation_lines
from pysampler._cli.measuring import (
    LEAST_TURNS,
    SCRIPT,
    add_setting,
    busy_remark,
    clearly_faster,
    division_of,
    looked_at,
    slice_of,
    stepping_shown,
    table,
)
from pysampler._cli.screen import Display, positive, width
from pysampler._cli.scripts import source_for
from pysampler._cli.turns import Contender, Measured, MeasureError, started, take_turns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from typing import Self

    from pysampler._cli.measuring import Setting

__all__ = ["HELP", "add_arguments", "advice_of", "run"]

HELP = "try options of the vector env, for an env or a script, and print the best"

_FIRST = 0.45  # the share of the time for the first trials of every choice
_TRIES = 3  # slices of each choice in these trials
_FINALISTS = 3
_TURNS = 10  # turns of the finalists that should fit the time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--policy-ms", type=positive, metavar="MS", help="duration of each call of the policy"
    )
    add_setting(parser, seconds=30)


def run(options: argparse.Namespace) -> int:
    """Try the choices and print the results."""
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        display = stack.enter_context(Display(quiet=options.json))
        source = stack.enter_context(source_for(options))
        name = DEFAULT if source == options.env else SCRIPT
        reference = stack.enter_context(Contender(name, source, options.limit))
        tuning = _Tuning(options, source, reference, display)
        tuning.try_all(begun + _FIRST * options.seconds)
        tuning.turn_by_turn(begun + options.seconds)
        advice, lines = advice_of(tuning.setting, tuning.choices, tuning.finals, tuning.tried)
        if options.json:
            print(json.dumps({**tuning.to_dict(), "advice": advice, "lines": lines}))
        stepped = stepping_shown(tuning.measured[DEFAULT].about)
        found = isolation_lines(tuning.setting.isolation)
        advised = textwrap.wrap(advice, width())
        display.end(
            [*tuning.lines(), *stepped, *found, "", *advised, *(["", *lines] if lines else [])]
        )
    return 0


class _Tuning:
    """Tries choices, the best of them for longer than the others.

    Args:
        options: The arguments of the command.
        source: The source of the envs, as contenders read it.
        reference: The contender that all others are compared with.
        display: Shows the results so far.

    Attributes:
        setting: The envs and processes to measure.
        choices: The choices by name.
        measured: The latest results of each choice.
        tried: The results of the reference in the first trials.
        finals: The results of the last turns, of the choices that took part.
    """

    def __init__(
        self, options: argparse.Namespace, source: str, reference: Contender, display: Display
    ) -> None:
        self._source, self._limit, self._display = source, options.limit, display
        self._reference = reference
        self._policy_seconds = (options.policy_ms or 0.0) / 1e3
        self._seconds = options.seconds
        self.setting = looked_at(reference, source, options, threads=True)
        try:
            made = reference.ask(
                "make", **self._order(Choice(as_in_script=reference.name == SCRIPT))
            )
        except MeasureError as error:
            raise MeasureError(f"cannot measure {options.env}: {error}") from None
        policy, native = self._policy_seconds > 0, made.get("native", False)
        self.choices = choices_for(self.setting, policy=policy, native=native)
        self.measured = {name: Measured() for name in self.choices}
        self.tried = self.measured[reference.name]
        self.tried.about = made
        self.finals: dict[str, Measured] = {}

    def _order(self, choice: Choice) -> dict[str, Any]:
        return choice.order(self.setting, self._policy_seconds, self._seconds)

    def _show(self, progress: str) -> None:
        self._display.show(self.lines(), progress)

    def try_all(self, end: float) -> None:
        """Try every choice, in slices that should fit the time until ``end``."""
        orders = {name: self._order(choice) for name, choice in self.choices.items()}
        warm = sum(order["warm"] for order in orders.values())
        seconds = slice_of(end - time.monotonic() - warm, 2 * _TRIES * len(orders))
        with _Trials(self._source, self._limit) as trials:
            for name, order in orders.items():
                if name == self._reference.name:
                    continue
                for _ in trials.of(name, order, self._reference, self.measured, seconds):
                    self._show(f"trying {name}")

    def turn_by_turn(self, end: float) -> None:
        """Let the best take turns with the reference until ``end``, ``LEAST_TURNS`` or more."""
        best = _best(self.choices, self.measured)
        reference = self._reference
        self.finals = finals = {name: Measured() for name in [reference.name, *best]}
        finals[reference.name].about = self.tried.about
        with started(best, self._source, self._limit) as contenders:
            for name, contender in contenders.items():
                self._show(f"starting {name} for the last turns")
                try:
                    order = self._order(self.choices[name])
                    finals[name].about = contender.ask("make", **order)
                except MeasureError as error:
                    finals[name].trouble = str(error)
            seconds = slice_of(end - time.monotonic(), _TURNS * (2 * len(best) + 1))
            turn = 0
            while turn < LEAST_TURNS or time.monotonic() < end:
                turn += 1
                for name in take_turns(reference, contenders, finals, seconds):
                    known = {n: one for n, one in finals.items() if one.rates or one.trouble}
                    self.measured.update(known)
                    left = max(0.0, end - time.monotonic())
                    self._show(f"last turn {turn}: {name}; {left:.0f} s left")

    def lines(self) -> list[str]:
        """Return the setting and the table of results."""
        return [*self.setting.heading(), "", *table(self.measured, self._reference.name)]

    def to_dict(self) -> dict[str, Any]:
        """Return the results, for JSON."""
        return {
            "env": self.setting.env,
            "found": self.setting.found,
            "envs": self.setting.envs,
            "processes": self.setting.workers,
            "step_seconds": self.setting.step_seconds,
            "isolation": self.setting.isolation,
            "policy_seconds": self._policy_seconds,
            "choices": {
                name: {
                    "loop": self.choices[name].loop,
                    "last_turns": name in self.finals,
                    **one.to_dict(self.measured[self._reference.name]),
                }
                for name, one in self.measured.items()
            },
        }


class _Trials:
    """Tries choices one after another in a separate process, which is replaced if one fails.

    Args:
        source: The source of the envs.
        limit: Seconds within which the process must answer.
    """

    def __init__(self, source: str, limit: float) -> None:
        self._source, self._limit = source, limit
        self._contender: Contender | None = None

    def of(
        self,
        name: str,
        order: dict[str, Any],
        reference: Contender,
        measured: Mapping[str, Measured],
        seconds: float,
    ) -> Iterator[None]:
        """Try a choice in turn with the reference; yield before and after each slice."""
        yield
        if self._contender is None:
            self._contender = Contender(name, self._source, self._limit)
        try:
            measured[name].about = self._contender.ask("make", **order)
        except MeasureError as error:
            measured[name].trouble = str(error)
        for _ in range(_TRIES):
            if not measured[name].trouble:
                for _ in take_turns(reference, {name: self._contender}, measured, seconds):
                    yield
        if measured[name].trouble:  # the next choice gets a fresh process
            self._contender.end()
            self._contender = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._contender is not None:
            self._contender.end()


def _best(choices: Mapping[str, Choice], measured: Mapping[str, Measured]) -> list[str]:
    """Return the choices for the last turns: the best ones, and the best that calls ``step``."""
    able = [name for name in list(choices)[1:] if not measured[name].trouble]
    able.sort(key=lambda name: -measured[name].fraction.middle)
    best = able[:_FINALISTS]
    stepped = [name for name in able if choices[name].loop == "step"]
    if stepped and stepped[0] not in best:
        best.append(stepped[0])
    return best


def advice_of(
    setting: Setting,
    choices: Mapping[str, Choice],
    finals: Mapping[str, Measured],
    *earlier: Measured,
) -> tuple[str, list[str]]:
    """Return advice, and the lines of a program that follows it.

    Args:
        setting: The envs and processes that were measured.
        choices: All choices; the first is the reference.
        finals: The results of the last turns: of the reference and of the best choices.
        *earlier: Earlier results of the reference.
    """
    reference = next(iter(choices))
    program = "the script" if reference == SCRIPT else "the default"
    better = [
        name
        for name, one in finals.items()
        if name != reference and clearly_faster(one, finals[reference])
    ]
    better.sort(key=lambda name: -finals[name].fraction.middle)
    busy = " ".join(["", *busy_remark(*earlier, finals[reference])])
    if setting.isolate:
        busy += " Only choices with a process for each env were tried (isolate=True)."
        if not better and reference == SCRIPT:
            busy += " Add that option to the script unless it has it."
    if not better:
        advice = f"Nothing beats {program} by more than the spread of the turns."
        return advice + busy, choices[reference].lines(setting)
    best = better[0]
    advice = f"{best} is {finals[best].fraction} times as fast as {program}."
    about = finals[best].about
    if "auto" in choices[best].options.values():
        advice += f" It {division_of(about)}."
    if choices[best].options.get("context") == "threads":
        advice += (
            " Its envs share the program: read what they must not do in docs/guides/threads.md."
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
            advice += f"nothing beats {program}."
    return advice + busy, lines
