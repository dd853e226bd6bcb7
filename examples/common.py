"""What all examples need: options, progress, logs, plots, checkpoints, and a clean end on Ctrl-C.

An example makes its options with ``parser``, reads them with ``parse``, and passes its ``train`` to
``run``, which reports what was learned even if Ctrl-C ends the training. ``train`` tells its
``Run`` of each step it made: ``run.advance(steps, returns)``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import io
import json
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from tqdm import tqdm

import pysampler

EVALUATIONS = 3  # in a row that must reach a goal: one may be luck
FRESH_SEED = 1 << 31  # seeds from here on are of no training

# -- options ---------------------------------------------------------------------------------------


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a converter for options that are integers of at least ``minimum``."""

    def number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{value}, expected at least {minimum}")
        return value

    return number


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Tells the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        tells = "default" in text or action.default in (None, False, argparse.SUPPRESS)
        return text if tells else f"{text}; default: %(default)s".removeprefix("; ")


def finite(text: str) -> float:
    """Return the number that an option has, which must not be infinite or nan."""
    if not np.isfinite(value := float(text)):
        raise argparse.ArgumentTypeError(f"{value}, expected a number")
    return value


def seed(text: str) -> int:
    """Return a seed that envs, NumPy and torch take."""
    if not 0 <= (value := int(text)) < 2**31:
        raise argparse.ArgumentTypeError(f"{value}, expected 0 to {2**31 - 1}")
    return value


def parser(
    doc: str, env: str, *, without: Iterable[str] = (), **defaults: Any
) -> argparse.ArgumentParser:
    """Return a parser of the options that all examples have.

    Args:
        doc: The docstring of the example.
        env: The default id of an env.
        without: What an example does not do: of "device", "checkpoints" and "episodes".
        **defaults: Default values of ``steps``, ``until`` and ``goal``.
    """
    made = argparse.ArgumentParser(
        description=doc.splitlines()[0],
        epilog=doc.partition("\n")[2],
        formatter_class=_Formatter,
    )
    made.add_argument("--env", default=env, help="id of an env")
    if "steps" in defaults:
        text = "stop after this many steps of all envs"
        made.add_argument("--steps", type=at_least(1), default=defaults["steps"], help=text)
    if "until" in defaults:
        text = "stop at this mean return of the last 100 episodes"
        made.add_argument("--until", type=finite, default=defaults["until"], help=text)
    if "goal" in defaults:
        text = f"stop when each of the last {EVALUATIONS} evaluations has this mean return"
        made.add_argument("--goal", type=finite, default=defaults["goal"], help=text)
    if "episodes" not in without:
        text = "episodes of an evaluation, such as that of the best weights at the end"
        made.add_argument("--episodes", type=at_least(1), default=100, help=text)
    made.add_argument("--seed", type=seed, default=1, help="of envs, networks and policies")
    if "device" in without:
        made.set_defaults(device="cpu")
    else:
        made.add_argument("--device", default="cpu", help="of the networks: cpu, cuda, cuda:1")
    made.add_argument("--log", type=Path, metavar="DIR", help="write CSV and TensorBoard logs here")
    made.add_argument("--plot", type=Path, metavar="FILE", help="plot the returns to this file")
    made.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="save the best weights; the last if none are known to be good",
    )
    if "checkpoints" in without:
        made.set_defaults(checkpoints=None)
    else:
        text = "save checkpoints, and resume from them"
        made.add_argument("--checkpoints", type=Path, metavar="DIR", help=text)
        text = "seconds between two checkpoints"
        made.add_argument("--checkpoint-seconds", type=finite, default=30.0, help=text)
    made.add_argument("--quiet", action="store_true", help="show no progress bar")
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    return made


def add_hosts(made: argparse.ArgumentParser) -> None:
    """Add the options of an example that can sample on the hosts of a Ray cluster."""

    def hosts(text: str) -> int | str:
        return text if text == "auto" else at_least(1)(text)

    text = "the number of hosts to sample on, or auto: all nodes"
    made.add_argument("--ray", type=hosts, metavar="HOSTS", help=text)
    text = "of a Ray cluster; default: RAY_ADDRESS, or this machine"
    made.add_argument("--address", help=text)


