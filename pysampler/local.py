"""The same blocks without workers, for debugging: envs live in the caller's process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.block import EnvHost, Failure, failure_of, plain
from pysampler.frames import Frames
from pysampler.remote import error_from
from pysampler.stats import Counters, Stats
from pysampler.sync import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pysampler.errors import EnvError
    from pysampler.frames import Plan
    from pysampler.processes import Share

__all__ = ["LocalPool"]


class LocalPool:
    """What ``Pool`` is to a vector env, in this process. All is done when it is asked for."""

    def __init__(
        self,
        share: Share,
        make: Callable[[Share], tuple[Callable[..., EnvHost], tuple[Any, ...]]],
    ) -> None:
        self.pids: list[int] = []
        self.closed = False
        self.envs = share.parts
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
        envs = share.envs.stop
        self._counters = Counters(envs, 1, np.zeros(Counters.size_of(envs, 1), np.uint8))
        self._host.count_with(self._counters.meter(0))

    def lay_out(self, plan: Plan, room: int, host: tuple[Any, ...]) -> tuple[Frames, Segment]:
        """Lay out frames, in a segment with some room beside them."""
        segment = Segment(plan.size + room, plan.infos)
        frames = Frames(plan, segment)
        self._host.attach(frames, segment, *host)
        return frames, segment

    @property
    def pending(self) -> int:
        """How many envs are done and not received yet."""
        return sum(len(self.envs[group]) for group in self._back)

    @property
    def ready(self) -> int:
        """The same: all is done when it is asked for."""
        return self.pending

    def is_pending(self, group: int) -> bool:
        """Whether a group is."""
        return group in self._back

    def step(self, frame: int) -> None:
        """Step every block."""
        self.step_some([(group, frame) for group in range(len(self.envs))])

    def step_some(self, parts: Iterable[tuple[int, int]]) -> None:
        """Step some blocks, each with its frame."""
        self._asked = "stepping"
        with self._asking(parts) as asked:
            for group, frame in asked:
                block = self._host.blocks[group]
                block.take_leftovers()  # of a step that Ctrl-C ended
                if block.step(frame):
                    self._said[group] = plain(block.take_leftovers())
                self._back.append(group)

    def request(
        self,
        parts: Iterable[tuple[int, int]],
        requests: Mapping[int, tuple[str, tuple[Any, ...]]],
        doing: str,
    ) -> None:
        """Ask blocks for other things than a step."""
        self._asked = doing
        with self._asking(parts) as asked:
            frames = dict(asked)
            for group, (name, arguments) in requests.items():
                try:
                    self._said[group] = self._host.answer(name, group, frames[group], arguments)
                except KeyboardInterrupt:  # the user's, not the env's
                    raise
                except BaseException as error:
                    self._said[group] = failure_of(error, name)
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
        name: str,
        arguments_for: Callable[[range], tuple[Any, ...] | None],
        *,
        standing: bool = False,  # noqa: ARG002
    ) -> None:
        """Tell the host something: a method and arguments."""
        arguments = arguments_for(self._share.envs)
        if arguments is not None:
            self._host.answer(name, 0, 0, arguments)

    def set_options(self, options: dict[int, tuple[Any, int]]) -> None:
        """What envs are reset with from now on, and its version."""
        self.note("set_options", lambda _: (options,))

    def busy_seconds(self) -> float:
        """How long all envs together have been at work."""
        return self._counters.busy_seconds()

    def stats(self) -> Stats:
        """What envs have done."""
        return Stats.of(self._counters, [self._share.envs], [0])

    def watch_also(self, part: Any) -> None:
        """Nobody else's process could die."""

    def look_for_late(self) -> None:
        """Nobody could look while an env is at work."""

    def late(self, patience: int) -> list[tuple[int, int, int]]:  # noqa: ARG002
        """None: nobody could ask while an env is at work."""
        return []

    def wait(self, timeout: float | None = None) -> list[tuple[int, Any]]:  # noqa: ARG002
        """What blocks had to say beside what is in the frame."""
        return list(self._said.items())

    def wait_some(
        self,
        least: int,  # noqa: ARG002
        most: int,
        deadline: int | None,  # noqa: ARG002
    ) -> tuple[list[int], list[tuple[int, Any]]]:
        """Groups that are done, longest first, and what they had to say. Take them."""
        groups = []
        for group in self._back:
            most -= len(self.envs[group])
            if most < 0:
                break
            groups.append(group)
        return groups, [(group, self._said[group]) for group in groups if group in self._said]

    def wait_for(self, groups: Sequence[int]) -> list[tuple[int, Any]]:
        """What just these groups had to say. Take them."""
        return [(group, self._said[group]) for group in groups if group in self._said]

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
        error.env = failure.env
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
        return f"<pysampler.local.LocalPool{', closed' * self.closed}>"
