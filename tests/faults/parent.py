"""Attacks on the parent: random programs of public calls, interrupted by signal handlers.

    python tests/faults/parent.py --seconds 600 --out benchmarks/results

The seed of a case decides the objects, the calls, the times of signals (at a chosen point of our
Python, or by a timer), of garbage collections, and of forks and threads. The envs count their own
steps, and the returned steps must match exactly. Another pool runs all the time, and must not be
affected.
"""

import atexit
import contextlib
import faulthandler
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
from gymnasium import spaces

import pysampler
from pysampler.errors import BusyError, ClosedError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from campaigns import Wrong
from interrupts import OURS, Interrupted, at_point

HANG = 60.0  # seconds that a case may take at most


class Counting(gym.Env):
    """Observes its number, and its steps in its life and in the episode."""

    observation_space = spaces.Box(-1, 2.0**40, (3,), np.float64)
    action_space = spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, number, talks):
        self.number, self.talks = number, talks
        self.steps = self.episode = self.resets = 0
        self.mark = None

    def _observe(self):
        return np.array([self.number, self.steps, self.episode], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode = 0
        self.resets += 1
        return self._observe(), self._info()

    def step(self, action):
        self.steps += 1
        self.episode += 1
        return self._observe(), float(self.steps), False, self.episode == 50, self._info()

    def _info(self):
        return {"text": "x" * self.steps} if self.talks else {"steps": self.steps}

    def render(self):
        return np.full((100, 100, 3), self.steps % 256, np.uint8)

    def asked(self, question):
        return self.number, question


def policy(observations):
    return (observations[:, 1] % 3).astype(np.int64)


@dataclass
class Report(campaigns.Report):
    calls: Counter = field(default_factory=Counter)
    interrupted: Counter = field(default_factory=Counter)
    steps: int = 0
    forks: int = 0


def rounds(most):
    """Count rounds, ``most`` of them, for three seconds at most."""
    end = time.monotonic() + 3
    return itertools.takewhile(lambda _: time.monotonic() < end, range(most))


def _raise_in_ours(_, frame):
    """Handle the timer's signal: raise if the main thread is inside pysampler."""
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_end", "_after_fork"):  # Python would swallow it
            return
        if frame.f_code.co_filename.startswith(OURS):
            raise Interrupted
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "called":
            return
        frame = frame.f_back


class Case:
    """One random program."""

    def __init__(self, seed, report):
        self.dice = random.Random(seed)
        self.report = report
        dice = self.dice
        self.how = dice.choice(["point", "point", "timer"])
        self.kind = dice.choices(["step", "recv", "rollouts", "actors", "make"], [3, 3, 3, 2, 2])[0]
        self.workers = dice.randint(1, 3)
        self.count = self.workers * dice.randint(1, 3)
        self.groups = dice.randint(1, self.count // self.workers)
        self.context = dice.choices(["forkserver", "fork", "spawn"], [12, 2, 1])[0]
        self.loss = dice.choice(["raise", "restart"])
        self.talks = dice.random() < 0.5

    # -- interrupted calls ------------------------------------------------------------------------

    def called(self, name, function, *args, **kwargs):
        """Return the result of a call, or None if the exception of a handler came through."""
        self.report.calls[name] += 1
        gc.set_threshold(*self.dice.choice([(700, 10, 10), (20, 2, 2)]))
        program = lambda: function(*args, **kwargs)  # noqa: E731
        try:
            if self.dice.random() < 0.3:
                return program()
            if self.how == "point":
                n = int(self.dice.expovariate(1 / self.dice.choice([20, 100, 500]))) + 1
                reached, result, _ = at_point(n, program)
                self.report.interrupted[name] += reached
                return result
            before = signal.signal(signal.SIGALRM, _raise_in_ours)
            signal.setitimer(signal.ITIMER_REAL, self.dice.uniform(1e-4, 2e-2))
            try:
                return program()
            except Interrupted:
                self.report.interrupted[name] += 1
                return None
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
        finally:
            gc.set_threshold(700, 10, 10)

    def made(self):
        envs = [lambda n=n: Counting(n, self.talks) for n in range(self.count)]
        return pysampler.VectorEnv(
            envs,
            num_workers=self.workers,
            groups=self.groups,
            context=self.context,
            on_worker_loss=self.loss,
            max_restarts=999,
            restart_window=1.0,
            copy=self.dice.random() < 0.8,
        )

    def run(self):
        getattr(self, f"run_{self.kind}")()

    def expect(self, condition, what):
        campaigns.expect(condition, f"{self.kind}, {self.how}, {self.context}: {what}")

    def visit(self, envs):
        """Sometimes fork, or call from another thread."""
        dice = self.dice
        if dice.random() < 0.05:
            self.report.forks += 1
            if (child := os.fork()) == 0:
                code = 1
                try:
                    with contextlib.suppress(ClosedError):
                        envs.step([0] * self.count)
                    envs.close()
                    del envs
                    gc.collect()
                    atexit._run_exitfuncs()
                    code = 0
                finally:  # at once: the watchdog thread cannot be stopped in a fork
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            self.expect(status == 0, f"a fork ended with {status}")
        if dice.random() < 0.05:
            failed = []
            calls = [envs.stats, envs.reset, lambda: envs.step([0] * self.count), envs.render]
            meddler = threading.Thread(target=self.meddle, args=(dice.choice(calls), failed))
            with envs._core.guard.entry("be used"):  # like a running call of this thread
                meddler.start()
                meddler.join()
            self.expect(not failed, f"another thread got {failed}")

    def meddle(self, call, failed):
        """Call from another thread, which must raise BusyError or ClosedError."""
        try:
            call()
            failed.append("no error")
        except (BusyError, ClosedError):
            pass
        except BaseException as error:
            failed.append(error)

    # -- programs ----------------------------------------------------------------------------------

    def run_step(self):
        envs = self.made()
        seen = np.zeros(self.count)  # returned steps
        resets = 0
        with contextlib.closing(envs):
            while self.called("reset", envs.reset) is None:
                if envs.pending:
                    envs.reset_wait()
                    break
            resets = envs.get_attr("resets")
            self.expect(set(resets) <= {resets[0]}, f"resets {resets}")
            for _ in rounds(200):
                what = self.dice.choices(
                    ["step", "async", "call", "render", "set", "apply"], [10, 4, 3, 1, 1, 1]
                )[0]
                results = None
                if what == "step":
                    results = self.called("step", envs.step, [0] * self.count)
                    if results is None and envs.pending:
                        results = self.waited(envs.step_wait)
                elif what == "async":
                    self.called("step_async", envs.step_async, [0] * self.count)
                    while results is None and envs.pending:
                        results = self.called("step_wait", envs.step_wait)
                elif what == "call":
                    question = self.dice.random()
                    answers = self.called("call", envs.call, "asked", question)
                    if answers is None and envs.pending:
                        answers = self.waited(envs.call_wait)
                    wanted = tuple((n, question) for n in range(self.count))
                    self.expect(answers in (None, wanted), f"answers {answers}, expected {wanted}")
                elif what == "render":
                    frames = self.called("render", envs.render)
                    if frames is None and envs.pending:
                        frames = self.waited(envs.call_wait)
                    if frames is not None:
                        steps = [int(frame[0, 0, 0]) for frame in frames]
                        self.expect(steps == [int(n) % 256 for n in seen], f"frames of {steps}")
                elif what == "set":
                    mark = self.dice.random()
                    self.called("set_attr", envs.set_attr, "mark", mark)
                    # The next call waits for an interrupted one.
                    marks = {*envs.get_attr("mark")}
                    self.expect(len(marks) == 1, f"set_attr: {marks}")
                else:
                    self.called("set_options", envs.set_options, None, {"a": 1})
                if results is not None:
                    seen += 1
                    self.report.steps += self.count
                    # The step after the end of an episode is a reset, which is not counted.
                    steps = results[0][:, 1]
                    seen = np.where(results[0][:, 2] == 0, seen - 1, seen)
                    self.expect((steps == seen).all(), f"steps {steps}, expected {seen}")
                self.visit(envs)
            made = np.array(envs.get_attr("steps"))
            self.expect((made == seen).all(), f"{made} steps were made, {seen} returned")
            self.called("close", envs.close)
        self.expect(envs.closed, "it is open")

    def waited(self, wait):
        """Return the pending results, though handlers keep raising."""
        for _ in range(50):
            if (results := self.called(wait.__name__, wait)) is not None:
                return results
        return wait()

    def run_recv(self):
        envs = self.made()
        seen = np.zeros(self.count)
        with contextlib.closing(envs):
            while not envs.pending:
                self.called("async_reset", envs.async_reset)
            idle = np.array([], int)
            for _ in rounds(400):
                if len(idle):
                    before = envs.pending
                    self.called("send", envs.send, [0] * len(idle), idle)
                    if envs.pending == before:
                        continue
                    self.expect(envs.pending == before + len(idle), "sent in part")
                    idle = np.array([], int)
                if self.dice.random() < 0.1:
                    self.called("set_options", envs.set_options, None, {"b": 2})
                if not envs.pending:
                    raise Wrong("envs are neither pending nor returned")
                results = self.called("recv", envs.recv, 1, timeout=self.dice.choice([None, 1e-3]))
                if results is None:
                    continue
                idle = results[4]["env_id"]
                for row, env in zip(results[0], idle, strict=True):
                    seen[env] += row[2] > 0
                    self.report.steps += 1
                    self.expect(row[0] == env, f"env {env} returned {row}")
                    self.expect(row[1] == seen[env], f"env {env} at {row[1]}, expected {seen[env]}")
                self.visit(envs)
            while envs.pending:
                results = envs.recv()
                for row, env in zip(results[0], results[4]["env_id"], strict=True):
                    seen[env] += row[2] > 0
            made = np.array(envs.get_attr("steps"))
            self.expect((made == seen).all(), f"{made} steps were made, {seen} returned")

    def run_rollouts(self):
        envs = self.made()
        where = self.dice.choice(["main", "workers"])
        options = {"policy_in": where, "overlap": self.dice.random() < 0.5}
        if where == "main" and self.dice.random() < 0.3:
            options["min_envs"] = 1
        with contextlib.closing(envs):
            some = pysampler.Rollouts(envs, policy, 8, **options)
            for _ in rounds(60):
                rollout = self.called("next", next, some)
                if rollout is None:
                    continue
                # The steps of an env are consecutive within a rollout.
                life = rollout.observations[:, :, 1]
                made = np.diff(life, axis=0)
                self.expect((made == 1).all(), f"steps {life.tolist()}")
                self.report.steps += made.size
                self.visit(envs)
                if self.dice.random() < 0.1:
                    self.called("pause", some.pause)
                    some.pause()
                    self.expect(envs.step([0] * self.count)[1].shape == (self.count,), "paused")
            if self.dice.random() < 0.5:
                del some, rollout  # dropped, perhaps with a pending step
            else:
                self.called("close", some.close)
                some.close()
            envs.reset()
            self.expect(envs.step([0] * self.count)[1].shape == (self.count,), "given back")

    def run_actors(self):
        envs = self.made()
        with contextlib.closing(envs):
            actors = pysampler.Actors(envs, policy, high=64)
            numbers = {}
            for _ in rounds(60):
                records = self.called("take", actors.take, 32, timeout=0.05)
                for row in () if records is None else records.rows:
                    env, number = int(row["env"]), int(row["number"])
                    self.expect(number == numbers.get(env, -1) + 1, f"record {number} of {env}")
                    numbers[env] = number
                    self.report.steps += 1
                self.called("stats", actors.stats)
                self.visit(envs)
            if self.dice.random() < 0.5:
                del actors
            else:
                self.called("close", actors.close)
                actors.close()
            envs.reset()
            self.expect(envs.step([0] * self.count)[1].shape == (self.count,), "given back")

    def run_make(self):
        for _ in range(8):
            envs = self.called("make", self.made)
            if envs is None:
                continue
            if self.dice.random() < 0.5:
                envs.reset()
                envs.cycle = envs
                del envs  # left to the collector
            else:
                self.called("reset", envs.reset)
                self.called("close", envs.close)
                envs.close()


def bystander():
    envs = pysampler.VectorEnv([lambda n=n: Counting(n, talks=True) for n in range(2)])
    envs.reset()
    return envs


def left():
    me = psutil.Process()
    maps = Path("/proc/self/maps").read_text().count("memfd:pysampler")
    workers = 0
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            workers += "forkserver" not in child.name()
    return me.num_fds(), maps, me.num_threads(), workers


def campaign(args):
    report = Report()
    other = bystander()
    stepped = 0
    Case(1, Report()).run()
    gc.collect()
    faulthandler.dump_traceback_later(HANG, exit=True)  # starts a thread, to be counted
    before = left()
    for seed in campaigns.seeds(args, step=1001, hang=HANG):
        print(f"case {seed}", file=sys.stderr, flush=True)
        case = Case(seed, report)
        try:
            case.run()
        except Wrong as error:
            report.wrong.append((seed, str(error)))
        except (Exception, Interrupted) as error:
            report.wrong.append((seed, f"{case.kind}, {case.how}: {error!r}"))
            if args.case is not None:
                raise
        del case
        gc.collect()
        report.cases += 1
        # The other pool must not lose a step or a worker.
        seen = other.step([0, 0])[0][:, 1]
        stepped += seen[0] > stepped
        if (seen != stepped).any():
            report.wrong.append((seed, f"the other pool is at {seen}, expected {stepped}"))
        patience = time.monotonic() + 20
        while any(now > was for now, was in zip(left(), before, strict=True)):
            if time.monotonic() > patience:
                report.wrong.append(
                    (seed, f"left (fds, maps, threads, workers): {left()}, {before}")
                )
                before = left()
            gc.collect()
            pysampler._workers.fork_server.preload([])
            time.sleep(0.01)  # poll: killed processes take a while to disappear
    other.close()
    return report


def table(report):
    calls = ", ".join(f"{k} {v}" for k, v in report.calls.most_common())
    interrupted = ", ".join(f"{k} {v}" for k, v in report.interrupted.most_common())
    rows = [
        ("programs", f"{report.cases:,}"),
        ("calls", calls),
        ("of them interrupted", interrupted),
        ("steps of envs looked at", f"{report.steps:,}"),
        ("forks", f"{report.forks:,}"),
        ("hangs", "0"),
        (
            "steps lost or doubled, other pools touched, wrong exceptions, leaks",
            str(len(report.wrong)),
        ),
    ]
    return campaigns.table(rows)


def main():
    args = campaigns.parser(__doc__, 600).parse_args()
    warnings.simplefilter("ignore")
    report = campaign(args)
    return campaigns.finish(args, "parent", "Attacks on the parent", table(report), report)


if __name__ == "__main__":
    sys.exit(main())
