"""Runs of an env, alone or beside siblings, each in a fresh process.

A run makes the same calls of the env with the same seeds and actions, and records the results, so
that the parent can compare runs. Large arrays are recorded as digests. Siblings are stepped in turn
with the env, or, as with ``context="threads"``, each in a thread of its own.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._vector.env_globals import GlobalsOf
from pysampler._vector.env_server import prepare
from pysampler._vector.isolation.known import interfering
from pysampler._vector.isolation.members import BatchMadeError, Member, RunResult
from pysampler._vector.isolation.shared import SharedState
from pysampler._workers.exceptions import report
from pysampler._workers.jobs import Job, Server
from pysampler._workers.seeds import seed_globals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RunJob", "RunServer"]

_SECOND = 0.75  # of a run, after which the env is reset once more
_FRAMES = 20  # of a run: rendering may be slow
# Seconds after which a thread gives Python's lock to another that waits for it: the shortest, so
# that calls of envs overlap.
_SWITCH = 1e-6
# The numbers of the env and of the siblings made before and after it, in the order of their calls.
_BEFORE, _ENV, _AFTER = range(3)


@dataclass(frozen=True)
class RunDescription:
    """What the pool needs to know about a process of a check."""

    name: str = "isolation"
    sizes: tuple[int, ...] = (1,)


class RunServer(Server):
    """The env server of a process that makes one run. It has one group, which is never stepped.

    Args:
        env_fns: The function that makes the env, and those that make its siblings.
        specs: The env specs that the parent registered.
        init: The user's ``worker_init``.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], Any]], specs: bytes, init: Callable[[], Any] | None
    ) -> None:
        self.blocks: list[Any] = [None]
        self.env_fns = env_fns
        prepare(specs, init)

    def describe(self) -> RunDescription:
        """Return a description: the envs are made by the job."""
        return RunDescription()


@dataclass(frozen=True)
class RunJob(Job):
    """Job: make a run.

    Attributes:
        steps: The number of steps for which pictures are planned.
        most: The number of steps to make; siblings are reset and closed within them.
        seed: The seed of the env and its actions; siblings get others.
        second: The number of the step before which the env is reset once more; None: after three
            quarters of the steps, or of the seconds.
        beside: Whether the env has siblings.
        threads: Whether each env is called in a thread of its own.
        slowly: Whether to pause after each step for as long as siblings would take. Results that
            depend on the time then differ from those of a quick run.
        seconds: Seconds of stepping after which the run ends early.
        seed_globals: Whether each env has its own global random generators.
    """

    steps: int
    most: int
    seed: int
    second: int | None = None
    beside: bool = False
    threads: bool = False
    slowly: bool = False
    seconds: float | None = None
    seed_globals: bool = False
    doing = "being checked"

    def run(self, server: RunServer, block: int, frame: int) -> RunResult:  # noqa: ARG002
        """Make the run, in a process where no env was made before."""
        return _Run(self, server.env_fns).result


class _Run:
    """One run of an env. Siblings are made before and after it, and the first closes midway.

    With threads, each env has one, in which all of its calls run. While the env steps, its siblings
    make steps in theirs.
    """

    def __init__(self, job: RunJob, env_fns: Sequence[Callable[[], Any]]) -> None:
        self._job = job
        self._makes = env_fns
        self._every = max(1, job.steps // _FRAMES)  # steps from one picture to the next
        seed_globals(np.random.SeedSequence(job.seed))
        self._shared = SharedState(env_fns)
        self.result = RunResult()
        self._doing = "being made"
        self._members: dict[int, Member] = {}
        if job.threads:
            sys.setswitchinterval(_SWITCH)
            self._threads = [ThreadPoolExecutor(1) for _ in range(_AFTER + 1)]
        begun = time.perf_counter()
        try:
            self._run()
        except BatchMadeError as error:
            self.result.batch = str(error)
        except BaseException as error:
            self.result.failed = self._doing, report(error)
        self.result.seconds = time.perf_counter() - begun
        self._shared.look()
        self.result.causes = self._shared.causes()
        known = interfering(member.env for member in self._members.values())
        self.result.causes += [("module", text) for text in known]
        self._each(Member.close)

    def _run(self) -> None:
        job = self._job
        make, *others = self._makes
        sibling = [(_BEFORE, others[0], job.seed + 1)] if job.beside else []
        last = [(_AFTER, others[1], job.seed + 2)] if job.beside else []
        self._make(sibling)
        self._make([(_ENV, make, job.seed), *last])
        self._doing = "being reset"
        self._each(lambda one: one.reset("the reset", one.seed))
        self._shared.look()
        # The run alone may have made fewer steps than planned: the siblings' part fits into them.
        closes, resets = job.most // 2, job.most // 4
        begun = time.perf_counter()
        for step in range(job.most):
            self._doing = "being reset"
            if step == resets and job.beside:
                self._each(lambda one: one.reset("a reset"), _AFTER)
            if step == closes and job.beside:
                self._each(Member.close, _BEFORE)
                del self._members[_BEFORE]
            if self._is_second(step, time.perf_counter() - begun):
                self.result.second = step
                self._each(lambda one: one.reset("the second reset"), _ENV)
            stepped = time.perf_counter()
            self._doing = "being stepped"
            name = f"step {step}"
            self._each(lambda one: one.step(name), again=True)  # noqa: B023 - called at once
            if step % self._every == 0:
                self._each(lambda one: one.render(f"render() after {name}"))  # noqa: B023
            self.result.steps = step + 1
            if job.slowly:
                time.sleep(2 * (time.perf_counter() - stepped))
            late = job.seconds is not None and time.perf_counter() - begun > job.seconds
            if late and self.result.second is not None:
                break

    def _is_second(self, step: int, seconds: float) -> bool:
        """Return whether the second reset belongs before this step."""
        job = self._job
        if job.second is not None or self.result.second is not None:
            return step == job.second
        late = job.seconds is not None and seconds > job.seconds * _SECOND
        return step > 0 and (late or step >= job.steps * _SECOND)

    def _make(self, members: Sequence[tuple[int, Callable[[], Any], int]]) -> None:
        def add(number: int, make: Callable[[], Any], seed: int) -> None:
            member = Member(make, seed, self.result if number == _ENV else None)
            if self._job.seed_globals:
                member.calls = GlobalsOf(member.env)
            self._members[number] = member

        self._call({one[0]: functools.partial(add, *one) for one in members})
        for number, _, _ in members:
            self._shared.look(self._members[number].env)

    def _each(
        self, call: Callable[[Member], None], number: int | None = None, *, again: bool = False
    ) -> None:
        """Call a function with each member in order, or with one.

        With threads and ``again``, siblings repeat it until the env's call has returned.
        """
        chosen = sorted(self._members) if number is None else [number]
        self._call({i: functools.partial(call, self._members[i]) for i in chosen}, again=again)

    def _call(self, calls: dict[int, Callable[[], None]], *, again: bool = False) -> None:
        """Make calls in this order, or all at the same time, each in the thread of its member."""
        if not self._job.threads:
            for call in calls.values():
                call()
            return
        begun, over = threading.Semaphore(0), threading.Event()

        def repeat(call: Callable[[], None]) -> None:
            begun.release()
            call()
            while again and not over.is_set():
                call()

        siblings = [number for number in calls if number != _ENV]
        made = [self._threads[number].submit(repeat, calls[number]) for number in siblings]
        try:
            for _ in made:
                begun.acquire()
            if _ENV in calls:
                self._threads[_ENV].submit(calls[_ENV]).result()
        finally:
            over.set()
        for one in made:
            one.result()
