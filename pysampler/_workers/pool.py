"""The pool: sends commands to its lanes, waits for completions, replaces workers that are lost.

All lanes (lanes.py) have their groups in one ``_core.Pool``, which knows what is in flight, ready
and taken, and in which order groups came back. A pool with workers, one without any, and one whose
last groups this process runs itself are the same class: its callers never ask which they have.

A pool does not know what its lanes serve, nor what they do: that comes as functions that make
env servers, and as jobs.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

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
from pysampler.errors import BusyError, EnvError, LostError, PysamplerError, WaitTimeoutError
from pysampler.sync import Segment, now, usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pysampler import _core
    from pysampler._workers.counters import Counters
    from pysampler._workers.gauges import Gauges
    from pysampler._workers.jobs import Attach, Job, Note
    from pysampler._workers.lanes import Lane
    from pysampler._workers.setup import MakeServer

__all__ = ["Pool"]

# Seconds to wait for a worker to drain its full command ring.
SEND_TIMEOUT_S = 60.0
# Seconds to wait, at the end of a pool, until its workers are reaped.
_REAPING = 2.0
# Seconds for which a worker may be stopped (SIGSTOP) while it is to close.
_STOPPED = 1.0
# Seconds between two looks whether a worker that closes has died.
_LOOK = 0.05


def _no_notes(envs: range) -> list[Note]:
    return [Replace([0] * len(envs))]


class Pool:
    """Groups of envs in worker processes, in this process, or in both.

    The envs of an averaging are its trainers: the pool knows envs by their server only.

    Any exception of a signal handler may come after any call: what was interrupted is finished by
    the next call, and what has come back is returned again until it is taken.

    Args:
        assignments: What each worker has.
        make: Returns the function that makes the env server of a lane, and its arguments.
        inline: What this process runs itself: the last groups. It counts as the last worker.
        context: How processes are started: "forkserver", "fork" or "spawn".
        preload: Modules that the fork server imports; None: those that the first workers had to.
        policy: How to wait, as ``wait_policy`` takes it.
        faults: What to do about lost workers and late envs.
        restore: What envs that replace lost ones do instead of a step.
        for_replaced: Returns the notes that such envs get before anything else.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        make: Callable[[WorkerAssignment], MakeServer],
        inline: WorkerAssignment | None = None,
        *,
        context: str = "forkserver",
        preload: Sequence[str] | None = None,
        policy: tuple[int, int] | None = None,
        faults: Faults | None = None,
        restore: Job | None = None,
        for_replaced: Callable[[range], Sequence[Note]] = _no_notes,
    ) -> None:
        self.assignments = list(assignments)
        self.closed = False  # or its workers are being ended
        self._gone = False  # that is done
        everywhere = [*assignments, *([] if inline is None else [inline])]
        self._sizes = [one.sizes for one in everywhere]  # of the groups of each worker
        self.groups = [len(sizes) for sizes in self._sizes]
        self.group_envs = [envs for one in everywhere for envs in one.group_envs]  # of each group
        self.worker_of = [w for w, count in enumerate(self.groups) for _ in range(count)]
        self._everyone = everywhere[-1].envs.stop
        self._faults = faults or Faults()
        self._learn_modules = preload is None and context == "forkserver" and len(assignments) > 0
        self._layouts = 0
        self._frames_segment: Segment | None = None
        servers = [make(one) for one in assignments]
        new = False  # whether this fork server has made no such env servers yet
        if servers and context == "forkserver":  # which imports once what all workers need
            modules = {servers[0][0].__module__}
            if restore is not None:
                modules.add(type(restore).__module__)
            new = fork_server.preload([*sorted(modules), *(preload or ())])
        self._processes = Processes(
            self.assignments,
            servers,
            context,
            replaceable="restart" in (self._faults.on_worker_loss, self._faults.on_hang),
            one_first=new and self._learn_modules and len(assignments) > 2 * usable_cpus(),
        )
        self.descriptions = self._processes.descriptions
        self._inline: InlineLane | None = None
        try:
            if inline is not None:
                self._inline = InlineLane(inline, make)
                self.descriptions.append(self._inline.description)
            self._link(inline, policy, restore, for_replaced)
        except BaseException:
            self.abandon()
            raise

    def _link(
        self,
        inline: WorkerAssignment | None,
        policy: tuple[int, int] | None,
        restore: Job | None,
        for_replaced: Callable[[range], Sequence[Note]],
    ) -> None:
        """Make what this process shares with its workers."""
        links = self._links = Links(self.assignments, policy, self._processes, inline)
        self._native = links.native
        self._commands = Commands(
            self.assignments, links, restore, for_replaced, len(self.group_envs)
        )
        self._recovery = Recovery(
            self.assignments,
            self._processes,
            links,
            self._commands,
            self._faults,
            self._placed,
            self.kill,
        )
        self._lanes: list[Lane] = [*links.lanes]
        if self._inline is not None:
            self._lanes.append(self._inline)

    def lay_out(self, segment: Segment, attach: Attach) -> None:
        """Let the workers work on what lies in a segment.

        The first time, attach them to everything else too. Nothing may be in flight. One that is
        interrupted must be repeated before anything else is sent.
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
        # A worker that is lost meanwhile, and replaced, begins with this segment.
        self._recovery.finish()
        for index in range(len(self.assignments)):
            self._processes.lay_out(index, self._placed())
        heads = [groups.start for groups in self._links.groups_of]
        self.request(dict.fromkeys(heads, 0).items(), dict.fromkeys(heads, LayOut(self._layouts)))
        answers = self.wait() or []
        self.take_all()
        for answer in answers:
            if isinstance(answer.result, Failure):
                raise self.error_of(answer.group, answer.result)
        self._links.watch_no_more(self.pids)

    def _placed(self) -> tuple[Layout, int]:
        assert self._frames_segment is not None
        return self._layout, self._frames_segment.fd

    def _attach(self) -> None:
        links = self._links
        self._processes.attach(links.attachments, links.segment.fd, self._placed())
        for index, pid in enumerate(self.pids):
            links.watch_worker(index, pid)
        if self._learn_modules:
            self._processes.preload()
        if self._inline is not None:
            meter = links.counters.meter(len(self.assignments))
            meter.trace_to(links.track)
            first = len(self.group_envs) - self.groups[-1]
            gauges = links.gauges.of(len(self.assignments))
            self._inline.attach(self._native, first, meter, gauges)

    def watch_also(self, part: _core.Part) -> None:
        """Mark this part as lost when a worker dies, until frames are laid out anew."""
        self._links.watch_also(part, self.pids)

    # -- states ----------------------------------------------------------------------------------

    @property
    def native(self) -> _core.Pool:
        """The commands and completions, for what steps all groups in one call."""
        return self._native

    @property
    def track(self) -> _core.Track:
        """The track of this process in the pool's trace."""
        return self._links.track

    @property
    def number(self) -> int:
        """The number of its segment, which tells it from others."""
        return self._links.segment.id

    @property
    def counters(self) -> Counters:
        """What all envs and workers count."""
        return self._links.counters

    @property
    def gauges(self) -> Gauges:
        """What all workers and samplers note for programs that look on."""
        return self._links.gauges

    @property
    def can_fast_step(self) -> bool:
        """Whether the next command to each group is like the last one, a step."""
        return not self._recovery.replacing and self._commands.all_steps

    @property
    def pids(self) -> list[int]:
        """The pids of the workers."""
        return [child.pid for child in self._processes.children]

    @property
    def pending(self) -> int:
        """The number of envs that are at work, or done and not taken yet."""
        return self._native.pending_weight

    @property
    def ready(self) -> int:
        """The number of those that are done."""
        return self._native.ready_weight

    def is_pending(self, group: int) -> bool:
        """Return whether the group has an uncollected command."""
        return self._native.in_flight(group)

    def busy_seconds(self) -> float:
        """Return how long all envs together have been at work."""
        return self._links.counters.busy_seconds()

    def stats(self) -> Stats:
        """Return what envs and workers have done. Groups of this process are the last's."""
        losses = [len(of_worker) for of_worker in self._recovery.losses]
        if self._inline is not None:
            losses.append(0)
        return Stats.of(self._links.counters, self._sizes, losses)

    def overdue(self, timeout_ns: int) -> list[tuple[int, int, int]]:
        """Return (worker, env, since) of envs that have been at work for ``timeout_ns``."""
        return self._recovery.overdue(timeout_ns)

    def look_for_late(self) -> None:
        """Do what is to be done about envs that are late."""
        self._recovery.look_for_late()

    def paused_ns(self, since: int) -> int:
        """Return how long this process did not run since then, as when it was suspended, in ns."""
        return self._recovery.paused_ns(since)

    def stopped(self) -> bool:
        """Return whether a worker is stopped, as by SIGSTOP."""
        return any(child.stopped() for child in self._processes.children)

    def error_of(self, group: int, failure: Failure) -> EnvError:
        """Return the exception that an env of a group raised, or the env server of its lane."""
        return self._lanes[self.worker_of[group]].error_of(failure, self._commands.doing(group))

    # -- commands --------------------------------------------------------------------------------

    def step(self, frame: int) -> None:
        """Let every group step, reading actions from the frame and writing results to it."""
        if self._recovery.replacing:
            self._recovery.finish()
        if not self._commands.step(frame):
            self._flush()

    def round(self, frame: int) -> list[Answer]:
        """Let every group step, wait until all are back, and take them; return what they answered.

        As ``step``, ``wait`` and ``take_all``, in one call of C++ where nothing unusual happens.
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

    def step_some(self, group_frames: Sequence[tuple[int, int]]) -> None:
        """Let some groups step, each with its frame."""
        if self._recovery.replacing:
            self._recovery.finish()
        if not self._commands.step_some(group_frames):
            self._flush()

    def request(self, group_frames: Iterable[tuple[int, int]], jobs: Mapping[int, Job]) -> None:
        """Give groups jobs, each in the frame beside it. All get theirs, or none.

        Those of this process are run at once, while workers run theirs: the caller may change the
        arguments of a job afterwards.
        """
        self._recovery.finish()
        if not self._commands.send(jobs, dict(group_frames)):
            self._flush()
        self._run_inline()

    def note(self, note_for: Callable[[range], Note | None], *, standing: bool = False) -> None:
        """Send each lane the note for its envs, if it has one, before its next command.

        A standing note also goes to workers that replace lost ones, until there is another of the
        same class or ``drop_standing``. Any thread may call this while another samples.
        """
        self._commands.note(note_for, standing=standing)
        if self._inline is not None and (note := note_for(self._inline.envs)) is not None:
            self._inline.note(note)

    def cancel_inline(self) -> None:
        """Forget what this process has yet to run itself; it is not in flight any more."""
        self._native.cancel_inline()

    def drop_standing(self) -> None:
        """Send workers that replace lost ones no standing notes any more."""
        self._commands.drop_standing()

    def _flush(self) -> None:
        """Wait until all that was sent has gone. What is interrupted goes with the next wait."""
        try:
            began = now()
            # A worker reads between the steps of its envs, however long these are.
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
        """Return what groups answered beside what is in the frame, once all have come back.

        None if not all that is in flight came back in time. All stays in flight, and is returned
        again, until it is taken.
        """
        deadline = None if timeout is None else now() + int(timeout * 1e9)
        while True:
            if self._recovery.replacing:
                self._recovery.finish()
            self._run_inline()
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
        """Return groups that came back, longest ready first, and what they answered.

        As soon as they have ``least`` envs or are all, or at the deadline in ns; groups of up to
        ``most`` envs. They stay in flight until they are taken.
        """
        groups: list[int] = []

        def wait(*, deadline: int | None) -> bool:
            groups[:] = self._native.wait_some(least, most, deadline=deadline)
            return self._native.satisfied

        while True:
            if self._recovery.replacing:
                self._recovery.finish()
            self._run_inline()
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
        """Wait until these groups are back; return what they answered, not what others did.

        They stay in flight until they are taken.
        """
        while True:
            self._run_inline()
            # In this order: one that comes back in between is not waited for twice.
            ready = self.ready
            missing = sum(len(self.group_envs[g]) for g in groups if not self._native.is_ready(g))
            deadline = None if missing else 0
            back, answers = self.wait_some(ready + missing, self._everyone, deadline)
            if set(groups) <= set(back):
                by_group = {answer.group: answer for answer in answers}
                return [by_group[group] for group in groups if group in by_group]
            if not missing:  # what one of them says has yet to arrive
                self.wait_some(self.ready + 1, self._everyone, None)

    def take_all(self) -> None:
        """Take all groups, which have come back and whose answers were received."""
        self._native.take_all()
        if self._inline is not None:
            self._inline.drop_all()

    def take(self, groups: Sequence[int]) -> None:
        """Take groups, which have come back and whose answers were received."""
        self._native.take(groups)
        for group in groups:
            self._lanes[self.worker_of[group]].drop(group)

    def _run_inline(self) -> None:
        """Run what this process has to run itself, before it waits for others."""
        if self._inline is not None:
            self._inline.run(self._commands.job_of)

    def _answers(self, deadline: int | None) -> list[Answer] | None:
        """Return the answers that have come by the deadline; None if late envs were looked for.

        A worker that hangs in an env sends no more of what its other envs have to say.
        """
        groups = self._native.groups_with_mail
        answers = self._received(groups, self._native.until(deadline))
        if len(answers) == len(groups) or not self._native.look_due:
            return answers
        self.look_for_late()
        return None

    def _received(self, groups: Iterable[int], deadline: int | None) -> list[Answer]:
        """Return the answers of groups, as far as they have come by then."""
        answers: list[Answer] = []
        with contextlib.suppress(WaitTimeoutError):
            for group in groups:
                lane, doing = self._lanes[self.worker_of[group]], self._commands.doing(group)
                answer = lane.answer(group, doing, deadline)
                job = self._commands.job_of(group)
                answers.append(Answer(group, answer, None if job is None else job.replaces))
        return answers

    def _recover(self, error: LostError) -> None:
        """Replace lost workers, or end the pool and raise."""
        if self.closed:  # and that is what the error says
            raise error
        self._recovery.recover(error)

    # -- ending ----------------------------------------------------------------------------------

    def interrupt_wait(self) -> None:
        """End the wait that was interrupted by the signal handler that calls this to close."""
        self._native.interrupt_wait()

    def close(self, grace: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Let all lanes close their envs, and end.

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
        except BusyError:  # a signal handler has come into the reading of a message
            pass
        finally:
            self.kill()
        if failed is not None:
            raise failed

    def _close_workers(self, grace: float) -> EnvError | None:
        began = now()

        def left() -> float:
            return grace - (now() - began - self.paused_ns(began)) / 1e9

        # From here on the end of a worker is no loss.
        children = self._processes.children
        first = dict(zip((groups.start for groups in self._links.groups_of), children, strict=True))
        for child in children:
            self._links.watch.forget(child.pid)
        self._commands.send_last(dict.fromkeys(first, Close()))
        looks = dict.fromkeys(first, 0)  # in a row that found the worker stopped
        while not self._closed_within(min(_LOOK, left())):
            for group, child in first.items():
                looks[group] = looks[group] + 1 if child.stopped() else 0
                over = child.ended() or looks[group] * _LOOK >= _STOPPED
                if over and not self._native.is_ready(group):
                    self._native.take([group])
            if left() <= 0:
                return None
        failures = [
            (group, said)
            for group, said, _ in self._received(
                self._native.groups_with_mail, now() + int(left() * 1e9)
            )
            if isinstance(said, Failure)
        ]
        stopped = [index for index, child in enumerate(children) if child.stopped()]
        if stopped:
            warnings.warn(
                f"workers {stopped} are stopped (SIGSTOP): they are killed, and their envs are not "
                "closed",
                stacklevel=2,
            )
        await_ends((child for child in children if not child.stopped()), left)
        return self.error_of(*failures[0]) if failures else None

    def _closed_within(self, timeout: float) -> bool:
        """Return whether all that is in flight is back. Losses of before are forgotten."""
        try:
            return self._native.wait(max(0.0, timeout))
        except LostError:
            self._native.forget_losses()
            return False

    def abandon(self) -> None:
        """End the workers, and close the envs that live in this process, whatever they raise."""
        self.kill()
        with contextlib.suppress(EnvError):
            self.close_inline()

    def close_inline(self) -> None:
        """Close the envs that live in this process, unless that was done."""
        if self._inline is not None:
            self._inline.close()

    def kill(self, wait: float = _REAPING) -> None:
        """End the workers, whatever they are doing, and give everything back. May be repeated.

        Waits up to ``wait`` seconds until the processes are reaped. A finalizer passes 0.
        """
        self.closed = True
        if self._gone:
            return
        self._processes.end(wait)
        if hasattr(self, "_links"):
            self._links.close()
        if self._frames_segment is not None:
            self._frames_segment.close()
        self._gone = True

    def __repr__(self) -> str:
        inline = ", inline" * (self._inline is not None)
        return f"<pysampler Pool {len(self.assignments)} workers{inline}{', closed' * self.closed}>"
