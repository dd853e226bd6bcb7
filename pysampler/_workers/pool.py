"""The parent's side of workers: sends commands, waits for completions, replaces what was lost.

A pool does not know what its workers serve, nor what they are asked: that comes as functions which
make hosts, and as jobs.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler import _core
from pysampler._workers import nursery
from pysampler._workers.children import await_ends
from pysampler._workers.counters import Counters, Stats
from pysampler._workers.jobs import Answer, Close, Failure, LayOut, Replace
from pysampler._workers.mail import Inbox
from pysampler._workers.processes import GRACE, Processes, Share
from pysampler._workers.remote import dumps_by_value, report
from pysampler._workers.setup import Attachment, Layout, wait_policy
from pysampler.errors import (
    BusyError,
    EnvError,
    EnvTimeoutError,
    LayoutError,
    LostError,
    PysamplerError,
    WaitTimeoutError,
    WorkerLostError,
)
from pysampler.sync import Segment, Watch, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pysampler._workers.jobs import Attach, Job, Note

__all__ = ["MAX_RESTARTS", "RESTART_WINDOW", "Faults", "Pool"]

_STEP: int = _core.Command.STEP
_REQUEST: int = _core.Command.REQUEST
# Bytes of a side channel. What is larger goes in parts.
SIDE_CHANNEL = 1 << 16
# How long a worker may take until it reads what finds no room otherwise, in seconds.
_PATIENCE = 60.0
# How long a pool that ends waits until its workers are reaped, in seconds.
_REAPING = 2.0
# How often to look whether a worker that closes has died, in seconds.
_LOOK = 0.05


_log = logging.getLogger("pysampler")

# What users get if they say nothing about how often a worker may be replaced.
MAX_RESTARTS = 3
RESTART_WINDOW = 10.0


def _no_notes(members: range) -> list[Note]:
    return [Replace([0] * len(members))]


@dataclass(frozen=True)
class Faults:
    """What to do about workers that are lost, and members that do not answer."""

    on_worker_loss: Literal["raise", "restart"] = "raise"
    # More restarts of one worker than this within that many seconds end the pool all the same.
    max_restarts: int = MAX_RESTARTS
    restart_window: float = RESTART_WINDOW
    step_timeout: float | None = None
    on_hang: Literal["raise", "wait", "restart"] = "raise"


class Pool:
    """Workers that serve what ``make(share)`` says: a function that makes a host, and arguments.

    ``restore``: what members that replaced lost ones are asked in the place of a step.
    ``for_replaced``: what such members are told first, whatever they are asked.
    """

    def __init__(
        self,
        shares: Sequence[Share],
        make: Callable[[Share], tuple[Callable[..., Any], tuple[Any, ...]]],
        *,
        context: str = "nursery",
        preload: Sequence[str] | None = None,
        policy: tuple[int, int] | None = None,
        faults: Faults | None = None,
        restore: Job | None = None,
        for_replaced: Callable[[range], Sequence[Note]] = _no_notes,
    ) -> None:
        self.shares = list(shares)
        self.closed = False  # or its workers are being ended
        self._gone = False  # that is done
        self.groups = [len(share.sizes) for share in shares]
        self.members = [part for share in self.shares for part in share.parts]  # of each group
        self.worker_of = [w for w, count in enumerate(self.groups) for _ in range(count)]
        self._policy = policy
        self._faults = faults or Faults()
        self._learn_modules = preload is None and context == "nursery"
        self._layouts = 0
        self._restore = restore
        self._for_replaced = for_replaced
        self._jobs: dict[int, Job] = {}  # what groups are at, where it is not a step
        self._standing: dict[type[Note], dict[int, bytes]] = {}  # by worker
        self._losses: list[list[tuple[float, WorkerLostError]]] = [[] for _ in shares]
        # Lost workers, by index, until others are in their place.
        self._replacing: dict[int, WorkerLostError] = {}
        self._parts: list[_core.Part] = []  # that every worker is beside its own
        self._told_late: set[tuple[int, int]] = set()
        hosts = [make(share) for share in shares]
        if context == "nursery":  # what makes a host is imported once, and not in every worker
            nursery.preload([hosts[0][0].__module__, *(preload or ())])
        self._processes = Processes(
            self.shares,
            hosts,
            context,
            replaceable="restart" in (self._faults.on_worker_loss, self._faults.on_hang),
        )
        self.descriptions = self._processes.descriptions

    def lay_out(self, segment: Segment, attach: Attach) -> None:
        """Let the workers work on what lies in a segment.

        The first time, attach them to everything else too. Nothing may be in flight. One that is
        interrupted must be repeated before anything else is asked.
        """
        self._layout = Layout(self._layouts + 1, attach)
        self._frames_segment = segment
        self._layouts += 1
        if not hasattr(self, "_core"):
            self._attach()
            return
        # A worker that is lost meanwhile, and replaced, begins with this segment.
        self._finish_replacing()
        for index in range(len(self.shares)):
            self._processes.lay_out(index, (self._layout, segment.fd))
        heads = [self._groups_of(index).start for index in range(len(self.shares))]
        self._send(dict.fromkeys(heads, LayOut(self._layout.number)), dict.fromkeys(heads, 0))
        answers = self.wait() or []
        self.take_all()
        for answer in answers:
            if isinstance(answer.result, Failure):
                raise self.error_of(answer.group, answer.result)
        parts, self._parts = self._parts, []  # of what lay beside the last frames
        for index in range(len(self.shares)) if parts else ():
            self._watch_worker(index)

    def _attach(self) -> None:
        workers, members = len(self.shares), self.shares[-1].members.stop
        counters_size = Counters.size_of(members, workers)
        rings = 2 * workers * _core.ByteRing.size_of(SIDE_CHANNEL)
        pool_size = _core.Pool.size_of(self.groups)
        segment = self._segment = Segment(counters_size + pool_size + rings + 4096)
        counters_at, counted = segment.array((counters_size,), np.dtype(np.uint8), None)
        self._counters = Counters(members, workers, counted)
        self._counters.workers["env"] = -1
        weights = [size for share in self.shares for size in share.sizes]
        policy = wait_policy(self._policy)
        self._core = _core.Pool(segment, self.groups, weights, SIDE_CHANNEL, policy)
        self._outboxes = [_core.ByteRing(segment, SIDE_CHANNEL) for _ in self.shares]
        self._mail = [self._inbox(index) for index in range(workers)]
        self._attachments = [
            Attachment(
                pool=self._core.offset,
                groups=self.groups,
                inbox=self._core.inbox(index),
                outbox=self._outboxes[index].offset,
                capacity=SIDE_CHANNEL,
                members=members,
                counters=counters_at,
                policy=self._policy,
            )
            for index in range(workers)
        ]
        self._watch = Watch()
        self._processes.attach(
            self._attachments, segment.fd, (self._layout, self._frames_segment.fd)
        )
        for index in range(workers):
            self._watch_worker(index)
        if self._learn_modules:
            self._processes.preload()

    def _inbox(self, index: int) -> Inbox:
        socket = functools.partial(self._processes.socket_of, index)
        return Inbox(self._outboxes[index], self._groups_of(index), socket)

    def _watch_worker(self, index: int) -> None:
        self._watch.add(
            self._processes.children[index].pid,
            *self._parts,
            self._core.worker(index),
            self._outboxes[index].producer(),
            alone=True,
        )

    def watch_also(self, part: _core.Part) -> None:
        """Marked lost when a worker dies, until frames are laid out anew."""
        self._parts.append(part)
        for child in self._processes.children:
            self._watch.add(child.pid, part)

    def look_for_late(self) -> None:
        """Do about late envs what is to be done."""
        if self._faults.step_timeout is not None:
            self._look_for_late(int(self._faults.step_timeout * 1e9))

    def _groups_of(self, index: int) -> range:
        first = sum(self.groups[:index])
        return range(first, first + self.groups[index])

    # -- what there is to know -------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of the workers."""
        return [child.pid for child in self._processes.children]

    @property
    def pending(self) -> int:
        """How many envs are at work, or done and not received yet."""
        return self._core.pending_weight

    @property
    def ready(self) -> int:
        """How many of those are done."""
        return self._core.ready_weight

    def is_pending(self, group: int) -> bool:
        """Whether the group has an uncollected command."""
        return self._core.in_flight(group)

    def busy_seconds(self) -> float:
        """How long all envs together have been at work."""
        return self._counters.busy_seconds()

    def stats(self) -> Stats:
        """What envs and workers have done."""
        losses = [len(some) for some in self._losses]
        return Stats.of(self._counters, [share.members for share in self.shares], losses)

    # -- commands --------------------------------------------------------------------------------

    def step(self, frame: int) -> None:
        """Let every group step, reading actions from the frame and writing results to it."""
        if self._jobs or self._replacing or self._core.any_new():
            self.step_some([(group, frame) for group in range(len(self.members))])
        elif not self._core.step(frame):
            self._flush()

    def step_some(self, parts: Sequence[tuple[int, int]]) -> None:
        """Let some groups step, each with its frame."""
        if self._replacing or self._core.any_new():
            frames = dict(parts)
            self._send(dict.fromkeys(frames), frames)
            return
        if self._jobs:
            for group, _ in parts:
                self._jobs.pop(group, None)
        if not self._core.step_some(parts):
            self._flush()

    def request(self, parts: Iterable[tuple[int, int]], jobs: Mapping[int, Job]) -> None:
        """Give groups jobs, each with the frame that ``parts`` says."""
        self._send(jobs, dict(parts))

    def _send(self, jobs: Mapping[int, Job | None], frames: Mapping[int, int]) -> None:
        """Give groups jobs, each with its frame; None is a step. All get theirs, or none."""
        self._finish_replacing()
        settled: list[int] = []
        if self._core.any_new():
            jobs = {group: self._for_new(group, job, settled) for group, job in jobs.items()}
        # Pickled before the first is sent: what cannot be leaves no group waiting.
        commands = [self._command(group, job, frames[group]) for group, job in jobs.items()]
        for group, job in jobs.items():  # says nothing of groups that are not in flight
            if job is None:
                self._jobs.pop(group, None)
            else:
                self._jobs[group] = job
        if not self._core.send(commands, settled):
            self._flush()

    def _command(
        self, group: int, job: Job | None, frame: int
    ) -> tuple[int, int, int, bytes | None]:
        if job is None:
            return group, _STEP, frame, None
        return group, _REQUEST, frame, dumps_by_value(job)

    def _for_new(self, group: int, job: Job | None, settled: list[int]) -> Job | None:
        """Return what a group is asked whose members may have replaced lost ones.

        Groups that need not hear of that again are added to ``settled``.
        """
        if self._core.is_new(group):
            job = self._restore if job is None else job.for_replaced()
        if job is not None and job.settles == "worker":
            settled += self._groups_of(self.worker_of[group])
        elif job is not None and job.settles == "group":
            settled.append(group)
        return job

    def note(self, note_for: Callable[[range], Note | None], *, standing: bool = False) -> None:
        """Tell workers something before their next command: a note for their members, or None.

        If it is standing, also those that replace lost ones, until there is another note of the
        same class or ``drop_standing``. Any thread may call it while another samples.
        """
        notes = {
            index: note
            for index, share in enumerate(self.shares)
            if (note := note_for(share.members)) is not None
        }
        messages = {index: dumps_by_value(note) for index, note in notes.items()}
        for kind in {type(note) for note in notes.values()} if standing else ():
            self._standing[kind] = messages
        self._core.note(list(messages.items()))

    def drop_standing(self) -> None:
        """Tell workers that replace lost ones no standing notes any more."""
        self._standing.clear()

    def _flush(self) -> None:
        """Wait until all that was sent has gone. What is interrupted goes with the next wait."""
        try:
            if self._core.flush(_PATIENCE):
                return
        except LostError as error:
            self._lost(error)
            return
        self.kill()
        raise PysamplerError(
            f"cannot send to workers: one has not read a message for {_PATIENCE:.0f} s"
        )

    # -- completions -----------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[Answer] | None:
        """Return what groups answered beside what is in the frame, once all have come back.

        None if not all that is in flight came back in time. All stays in flight, and is returned
        again, until it is taken.
        """
        deadline = None if timeout is None else now() + int(timeout * 1e9)
        while True:
            if self._replacing:
                self._finish_replacing()
            try:
                if not self._until(self._core.wait, deadline):
                    return None
                if not self._core.has_messages():
                    return []
                answers = self._received(self._core.messages, deadline)
            except LostError as error:
                self._lost(error)
                continue
            return None if len(answers) < len(self._core.messages) else answers

    def wait_some(
        self, least: int, most: int, deadline: int | None
    ) -> tuple[list[int], list[Answer]]:
        """Return groups that came back, longest ready first, and what they answered.

        As soon as they have ``least`` members or are all, or at the deadline in ns; groups of up to
        ``most`` members. Take them.
        """
        groups: list[int] = []

        def wait(*, deadline: int | None) -> bool:
            groups[:] = self._core.wait_some(least, most, deadline=deadline)
            return self._core.satisfied

        while True:
            if self._replacing:
                self._finish_replacing()
            try:
                self._until(wait, deadline)
                if not self._core.has_messages():
                    return groups, []
                answers = self._received(self._core.messages, deadline)
            except LostError as error:
                self._lost(error)
                continue
            unsaid = set(self._core.messages) - {answer.group for answer in answers}
            return [group for group in groups if group not in unsaid], answers

    def wait_for(self, groups: Sequence[int]) -> list[Answer]:
        """Wait until exactly these groups are back; return what they answered. Take them."""
        everyone = self.shares[-1].members.stop
        while True:
            back, answers = self.wait_some(0, everyone, 0)
            if set(groups) <= set(back):
                by_group = {answer.group: answer for answer in answers}
                return [by_group[group] for group in groups if group in by_group]
            self.wait_some(self.ready + 1, everyone, None)

    def take_all(self) -> None:
        """All that is in flight has come back, and what there was to say was received."""
        self._core.take_all()

    def take(self, groups: Sequence[int]) -> None:
        """These have come back, and what they had to say was received."""
        self._core.take(groups)
        for group in groups:
            self._mail[self.worker_of[group]].drop(group)

    def _until(self, wait: Callable[..., bool], deadline: int | None) -> bool:
        """Whether ``wait`` was over in time, looking for late envs meanwhile."""
        if self._faults.step_timeout is None:
            return wait(deadline=deadline)
        patience = int(self._faults.step_timeout * 1e9)
        look = now() + patience
        while True:
            until = look if deadline is None else min(look, deadline)
            over = wait(deadline=until)
            if over or until == deadline:
                return over
            since = self._look_for_late(patience)
            look = min(since, now()) + patience

    def _received(self, groups: Iterable[int], deadline: int | None) -> list[Answer]:
        """Return the answers of groups, as far as they have come by then."""
        answers: list[Answer] = []
        with contextlib.suppress(WaitTimeoutError):
            for group in groups:
                number = self._core.number_of(group)
                message = self._mail[self.worker_of[group]].read(group, number, deadline)
                try:
                    said = pickle.loads(message)
                except Exception as error:
                    said = self._unreadable(group, message, error)
                job = self._jobs.get(group)
                answers.append(Answer(group, said, None if job is None else job.replaces))
        return answers

    def _unreadable(self, group: int, message: bytes | memoryview, error: Exception) -> Failure:
        """Return what is wrong with an answer: this process lacks what the worker has.

        An exception of a signal handler does not come again: it is raised, and the answer is read
        by the next wait.
        """
        try:
            pickle.loads(message)
        except Exception as again:
            doing = f"when {self._doing(group)}, in its answer"
            return Failure(None, doing, report(again))
        raise error

    def _doing(self, group: int) -> str:
        return self._jobs[group].doing if group in self._jobs else "stepping"

    # -- what goes wrong -------------------------------------------------------------------------

    def error_of(self, group: int, failure: Failure) -> EnvError:
        """The exception an env of a group raised, or its worker for it."""
        return self._processes.error_of(self.worker_of[group], failure, self._doing(group))

    def late(self, patience: int) -> list[tuple[int, int, int]]:
        """(worker, env, since) of members that have been at work for ``patience`` ns."""
        envs, since = self._counters.at_work()
        begun = now() - patience
        return [
            (index, int(env), int(since[index]))
            for index, env in enumerate(envs)
            if env in self.shares[index].members and since[index] <= begun
        ]

    def _look_for_late(self, patience: int) -> int:
        """Do about late envs what is to be done; since when the next to be late is at work."""
        for index, env, since in self.late(patience):
            seconds = (now() - since) / 1e9
            what = (
                f"env {env} in worker {index} (pid {self.pids[index]}) has not answered for "
                f"{seconds:.3g} s, step_timeout is {self._faults.step_timeout:.3g} s"
            )
            if self._faults.on_hang == "restart":
                self._processes.children[index].kill()
                self._replace(index, f"killed, since {what},")
            elif self._faults.on_hang == "raise":
                error = EnvTimeoutError(what)
                error.env, error.worker = env, index
                raise error
            elif (index, since) not in self._told_late:
                self._told_late.add((index, since))
                warnings.warn(what, stacklevel=2)
        envs, begun = self._counters.at_work()
        soon = now() - patience
        at_work = [int(s) for e, s in zip(envs, begun, strict=True) if e >= 0 and s > soon]
        return min(at_work, default=now())

    def _lost(self, error: LostError, group: int | None = None) -> None:
        """Replace who was lost, or end the pool and tell of it."""
        if self.closed:  # and that is what it tells
            raise error
        groups = list(error.members) or ([] if group is None else [group])
        lost = {i for i, child in enumerate(self._processes.children) if child.ended()}
        if not lost:
            said = sorted({self.worker_of[group] for group in groups})
            self.kill()
            raise LayoutError(
                f"cannot go on: workers {said} are said to be lost, and live; the segment was "
                "written to by something else"
            ) from None
        for index in sorted(lost):
            if self._faults.on_worker_loss == "raise":
                told = self._told(index)
                self.kill()
                raise told from None
            self._replace(index)

    def _told(self, index: int, why: str = "") -> WorkerLostError:
        at = self._counters.workers["env"][index]
        doing = self._doing(self._groups_of(index).start)
        error = self._processes.lost(index, doing, why)
        if at in self.shares[index].members and len(error.envs) > 1:
            error.args = (f"{error.args[0]}, at env {at}",)
        return error

    def _finish_replacing(self) -> None:
        """Go on where an exception of a signal handler came into a replacement."""
        for index in list(self._replacing):
            self._replace(index)

    def _replace(self, index: int, why: str = "") -> None:
        """Another process takes a worker's place, with new envs.

        Each step may be repeated: one that is interrupted is gone through again from the beginning.
        """
        child = self._processes.children[index]
        if index not in self._replacing:
            if not child.ended(GRACE):
                self.kill()
                raise PysamplerError(f"cannot replace worker {index}: pid {child.pid} does not end")
            error = self._told(index, why)
            self._count_loss(index, error)
            self._replacing[index] = error
        error = self._replacing[index]
        child.kill()  # one that took its place, and was not told everything
        child.ended(GRACE)
        self._watch.settle(child.pid)  # marks must not hit who comes next
        self._core.renew(index)
        self._outboxes[index].renew()
        self._mail[index] = self._inbox(index)
        # Making envs counts as work of the first, which may take longer than a step.
        start = now() + int(GRACE * 1e9)
        self._counters.begin(index, self.shares[index].members.start, start)
        try:
            frames = self._layout, self._frames_segment.fd
            self._processes.replace(index, self._attachments[index], self._segment.fd, frames)
        except (OSError, PysamplerError) as cause:
            self.kill()
            raise error from cause
        self._watch_worker(index)
        self._core.note([(index, note) for note in self._notes_for_replaced(index)])
        self._ask_again(index, error)
        del self._replacing[index]
        _log.warning("%s; another worker takes its place", error)
        if self._core.unsent:
            self._flush()

    def _count_loss(self, index: int, error: WorkerLostError) -> None:
        """Remember a loss; raise it if there were too many."""
        at = time.monotonic()
        most, window = self._faults.max_restarts, self._faults.restart_window
        losses = self._losses[index]
        if not losses or losses[-1][1].pid != error.pid:
            losses.append((at, error))
        recent = [(t, e) for t, e in losses if at - t <= window]
        if len(recent) > most or error.__cause__ is not None:  # it could not even start
            self.kill()
            if story := "; ".join(f"{at - t:.1f} s ago {e}" for t, e in recent[:-1]):
                error.args = (f"{error.args[0]}; it was replaced before: {story}",)
            raise error

    def _notes_for_replaced(self, index: int) -> list[bytes]:
        notes = self._for_replaced(self.shares[index].members)
        standing = [by[index] for by in list(self._standing.values()) if index in by]
        return [*map(dumps_by_value, notes), *standing]

    def _ask_again(self, index: int, error: WorkerLostError) -> None:
        """Give groups what they were at when their worker was lost, or a job in its place."""
        settled: list[int] = []
        commands = []
        for group in self._groups_of(index):
            if not self._core.owed(group):
                continue
            job = self._jobs.get(group)
            job = None if job is None else job.after_loss(str(error))
            job = self._for_new(group, job, settled)
            commands.append(self._command(group, job, self._core.frame_of(group)))
            if job is not None:
                self._jobs[group] = job
        self._core.send(commands, settled)

    # -- ending ----------------------------------------------------------------------------------

    def give_up_wait(self) -> None:
        """In a signal handler that closes: end the wait that it has interrupted."""
        self._core.give_up_wait()

    def close(self, grace: float = GRACE) -> None:
        """Let the workers close their envs and end. EnvError if an env raised in close()."""
        failed: EnvError | None = None
        try:
            if not (self.closed or self._core.pending or self._core.unsent or self._replacing):
                self._faults = Faults()
                failed = self._close_workers(grace)
        except BusyError:  # a signal handler has come into the reading of a message
            pass
        finally:
            self.kill()
        if failed is not None:
            raise failed

    def _close_workers(self, grace: float) -> EnvError | None:
        deadline = time.monotonic() + grace
        close = Close()
        # From here on their end is no loss.
        children = self._processes.children
        first = {self._groups_of(i).start: child for i, child in enumerate(children)}
        for child in children:
            self._watch.forget(child.pid)
        self._jobs.update(dict.fromkeys(first, close))
        self._core.send([self._command(group, close, 0) for group in first])
        while not self._closed_by(min(time.monotonic() + _LOOK, deadline)):
            for group, child in first.items():
                if child.ended() and not self._core.is_ready(group):
                    self._core.take([group])
            if time.monotonic() >= deadline:
                return None
        failures = [
            (group, said)
            for group, said, _ in self._received(self._core.messages, _ns(deadline))
            if isinstance(said, Failure)
        ]
        await_ends(children, deadline)
        return self.error_of(*failures[0]) if failures else None

    def _closed_by(self, deadline: float) -> bool:
        """Return whether all that is in flight is back. Losses of before are forgotten."""
        try:
            return self._core.wait(deadline=_ns(deadline))
        except LostError:
            self._core.forget_losses()
            return False

    def kill(self, wait: float = _REAPING) -> None:
        """End the workers, whatever they are doing, and give everything back. May be repeated.

        Waits up to ``wait`` seconds until the processes are reaped. A finalizer passes 0.
        """
        self.closed = True
        if self._gone:
            return
        self._processes.end(wait)
        if hasattr(self, "_watch"):
            self._watch.close()
            self._core.close()
            for ring in self._outboxes:
                ring.close()
            self._segment.close()
            self._frames_segment.close()
        self._counters = None  # type: ignore[assignment]
        self._gone = True

    def __repr__(self) -> str:
        return f"<pysampler Pool {len(self.shares)} workers{', closed' * self.closed}>"


def _ns(at: float) -> int:
    """Of time.monotonic(), as of now()."""
    return int(at * 1e9)
