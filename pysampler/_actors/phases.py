"""Phases: actors fill the ring while the learner waits; then they wait while it learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pysampler._numbers import whole_number
from pysampler.sync import now

if TYPE_CHECKING:
    from pysampler._actors.actors import Actors
    from pysampler._actors.records import Records

__all__ = ["Phase", "Phases"]


class Phase:
    """What the actors recorded while the learner waited.

    ``filling``: when they began to; ``full``: when there was enough, both in ns of ``now()``.
    """

    def __init__(self, actors: Actors, number: int, count: int, filling: int) -> None:
        self.number = number
        self.filling = filling
        self.full = now()
        self._actors = actors
        self._begin = actors.passed
        self._end = self._begin + count

    @property
    def left(self) -> int:
        """How many there still are."""
        return self._end - self._actors.passed

    @property
    def _untouched(self) -> bool:
        """Whether the learner has taken none of them."""
        return self._actors.passed == self._begin

    def take(self, count: int) -> Records | None:
        """Up to so many of them; None when there are no more."""
        count = whole_number("take records", "count", count, 1)
        return self._actors.take(min(count, self.left)) if self.left > 0 else None

    def all(self) -> Records | None:
        """All of them in one batch: a copy if they do not lie one behind the other."""
        if (first := self.take(max(1, self.left))) is None or self.left == 0:
            return first
        return first.copy().joined(self.batches(self.left))

    def batches(self, count: int) -> Iterator[Records]:
        """All of them, up to so many at a time."""
        while (records := self.take(count)) is not None and len(records) > 0:
            yield records


class Phases(Iterator[Phase]):
    """Phases, one after the other. Where Ctrl-C came into one, the next call goes on from there."""

    def __init__(self, actors: Actors, *, drop: bool) -> None:
        self._actors = actors
        self._drop = drop
        self._filling: int | None = now()  # since when; None: there is a phase
        self._phase: Phase | None = None  # the last
        self._last = False  # it began when the actors had stopped

    def __next__(self) -> Phase:
        """The next phase."""
        left = 0
        if (last := self._phase) is not None:  # the learner is done with it
            if self._last and last._untouched:
                raise StopIteration
            self._actors.give_back(last._end if self._drop else 0)
            left = last.left
        filling = self._filling = self._filling or now()
        if (count := left or self._actors.wait_full()) == 0:
            raise StopIteration
        phase = Phase(self._actors, 1 if last is None else last.number + 1, count, filling)
        stopped = self._actors.stopped
        # Together, and at once to the learner: who is interrupted before makes it once more.
        self._phase, self._last, self._filling = phase, stopped, None
        return phase
