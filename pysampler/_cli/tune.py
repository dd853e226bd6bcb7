"""``pysampler tune``: finds by short trials how to make the vector env of an env, or of a script.

All choices get a few short slices each, one after another; then the best take turns with the
default. What is said in the end is of these turns alone: the best of many short slices owes a part
of its lead to luck.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler._cli.measuring import (
    SHORTEST,
    Setting,
    add_setting,
    clearly_faster,
    looked_at,
    positive,
    slice_of,
    table,
)
from pysampler._cli.screen import Display, width
from pysampler._cli.turns import Contender, Measured, MeasureError, started, take_turns
from pysampler.sync import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

__all__ = ["HELP", "Choice", "add_arguments", "advice_of", "choices_for", "run"]

HELP = "find by trials how to make the vector env of an env, or of a script"

_DEFAULT = "default"
_SCRIPT = "from pysampler._cli.scripts import main; main()"
_FIRST = 0.45  # the share of the time in which every choice is tried
_TRIES = 3  # slices of each then
_FINALISTS = 3
_TURNS = 10  # of these that should fit the time, at least two
_LEARNING = 1 / 30  # the share of the time that "auto" has to learn
_MANY = 4  # workers for each CPU, if envs wait for something else


@dataclass(frozen=True)
class Choice:
    """One way to sample.

    Attributes:
        options: Arguments of ``VectorEnv``.
        recv: Arguments of ``recv``, if that is how a program steps.
        policy_in: Where the policy of rollouts is, if that is how.
    """

    options: dict[str, Any] = field(default_factory=dict)
    recv: dict[str, Any] | None = None
    policy_in: str | None = None

    @property
    def loop(self) -> str:
        """What a program calls: "step", "recv" or "Rollouts"."""
        if self.policy_in is not None:
            return "Rollouts"
        return "step" if self.recv is None else "recv"

    def order(self, setting: Setting, policy_seconds: float, seconds: float) -> dict[str, Any]:
        """Return how a contender makes it, if all may take some seconds."""
        options = {**_bounded(setting, self.options), **self.options}
        learns = self.recv is not None and "auto" in self.recv.values()
        return {
            "kind": "pysampler",
            "envs": setting.envs,
            "options": options,
            "recv": self.recv,
            "policy_in": self.policy_in,
            "policy_seconds": policy_seconds,
            "warm": _LEARNING * seconds if learns else SHORTEST,
        }

    def lines(self, setting: Setting) -> list[str]:
        """Return the lines of a program."""
        options = dict(self.options)
        if setting.workers != usable_cpus():
            options = {**_bounded(setting, options), **options}
        made = f"envs = {setting.call_with(options)}"
        if self.policy_in is not None:
            sampler = "rollouts = pysampler.Rollouts(envs, policy, horizon, policy_in={})"
            return [made, sampler.format(json.dumps(self.policy_in))]
        if self.recv is None:
            return [made]
        arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in self.recv.items())
        return [
            made,
            f"observations, rewards, terminated, truncated, infos = envs.recv({arguments})",
            'envs.send(policy(observations), infos["env_id"])',
        ]


def _bounded(setting: Setting, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keeps to the number of processes of the setting."""
    if options.get("num_workers") == "auto":
        return {"max_concurrency": setting.workers}
    if options.get("main_envs") == "auto":
        return {"num_workers": setting.workers - 1}
    return {"num_workers": setting.workers}


