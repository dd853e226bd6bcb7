"""Workers together with the process of the caller, which serves some of the members itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pysampler._workers.jobs import Answer
from pysampler._workers.local import LocalPool
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pysampler import _core
    from pysampler._workers.counters import Stats
    from pysampler._workers.gauges import Gauges
    from pysampler._workers.jobs import Attach, Failure, Job, Note
    from pysampler._workers.pool import Pool
    from pysampler._workers.processes import Share
    from pysampler.errors import EnvError
    from pysampler.sync import Segment

__all__ = ["Team", "with_main"]


def with_main(
    workers: Pool,
    share: Share,
    make: Callable[[Share], tuple[Callable[..., Any], tuple[Any, ...]]],
) -> Team:
    """Return a team of workers and this process, whose host is made here.

    If that raises, the workers are ended.
    """
    try:
        return Team(workers, LocalPool(share, make))
    except BaseException:
        workers.kill()
        raise


class Team:
    """A pool whose last members live in this process.

    A call that sends commands sends those of the workers first, then does this process's own. What
    Ctrl-C interrupts of these is ``due``, and done by the next wait: a step goes on where it was, a
    job begins anew.

    Args:
        workers: The workers, with the first members; their counters have a row for this process.
        main: This process, with the others.
    """

    def __init__(self, workers: Pool, main: LocalPool) -> None:
        self._workers = workers
        self._main = main
        self._counted = False  # whether this process counts with the workers
        self._first = len(workers.members)  # group of this process
        self.members = workers.members + main.members
        self.groups = workers.groups + main.groups
        self.worker_of = workers.worker_of + [len(workers.groups)] * len(main.members)
        self.descriptions = workers.descriptions + main.descriptions
        workers.descriptions.clear()  # spaces may be large
        self._main_groups = range(len(main.members))
        self._everyone = main.members[-1].stop
        # Of each group of this process: those of workers that were back before it was done.
        self._before: list[Sequence[int]] = [()] * len(main.members)
        # By group of this process: the frame and the job (None: a step) that it has yet to do.
        self.due: Mapping[int, tuple[int, Job | None]] = {}

    def lay_out(self, segment: Segment, attach: Attach) -> None:
        """Let all work on what lies in a segment."""
        workers = self._workers
        workers.lay_out(segment, attach)
        if not self._counted:
            row = len(workers.shares)
            self._main.count_in(workers.counters, workers.gauges, row, workers.track)
            self._counted = True
        self._main.lay_out(segment, attach)

    def watch_also(self, part: _core.Part) -> None:
        """Mark this part as lost when a worker dies, until frames are laid out anew."""
        self._workers.watch_also(part)

    # -- states ----------------------------------------------------------------------------------

    @property
    def core(self) -> _core.Pool:
        """The commands and completions of the workers."""
        return self._workers.core

    @property
    def track(self) -> _core.Track:
        """The track of this process in the workers' trace."""
        return self._workers.track

    @property
    def number(self) -> int:
        """The number of the workers' segment."""
        return self._workers.number

    @property
    def gauges(self) -> Gauges:
        """What all workers and samplers note for programs that look on."""
        return self._workers.gauges

    @property
    def own_groups(self) -> int:
        """The number of groups that this process serves itself."""
        return len(self._main_groups)

    @property
    def plain(self) -> bool:
        """Whether the next command to each group is like the last one, a step."""
        return self._workers.plain and not self.due

    @property
    def patience(self) -> float | None:
        """The seconds after which a member of a worker is late; None if none ever is."""
        return self._workers.patience

    @property
    def closed(self) -> bool:
        """Whether the workers have ended, or are being ended."""
        return self._workers.closed

    @property
    def pids(self) -> list[int]:
        """The pids of the workers."""
        return self._workers.pids

    @property
    def pending(self) -> int:
        """The number of members that are at work, or done and not taken yet."""
        # What is due may be done already, and only not be crossed off yet.
        due = (group for group in self.due if not self._main.is_pending(group))
        waits = sum(len(self._main.members[group]) for group in due)
        return self._workers.pending + self._main.pending + waits

    @property
    def ready(self) -> int:
        """The number of those that are done."""
        return self._workers.ready + self._main.ready

    def is_pending(self, group: int) -> bool:
        """Return whether the group has an uncollected command."""
        if group < self._first:
            return self._workers.is_pending(group)
        own = group - self._first
        return own in self.due or self._main.is_pending(own)

    def busy_seconds(self) -> float:
        """Return how long all members together have been at work."""
        return self._workers.busy_seconds()

    def stats(self) -> Stats:
        """Return what members and workers have done. The last worker is this process."""
        return self._workers.stats()

    def late(self, patience: int) -> list[tuple[int, int, int]]:
        """Return (worker, member, since) of workers' members that have been at work for so long."""
        return self._workers.late(patience)

    def look_for_late(self) -> None:
        """Do what is to be done about members of workers that are late."""
        self._workers.look_for_late()

    def paused_ns(self, since: int) -> int:
        """Return how long this process did not run since then, in ns."""
        return self._workers.paused_ns(since)

    def stopped(self) -> bool:
        """Return whether a worker is stopped, as by SIGSTOP."""
        return self._workers.stopped()

    def error_of(self, group: int, failure: Failure) -> EnvError:
        """Return the exception that a member of a group raised, or its host."""
        if group < self._first:
            return self._workers.error_of(group, failure)
        return self._main.error_of(group - self._first, failure)

    # -- commands --------------------------------------------------------------------------------

    def step(self, frame: int) -> None:
        """Let every group step."""
        due: dict[int, tuple[int, Job | None]] = dict.fromkeys(self._main_groups, (frame, None))
        self._send(due, range(self._first), lambda: self._workers.step(frame))
        self.do_due()

    def round(self, frame: int) -> list[Answer]:
        """Let every group step, wait for all, and take them; return what they answered."""
        self.step(frame)
        answers = self.wait() or []
        self.take_all()
        return answers

    def step_some(self, parts: Sequence[tuple[int, int]]) -> None:
        """Let some groups step, each with its frame."""
        theirs = [(group, frame) for group, frame in parts if group < self._first]
        due: dict[int, tuple[int, Job | None]] = {
            group - self._first: (frame, None) for group, frame in parts if group >= self._first
        }
        send = (lambda: self._workers.step_some(theirs)) if theirs else None
        self._send(due, [group for group, _ in theirs], send)
        self._do_in_order()

    def request(self, parts: Iterable[tuple[int, int]], jobs: Mapping[int, Job]) -> None:
        """Give groups jobs, each with the frame that ``parts`` says."""
        frames = dict(parts)
        theirs = {group: job for group, job in jobs.items() if group < self._first}
        due: dict[int, tuple[int, Job | None]] = {
            group - self._first: (frames[group], job)
            for group, job in jobs.items()
            if group >= self._first
        }
        send = (lambda: self._workers.request(frames.items(), theirs)) if theirs else None
        self._send(due, theirs, send)
        self._do_in_order()

    def _send(
        self,
        due: Mapping[int, tuple[int, Job | None]],
        theirs: Iterable[int],
        send: Callable[[], None] | None,
    ) -> None:
        """Send the workers' commands, and let this process's be due: all of it, or nothing."""
        before = self.due
        self.due = {**before, **due}  # no exception can come between sending this and that
        try:
            if send is not None:
                send()
        except BaseException:
            if not any(map(self._workers.is_pending, theirs)):
                self.due = before
            raise

    def do_due(self) -> bool:
        """Do what this process has yet to do; return whether all of it is in the frame."""
        while self.due:
            self._do_next()
        return self._main.plain

    def _do_in_order(self) -> None:
        """Do what is due, and remember which workers' groups were back before each of it."""
        core = self._workers.core
        while self.due:
            own = self._do_next()
            self._before[own] = [
                one for one in range(self._first) if core.in_flight(one) and core.is_ready(one)
            ]

    def _do_next(self) -> int:
        """Do the first that is due; return its group, by this process's own numbers."""
        own, what = next(iter(self.due.items()))
        frame, job = what
        if not self._main.is_pending(own):
            if job is None:
                self._main.step_some([(own, frame)], token=what)
            else:
                self._main.request([(own, frame)], {own: job})
        self.due = {group: other for group, other in self.due.items() if group != own}
        return own

    def note(self, note_for: Callable[[range], Note | None], *, standing: bool = False) -> None:
        """Send each worker the note for its members, if it has one, before its next command."""
        self._workers.note(note_for, standing=standing)
        self._main.note(note_for)

    def drop_due(self) -> None:
        """Forget what this process has yet to do."""
        self.due = {}

    def drop_standing(self) -> None:
        """Send workers that replace lost ones no standing notes any more."""
        self._workers.drop_standing()

    # -- completions -----------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[Answer] | None:
        """Return what groups answered beside what is in the frame; None if not in time."""
        self.do_due()
        answers = self._workers.wait(timeout)
        return None if answers is None else answers + self._mine(self._main.wait())

    def wait_some(
        self, least: int, most: int, deadline: int | None
    ) -> tuple[list[int], list[Answer]]:
        """Return groups that came back, and what they answered; see ``Pool.wait_some``."""
        self._do_in_order()
        done, mine = self._main.wait_some(0, self._everyone, None)
        need = least - sum(len(self._main.members[own]) for own in done)
        back, answers = self._workers.wait_some(
            max(0, need), self._everyone, deadline if need > 0 else now()
        )
        groups = self._longest_ready_first(back, done)
        for count, group in enumerate(groups):
            most -= len(self.members[group])
            if most < 0:
                del groups[count:]
                break
        both = answers + self._mine(mine)
        return groups, [answer for answer in both if answer.group in groups]

    def _longest_ready_first(self, back: Sequence[int], done: Sequence[int]) -> list[int]:
        """Return groups of workers that are back, in that order, and own ones that are done."""
        groups: list[int] = []
        theirs = list(back)
        for own in done:
            while theirs and any(group in self._before[own] for group in theirs):
                groups.append(theirs.pop(0))
            groups.append(own + self._first)
        return groups + theirs

    def wait_for(self, groups: Sequence[int]) -> list[Answer]:
        """Wait until these groups are back; return what they answered."""
        self.do_due()
        theirs, own = self._split(groups)
        answers = self._workers.wait_for(theirs) if theirs else []
        return answers + self._mine(self._main.wait_for(own))

    def take_all(self) -> None:
        """Take all groups, which have come back and whose answers were received."""
        self._before = [()] * len(self._before)
        self._workers.take_all()
        self.take_own()

    def take_own(self) -> None:
        """Take all groups of this process."""
        self._main.take_all()

    def take(self, groups: Sequence[int]) -> None:
        """Take groups, which have come back and whose answers were received."""
        theirs, own = self._split(groups)
        self._before = [[one for one in before if one not in theirs] for before in self._before]
        self._workers.take(theirs)
        self._main.take(own)

    def _split(self, groups: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return the groups of workers, and those of this process by its own numbers."""
        theirs: list[int] = []
        own: list[int] = []
        for group in groups:
            if group < self._first:
                theirs.append(group)
            else:
                own.append(group - self._first)
        return theirs, own

    def _mine(self, answers: Iterable[Answer]) -> list[Answer]:
        return [Answer(group + self._first, *rest) for group, *rest in answers]

    # -- ending ----------------------------------------------------------------------------------

    def give_up_wait(self) -> None:
        """End the wait that was interrupted by the signal handler that calls this to close."""
        self._workers.give_up_wait()

    def close(self) -> None:
        """Let workers close their envs and end, and close this process's."""
        try:
            self._workers.close()
        finally:
            self._main.close()

    def close_here(self) -> None:
        """Close the envs of this process, unless that was done."""
        self._main.close_here()

    def kill(self, wait: float | None = None) -> None:
        """End the workers, whatever they are doing. May be repeated."""
        self._workers.kill(*(() if wait is None else (wait,)))
        self._main.kill()

    def __repr__(self) -> str:
        return f"<pysampler Team of {self._workers!r} and this process>"
