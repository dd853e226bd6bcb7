"""A pool without workers, for debugging: what they would serve lives in the caller's process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._workers.counters import Counters, Stats
from pysampler._workers.jobs import Answer, Failure, failure_of
from pysampler._workers.remote import error_from

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pysampler._workers.jobs import Attach, Host, Job, Note
    from pysampler._workers.processes import Share
    from pysampler.errors import EnvError
    from pysampler.sync import Segment

__all__ = ["LocalPool"]


class LocalPool:
    """What ``Pool`` is, in this process: everything is done when it is asked for."""

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
        self._asked = "being made"
        self._back: list[int] = []  # groups that are done, longest first
        self._said: dict[int, Any] = {}  # what they had to say
        function, arguments = make(share)
        try:
            self._host = function(*arguments)
        except Exception as error:
            raise self.error_of(0, failure_of(error, "being made")) from error.__cause__
        self.descriptions = [self._host.describe()]
        members = share.members.stop
        self._counters = Counters(members, 1, np.zeros(Counters.size_of(members, 1), np.uint8))
        self._host.count_with(self._counters.meter(0))

    def lay_out(self, segment: Segment, attach: Attach) -> None:
        """Let the host work on what lies in a segment."""
        attach.attach(self._host, segment)

    @property
    def pending(self) -> int:
        """How many envs are done and not received yet."""
        return sum(len(self.members[group]) for group in self._back)

    @property
    def ready(self) -> int:
        """The same: all is done when it is asked for."""
        return self.pending

    def is_pending(self, group: int) -> bool:
        """Whether a group is."""
        return group in self._back

    def step(self, frame: int) -> None:
        """Step every block."""
        self.step_some([(group, frame) for group in range(len(self.members))])

    def step_some(self, parts: Iterable[tuple[int, int]]) -> None:
        """Step some blocks, each with its frame."""
        self._asked = "stepping"
        with self._asking(parts) as asked:
            for group, frame in asked:
                block = self._host.blocks[group]
                block.take_leftovers()  # of a step that Ctrl-C ended
                if block.step(frame):
                    self._said[group] = self._host.left_over(group)
                self._back.append(group)

    def request(self, parts: Iterable[tuple[int, int]], jobs: Mapping[int, Job]) -> None:
        """Give blocks jobs, each with the frame that ``parts`` says."""
        with self._asking(parts) as asked:
            frames = dict(asked)
            for group, job in jobs.items():
                self._asked = job.doing
                try:
                    self._said[group] = job.run(self._host, group, frames[group])
                except KeyboardInterrupt:  # the user's, not the env's
                    raise
                except BaseException as error:
                    self._said[group] = failure_of(error, job)
                self._back.append(group)

    @contextmanager
    def _asking(self, parts: Iterable[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
        """Hand out ``parts``; where Ctrl-C ends the block, none of their groups is done."""
        asked = list(parts)
        try:
            yield asked
        except BaseException:
            self.take([group for group, _ in asked])
            raise

    def note(
        self,
        note_for: Callable[[range], Note | None],
        *,
        standing: bool = False,  # noqa: ARG002
    ) -> None:
        """Tell the host something."""
        note = note_for(self._share.members)
        if note is not None:
            note.apply(self._host)

    def drop_standing(self) -> None:
        """Nothing is replaced here."""

    def busy_seconds(self) -> float:
        """How long all envs together have been at work."""
        return self._counters.busy_seconds()

    def stats(self) -> Stats:
        """What envs have done."""
        return Stats.of(self._counters, [self._share.members], [0])

    def watch_also(self, part: Any) -> None:
        """Do nothing: there is no other process that could die."""

    def look_for_late(self) -> None:
        """Do nothing: this process cannot look while an env is at work."""

    def late(self, patience: int) -> list[tuple[int, int, int]]:  # noqa: ARG002
        """Return nothing: this process cannot ask while an env is at work."""
        return []

    def wait(self, timeout: float | None = None) -> list[Answer]:  # noqa: ARG002
        """Return what blocks answered beside what is in the frame."""
        return [Answer(group, said) for group, said in self._said.items()]

    def wait_some(
        self,
        least: int,  # noqa: ARG002
        most: int,
        deadline: int | None,  # noqa: ARG002
    ) -> tuple[list[int], list[Answer]]:
        """Return groups that are done, longest first, and what they answered. Take them."""
        groups = []
        for group in self._back:
            most -= len(self.members[group])
            if most < 0:
                break
            groups.append(group)
        return groups, self.wait_for(groups)

    def wait_for(self, groups: Sequence[int]) -> list[Answer]:
        """Return what exactly these groups answered. Take them."""
        return [Answer(group, self._said[group]) for group in groups if group in self._said]

    def take_all(self) -> None:
        """All has been received."""
        self.take(list(self._back))

    def take(self, groups: Collection[int]) -> None:
        """These have been received."""
        self._back = [group for group in self._back if group not in groups]
        for group in groups:
            self._said.pop(group, None)

    def error_of(self, group: int, failure: Failure) -> EnvError:  # noqa: ARG002
        """The exception an env raised."""
        error = error_from(
            failure.report, self._share.told(failure, "", self._asked), failure.error
        )
        error.env = failure.member
        return error

    def give_up_wait(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Close the envs. EnvError if one raised in close()."""
        if not self.closed:
            self.closed = True
            try:
                self._host.close()
            except Exception as error:
                raise self.error_of(0, failure_of(error, "close()")) from error.__cause__

    def kill(self, wait: float = 0) -> None:  # noqa: ARG002
        """Let go of the envs without closing them."""
        self.closed = True

    def __repr__(self) -> str:
        return f"<pysampler LocalPool{', closed' * self.closed}>"
