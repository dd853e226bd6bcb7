"""Phases: actors fill the ring while the learner waits; then the actors wait for the learner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from pysampler._common.numbers import whole_number
from pysampler.sync import now

if TYPE_CHECKING:
    from pysampler._actors.records import Records

__all__ = ["Phase", "Phases"]


class _Actors(Protocol):
    """The part of actors that phases use."""

    @property
    def passed(self) -> int: ...
    @property
    def stopped(self) -> bool: ...
    def take(self, count: int) -> Records | None: ...
    def give_back(self, end: int) -> None: ...
    def wait_full(self) -> int: ...
    def _raise_loss(self) -> None: ...


class Phase:
    """The records of one phase: the actors made them while the learner waited.

    Attributes:
        number: The number of the phase, from 1 on.
        filling: When the actors began to record, in ns of :func:`pysampler.sync.now`.
        full: When there were enough records, in ns of :func:`pysampler.sync.now`.
    """

    def __init__(self, actors: _Actors, number: int, count: int, filling: int) -> None:
        self.number = number
        self.filling = filling
        self.full = now()
        self._actors = actors
        self._begin = actors.passed
        self._end = self._begin + count

    @property
    def left(self) -> int:
        """The number of records that you have not taken yet."""
        return self._end - self._actors.passed

    @property
    def _is_untouched(self) -> bool:
        return self._actors.passed == self._begin

    def take(self, count: int) -> Records | None:
        """Take up to ``count`` records of the phase; return None when there are no more."""
        count = whole_number("take records", "count", count, 1)
        return self._actors.take(min(count, self.left)) if self.left > 0 else None

    def all(self) -> Records | None:
        """Take all remaining records as one batch."""
        if (first := self.take(max(1, self.left))) is None or self.left == 0:
            return first
        return first.copy().joined(self.batches(self.left))

    def batches(self, count: int) -> Iterator[Records]:
        """Yield all remaining records in batches of up to ``count``."""
        while (records := self.take(count)) is not None and len(records) > 0:
            yield records


class Phases(Iterator[Phase]):
    """An iterator over phases, from ``Actors.phases``.

    If an exception interrupts a wait, the next call continues it.

    Args:
        actors: The actors.
        drop: Drop the records of a phase that the learner does not take.
    """

    def __init__(self, actors: _Actors, *, drop: bool) -> None:
        self._actors = actors
        self._drop = drop
        self._filling: int | None = now()  # when filling began, in ns; None during a phase
        self._phase: Phase | None = None  # the last phase
        self._was_stopped = False  # whether the last one began after the actors had stopped

    def __next__(self) -> Phase:
        """Wait until the ring is full, and return the next phase."""
        left = 0
        if (last := self._phase) is not None:  # the learner is done with it
            if last._is_untouched:
                self._actors._raise_loss()
                if self._was_stopped:
                    raise StopIteration
            self._actors.give_back(last._end if self._drop else 0)
            left = last.left
        filling = self._filling = self._filling or now()
        if (count := left or self._actors.wait_full()) == 0:
            raise StopIteration
        phase = Phase(self._actors, 1 if last is None else last.number + 1, count, filling)
        stopped = self._actors.stopped
        # One statement, then the return: if a call is interrupted earlier, the next one makes the
        # phase again.
        self._phase, self._was_stopped, self._filling = phase, stopped, None
        return phase