def add_play(made: argparse.ArgumentParser) -> None:
    """Add the options of an example that can run saved weights."""
    made.add_argument("--play", type=Path, metavar="FILE", help="only run saved weights")
    add_watch(made, "--show", "with --play: open a window, or film a few episodes")


def add_watch(made: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add an option to show episodes, in a window or as videos, and where to write those."""
    made.add_argument(name, choices=("human", "video"), help=text)
    text = "where to write videos; default: videos"
    made.add_argument("--videos", type=Path, metavar="DIR", default=Path("videos"), help=text)


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options of the command line, checked, and seed torch and NumPy."""
    options = made.parse_args()
    if getattr(options, "address", None) is not None and options.ray is None:
        made.error("--address is of a Ray cluster; expected --ray too")
    if getattr(options, "show", None) is not None and options.play is None:
        made.error("--show is of --play; expected --play too")
    for name in ("plot", "save"):
        path = getattr(options, name)
        if path is not None and (not path.absolute().parent.is_dir() or path.is_dir()):
            made.error(f"argument --{name}: {path}, expected a file in a directory that exists")
    if options.plot is not None and options.plot.suffix not in (".pdf", ".png", ".svg"):
        made.error(
            f"argument --plot: {options.plot}, expected a name that ends in .pdf, .png or .svg"
        )
    if options.log is not None:
        try:
            options.log.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            made.error(f"argument --log: {error}")
        if options.checkpoints is None and (options.log / "progress.csv").exists():
            made.error(f"argument --log: {options.log} has the log of another run")
    try:
        torch.zeros(1).to(options.device).cpu()
    except (RuntimeError, AssertionError) as error:  # torch was built without it, or has no such
        made.error(f"argument --device: {options.device!r}: {str(error).splitlines()[0]}")
    # More threads do not help small networks, and slow down the envs.
    torch.set_num_threads(1)
    if options.checkpoints:  # a resumed run sees other episodes
        options.seed += pysampler.Checkpoints(options.checkpoints).latest or 0
    torch.manual_seed(options.seed)
    np.random.seed(options.seed % 2**32)
    return options


def spaces_of(
    env: str | Callable[[], gym.Env],
    actions: str,
    *,
    observations: int = 1,
    needs: Iterable[str] = (),
) -> tuple[gym.Space, gym.Space]:
    """Return the spaces of an env, or exit with a message if an example cannot learn in them.

    Args:
        env: An env's id, or a function that makes an env.
        actions: Which actions it can learn: "discrete", "bounded" (a bounded Box of one dimension)
            or "any" (either, or an unbounded Box).
        observations: How many dimensions an observation has.
        needs: Methods that the env must have.
    """
    named = env if isinstance(env, str) else getattr(env, "env_id", "the env")
    try:
        with contextlib.closing(gym.make(env) if isinstance(env, str) else env()) as made:
            found = made.observation_space, made.action_space
            lacks = [name for name in needs if not hasattr(made.unwrapped, name)]
    except (gym.error.Error, ImportError) as error:
        sys.exit(f"cannot make {named}: {error}")
    if lacks:
        sys.exit(f"cannot learn {named}: it has no {', '.join(lacks)}, expected an env with tasks")
    seen, acted = found
    discrete = isinstance(acted, gym.spaces.Discrete) and acted.start == 0
    box = isinstance(acted, gym.spaces.Box) and len(acted.shape) == 1
    bounded = box and acted.is_bounded()
    if not (
        isinstance(seen, gym.spaces.Box)
        and len(seen.shape) == observations
        and {"discrete": discrete, "bounded": bounded, "any": discrete or box}[actions]
    ):
        dimensions = "one dimension" if observations == 1 else f"{observations} dimensions"
        expected = {
            "discrete": "a Discrete that begins at 0",
            "bounded": "a bounded Box of one dimension",
            "any": "a Discrete that begins at 0 or a Box of one dimension",
        }
        sys.exit(
            f"cannot learn {named}: observations {seen} and actions {acted}, expected a Box of "
            f"{dimensions} and {expected[actions]}"
        )
    return found


def masked_cart_pole(**options: Any) -> gym.Env:
    """Return a CartPole that hides its velocities: without memory no policy can balance it."""
    env = CartPoleEnv(**options)
    low, high = env.observation_space.low[::2], env.observation_space.high[::2]
    return gym.wrappers.TransformObservation(
        env, lambda seen: seen[::2], gym.spaces.Box(low, high, dtype=low.dtype)
    )


gym.register("MaskedCartPole-v1", masked_cart_pole, max_episode_steps=500)


# -- policies as they are --------------------------------------------------------------------------


def evaluated(options: argparse.Namespace, policy: Any, env: Any) -> dict[str, float]:
    """Return the mean return of fresh episodes, and the ends of its 95 % confidence interval."""
    seed = FRESH_SEED + options.seed
    returns = pysampler.evaluate(env, policy, options.episodes, seed=seed, num_workers=0).returns
    means = np.random.default_rng(seed).choice(returns, (2000, len(returns))).mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5)).tolist()  # by bootstrap
    return {"return": float(returns.mean()), "low": low, "high": high, "episodes": len(returns)}


