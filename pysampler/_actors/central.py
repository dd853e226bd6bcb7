"""CentralActor: acts on a device of the main process, for workers that request actions.

A worker posts a request once the observations of a group are in a frame, and waits for the actions
in the next frame. A thread of the main process takes all requests, calls the policy once for
their envs, and answers. Requests that arrive during the call form the next batch.

A request is a number, which its answer repeats, so that a replacement of a lost worker cannot
mistake an answer to the lost worker's request for its own.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysampler._policies.weights import load_weights
from pysampler._workers.children import has_left
from pysampler._workers.exceptions import error_from, report
from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S
from pysampler.errors import StopActors
from pysampler.sync import Doorbell, Flag

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from pysampler._policies.frame_policy import FramePolicy, Span
    from pysampler._policies.progress import WorkerProgress
    from pysampler._policies.weights import SharedWeights
    from pysampler.errors import EnvError
    from pysampler.sync import Board, Segment

__all__ = ["CentralActor", "Requests", "RequestsPlace"]

_SECONDS = 0.05  # seconds between checks for a stop
_FRAME_BITS = 32  # the bits of a request with the frame; the others count requests


class RequestsPlace(NamedTuple):
    """The place of requests in a segment, for a worker."""

    bell: Any
    flags: Sequence[Any]
    words: int


class Requests:
    """Requests of workers for actions, and the answers: one word each per group.

    Args:
        groups: The number of groups.
        segment: The memory.
        place: Their place, to attach to them; None: make new ones.
    """

    def __init__(self, groups: int, segment: Segment, place: RequestsPlace | None = None) -> None:
        self._bell = Doorbell(groups, segment) if place is None else place.bell.attach(segment)
        self._flags = (
            [Flag(segment) for _ in range(groups)]
            if place is None
            else [flag.attach(segment) for flag in place.flags]
        )
        at = None if place is None else place.words
        self._at, words = segment.array((3, groups), np.dtype(np.int64), at)
        self._asked, self._answered, self.versions = words
        self._to_set: set[int] = set()  # groups whose old flag is still set

    @staticmethod
    def size_of(groups: int) -> int:
        """Return the number of bytes to reserve in a segment, for any offset."""
        return Doorbell.size_of(groups) + groups * (Flag.size_of() + 128 + 3 * 8) + 512

    @property
    def place(self) -> RequestsPlace:
        """Their place in the segment."""
        return RequestsPlace(self._bell.place(), [flag.place() for flag in self._flags], self._at)

    # -- a worker --------------------------------------------------------------------------------

    def ask(self, group: int, frame: int) -> None:
        """Request actions for the observations of a group in a frame."""
        self._asked[group] = ((int(self._asked[group]) >> _FRAME_BITS) + 1) << _FRAME_BITS | frame
        self._bell.post(group)

    def wait(self, group: int) -> bool:
        """Wait a while for the answer to a group's last request; return whether it came.

        Its version is in ``versions``.
        """
        flag = self._flags[group]
        if flag.wait(timeout=_SECONDS):
            flag.clear()
            # The flag may be for a request of the lost worker that this one replaces.
            return bool(self._answered[group] == self._asked[group])
        self._bell.post(group)  # the parent may have taken an old post of the lost worker
        return False

    # -- the main process ------------------------------------------------------------------------

    def take(self) -> dict[int, int]:
        """Wait a while for requests; return their words by group, perhaps none."""
        self._set_flags()
        groups = self._bell.wait(1, timeout=0.001 if self._to_set else _SECONDS)
        self._bell.take(groups)
        words = {int(group): int(self._asked[group]) for group in groups}
        return {group: word for group, word in words.items() if word != self._answered[group]}

    @staticmethod
    def frame_of(word: int) -> int:
        """Return the frame of a request."""
        return word & ((1 << _FRAME_BITS) - 1)

    def answer(self, words: dict[int, int], version: int) -> None:
        """Answer requests. The actions must be in the frames."""
        for group, word in words.items():
            self.versions[group] = version
            self._answered[group] = word
        self._to_set.update(words)
        self._set_flags()

    def _set_flags(self) -> None:
        # A flag that is already set was for a lost worker: its replacement clears it.
        self._to_set = {group for group in self._to_set if not self._flags[group].set()}


class CentralActor:
    """A thread that acts for workers that request actions.

    Args:
        policy: The policy on the frames that workers use.
        groups: The envs of each group.
        requests: The workers' requests.
        progress: The stop flag, which ends the thread and which ``StopActors`` in the policy sets.
        board: The weights; None if the policy has none.
        batch_sizes: By number of envs, counts the calls of the policy.

    Attributes:
        error: The error that ended the thread, if the policy raised.
    """

    def __init__(
        self,
        policy: FramePolicy,
        groups: Sequence[range],
        requests: Requests,
        progress: WorkerProgress,
        board: Board | SharedWeights | None,
        batch_sizes: Counter[int],
    ) -> None:
        self._policy = policy
        self._groups = groups
        self._requests = requests
        self._progress = progress
        self._board = board
        self._batch_sizes = batch_sizes
        self._weights: Any = None
        self._version = 0
        self.error: EnvError | None = None
        self._thread = threading.Thread(target=self._run, name="pysampler actors", daemon=True)
        # When the interpreter ends, a thread that is inside torch would abort the process.
        self._pid = os.getpid()
        atexit.register(self._leave)
        self._thread.start()

    def wait_ended(self) -> bool:
        """Wait until the thread has ended. The actors must have been stopped."""
        return has_left(self._thread, SHUTDOWN_TIMEOUT_S)

    def _leave(self) -> None:
        if os.getpid() != self._pid:  # a fork has no such thread
            return
        self._progress.stop(drop=True)
        self.wait_ended()

    def _run(self) -> None:
        try:
            while not self._progress.stopped:
                if words := self._requests.take():
                    self._refresh()
                    self._policy.act(self._spans(words))
                    self._requests.answer(words, self._version)
                    self._batch_sizes[sum(len(self._groups[group]) for group in words)] += 1
        except StopActors:
            pass
        except BaseException as error:
            kind = type(error).__name__
            self.error = error_from(report(error), f"the policy raised {kind} acting: {error}")
        finally:
            self._progress.stop()
            atexit.unregister(self._leave)

    def _spans(self, words: dict[int, int]) -> list[Span]:
        return [
            (self._requests.frame_of(words[group]), envs.start, len(envs))
            for group, envs in enumerate(self._groups)
            if group in words
        ]

    def _refresh(self) -> None:
        """Load the newest weights."""
        if self._board is None or self._board.version == self._version:
            return
        caller = self._policy.caller
        self._version, self._weights = self._board.read(self._weights)
        load_weights(caller.policy, self._weights, caller.device)
        caller.follow_weights()
