"""Phases: actors fill the ring while the learner waits; then they wait while it learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pysampler._numbers import whole_number
from pysampler.sync import now

if TYPE_CHECKING:
    from pysampler._actors.actors import Actors
    from pysampler._actors.records import Records

__all__ = ["Phase", "phases"]


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


def phases(actors: Actors, high: int, low: int = 0, *, drop: bool = False) -> Iterator[Phase]:
    """Phases of some actors that have not begun: they record until there are ``high`` records.

    Then they block, and the learner takes records until there are ``low``, when they go on: with
    the weights it published meanwhile. So it learns from what almost one policy did: an actor that
    finds the ring full begins no record, and what it has under way then, up to a trajectory of each
    of its envs or a few steps, is in the next phase: ``high`` should be several times that. If the
    learner leaves some, it finds them in the next phase, and the actors stay blocked; with ``drop``
    they are dropped, and counted. Ends when the actors have stopped, with what there is, or as soon
    as the learner takes nothing of a phase that began after that. An exception that comes while a
    phase is awaited, Ctrl-C say, ends nothing: the next ``next()`` goes on.

    >>> import pysampler
    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> with pysampler.actors("CartPole-v1", policy, num_envs=4) as some:
    ...     for phase in phases(some, high=128):
    ...         sizes = [len(records) for records in phase.batches(32)]
    ...         print(phase.number, sum(sizes))
    ...         if phase.number == 2:
    ...             some.stop()
    ...             break
    1 128
    2 128
    """
    if not hasattr(actors, "mark"):
        raise TypeError(f"cannot act in phases: a {type(actors).__name__}, expected Actors")
    actors.mark(high, low)
    return _Phases(actors, drop=drop)


class _Phases(Iterator[Phase]):
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