def _told(found: Mapping[str, float]) -> str:
    return "return {return:.1f} [{low:.1f}, {high:.1f}] over {episodes} fresh episodes".format(
        **found
    )


def play(options: argparse.Namespace, policy: Any, env: Any = None) -> None:
    """Print the mean return of some episodes; of three that are shown if ``--show`` is given."""
    env = options.env if env is None else env
    if options.show is None:
        played = evaluated(options, policy, env)
        print(json.dumps(played) if options.json else _told(played))
        return
    with watcher(options, options.show, policy, env) as watching:
        shown = float(watching.wait(3)["return"].mean())
    print(json.dumps({"return": shown}) if options.json else f"return {shown:.1f}")


def load(net: torch.nn.Module, path: Path) -> None:
    """Load saved weights, or exit with a message."""
    try:
        net.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    except (
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        pickle.PickleError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        sys.exit(f"cannot load {path}: no weights of this example for this env: {reason}")


def watcher(
    options: argparse.Namespace, show: str, policy: Any, env: Any, every: int = 1
) -> pysampler.Watcher:
    """Return a watcher of a policy, or of actors; exit with a message if it cannot show anything.

    Args:
        options: The options.
        show: "human" opens a window, "video" films.
        policy: The policy, or ``pysampler.Actors``.
        env: An env's id, or a function that makes an env.
        every: Which episodes to film: each first of this many.
    """
    how: dict[str, Any] = {"render_mode": "human"}
    if show == "video":
        how = {"render_mode": "rgb_array", "folder": options.videos, "video_every": every}
    is_policy = not isinstance(policy, pysampler.Actors)
    try:
        return pysampler.Watcher(policy, env, seed=options.seed, repeat=is_policy, **how)
    except (ImportError, gym.error.Error, pysampler.EnvError) as error:
        sys.exit(f"cannot show {env}: {error}")


def learner_seconds(stats: pysampler.ActorStats, adding: float = 0.0) -> dict[str, float]:
    """Return how much time a learner spent on its actors, by activity.

    Args:
        stats: Those of the actors.
        adding: Seconds for adding what was taken to a replay buffer.
    """
    taking = stats.taking + adding
    return {"waiting": stats.waiting, "taking": taking, "publishing": stats.publishing}


# -- a training ------------------------------------------------------------------------------------


class Run:
    """One training: counts its steps and returns, shows and logs them, and keeps its weights.

    Args:
        options: Those that ``parse`` returned.
        unit: What the progress bar counts.
        total: How many of them there will be at most; by default ``options.steps``.
        plotted: Names of the numbers to plot.
        window: Returns of how many episodes the mean is taken of.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        *,
        unit: str = "steps",
        total: int | None = None,
        plotted: Iterable[str] = ("return",),
        window: int = 100,
    ) -> None:
        self.options, self.unit = options, unit
        self.total = options.steps if total is None else total
        self.steps = self.resumed = 0
        self.recent: deque[float] = deque(maxlen=window)  # episode returns
        self.scores: deque[float] = deque(maxlen=EVALUATIONS)
        self.numbers: dict[str, float | None] = {}
        self.spent: dict[str, float] = {}  # seconds
        self.curves: dict[str, list[tuple[int, float, float]]] = {name: [] for name in plotted}
        self.best: float | None = None
        self.weights: dict[str, Any] | None = None  # the best
        self.net: torch.nn.Module | None = None
        self._policy: Callable[[], Any] | None = None
        self.evaluation: dict[str, float] | None = None  # of the best weights, at the end
        self.ended: float | None = None
        self.interrupted = False
        self._has_saved = False
        self.began, self._earlier = time.perf_counter(), 0.0
        self._shown = self._saved = self._started = self.began
        self._bar: Any = None
        self._log: Log | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the training began, without those of earlier runs."""
        return (self.ended or time.perf_counter()) - self.began

    @property
    def mean(self) -> float | None:
        """The mean return of the last episodes; None if none has ended."""
        return float(np.mean(self.recent)) if self.recent else None

    @property
    def solved(self) -> bool:
        """Whether enough episodes, or evaluations in a row, return what was asked for."""
        until, goal = (getattr(self.options, name, None) for name in ("until", "goal"))
        if until is not None and self._is_full and self.mean >= until:
            return True
        return goal is not None and len(self.scores) == EVALUATIONS and min(self.scores) >= goal

    @property
    def over(self) -> bool:
        """Whether the training ends here, as it does after Ctrl-C."""
        return self.interrupted or self.solved or self.steps >= self.total

    @property
    def _is_full(self) -> bool:
        return len(self.recent) == self.recent.maxlen

    def start(
        self,
        net: torch.nn.Module | None = None,
        policy: Callable[[], Any] | None = None,
        env: Any = None,
    ) -> None:
        """Show the progress bar and open the log.

        Args:
            net: What ``--save`` saves.
            policy: Makes a policy of the net, to evaluate its best weights with at the end.
            env: What makes an env for that; by default ``options.env``.
        """
        self.net, self._policy = net, policy
        self.env = self.options.env if env is None else env
        self._started = time.perf_counter()
        self._bar = tqdm(
            total=self.total,
            initial=self.steps,
            unit=f" {self.unit}",
            unit_scale=True,
            disable=self.options.quiet,
        )
        if self.options.log is not None:
            self._log = Log(self.options.log, self.unit, self.resumed)

    def advance(
        self,
        steps: int,
        returns: Iterable[float] = (),
        *,
        spent: Mapping[str, float] | None = None,
        every: float = 0.25,
        score: float | None = None,
        **numbers: float | None,
    ) -> None:
        """Count steps and the returns of ended episodes.

        Args:
            steps: How many were made.
            returns: Those of the episodes that ended.
            spent: Seconds since the beginning, by what they were spent on: shown as shares.
            every: Show and log at most once in this many seconds.
            score: The mean return of an evaluation. In examples without evaluations the weights are
                as good as the mean return, once it is of enough episodes.
            **numbers: What else to show and log, the same names each time; None if not known.
        """
        self.steps += steps
        self.recent.extend(returns)
        if score is not None:
            self.scores.append(score)
        shown = {"return": self.mean, **numbers} if "return" in self.curves else numbers
        self.numbers, self.spent = dict(shown), dict(spent or {})
        if self._bar is None:
            self.start()
        self._bar.update(steps)
        now = time.perf_counter()
        if now < self._shown + every and not self.over:
            return
        self._shown = now
        seconds = self._earlier + self.seconds
        for name, points in self.curves.items():
            if (value := self.numbers.get(name)) is not None:
                points.append((self.steps, seconds, value))
        if self._log is not None:
            self._log.write(self.steps, seconds, self.numbers)
        if score is None and self._is_full and not hasattr(self.options, "goal"):
            score = self.mean
        if score is not None and (self.best is None or score > self.best):
            self.best = score
            if self.net is not None:
                self.weights = copy.deepcopy(self.net.state_dict())
            self._save()
        shares = {name: f"{part:.0%}" for name, part in self.shares.items()}
        self._bar.set_postfix({n: _written(v) for n, v in self.numbers.items()} | shares)

    @property
    def shares(self) -> dict[str, float]:
        """On what the time was spent since all was ready."""
        seconds = max((self.ended or time.perf_counter()) - self._started, 1e-9)
        return {name: part / seconds for name, part in self.spent.items()}

    def _save(self) -> None:
        """Save the weights. A full disk does not end a training."""
        path = self.options.save
        if path is None or self.net is None:
            return
        try:
            torch.save(self.weights or self.net.state_dict(), weights := io.BytesIO())
            replace_file(path, weights.getbuffer())
            self._has_saved = True
        except OSError as error:
            print(f"cannot save weights to {path}: {error.strerror}", file=sys.stderr)

    def restore(self, **parts: Any) -> dict[str, Any]:
        """Resume from the newest checkpoint, if there is one; return its further parts."""
        if self.options.checkpoints is None:
            return {}
        directory = self.options.checkpoints
        try:
            found = pysampler.Checkpoints(directory).restore(**parts)
        except (ValueError, RuntimeError, KeyError, pysampler.LayoutError) as error:
            sys.exit(f"cannot resume from {directory}, of another example or env? {error}")
        if found is None:
            return {}
        run = found.pop("run")
        if run["env"] != self.options.env:
            sys.exit(f"cannot resume from {directory}: of {run['env']}, not {self.options.env}")
        torch.set_rng_state(run["random"])
        self.steps = self.resumed = found.pop("step")
        self._earlier, self.best, self.weights = run["seconds"], run["best"], run.get("weights")
        self.recent.extend(run["recent"])
        self.curves = {
            name: [(int(x), *rest) for x, *rest in points] for name, points in run["curves"].items()
        }
        return found

    def checkpoint(self, **parts: Any) -> None:
        """Save a checkpoint if one is due, or the training ends here.

        A full disk does not end a training.
        """
        due = self.over or time.perf_counter() > self._saved + self.options.checkpoint_seconds
        if self.options.checkpoints is None or not due or self.steps == self.resumed:
            return
        run = {
            "env": self.options.env,
            "random": torch.get_rng_state(),
            "seconds": self._earlier + self.seconds,
            "best": self.best,
            "weights": self.weights,
            "recent": list(self.recent),
            "curves": self.curves,
        }
        try:
            pysampler.Checkpoints(self.options.checkpoints).save(self.steps, **parts, run=run)
        except OSError as error:
            print(f"cannot save checkpoint: {error}", file=sys.stderr)
        self._saved = time.perf_counter()

    def evaluate(self) -> None:
        """Evaluate the best weights again, which were chosen among many for their returns."""
        if self._policy is None or self.interrupted:
            return
        self.ended = time.perf_counter()
        if self.weights is not None:
            self.net.load_state_dict(self.weights)
        self.evaluation = evaluated(self.options, self._policy(), self.env)

    def close(self) -> None:
        """Close the bar and the log; save the weights if that has never been done."""
        path = self.options.save
        if path is not None and not self._has_saved and not path.exists():
            self._save()
        if self._bar is not None:
            self._bar.close()
        if self._log is not None:
            self._log.close()

    @property
    def result(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "env": self.options.env,
            **({"return": self.mean} if "return" in self.curves else {}),
            self.unit: self.steps,
            "resumed": self.resumed,
            "seconds": self.seconds,
            **self.numbers,
            "seconds_in": self.spent,
            "evaluation": self.evaluation,
        }

    def __str__(self) -> str:
        after = f" after {self.resumed:,}" * (self.resumed > 0)
        parts = [f"{self.steps - self.resumed:,} {self.unit} in {self.seconds:.1f} s{after}"]
        if "return" in self.curves:
            parts.append(
                "no episode has ended"
                if self.mean is None
                else f"return {self.mean:.1f} over the last {len(self.recent)} episodes"
            )
        parts += [f"{n} {_written(v)}" for n, v in self.numbers.items() if n != "return"]
        parts += [f"{name} {part:.0%}" for name, part in self.shares.items()]
        if self.evaluation is not None:
            parts.append(f"best weights: {_told(self.evaluation)}")
        return ", ".join(parts)


def run(train: Callable[[argparse.Namespace, Run], None], progress: Run) -> None:
    """Train, then print the result, and plot it, also if Ctrl-C ended the training.

    Otherwise the best weights are evaluated again, with seeds that no episode had before.

    The first Ctrl-C ends the training after the step that it is at, and so with a checkpoint; the
    second at once. Where Ctrl-C has been given another meaning, it keeps that.
    """
    options = progress.options

    def interrupt(*_: Any) -> None:
        if progress.interrupted or progress.ended or progress.steps == progress.resumed:
            raise KeyboardInterrupt
        progress.interrupted = True

    before = signal.getsignal(signal.SIGINT)
    try:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            train(options, progress)
            progress.evaluate()
    finally:
        signal.signal(signal.SIGINT, before)
    progress.close()
    print(json.dumps(progress.result) if options.json else progress)
    if options.plot is not None:
        plot(options.plot, progress.curves, progress.unit)


def _written(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


# -- logs and plots --------------------------------------------------------------------------------


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Write a file: on a full disk, the old one stays as it is."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


class Log:
    """Writes numbers to ``progress.csv`` in a folder, and for TensorBoard if that is installed.

    Where the disk is full, rows are left out, and an event file ends.
    """

    def __init__(self, folder: Path, unit: str, resumed: int) -> None:
        """Begin a log, or go on with that of a run that was resumed after this many steps."""
        self._unit = unit
        self._path = folder / "progress.csv"
        self._has_failed = False
        lines: list[str] = []
        if resumed and self._path.exists():
            lines = self._path.read_text().splitlines(keepends=True)
        kept = [line for line in lines[1:] if int(line.partition(",")[0]) <= resumed]
        self._headed = bool(lines)
        try:
            replace_file(self._path, "".join([*lines[:1], *kept]).encode())
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            sys.exit(f"cannot log to {self._path}: {error.strerror}")
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - takes a second

            self._board = SummaryWriter(str(folder), purge_step=resumed + 1 if resumed else None)
        except ImportError:
            print("no logs for TensorBoard: pip install tensorboard", file=sys.stderr)
        except OSError as error:
            print(f"cannot log to {folder}/events.out*: {error.strerror}", file=sys.stderr)

    def write(self, steps: int, seconds: float, numbers: Mapping[str, float | None]) -> None:
        rows = io.StringIO(newline="")
        writer = csv.writer(rows)
        if not self._headed:
            writer.writerow((self._unit, "seconds", *numbers))
        values = ("" if value is None else value for value in numbers.values())
        writer.writerow((steps, round(seconds, 3), *values))
        try:
            self._append(rows.getvalue().encode())
            self._headed = True
        except OSError as error:
            if not self._has_failed:
                print(f"cannot log to {self._path}: {error.strerror}", file=sys.stderr)
            self._has_failed = True
        with self._writing_events():
            for name, value in numbers.items():
                if value is not None and self._board is not None:
                    self._board.add_scalar(name, value, steps)

    def _append(self, rows: bytes) -> None:
        """Append whole rows, or none."""
        size = self._file.seek(0, os.SEEK_END)
        try:
            while rows:  # a disk that is almost full takes some of them
                rows = rows[self._file.write(rows) :]
        except OSError:
            self._file.truncate(size)
            raise

    @contextlib.contextmanager
    def _writing_events(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # its writer has ended with that
            path = self._board.log_dir
            self._board = None
            print(f"cannot log to {path}/events.out*: {error.strerror}", file=sys.stderr)

    def close(self) -> None:
        self._file.close()
        with self._writing_events():
            if self._board is not None:
                self._board.close()


def plot(path: Path, curves: Mapping[str, Any], unit: str = "steps") -> None:
    """Plot numbers over steps, and over seconds."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only with --plot

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        sys.exit("cannot plot: pip install matplotlib")
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    for name, points in curves.items():
        steps, seconds, values = np.reshape(points, (-1, 3)).T
        for axis, x in zip(axes, (steps, seconds), strict=True):
            axis.plot(x, values, label=name)
    axes[0].set(xlabel=unit, ylabel="return")
    axes[1].set(xlabel="seconds")
    if len(curves) > 1:
        axes[0].legend()
    try:
        figure.savefig(image := io.BytesIO(), format=path.suffix[1:])
        replace_file(path, image.getbuffer())
    except OSError as error:
        sys.exit(f"cannot plot to {path}: {error.strerror}")
