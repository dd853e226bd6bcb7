"""Worker recovery: restarts after a crash, time-outs for envs that hang."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S
from pysampler.errors import (
    EnvTimeoutError,
    LayoutError,
    LostError,
    PysamplerError,
    WorkerLostError,
)
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pysampler._workers.commands import Commands
    from pysampler._workers.links import Links
    from pysampler._workers.processes import Processes, WorkerAssignment
    from pysampler._workers.setup import Layout

__all__ = ["MAX_RESTARTS", "RESTART_WINDOW", "Faults", "Recovery"]

# What users get if they say nothing about how often a worker may be replaced.
MAX_RESTARTS = 3
RESTART_WINDOW = 10.0
# How often this process notices that it runs, within the time that it gives to envs.
_BEATS = 16

_log = logging.getLogger("pysampler")


@dataclass(frozen=True)
class Faults:
    """What to do about workers that are lost, and envs that do not answer."""

    on_worker_loss: Literal["raise", "restart"] = "raise"
    # More restarts of one worker than this within that many seconds end the pool all the same.
    max_restarts: int = MAX_RESTARTS
    restart_window: float = RESTART_WINDOW
    step_timeout: float | None = None
    on_hang: Literal["raise", "wait", "restart"] = "raise"


class Recovery:
    """Replaces workers of a pool.

    Each step of a replacement may be repeated: one that an exception of a signal handler
    interrupts is finished by the next call of ``finish``.

    Args:
        assignments: What each worker has.
        processes: The workers.
        links: The links to them.
        commands: What they were commanded.
        faults: What to do.
        placed: Returns what lies in the segment that workers work on, and the fd of that.
        end: Ends the pool.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        processes: Processes,
        links: Links,
        commands: Commands,
        faults: Faults,
        placed: Callable[[], tuple[Layout, int]],
        end: Callable[[], None],
    ) -> None:
        self.faults = faults
        self._assignments = assignments
        self._processes = processes
        self._links = links
        self._commands = commands
        self._placed = placed
        self._end = end
        # Of each worker: when it was lost, by time.monotonic(), and the error.
        self.losses: list[list[tuple[float, WorkerLostError]]] = [[] for _ in assignments]
        # Lost workers, by index, until others are in their place.
        self.replacing: dict[int, WorkerLostError] = {}
        # Workers that have a step to make and are at no env: when they last moved, and when
        # that was seen first.
        self._unbegun: dict[int, tuple[int, int]] = {}
        self._reported_late: set[tuple[int, int]] = set()
        # Late workers that this process kills, by index: their pids, and why.
        self._killed: dict[int, tuple[int, str]] = {}
        if not assignments:
            return
        patience = min(SHUTDOWN_TIMEOUT_S, faults.step_timeout or SHUTDOWN_TIMEOUT_S)
        links.watch._beat_every(int(patience * 1e9 / _BEATS))
        if faults.step_timeout is not None:
            links.native.look_at = 0

    # -- envs that do not answer --------------------------------------------------------------

    def overdue(self, timeout_ns: int) -> list[tuple[int, int, int]]:
        """Return (worker, env, since) of envs that have not answered for ``timeout_ns``.

        Time in which this process did not run does not count: the workers may have been suspended
        with it.
        """
        return [
            (index, env, since)
            for index, env, since in self._unanswered()
            if self._worked(since, timeout_ns) >= timeout_ns
        ]

    def _unanswered(self) -> list[tuple[int, int, int]]:
        """Return (worker, env, since) of envs at work, and of those that are not begun with.

        A worker that has a step to make, and is at no env, moves on at once. If it has not moved
        since this was looked at before, it is stopped, or hangs outside of its envs.
        """
        at, moved = self._links.at_work()
        found = []
        unbegun: dict[int, tuple[int, int]] = {}
        for index, (env, since) in enumerate(zip(at.tolist(), moved.tolist(), strict=True)):
            envs = self._assignments[index].envs
            if env in envs:
                found.append((index, env, since))
            elif self._has_to_begin(index):
                before = self._unbegun.get(index)
                if before is None or before[0] != since:  # it has moved, or is seen first
                    before = since, now()
                unbegun[index] = before
                found.append((index, envs.start, before[1]))
        self._unbegun = unbegun
        return found

    def _has_to_begin(self, index: int) -> bool:
        """Return whether a worker was sent what its envs do at once, and has not answered."""
        native, job_of = self._links.native, self._commands.job_of
        return any(
            native.in_flight(group)
            and not native.is_ready(group)
            and ((job := job_of(group)) is None or job.of_members)
            for group in self._links.groups_of[index]
        )

    def _worked(self, since: int, patience: int) -> int:
        """Return for how long an env has been at work, exactly from ``patience`` on, in ns."""
        worked = now() - since
        return worked if worked < patience else worked - self.paused_ns(since)

    def paused_ns(self, since: int) -> int:
        """Return how long this process did not run since then, as when it was suspended, in ns."""
        return self._links.watch._paused_ns(since) if self._assignments else 0

    def at_work(self) -> bool:
        """Return whether any env is at work."""
        envs, _ = self._links.at_work()
        return bool((envs >= 0).any())

    def wait(self, wait: Callable[..., bool], deadline: int | None) -> bool:
        """Return whether ``wait`` was over by the deadline, looking for late envs meanwhile.

        Also where each wait is short: who receives some envs must hear of the others.
        """
        native = self._links.native
        while True:
            if native.look_due:
                self.look_for_late()
            if wait(deadline=native.until(deadline)):
                return True
            if deadline is not None and now() >= deadline:
                return False

    def look_for_late(self) -> None:
        """Do what is to be done about late envs, and note when the next could be late."""
        if self.faults.step_timeout is None:
            return
        native = self._links.native
        patience = int(self.faults.step_timeout * 1e9)
        native.look_at = now() + patience  # if this raises
        for index, env, since in self.overdue(patience):
            pid = self._processes.children[index].pid
            seconds = self._worked(since, patience) / 1e9
            what = (
                f"env {env} in worker {index} (pid {pid}) has not answered for {seconds:.3g} s, "
                f"step_timeout is {self.faults.step_timeout:.3g} s"
            )
            if self.faults.on_hang == "restart":
                # First: a signal handler may raise behind the kill, and it is no other loss.
                self._killed[index] = pid, f"killed, since {what},"
                self._processes.children[index].kill()
                self._replace(index, self._killed[index][1])
            elif self.faults.on_hang == "raise":
                error = EnvTimeoutError(what)
                error.env, error.worker = env, index
                raise error
            elif (index, since) not in self._reported_late:
                self._reported_late.add((index, since))
                warnings.warn(what, stacklevel=2)
        worked = [
            self._worked(since, patience)
            for index, _, since in self._unanswered()
            if (index, since) not in self._reported_late
        ]
        native.look_at = now() + max(0, patience - max((ns for ns in worked if ns > 0), default=0))

    # -- workers that are lost -------------------------------------------------------------------

    def recover(self, error: LostError) -> None:
        """Replace all lost workers, or end the pool and raise."""
        if self._links.watch._is_broken():
            self._end()
            raise PysamplerError(
                "cannot go on: something in this process closed file descriptors of pysampler, as "
                "os.closerange(3, ...) does; do that before envs are made"
            ) from None
        lost = [i for i, child in enumerate(self._processes.children) if child.ended()]
        if not lost:
            groups_of = enumerate(self._links.groups_of)
            marked = [index for index, groups in groups_of if set(error.members) & set(groups)]
            self._end()
            raise LayoutError(
                f"cannot go on: workers {marked} are marked as lost, and live; the segment was "
                "written to by something else"
            ) from None
        for index in lost:
            pid, why = self._killed.get(index, (None, ""))
            if pid == self._processes.children[index].pid:
                self._replace(index, why)
                continue
            if self.faults.on_worker_loss == "raise":
                loss = self._loss_of(index)
                self._end()
                raise loss from None
            self._replace(index)

    def finish(self) -> None:
        """Finish replacements that exceptions of signal handlers interrupted."""
        for index in list(self.replacing):
            self._replace(index)

    def _replace(self, index: int, why: str = "") -> None:
        """Let another process take a worker's place, with new envs."""
        child = self._processes.children[index]
        if index not in self.replacing:
            if not child.ended(SHUTDOWN_TIMEOUT_S):
                self._end()
                raise PysamplerError(f"cannot replace worker {index}: pid {child.pid} does not end")
            error = self._loss_of(index, why)
            self._count_loss(index, error)
            self.replacing[index] = error
        error = self.replacing[index]
        child.kill()  # a replacement that was not sent everything
        child.ended(SHUTDOWN_TIMEOUT_S)
        self._links.renew(index, child.pid)
        # Making envs counts as work of the first, which may take longer than a step.
        start = now() + int(SHUTDOWN_TIMEOUT_S * 1e9)
        self._links.counters.begin(index, self._assignments[index].envs.start, start)
        attachment, segment = self._links.attachments[index], self._links.segment
        try:
            self._processes.replace(index, attachment, segment.fd, self._placed())
        except (OSError, PysamplerError) as cause:
            self._end()
            raise error from cause
        self._links.watch_worker(index, self._processes.children[index].pid)
        self._commands.resend(index, str(error))
        del self.replacing[index]
        _log.warning("%s; another worker takes its place", error)

    def _loss_of(self, index: int, why: str = "") -> WorkerLostError:
        at = self._links.counters.workers["env"][index]
        doing = self._commands.doing(self._links.groups_of[index].start)
        error = self._processes.lost(index, doing, why)
        if at in self._assignments[index].envs and len(error.envs) > 1:
            error.args = (f"{error.args[0]}, at env {at}",)
        return error

    def _count_loss(self, index: int, error: WorkerLostError) -> None:
        """Remember a loss; raise it if there were too many."""
        at = time.monotonic()
        losses = self.losses[index]
        if not losses or losses[-1][1].pid != error.pid:
            losses.append((at, error))
        self._links.gauges.restarts[index] = len(losses)
        recent = [(t, e) for t, e in losses if at - t <= self.faults.restart_window]
        # One with a cause could not even start.
        if len(recent) > self.faults.max_restarts or error.__cause__ is not None:
            self._end()
            if story := "; ".join(f"{at - t:.1f} s ago {e}" for t, e in recent[:-1]):
                error.args = (f"{error.args[0]}; it was replaced before: {story}",)
            raise error