def choices_for(setting: Setting, *, policy: bool) -> dict[str, Choice]:
    """Return the choices that may make sense, by name.

    Args:
        setting: What is measured.
        policy: Whether a policy is called that takes some time.
    """
    envs, workers = setting.envs, setting.workers
    choices = {
        _DEFAULT: Choice(),
        "num_workers=0": Choice({"num_workers": 0}),
        "num_workers=1": Choice({"num_workers": 1}),
        'num_workers="auto"': Choice({"num_workers": "auto"}),
        'main_envs="auto"': Choice({"main_envs": "auto"}),
    }
    if workers == 1:
        del choices["num_workers=1"], choices['main_envs="auto"']
    many = min(envs, _MANY * workers)
    if setting.waits and many > workers:
        choices[f"num_workers={many}"] = Choice({"num_workers": many})
        workers = many
    own = {"num_workers": workers} if workers != setting.workers else {}
    each = envs // workers
    if each >= 2:
        halves = {**own, "groups": 2}
        some = {"min_envs": envs // 2}
        choices["groups=2, recv of half"] = Choice(halves, some)
        if policy:
            choices["groups=2, Rollouts"] = Choice(halves, policy_in="main")
    if envs >= 2:
        finer = {**own, **({"groups": min(8, each)} if each >= 2 else {})}
        auto = {"min_envs": "auto", "timeout": "auto"}
        name = f"groups={min(8, each)}, " if each >= 2 else ""
        choices[f'{name}recv("auto")'] = Choice(finer, auto)
    if policy:
        choices["Rollouts"] = Choice(own, policy_in="main")
        choices['Rollouts(policy_in="workers")'] = Choice(own, policy_in="workers")
    return choices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the subcommand takes."""
    parser.add_argument(
        "env",
        metavar="ENV",
        help="CartPole-v1, module:Id-v0, module:function, file.py:function, or a script.py, which "
        "is run until it makes a vector env",
    )
    parser.add_argument(
        "--script-args", metavar="TEXT", help='of the script: --script-args="--level 3"'
    )
    parser.add_argument(
        "--policy-ms", type=positive, metavar="MS", help="what a call of the policy takes"
    )
    add_setting(parser, seconds=30)


def run(options: argparse.Namespace) -> int:
    """Try the choices, and print what was found."""
    begun = time.monotonic()
    policy_seconds = (options.policy_ms or 0.0) / 1e3
    with (
        Display(quiet=options.json) as display,
        _source(options) as source,
        started([_DEFAULT], source, options.limit) as running,
    ):
        default = running[_DEFAULT]
        setting = looked_at(default, options)
        choices = choices_for(setting, policy=policy_seconds > 0)
        measured = {name: Measured() for name in choices}
        heading = textwrap.wrap(str(setting), width())

        def show(how_far: str) -> None:
            display.show([*heading, "", *table(measured, _DEFAULT)], how_far)

        orders = {
            name: choice.order(setting, policy_seconds, options.seconds)
            for name, choice in choices.items()
        }
        show("starting")
        try:
            made = default.ask("make", **orders[_DEFAULT])
        except MeasureError as error:
            raise MeasureError(f"cannot measure {options.env}: {error}") from None
        measured[_DEFAULT].about = made
        left = _FIRST * options.seconds - (time.monotonic() - begun)
        left -= sum(order["warm"] for order in orders.values())
        seconds = slice_of(left, 2 * _TRIES * len(choices))
        with _Trials(source, options.limit) as trials:
            for name in list(choices)[1:]:
                for how_far in trials.of(name, orders[name], default, measured, seconds):
                    show(how_far)
        finalists = _best(choices, measured)
        finals = {name: Measured(about=measured[name].about) for name in [_DEFAULT, *finalists]}
        with started(finalists, source, options.limit) as contenders:
            for name, contender in contenders.items():
                show(f"starting {name} for the last turns")
                try:
                    contender.ask("make", **orders[name])
                except MeasureError as error:
                    finals[name].trouble = str(error)
            end = begun + options.seconds
            left = end - time.monotonic()
            seconds = slice_of(left, _TURNS * (2 * len(finalists) + 1))
            turn = 0
            while turn < 2 or time.monotonic() < end:
                turn += 1
                for name in take_turns(default, contenders, finals, seconds):
                    measured.update({n: one for n, one in finals.items() if one.rates})
                    left = max(0.0, end - time.monotonic())
                    show(f"the best in turn, {turn}: {name}; {left:.0f} s left")
        advice, lines = advice_of(setting, choices, finals)
        if options.json:
            rows = {
                name: {"loop": choices[name].loop, "last_turns": name in finals, **one.to_dict()}
                for name, one in measured.items()
            }
            document = {
                "env": options.env,
                "envs": setting.envs,
                "processes": setting.workers,
                "step_seconds": setting.step_seconds,
                "policy_seconds": policy_seconds,
                "choices": rows,
                "advice": advice,
                "lines": lines,
            }
            print(json.dumps(document))
        shown = [*heading, "", *table(measured, _DEFAULT)]
        display.end([*shown, "", *textwrap.wrap(advice, width()), "", *lines])
    return 0


class _Trials:
    """Tries choices one after another, in a process of their own.

    Args:
        source: What makes the envs.
        limit: Seconds within which it must answer.
    """

    def __init__(self, source: str, limit: float) -> None:
        self._source, self._limit = source, limit
        self._contender: Contender | None = None

    def of(
        self,
        name: str,
        order: dict[str, Any],
        default: Contender,
        measured: Mapping[str, Measured],
        seconds: float,
    ) -> Iterator[str]:
        """Try a choice, in turn with the default; yield how far it is."""
        yield f"trying {name}"
        if self._contender is None:
            self._contender = Contender(name, self._source, self._limit)
        try:
            measured[name].about = self._contender.ask("make", **order)
        except MeasureError as error:
            measured[name].trouble = str(error)
        for _ in range(_TRIES):
            if not measured[name].trouble:
                for _ in take_turns(default, {name: self._contender}, measured, seconds):
                    yield f"trying {name}"
        if measured[name].trouble:  # the process is another's from here on
            self._contender.end()
            self._contender = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._contender is not None:
            self._contender.end()


def _best(choices: Mapping[str, Choice], measured: Mapping[str, Measured]) -> list[str]:
    """Return which choices take turns at the end: the best, and the best of those with step."""
    able = [name for name in choices if name != _DEFAULT and not measured[name].trouble]
    able.sort(key=lambda name: -measured[name].fraction.middle)
    best = able[:_FINALISTS]
    stepped = [name for name in able if choices[name].loop == "step"]
    if stepped and stepped[0] not in best:
        best.append(stepped[0])
    return best


def advice_of(
    setting: Setting, choices: Mapping[str, Choice], finals: Mapping[str, Measured]
) -> tuple[str, list[str]]:
    """Return what to do, and the lines of a program.

    Args:
        setting: What is measured.
        choices: All choices.
        finals: What the last turns found: of the default and of the best.
    """
    better = [
        name
        for name, one in finals.items()
        if name != _DEFAULT and clearly_faster(one, finals[_DEFAULT])
    ]
    better.sort(key=lambda name: -finals[name].fraction.middle)
    if not better:
        said = "Nothing beats the default by more than the spread of the turns."
        return said, choices[_DEFAULT].lines(setting)
    best = better[0]
    said = f"{best} makes {finals[best].fraction} times the steps of the default."
    lines = choices[best].lines(setting)
    if choices[best].loop != "step":
        how = "calls recv and send" if choices[best].loop == "recv" else "iterates over rollouts"
        said += f" That is for a program that {how}; for one that calls step, "
        stepped = [name for name in better if choices[name].loop == "step"]
        if stepped:
            said += f"{stepped[0]} makes {finals[stepped[0]].fraction} times the steps."
            lines += ["", "# with step", *choices[stepped[0]].lines(setting)]
        else:
            said += "nothing beats the default."
    return said, lines


# -- scripts ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _source(options: argparse.Namespace) -> Iterator[str]:
    """Yield what makes the envs, as contenders read it; run a script to learn it."""
    if not options.env.endswith(".py"):
        if options.script_args is not None:
            raise MeasureError(f"--script-args is for a script, which {options.env} is not")
        yield options.env
        return
    if not Path(options.env).is_file():
        raise MeasureError(f"there is no script {options.env}")
    with tempfile.TemporaryDirectory(prefix="pysampler-") as folder:
        out = Path(folder) / "envs"
        _run_script(options, out)
        yield f"saved:{out}"


def _run_script(options: argparse.Namespace, out: Path) -> None:
    """Run a script until it makes a vector env, which is written to a file."""
    print(f"running {options.env} until it makes a vector env", file=sys.stderr, flush=True)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _SCRIPT, str(os.getpid()), str(out)),
                *(options.env, *shlex.split(options.script_args or "")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait(options.limit)
        except subprocess.TimeoutExpired:
            why = f"it has made no vector env within {options.limit:g} s"
            raise MeasureError(f"cannot tune {options.env}: {why}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0 and out.exists():
            return
        errors.seek(0)
        printed = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        told = Path(f"{out}.why")
        why = told.read_text() if told.exists() else f"its process has ended: {process.returncode}"
        if why.startswith("SystemExit") or not told.exists():
            why = "; ".join([why, *printed])
        raise MeasureError(f"cannot tune {options.env}: {why}")
