"""Runs of an env, alone or beside siblings, each in a fresh process.

A run makes the same calls of the env with the same seeds and actions, and records the results, so
that the parent can compare runs. Large arrays are recorded as digests. Siblings are stepped in turn
with the env, or, as with ``context="threads"``, each in a thread of its own.
"""

from __future__ import annotations

import sys
import threading
import time
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
_CLOSED_MIDWAY, _ENV, _RESET_MIDWAY = range(3)  # the threads


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
        self,
        env_fns: Sequence[Callable[[], Any]],
        specs: bytes,
        init: Callable[[], Any] | None,
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
        return (_ThreadsRun if self.threads else _Run)(self, server.env_fns).result


class _Run:
    """One run of an env. Siblings are made before and after it, and the first closes midway."""

    def __init__(self, job: RunJob, env_fns: Sequence[Callable[[], Any]]) -> None:
        self._job = job
        self._makes = env_fns
        self._every = max(1, job.steps // _FRAMES)  # steps from one picture to the next
        seed_globals(np.random.SeedSequence(job.seed))
        self._shared = SharedState(env_fns)
        self.result = RunResult()
        self._doing = "being made"
        self._members: list[Member] = []
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
        self.result.captured = self._shared.captured()
        known = interfering(member.env for member in self._members)
        self.result.causes += [("module", text) for text in known]
        for member in self._members:
            member.close()

    def _run(self) -> None:
        job = self._job
        make, *others = self._makes
        if job.beside:
            self._add(others[0], job.seed + 1)
        env = self._add(make, job.seed, self.result)
        if job.beside:
            self._add(others[1], job.seed + 2)
        self._doing = "being reset"
        self._each(lambda one: one.reset("the reset", one.seed))
        self._shared.look()
        # The run alone may have made fewer steps than planned: the siblings' part fits into them.
        closes, resets = job.most // 2, job.most // 4
        begun = time.perf_counter()
        for step in range(job.most):
            self._doing = "being reset"
            if step == resets and job.beside:
                self._with(self._members[-1], lambda one: one.reset("a reset"))
            if step == closes and job.beside:
                self.result.closed = len(self.result.records)
                self._with(self._members.pop(0), Member.close)
            if self._is_second(step, time.perf_counter() - begun):
                self.result.second = step
                self._with(env, lambda one: one.reset("the second reset"))
            stepped = time.perf_counter()
            self._doing = "being stepped"
            name = f"step {step}"
            self._each(lambda one: one.step(name))  # noqa: B023 - called at once
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

    def _add(self, make: Callable[[], Any], seed: int, result: RunResult | None = None) -> Member:
        with self._shared.of(len(self._members)):
            member = Member(make, seed, len(self._members), result)
            if self._job.seed_globals:
                member.calls = GlobalsOf(member.env)
        self._members.append(member)
        self._shared.look(member.env)
        return member

    def _each(self, call: Callable[[Member], None]) -> None:
        for member in self._members:
            self._with(member, call)

    def _with(self, member: Member, call: Callable[[Member], None]) -> None:
        with self._shared.of(member.number):
            call(member)


class _StoppedError(Exception):
    """Another thread has failed."""


class _ThreadsRun(_Run):
    """A run beside siblings, each in a thread, which make steps until the run has ended.

    The last two are made at the same time, and all are reset at the same time. ``SharedState``
    looks while the threads wait for each other.
    """

    def _run(self) -> None:
        sys.setswitchinterval(_SWITCH)
        first, *others = self._makes
        makes = others[0], first, others[1]
        seeds = self._job.seed + 1, self._job.seed, self._job.seed + 2
        self._together = threading.Barrier(len(makes), self._look)
        self._over = threading.Event()
        self._asked, self._done = ([threading.Event() for _ in makes] for _ in range(2))
        threads = [
            threading.Thread(target=self._guarded, args=one)
            for one in zip(range(len(makes)), makes, seeds, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _look(self) -> None:
        for member in list(self._members):
            self._shared.look(member.env)

    def _guarded(self, number: int, make: Callable[[], Any], seed: int) -> None:
        doing, member = "being made", None
        try:
            with self._shared.of(number):
                if number != _CLOSED_MIDWAY:  # whose modules are looked at from then on
                    self._meet()
                member = Member(make, seed, number, self.result if number == _ENV else None)
                self._members.append(member)
                for _ in range(1 + (number == _CLOSED_MIDWAY)):
                    self._meet()
                doing = "being reset"
                member.reset("the reset", seed)
                self._meet()
                doing = "being stepped"
                (self._steps if number == _ENV else self._steps_of_sibling)(member)
        except _StoppedError:
            pass
        except BaseException as error:
            if self.result.failed is None:
                self.result.failed = doing, report(error)
            self._together.abort()
        finally:
            if number == _ENV:
                self._over.set()
            if member is not None:
                member.close()
            self._done[number].set()

    def _meet(self) -> None:
        try:
            self._together.wait()
        except threading.BrokenBarrierError:
            raise _StoppedError from None

    def _steps(self, env: Member) -> None:
        for step in range(self._job.most):
            for at, number in ((4, _RESET_MIDWAY), (2, _CLOSED_MIDWAY)):
                if step == self._job.most // at:
                    self._asked[number].set()
                    self._done[number].wait()
            if step == self._job.second:
                env.reset("the second reset")
            env.step(f"step {step}")
            if step % self._every == 0:
                env.render(f"render() after step {step}")
            self.result.steps = step + 1

    def _steps_of_sibling(self, member: Member) -> None:
        step = 0
        while not self._over.is_set():
            member.step("")
            if step % self._every == 0:
                member.render("")
            if self._asked[member.number].is_set() and not self._done[member.number].is_set():
                if member.number == _CLOSED_MIDWAY:
                    self.result.closed = len(self.result.records)
                    return
                member.reset("a reset")
                self._done[member.number].set()
            step += 1
