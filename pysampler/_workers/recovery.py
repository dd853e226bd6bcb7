"""Worker recovery: restarts after a crash, time-outs for envs that hang."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S, Processes
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

    from pysampler._workers.children import Child
    from pysampler._workers.commands import Commands
    from pysampler._workers.jobs import Job
    from pysampler._workers.links import Links
    from pysampler._workers.processes import WorkerAssignment
    from pysampler._workers.setup import Layout
    from pysampler._workers.threads import Threads
    from pysampler.sync import Segment

__all__ = ["MAX_RESTARTS", "RESTART_WINDOW", "Faults", "Recovery"]

# The public defaults for how often a worker may be replaced.
MAX_RESTARTS = 3
RESTART_WINDOW = 10.0
# How many times per time-out this process records that it runs, to notice when it was suspended.
_BEATS = 16

_log = logging.getLogger("pysampler")


@dataclass(frozen=True)
class Faults:
    """How to handle lost workers, and envs that do not answer."""

    on_worker_loss: Literal["raise", "restart"] = "raise"
    # The pool ends if one worker restarts more often than this within ``restart_window`` seconds,
    # or while it runs one command, without a step of the lost env in between.
    max_restarts: int = MAX_RESTARTS
    restart_window: float = RESTART_WINDOW
    step_timeout: float | None = None
    on_hang: Literal["raise", "wait", "restart"] = "raise"
    recycle_after: int | None = None  # episodes
    recycle_above: int | None = None  # bytes of a worker's own memory

    @property
    def recycles(self) -> bool:
        """Whether workers are replaced while they live."""
        return self.recycle_after is not None or self.recycle_above is not None

    @property
    def replaces(self) -> bool:
        """Whether workers are replaced at all."""
        return self.recycles or "restart" in (self.on_worker_loss, self.on_hang)

    @property
    def for_workers(self) -> bool:
        """Whether the user relies on what only worker processes give."""
        return self.step_timeout is not None or self.recycles or self.on_worker_loss == "restart"


@dataclass(frozen=True)
class _Renewal:
    """The replacement of a worker that lives: its pid, and the reason."""

    pid: int
    why: str


class Recovery:
    """Replaces workers of a pool.

    Each step of a replacement may be repeated: if a signal handler raises in between, the next
    ``finish`` completes the replacement.

    Args:
        assignments: The envs and groups of each worker.
        processes: The workers.
        links: The links to them.
        commands: The commands that they were given.
        faults: How to handle losses and late envs.
        current_layout: Returns the layout of the frames, and their segment.
        end: Ends the pool.
        ended: Returns which envs have just ended their episodes; None: that is not known.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        processes: Processes | Threads,
        links: Links,
        commands: Commands,
        faults: Faults,
        current_layout: Callable[[], tuple[Layout, Segment]],
        end: Callable[[], None],
        ended: Callable[[range], Sequence[bool] | None],
    ) -> None:
        self.faults = faults
        self._assignments = assignments
        self._processes = processes
        self._links = links
        self._commands = commands
        self._current_layout = current_layout
        self._end = end
        self._ended = ended
        # By worker: the time of each loss, by time.monotonic(), and its error.
        self.losses: list[list[tuple[float, WorkerLostError]]] = [[] for _ in assignments]
        self._late: set[int] = set()  # pids of workers that were killed because an env was late
        # By worker: how many losses in a row had one command, how many steps each env had made at
        # the last one, the job that was sent again, and the time that counts as the beginning of
        # its replacement's work until that has made its envs.
        self._repeats: dict[int, tuple[int, list[int], Job | None, int]] = {}
        self._timed: frozenset[int] | None = None  # the envs that may be late; None: all
        # Workers that are not replaced yet, by index.
        self.replacing: dict[int, WorkerLostError | _Renewal] = {}
        # Workers that have a step to make but have not begun with an env: when they last moved,
        # and when this process first saw that.
        self._unbegun: dict[int, tuple[int, int]] = {}
        self._reported_late: set[tuple[int, int]] = set()
        # The loss that ended the pool: set before the end, which a signal handler may interrupt.
        self.fatal_loss: WorkerLostError | None = None
        # Late workers that this process kills, by index: their pids, and why.
        self._killed: dict[int, tuple[int, str]] = {}
        if not assignments:
            return
        patience = min(SHUTDOWN_TIMEOUT_S, faults.step_timeout or SHUTDOWN_TIMEOUT_S)
        links.watch._beat_every(int(patience * 1e9 / _BEATS))
        if faults.step_timeout is not None:
            links.native.look_at = 0

    # -- envs that do not answer --------------------------------------------------------------

    def time_only(self, envs: frozenset[int] | None) -> None:
        """Let only these envs, and others of their workers, be late; None: all."""
        if self.faults.step_timeout is not None and envs != self._timed:
            self._timed = envs
            self._links.native.look_at = 0

    def _is_timed(self, index: int) -> bool:
        """Return whether an env of this worker is timed: it may wait for another one there."""
        return self._timed is None or not self._timed.isdisjoint(self._assignments[index].envs)

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
        """Return (worker, env, since) of envs at work, and of workers that should have begun.

        A worker that has a step to make begins with an env at once. If it has not moved since the
        previous look, it is stopped or hangs outside of its envs. It is listed by its first env.
        Other jobs may take long to unpickle, so a worker that has one is listed if it is stopped.
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
                if before is None or before[0] != since:  # seen for the first time, or it has moved
                    before = since, now()
                unbegun[index] = before
                found.append((index, envs.start, before[1]))
        self._unbegun = unbegun
        return found

    def _has_to_begin(self, index: int) -> bool:
        """Return whether a worker owes an answer and should have begun with an env."""
        native, job_of = self._links.native, self._commands.job_of
        owed = [
            job_of(group)
            for group in self._links.groups_of[index]
            if native.in_flight(group) and not native.is_ready(group)
        ]
        at_once = any(job is None or job.of_members for job in owed)
        return at_once or (len(owed) > 0 and self._processes.children[index].stopped())

    def _worked(self, since: int, patience: int) -> int:
        """Return for how many ns an env has been at work; exact only from ``patience`` on."""
        worked = now() - since
        return worked if worked < patience else worked - self.paused_ns(since)

    def paused_ns(self, since: int) -> int:
        """Return for how many ns since then this process did not run, e.g. was suspended."""
        return self._links.watch._paused_ns(since) if self._assignments else 0

    def at_work(self) -> bool:
        """Return whether any env is at work."""
        envs, _ = self._links.at_work()
        return bool((envs >= 0).any())

    def wait(self, wait: Callable[..., bool], deadline: int | None) -> bool:
        """Return whether ``wait`` succeeded by the deadline, checking for late envs meanwhile.

        It checks even if each wait is short: a caller that receives some must hear of the others.
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
        """Replace late envs, warn, or raise; then set the time of the next check."""
        if self.faults.step_timeout is None:
            return
        native = self._links.native
        patience = int(self.faults.step_timeout * 1e9)
        native.look_at = now() + patience  # in case the rest raises
        native.wake_left()  # a worker that sleeps since another is late must not be late, too
        for index, env, since in self.overdue(patience):
            if not self._is_timed(index):
                continue
            pid = self._processes.children[index].pid
            seconds = self._worked(since, patience) / 1e9
            text = (
                f"env {env} in {self._processes.name_of(index)} has not answered for "
                f"{seconds:.3g} s, step_timeout is {self.faults.step_timeout:.3g} s"
            )
            if self.faults.on_hang == "restart":
                # Before the kill, after which a signal handler may raise: it is not another loss.
                self._killed[index] = pid, f"killed, since {text},"
                self._late.add(pid)
                self._replaceable().children[index].kill()
                self._replace(index, self._killed[index][1])
            elif self.faults.on_hang == "raise":
                error = EnvTimeoutError(text)
                error.env, error.worker = env, index
                raise error
            elif (index, since) not in self._reported_late:
                self._reported_late.add((index, since))
                warnings.warn(f"pysampler: {text}", stacklevel=2)
        worked = [
            self._worked(since, patience)
            for index, _, since in self._unanswered()
            if (index, since) not in self._reported_late and self._is_timed(index)
        ]
        native.look_at = now() + max(0, patience - max((ns for ns in worked if ns > 0), default=0))

    # -- lost workers ----------------------------------------------------------------------------

    def recover(self, error: LostError) -> None:
        """Replace all lost workers, or end the pool and raise."""
        if self._links.watch._is_broken():
            self._end()
            raise PysamplerError(
                "cannot go on: something in this process closed file descriptors of pysampler, as "
                "os.closerange(3, ...) does; do that before envs are made"
            ) from None
        lost = self._processes.ended()
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
                self.fatal_loss = loss = self._loss_of(index)
                self._end()
                raise loss from None
            self._replace(index)

    def finish(self) -> None:
        """Finish replacements that exceptions of signal handlers interrupted."""
        for index in list(self.replacing):
            self._replace(index)

    def renew(self, index: int, why: str) -> None:
        """Replace a worker that lives and has nothing in flight, once its envs are closed."""
        self.replacing[index] = _Renewal(self._processes.children[index].pid, why)
        self._replace(index)

    def _close(self, index: int, child: Child) -> None:
        """Let a worker close its envs and end, which does not count as a loss. May be repeated."""
        self._links.forget_worker(child.pid)
        if not self._commands.leave(index):
            with contextlib.suppress(LostError):
                self._links.native.flush(SHUTDOWN_TIMEOUT_S)
        child.ended(SHUTDOWN_TIMEOUT_S)

    def _replace(self, index: int, why: str = "") -> None:
        """Replace a worker with another process, which makes new envs."""
        processes = self._replaceable()
        child = processes.children[index]
        if index not in self.replacing:
            if not child.ended(SHUTDOWN_TIMEOUT_S):
                self._end()
                raise PysamplerError(f"cannot replace worker {index}: pid {child.pid} did not end")
            error = self._loss_of(index, why)
            self._count_loss(index, error)
            self.replacing[index] = error
        cause = self.replacing[index]
        renewal = cause if isinstance(cause, _Renewal) else None
        if renewal is not None and child.pid == renewal.pid:
            self._close(index, child)
        child.kill()  # it may be a replacement whose setup was interrupted
        child.ended(SHUTDOWN_TIMEOUT_S)
        self._links.renew(index, child.pid)
        # Making envs counts as work of the first env, and may take longer than a step.
        start = now() + int(SHUTDOWN_TIMEOUT_S * 1e9)
        self._links.counters.begin(index, self._assignments[index].envs.start, start)
        attachment, segment = self._links.attachments[index], self._links.segment
        try:
            processes.replace(index, attachment, segment, self._current_layout())
        except (OSError, PysamplerError) as error:
            if isinstance(cause, WorkerLostError):
                self.fatal_loss = cause
                self._end()
                raise cause from error
            self._end()
            raise
        new = processes.children[index].pid
        self._links.watch_worker(index, new)
        self._commands.resend(index, str(cause), self._ended(self._assignments[index].envs) or ())
        if renewal is not None:
            del self.replacing[index]
            old = f"worker {index} (pid {renewal.pid})"
            _log.info("pysampler: %s renewed %s: pid %s", old, renewal.why, new)
            return
        job = next(iter(self._pending_jobs(index)), None)
        self._repeats[index] = *self._repeats[index][:2], job, start
        del self.replacing[index]
        _log.warning("pysampler: %s; another worker takes its place", cause)

    def _replaceable(self) -> Processes:
        """Return the workers, which are processes if they may be replaced."""
        assert isinstance(self._processes, Processes)
        return self._processes

    def _pending_jobs(self, index: int) -> list[Job]:
        """Return the jobs that a worker has not answered, except endless ones."""
        groups = filter(self._links.native.in_flight, self._links.groups_of[index])
        return [job for job in map(self._commands.job_of, groups) if job and not job.endless]

    def _loss_of(self, index: int, why: str = "") -> WorkerLostError:
        at = self._links.counters.workers["env"][index]
        doing = self._commands.doing(self._links.groups_of[index].start)
        error = self._processes.lost(index, doing, why)
        if at in self._assignments[index].envs:
            error.env = int(at)
            if len(error.envs) > 1:
                error.args = (f"{error.args[0]}, at env {at}",)
        return error

    def _count_loss(self, index: int, error: WorkerLostError) -> None:
        """Record a loss; end the pool and raise it if there were too many."""
        at, losses = time.monotonic(), self.losses[index]
        if not losses or losses[-1][1].pid != error.pid:
            losses.append((at, error))
        self._links.gauges.restarts[index] = len(losses)
        steps = self._links.counters.envs["steps"]["count"].tolist()
        count, made, last, start = self._repeats.get(index, (0, steps, None, -1))
        # A job in which the lost env has made a step since is not repeated. Envs before it may make
        # their steps anew each time.
        envs = self._assignments[index].envs if error.env is None else [error.env]
        stuck = all(steps[env] == made[env] for env in envs)
        again = stuck and any(job is last for job in self._pending_jobs(index))
        # Or it was lost while it made its envs.
        count = 1 + count * bool(again or self._links.counters.workers["since"][index] == start)
        self._repeats[index] = count, steps, last, start
        recent: list[tuple[float, WorkerLostError]] = []
        # The time of late envs does not count: an env that always is would outlast any window.
        hung = 0.0
        for left, (t, e) in enumerate(reversed(losses), 1):
            if left <= count or at - t - hung <= self.faults.restart_window:
                recent.insert(0, (t, e))
            hung += (self.faults.step_timeout or 0.0) * (e.pid in self._late)
        # An error with a cause: the worker could not even start.
        if len(recent) > self.faults.max_restarts or error.__cause__ is not None:
            if story := "; ".join(f"{at - t:.1f} s ago {e}" for t, e in recent[:-1]):
                error.args = (f"{error.args[0]}; it was replaced before: {story}",)
            self.fatal_loss = error
            self._end()
            raise error
