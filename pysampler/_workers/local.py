"""A pool without workers, for debugging: the host lives in the process of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._workers.counters import Counters, Stats
from pysampler._workers.exceptions import error_from
from pysampler._workers.gauges import Gauges
from pysampler._workers.jobs import Answer, Failure, failure_of, is_users
from pysampler.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pysampler import _core
    from pysampler._workers.jobs import Attach, Host, Job, Note
    from pysampler._workers.processes import Share
    from pysampler.errors import EnvError
    from pysampler.sync import Segment

__all__ = ["LocalPool"]


class LocalPool:
    """A pool like ``Pool`` without processes: each call returns once its commands are done."""

    core = None  # there are no workers to command
    track = None  # nor is there a trace
    patience = None  # seconds after which a member of a worker is late

    def __init__(
        self,
        share: Share,
        make: Callable[[Share], tuple[Callable[..., Host], tuple[Any, ...]]],
    ) -> None:
        self.pids: list[int] = []
        self.closed = False
        self.members = share.parts
        self.groups = [len(share.sizes)]
        self.worker_of = [0] * len(share.sizes)
        self._share = share
        self._groups = range(len(share.parts))
        self._doing = "being made"
        self._done: list[int] = []  # groups, those that have been done for longest first
        self._results: dict[int, Any] = {}  # of groups that have more than what is in the frame
        function, arguments = make(share)
        try:
            host = function(*arguments)
            host.here = True
            self.descriptions = [host.describe()]
        except Exception as error:
            raise self.error_of(0, failure_of(error, "being made")) from error.__cause__
        self._host: Host | None = host
        members = share.members.stop
        self._counters = Counters(members, 1, np.zeros(Counters.size_of(members, 1), np.uint8))
        self.gauges = Gauges.unread(1)
        host.count_with(self._counters.meter(0), self.gauges.of(0))

    def count_in(self, counters: Counters, gauges: Gauges, row: int, track: _core.Track) -> None:
        """Count with the workers of a team, in a row of theirs, and trace to this track."""
        meter = counters.meter(row)
        meter.trace_to(track)
        meter.idle()
        self._open_host().count_with(meter, gauges.of(row))

    def lay_out(self, segment: Segment, attach: Attach) -> None:
        """Attach the host to a segment, such as one with frames."""
        self.gauges.clear()
        attach.attach(self._open_host(), segment)

    @property
    def own_groups(self) -> int:
        """The number of groups that this process serves itself."""
        return len(self._groups)

    @property
    def plain(self) -> bool:
        """Whether no group has more than what is in the frame."""
        return not self._results

    @property
    def pending(self) -> int:
        """The number of envs that are done and have not been received."""
        return sum(len(self.members[group]) for group in self._done)

    @property
    def ready(self) -> int:
        """The number of envs that are done: the same as ``pending`` here."""
        return self.pending

    def is_pending(self, group: int) -> bool:
        """Return whether the group has a command that has not been collected."""
        return group in self._done

    def step(self, frame: int) -> None:
        """Step every group with a frame."""
        self.step_some([(group, frame) for group in self._groups])

    def round(self, frame: int) -> list[Answer]:
        """Let every group step, wait for all, and take them; return what they answered."""
        self.step(frame)
        answers = self.wait()
        self.take_all()
        return answers

    def step_some(self, parts: Sequence[tuple[int, int]], token: Any = None) -> None:
        """Step some groups, each with its frame.

        Args:
            parts: The groups and frames.
            token: Whatever is passed again where this is repeated because an exception of the
                user's has ended it: then it goes on with the env that was at work.
        """
        self._doing = "stepping"
        token = object() if token is None else token
        try:
            host = self._open_host()
            for group, frame in parts:
                left = host.blocks[group].step_once(frame, token)
                if self._host is None or left:
                    self._results[group] = self._open_host().leftovers(group)
                self._done.append(group)
        except BaseException:
            self._cancel(parts)
            raise

    def request(self, parts: Sequence[tuple[int, int]], jobs: Mapping[int, Job]) -> None:
        """Give groups jobs; ``parts`` are the groups, each with its frame."""
        try:
            frames = dict(parts)
            host = self._open_host()
            for group, job in jobs.items():
                self._doing = job.doing
                try:
                    self._results[group] = job.run(host, group, frames[group])
                except BaseException as error:
                    if is_users(error, here=True):
                        raise
                    self._results[group] = failure_of(error, job)
                self._done.append(group)
        except BaseException:
            self._cancel(parts)
            raise

    def _open_host(self) -> Host:
        """Return the host; ClosedError if a signal handler has closed it meanwhile."""
        if self._host is None:
            raise ClosedError("cannot go on: the envs were closed meanwhile")
        return self._host

    def _cancel(self, parts: Sequence[tuple[int, int]]) -> None:
        """Let no group of an interrupted command (Ctrl-C) be done."""
        self.take([group for group, _ in parts])

    def note(
        self,
        note_for: Callable[[range], Note | None],
        *,
        standing: bool = False,  # noqa: ARG002
    ) -> None:
        """Apply a note to the host: the one for its members, unless that is None."""
        note = note_for(self._share.members)
        if note is not None:
            note.apply(self._open_host())

    def drop_due(self) -> None:
        """Do nothing: what was interrupted is not done."""

    def drop_standing(self) -> None:
        """Do nothing: no worker is replaced here."""

    def busy_seconds(self) -> float:
        """Return for how long all envs together have been at work."""
        return self._counters.busy_seconds()

    def stats(self) -> Stats:
        """Return what envs have done."""
        return Stats.of(self._counters, [self._share.sizes], [0])

    def watch_also(self, part: Any) -> None:
        """Do nothing: there is no other process that could die."""

    def look_for_late(self) -> None:
        """Do nothing: this process cannot look while an env is at work."""

    def late(self, patience: int) -> list[tuple[int, int, int]]:  # noqa: ARG002
        """Return no member: this process cannot look while an env is at work."""
        return []

    def paused_ns(self, since: int) -> int:  # noqa: ARG002
        """Return 0: nothing is waited for."""
        return 0

    def stopped(self) -> bool:
        """Return False: this process runs."""
        return False

    def wait(self, timeout: float | None = None) -> list[Answer]:  # noqa: ARG002
        """Return what groups answered besides what is in the frame."""
        return [Answer(group, result) for group, result in self._results.items()]

    def wait_some(
        self,
        min_members: int,  # noqa: ARG002
        max_members: int,
        deadline: int | None,  # noqa: ARG002
    ) -> tuple[list[int], list[Answer]]:
        """Return groups that are done and their answers. They stay pending until they are taken."""
        groups = []
        for group in self._done:
            max_members -= len(self.members[group])
            if max_members < 0:
                break
            groups.append(group)
        return groups, self.wait_for(groups)

    def wait_for(self, groups: Sequence[int]) -> list[Answer]:
        """Return the answers of these groups. They stay pending until they are taken."""
        return [Answer(group, self._results[group]) for group in groups if group in self._results]

    def take_all(self) -> None:
        """Mark all groups as received."""
        self._done, self._results = [], {}

    take_own = take_all  # as of a Team

    def take(self, groups: Collection[int]) -> None:
        """Mark these groups as received."""
        self._done = [group for group in self._done if group not in groups]
        for group in groups:
            self._results.pop(group, None)

    def error_of(self, group: int, failure: Failure) -> EnvError:  # noqa: ARG002
        """Return the error for an exception that an env raised, or the host."""
        error = error_from(failure.report, self._share.describe(failure, "", self._doing))
        error.env = failure.member
        return error

    def give_up_wait(self) -> None:
        """Do nothing: no call waits here."""

    def close(self) -> None:
        """Close the envs, or raise EnvError if an env cannot be closed."""
        self.close_here()

    def close_here(self) -> None:
        """Close the envs, and let go of the memory, unless that was done; or raise EnvError."""
        self.closed = True
        host, self._host = self._host, None
        if host is None:
            return
        try:
            host.close()
        except Exception as error:
            raise self.error_of(0, failure_of(error, "close()")) from error.__cause__

    def kill(self, wait: float = 0) -> None:  # noqa: ARG002
        """Mark the pool as closed, without closing the envs."""
        self.closed = True

    def __repr__(self) -> str:
        return f"<pysampler LocalPool{', closed' * self.closed}>"
