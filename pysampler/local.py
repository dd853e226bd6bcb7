"""The same blocks without workers, for debugging: envs live in the caller's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.block import EnvHost, Failure, failure_of, plain
from pysampler.frames import Frames
from pysampler.remote import error_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pysampler.errors import EnvError
    from pysampler.pool import Share
    from pysampler.spec import Spec

__all__ = ["LocalPool"]


class LocalPool:
    """What ``Pool`` is to a vector env, in this process. All is done when it is asked for."""

    def __init__(
        self,
        share: Share,
        make: Callable[[Share], tuple[Callable[..., EnvHost], tuple[Any, ...]]],
    ) -> None:
        self.groups = [len(share.sizes)]
        self.pids: list[int] = []
        self.closed = False
        self._share = share
        self._doing = "being made"
        self._messages: list[tuple[int, Any]] = []
        function, arguments = make(share)
        try:
            self._host = function(*arguments)
        except Exception as error:
            raise self.error_of(failure_of(error, "being made")) from error.__cause__
        self.descriptions = [self._host.describe()]

    def attach(self, spec: Spec, count: int, *, final: bool, host: tuple[Any, ...]) -> Frames:
        """Lay out frames."""
        envs = self._share.envs.stop
        memory = np.zeros(Frames.size_of(spec, envs, count, final=final), np.uint8)
        frames = Frames(spec, envs, count, final=final, memory=memory)
        self._host.attach(frames, *host)
        return frames

    def envs_of(self, group: int) -> range:
        """The envs of a group."""
        first = sum(self._share.sizes[:group])
        return range(first, first + self._share.sizes[group])

    def step(self, frame: int) -> None:
        """Step every block."""
        self._doing = "stepping"
        self._messages = [
            (group, plain(block.take_leftovers()))
            for group, block in enumerate(self._host.blocks)
            if block.step(frame)
        ]

    def wait(self, timeout: float | None = None) -> list[tuple[int, Any]]:  # noqa: ARG002
        """What blocks had to say beside what is in the frame."""
        messages, self._messages = self._messages, []
        return messages

    def request(
        self, frame: int, requests: Mapping[int, tuple[str, tuple[Any, ...]]], doing: str
    ) -> LocalRequest:
        """Ask blocks for other things than a step."""
        self._doing = doing
        answers: dict[int, Any] = {}
        failure: Failure | None = None
        for group, (name, arguments) in requests.items():
            try:
                answers[group] = self._host.answer(name, group, frame, arguments)
            except Exception as error:
                failure = failure or failure_of(error, name)
        return LocalRequest(answers, None if failure is None else self.error_of(failure))

    def error_of(self, failure: Failure) -> EnvError:
        """The exception an env raised."""
        error = error_from(failure.report, failure.told("", self._doing), failure.error)
        error.env = failure.env
        return error

    def close(self) -> None:
        """Close the envs. EnvError if one raised in close()."""
        if not self.closed:
            self.closed = True
            try:
                self._host.close()
            except Exception as error:
                raise self.error_of(failure_of(error, "close()")) from error.__cause__

    def kill(self) -> None:
        """Let go of the envs without closing them."""
        self.closed = True

    def __repr__(self) -> str:
        return f"<pysampler.local.LocalPool{', closed' * self.closed}>"


class LocalRequest:
    """A request that has been answered."""

    def __init__(self, answers: dict[int, Any], error: EnvError | None) -> None:
        self._answers = answers
        self._error = error

    def wait(self, timeout: float | None = None) -> dict[int, Any]:  # noqa: ARG002
        """The answers by group."""
        if self._error is not None:
            raise self._error
        return self._answers
