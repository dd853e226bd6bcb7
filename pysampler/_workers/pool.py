"""The pool: sends commands to its lanes, waits for completions, replaces lost workers.

All lanes (lanes.py) share one ``_core.Pool``, which tracks the groups that are in flight, ready or
taken, and the order in which they came back. One class serves pools with workers, without workers,
and with their last groups in this process, so callers need no special cases.

A pool knows nothing about envs: callers pass functions that make env servers, and jobs to run.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

from pysampler import _core
from pysampler._workers import fork_server
from pysampler._workers.children import await_ends
from pysampler._workers.commands import Commands
from pysampler._workers.counters import Stats
from pysampler._workers.jobs import Answer, Close, Failure, LayOut, Replace
from pysampler._workers.lanes import InlineLane
from pysampler._workers.links import Links
from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S, Processes, WorkerAssignment
from pysampler._workers.recovery import Faults, Recovery
from pysampler._workers.setup import Layout
from pysampler.errors import (
    BusyError,
    ClosedError,
    EnvError,
    EnvTimeoutError,
    LostError,
    PysamplerError,
    WaitTimeoutError,
    WorkerLostError,
)
from pysampler.sync import Segment, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pysampler._workers.children import Child
    from pysampler._workers.gauges import Gauges
    from pysampler._workers.jobs import Attach, Job, Note
    from pysampler._workers.lanes import Lane
    from pysampler._workers.renewal import Renewal
    from pysampler._workers.setup import MakeServer
    from pysampler._workers.threads import Threads, WorkerThread

__all__ = ["Pool"]

_CHUNK: int = _core.Command.CHUNK
_CHUNK_LAST: int = _core.Command.CHUNK_LAST
# Seconds to wait for a worker to drain its full command ring.
SEND_TIMEOUT_S = 60.0
# Seconds to wait for the workers to be reaped when a pool ends.
_REAPING = 2.0
# Seconds that a worker may stay stopped (SIGSTOP) before ``close`` gives up on it.
_STOPPED = 1.0
# Seconds between two checks for closing workers that have died or are stopped.
_LOOK = 0.05


def _replace_note(envs: range) -> list[Note]:
    return [Replace([0] * len(envs))]


class Pool:
    """Groups of envs in worker processes, in this process, or in both.

    An "env" may be anything that an env server serves: in an averaging, envs are trainers.

    A signal handler may raise at any point of any method. The next call finishes the interrupted
    work, and groups that have come back are returned again until they are taken.

    Args:
        assignments: The envs and groups of each worker. A function of env servers may make more
            envs than one: the sizes in the descriptions of the servers count.
        make: Returns the function that makes the env server of a lane, and its arguments.
        inline: The last groups, if this process runs them itself. Counts as the last worker.
        context: How to start processes: "forkserver", "fork" or "spawn".
        needs: Modules that the fork server imports in any case.
        preload: More of them, as the user says.
        policy: Spin and yield times, see ``wait_policy``.
        faults: How to handle lost workers and late envs.
        for_replaced: Returns the notes that replacement envs get before anything else.
        ended: Returns which envs of a worker have just ended their episodes, or None if that is
            not known.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        make: Callable[[WorkerAssignment], MakeServer],
        inline: WorkerAssignment | None = None,
        *,
        context: str = "forkserver",
        needs: Sequence[str] = (),
        preload: Sequence[str] = (),
        policy: tuple[int, int] | None = None,
        faults: Faults | None = None,
        for_replaced: Callable[[range], Sequence[Note]] = _replace_note,
        ended: Callable[[range], Sequence[bool] | None] = lambda _: None,
    ) -> None:
        self.closed = False  # True as soon as the workers are being ended
        self._gone = False  # True once they have ended and the memory is released
        # When the wait ends for which inline groups run, in ns; None: it has no limit.
        self.deadline: int | None = None
        self._faults = faults or Faults()
        self._layouts = 0
        self._answered: set[int] = set()  # groups whose answers are kept
        self._frames_segment: Segment | None = None
        servers = [make(one) for one in assignments]
        if servers and context == "forkserver":  # it imports shared modules once for all workers
            fork_server.preload([servers[0][0].__module__, *needs, *preload])
        self._processes: Processes | Threads
        if context == "threads":
            from pysampler._workers.threads import Threads  # noqa: PLC0415 - rare

            self._processes = Threads(assignments, servers)
        else:
            replaceable = self._faults.replaces
            self._processes = Processes(assignments, servers, context, replaceable=replaceable)
        self.descriptions = self._processes.descriptions
        self.assignments = self._processes.assignments
        self._inline: InlineLane | None = None
        try:
            if inline is not None:
                first = self.assignments[-1].envs.stop if self.assignments else 0
                self._inline = InlineLane(inline, make, first, ended)
                self.descriptions.append(self._inline.description)
            self._number_groups()
            self._link(policy, for_replaced, ended)
        except BaseException:
            self.abandon()
            raise

    def _number_groups(self) -> None:
        shares = list(self.assignments)
        if self._inline is not None:
            shares.append(self._inline.assignment)
        self._sizes = [share.sizes for share in shares]  # of the groups of each worker
        self.groups = [len(sizes) for sizes in self._sizes]
        self.group_envs = [envs for share in shares for envs in share.group_envs]  # of each group
        self.worker_of = [w for w, count in enumerate(self.groups) for _ in range(count)]
        self._num_envs = shares[-1].envs.stop

    def _link(
        self,
        policy: tuple[int, int] | None,
        for_replaced: Callable[[range], Sequence[Note]],
        ended: Callable[[range], Sequence[bool] | None],
    ) -> None:
        """Connect this process to its workers: shared memory, commands, recovery."""
        inline = None if self._inline is None else self._inline.assignment
        links = self._links = Links(self.assignments, policy, self._processes, inline)
        self._native = links.native
        self._commands = Commands(self.assignments, links, for_replaced, len(self.group_envs))
        self._recovery = Recovery(
            self.assignments,
            self._processes,
            links,
            self._commands,
            self._faults,
            self.current_layout,
            self.kill,
            ended,
        )
        self._renewal: Renewal | None = None
        self.may_renew = True  # whether workers that are due are renewed before a command
        if self._faults.recycles and self.assignments:
            from pysampler._workers.renewal import Renewal  # noqa: PLC0415 - rare

            assert isinstance(self._processes, Processes)
            self._renewal = Renewal(links, self._processes, self._faults, ended)
        self._lanes: list[Lane] = [*links.lanes]
        if self._inline is not None:
            self._lanes.append(self._inline)

    def lay_out(self, segment: Segment, attach: Attach) -> None:
        """Attach all lanes to a segment, such as one with frames.

        The first call also attaches the workers to the pool's own segment. Nothing may be in
        flight. An interrupted call must be repeated before anything else is sent.
        """
        self._layout = Layout(self._layouts + 1, attach)
        self._frames_segment = segment
        self._layouts += 1
        if self._layouts == 1:
            self._attach()
        else:
            self._lay_out_again()
        if self._inline is not None:
            self._inline.lay_out(segment, attach)

    def _lay_out_again(self) -> None:
        self.gauges.clear()
        # If a worker is lost meanwhile, its replacement starts with this segment.
        self._finish_replacements()
        for index in range(len(self.assignments)):
            self._processes.lay_out(index, self.current_layout())
        heads = [groups.start for groups in self._links.groups_of]
        # Without a renewal in between: the layouts are on their way to these processes.
        self._send(dict.fromkeys(heads, 0), dict.fromkeys(heads, LayOut(self._layouts)))
        answers = self.wait() or []
        self.take_all()
        for answer in answers:
            if isinstance(answer.result, Failure):
                raise self.error_of(answer.group, answer.result)
        self._links.watch_no_more(self.pids)

    def current_layout(self) -> tuple[Layout, Segment]:
        """Return the layout of the frames, and their segment."""
        assert self._frames_segment is not None
        return self._layout, self._frames_segment

    def _attach(self) -> None:
        links = self._links
        parts = [links.native.worker(index) for index in range(len(links.attachments))]
        self._processes.attach(links.attachments, links.segment, self.current_layout(), parts)
        for index, pid in enumerate(self.pids):
            links.watch_worker(index, pid)
        if self._inline is not None:
            meter = links.counters.meter(len(self.assignments))
            meter.trace_to(links.track)
            first = len(self.group_envs) - self.groups[-1]
            gauges = links.gauges.of(len(self.assignments))
            self._inline.attach(self._native, first, meter, gauges)

    def watch_also(self, part: _core.Part) -> None:
        """Mark this part as lost when a worker dies, until frames are laid out again."""
        self._links.watch_also(part, self.pids)

    # -- states ----------------------------------------------------------------------------------

    @property
    def native(self) -> _core.Pool:
        """The commands and completions, for callers that step all groups in one call."""
        return self._native

    @property
    def track(self) -> _core.Track:
        """The track of this process in the pool's trace."""
        return self._links.track

    @property
    def number(self) -> int:
        """The id of the pool's segment, which distinguishes it from other pools."""
        return self._links.segment.id

    @property
    def gauges(self) -> Gauges:
        """The gauges of all workers and samplers, for monitoring programs."""
        return self._links.gauges

    @property
    def can_fast_step(self) -> bool:
        """Whether each group's last command was a step, and no worker is being replaced."""
        if self._recovery.replacing or self._renewal is not None:
            return False
        return self._commands.all_steps

    @property
    def in_processes(self) -> bool:
        """Whether the workers are processes, rather than threads, or groups of this one."""
        return bool(self.assignments) and self._processes.can_die

    @property
    def pids(self) -> list[int]:
        """The pids of the workers."""
        return [child.pid for child in self._processes.children]

    @property
    def pending(self) -> int:
        """The number of envs that are at work, or done but not yet taken."""
        return self._native.pending_weight

    @property
    def ready(self) -> int:
        """The number of pending envs that are done."""
        return self._native.ready_weight

    def is_pending(self, group: int) -> bool:
        """Return whether the group has an uncollected command."""
        return self._native.in_flight(group)

    def was_step(self, group: int) -> bool:
        """Return whether the group's last command stepped its envs."""
        return (job := self._commands.job_of(group)) is None or job.steps_envs

    def busy_seconds(self) -> float:
        """Return the total time that all envs have been at work, in seconds."""
        return self._links.counters.busy_seconds()

    def stats(self) -> Stats:
        """Return statistics of envs and workers. Inline groups count as the last worker."""
        losses = [len(of_worker) for of_worker in self._recovery.losses]
        if self._inline is not None:
            losses.append(0)
        return Stats.of(self._links.counters, self._sizes, losses)

    @property
    def max_restarts(self) -> int:
        """How often a worker may be lost within a while."""
        return self._faults.max_restarts

    def last_loss(self, group: int) -> WorkerLostError:
        """Return the error for the last loss of the worker of a group."""
        return self._recovery.losses[self.worker_of[group]][-1][1]

    @property
    def fatal_loss(self) -> WorkerLostError | None:
        """The error of the loss that ended the workers, or is about to; None without one."""
        return self._recovery.fatal_loss

    def overdue(self, timeout_ns: int) -> list[tuple[int, int, int]]:
        """Return (worker, env, since) of envs that have not answered for ``timeout_ns``."""
        return self._recovery.overdue(timeout_ns)

    def time_only(self, envs: frozenset[int] | None) -> None:
        """Let only these envs, and others of their workers, be late; None: all."""
        self._recovery.time_only(envs)

    def look_for_late(self) -> None:
        """Replace late envs, warn, or raise, depending on ``Faults.on_hang``."""
        self._recovery.look_for_late()

    def paused_ns(self, since: int) -> int:
        """Return for how many ns since then this process did not run, e.g. was suspended."""
        return self._recovery.paused_ns(since)

    def stopped(self) -> bool:
        """Return whether any worker is stopped, e.g. by SIGSTOP."""
        return any(child.stopped() for child in self._processes.children)

    def error_of(self, group: int, failure: Failure) -> EnvError:
        """Return the error for a failure of a group's env, or of the env server of its lane."""
        return self._lanes[self.worker_of[group]].error_of(failure, self._commands.doing(group))

    # -- commands --------------------------------------------------------------------------------

    def step(self, frame: int) -> None:
        """Step every group, reading actions from the frame and writing results to it."""
        self._prepare()
        if not self._commands.step(frame):
            self._flush()

    def round(self, frame: int) -> list[Answer]:
        """Step every group, wait until all are back, take them, and return their answers.

        Same as ``step``, ``wait`` and ``take_all``, but usually a single call into C++.
        """
        if not self.can_fast_step:
            self.step(frame)
        elif self._native.round(frame):
            return []
        elif self._native.unsent:
            self._flush()
        answers = self.wait() or []
        self.take_all()
        return answers

    def step_some(
        self,
        group_frames: Sequence[tuple[int, int]],
        steps: int | None = None,
        *,
        last: bool = False,
    ) -> None:
        """Step some groups, each with its frame.

        Args:
            group_frames: The groups and frames; of a chunk, that of the first step.
            steps: The number of steps of a chunk, in successive frames; None: one plain step.
            last: Whether only the last results of each env of a chunk are read, and all rewards.
        """
        self._prepare()
        chunk = () if steps is None else (_CHUNK_LAST if last else _CHUNK, steps)
        if not self._commands.step_some(group_frames, *chunk):
            self._flush()

    def request(self, group_frames: Iterable[tuple[int, int]], jobs: Mapping[int, Job]) -> None:
        """Send jobs to groups, each with its frame. Either all are sent or none.

        Inline jobs run at once, while the workers run theirs, so that the caller may change the
        arguments of a job afterwards.
        """
        begun = frozenset(group for group, job in jobs.items() if job.begins_all)
        self._prepare(begun, renews=all(job.renews for job in jobs.values()))
        self._send(dict(group_frames), jobs)

    def _send(self, frames: Mapping[int, int], jobs: Mapping[int, Job]) -> None:
        if not self._commands.send(jobs, frames):
            self._flush()
        self._run_inline()

    def _prepare(self, begun: frozenset[int] = frozenset(), *, renews: bool = True) -> None:
        """Finish replacements, and renew due workers; the groups ``begun`` are reset now."""
        self._drop_answers()
        self._finish_replacements()
        if self._renewal is not None and self.may_renew and renews:
            for index, why in self._renewal.due(begun):
                self._recovery.renew(index, why)
                self._renewal.renewed(index)

    def _finish_replacements(self) -> None:
        if self._recovery.replacing:
            self._recovery.finish()

    def note(self, note_for: Callable[[range], Note | None], *, standing: bool = False) -> None:
        """Send each lane the note for its envs, if it has one, before its next command.

        A standing note also goes to workers that replace lost ones, until a newer one of its class
        or ``drop_standing``. Any thread may call this while another samples.
        """
        self._commands.note(note_for, standing=standing)
        if (
            self._inline is not None
            and (note := note_for(self._inline.assignment.envs)) is not None
        ):
            self._inline.note(note)

    def cancel_inline(self) -> None:
        """Drop inline commands that have not run yet; their groups are no longer in flight."""
        self._native.cancel_inline()

    def drop_standing(self) -> None:
        """Stop sending standing notes to workers that replace lost ones."""
        self._commands.drop_standing()

    def _flush(self) -> None:
        """Wait until all commands have gone out. If interrupted, the next wait sends the rest."""
        try:
            began = now()
            # A worker reads only between the steps of its envs, which may take any time.
            while not self._native.flush(SEND_TIMEOUT_S):
                self.look_for_late()
                if not self._recovery.at_work() and not self.paused_ns(began):
                    break
                began = now()
            else:
                return
        except LostError as error:
            self._recover(error)
            return
        self.kill()
        raise PysamplerError(
            f"cannot send to workers: one has not read a message for {SEND_TIMEOUT_S:.0f} s"
        )

    # -- completions -----------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[Answer] | None:
        """Wait until all groups have come back; return their answers besides the frame's content.

        Returns None if some are missing at the timeout. All groups stay in flight, and their
        answers are returned again, until they are taken.
        """
        deadline = None if timeout is None else now() + int(timeout * 1e9)
        while True:
            if self._recovery.replacing:
                self._recovery.finish()
            if not self._run_inline(deadline):
                return None
            try:
                if not self._recovery.wait(self._native.wait, deadline):
                    return None
                if not self._native.has_mail():
                    return []
                answers = self._answers(deadline)
                if answers is None:
                    continue
            except LostError as error:
                self._recover(error)
                continue
            return None if len(answers) < len(self._native.groups_with_mail) else answers

    def wait_some(
        self, least: int, most: int, deadline: int | None
    ) -> tuple[list[int], list[Answer]]:
        """Return groups that came back, longest ready first, and their answers.

        Waits until these have ``least`` envs, or none is at work, or until the deadline in ns.
        Returns groups of up to ``most`` envs, which stay in flight until they are taken.
        """
        groups: list[int] = []

        def wait(*, deadline: int | None) -> bool:
            groups[:] = self._native.wait_some(least, most, deadline=deadline)
            return self._native.satisfied

        while True:
            if self._recovery.replacing:
                self._recovery.finish()
            if not self._run_inline(deadline):
                return [], []
            try:
                self._recovery.wait(wait, deadline)
                if not self._native.has_mail():
                    return groups, []
                answers = self._answers(deadline)
                if answers is None:
                    continue
            except LostError as error:
                self._recover(error)
                continue
            missing = set(self._native.groups_with_mail) - {answer.group for answer in answers}
            return [group for group in groups if group not in missing], answers

    def wait_for(self, groups: Sequence[int]) -> list[Answer]:
        """Wait until these groups are back; return their answers and no others.

        They stay in flight until they are taken.
        """
        while True:
            self._run_inline()
            # Read ``ready`` first, or a group that comes back in between counts twice.
            ready = self.ready
            missing = sum(len(self.group_envs[g]) for g in groups if not self._native.is_ready(g))
            deadline = None if missing else 0
            back, answers = self.wait_some(ready + missing, self._num_envs, deadline)
            if set(groups) <= set(back):
                by_group = {answer.group: answer for answer in answers}
                return [by_group[group] for group in groups if group in by_group]
            if not missing:  # the answer of one of them has yet to arrive
                self.wait_some(self.ready + 1, self._num_envs, None)

    def take_all(self) -> None:
        """Take all groups, which must have come back and whose answers must be received."""
        self._native.take_all()
        self._drop_answers()

    def take(self, groups: Sequence[int]) -> None:
        """Take groups, which must have come back and whose answers must be received."""
        self._native.take(groups)
        self._drop_answers()

    def _drop_answers(self) -> None:
        """Free the answers of groups that were taken, here or by ``_core.Call``."""
        for group in self._answered and [one for one in self._answered if not self.is_pending(one)]:
            self._lanes[self.worker_of[group]].drop(group)
            self._answered.discard(group)

    def _run_inline(self, deadline: int | None = None) -> bool:
        """Run inline commands before a wait for workers; return False if the deadline ends them.

        Only those that wait for workers of their own end by the deadline.
        """
        if self._inline is None:
            return True
        try:
            self.deadline = deadline
            self._inline.run(self._commands.job_of)
        except EnvTimeoutError:
            raise
        except WaitTimeoutError:
            return False
        finally:
            self.deadline = None
        return True

    def _answers(self, deadline: int | None) -> list[Answer] | None:
        """Return the answers that come by the deadline; None after a check for late envs.

        A worker that hangs in one env does not send the remaining answers of its other envs.
        """
        groups = self._native.groups_with_mail
        answers = self._received(groups, self._native.until(deadline))
        if len(answers) == len(groups) or not self._native.look_due:
            return answers
        self.look_for_late()
        return None

    def _received(self, groups: Iterable[int], deadline: int | None) -> list[Answer]:
        """Return the answers of groups up to the first that misses the deadline."""
        answers: list[Answer] = []
        with contextlib.suppress(WaitTimeoutError):
            for group in groups:
                lane, doing = self._lanes[self.worker_of[group]], self._commands.doing(group)
                self._answered.add(group)
                answers.append(Answer(group, lane.answer(group, doing, deadline)))
        return answers

    def _recover(self, error: LostError) -> None:
        """Replace lost workers, or end the pool and raise."""
        if isinstance(error, WorkerLostError):  # a late one was one loss too many
            raise error
        if self.closed:
            raise ClosedError("cannot go on: the pool was closed meanwhile") from None
        self._recovery.recover(error)

    # -- ending ----------------------------------------------------------------------------------

    def interrupt_wait(self) -> None:
        """End the wait that a signal handler has interrupted; the handler calls this to close."""
        self._native.interrupt_wait()

    def give_up(self) -> None:
        """End the wait of another thread with a ClosedError; the caller closes the pool then."""
        self.closed = True
        with contextlib.suppress(ClosedError):  # another thread has closed it meanwhile
            for index in range(len(self.assignments)):
                self._native.worker(index).mark_lost()

    def close(self, grace: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Close the envs of all lanes, and end the workers.

        Raises:
            EnvError: If an env raised in ``close()``.
        """
        try:
            self._close_all_workers(grace)
        finally:
            self.close_inline()

    def _close_all_workers(self, grace: float) -> None:
        failed: EnvError | None = None
        try:
            idle = not (self._native.pending or self._native.unsent or self._recovery.replacing)
            if idle and not self.closed:
                failed = self._close_workers(grace)
        # A signal handler that interrupted the reading of a message closes, or another thread does.
        except (BusyError, ClosedError):
            pass
        finally:
            self.kill()
        if failed is not None:
            raise failed

    def _close_workers(self, grace: float) -> EnvError | None:
        began = now()

        def left() -> float:
            return grace - (now() - began - self.paused_ns(began)) / 1e9

        # From here on the end of a worker does not count as a loss.
        children: list[Child | WorkerThread] = [*self._processes.children]
        first = dict(zip((groups.start for groups in self._links.groups_of), children, strict=True))
        for child in children:
            self._links.forget_worker(child.pid)
        self._commands.send(dict.fromkeys(first, Close()), dict.fromkeys(first, 0))
        looks = dict.fromkeys(first, 0)  # consecutive looks that found the worker stopped
        while not self._closed_within(min(_LOOK, left())):
            for group, child in first.items():
                looks[group] = looks[group] + 1 if child.stopped() else 0
                over = child.ended() or looks[group] * _LOOK >= _STOPPED
                if over and not self._native.is_ready(group):
                    self._native.take([group])
            if left() <= 0:
                return None
        failures = [
            (group, result)
            for group, result in self._received(
                self._native.groups_with_mail, now() + int(left() * 1e9)
            )
            if isinstance(result, Failure)
        ]
        stopped = [index for index, child in enumerate(children) if child.stopped()]
        if stopped:
            warnings.warn(
                f"pysampler: workers {stopped} are stopped (SIGSTOP): they are killed, and their "
                "envs are not closed",
                stacklevel=2,
            )
        await_ends((child for child in children if not child.stopped()), left)
        return self.error_of(*failures[0]) if failures else None

    def _closed_within(self, timeout: float) -> bool:
        """Return whether all groups in flight are back. Forgets losses noticed before."""
        try:
            return self._native.wait(max(0.0, timeout))
        except LostError:
            self._native.forget_losses()
            return False

    def abandon(self) -> None:
        """End the workers, and close the inline envs, ignoring their errors."""
        self.kill()
        with contextlib.suppress(EnvError):
            self.close_inline()

    def close_inline(self) -> None:
        """Close the inline envs. May be repeated."""
        if self._inline is not None:
            self._inline.close()

    def kill(self, wait: float = _REAPING) -> None:
        """End the workers, whatever they are doing, and release all memory. May be repeated.

        Waits up to ``wait`` seconds until the processes are reaped. A finalizer passes 0.
        """
        self.closed = True
        if self._gone:
            return
        self._processes.end(wait)
        if hasattr(self, "_links"):
            if wait > 0 and not (self._gone or self._processes.can_die):
                self._warn_of_threads()
            self._links.close()
        if self._frames_segment is not None:
            self._frames_segment.close()
        self._gone = True

    def _warn_of_threads(self) -> None:
        """Warn of envs that go on with a step, in threads that have not ended."""
        envs = self._links.at_work()[0].tolist()
        if late := sorted({*range(len(self.assignments))} - {*self._processes.ended()}):
            in_envs = [f"env {env} in " if env >= 0 else "" for env in envs]
            names = ", ".join(in_envs[i] + self._processes.name_of(i) for i in late)
            warnings.warn(
                f"pysampler: {names} goes on until its step ends: a thread cannot be killed",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        inline = ", inline" * (self._inline is not None)
        return f"<pysampler Pool {len(self.assignments)} workers{inline}{', closed' * self.closed}>"
