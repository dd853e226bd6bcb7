"""Phases: actors fill the ring while the learner waits; then they wait while it learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pysampler.actors import Actors
    from pysampler.records import Records

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
        self._end = actors.passed + count

    @property
    def left(self) -> int:
        """How many there still are."""
        return self._end - self._actors.passed

    def take(self, count: int) -> Records | None:
        """Up to so many of them; None when there are no more."""
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
    they are dropped, and counted. Ends when the actors have stopped, with what there is.

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
    actors.mark(high, low)
    return _phases(actors, drop=drop)


def _phases(actors: Actors, *, drop: bool) -> Iterator[Phase]:
    number = left = 0
    filling = now()
    while count := left or actors.wait_full():  # with some left, the actors are still blocked
        number += 1
        phase = Phase(actors, number, count, filling)
        yield phase
        actors.give_back(drop=phase.left if drop else 0)
        filling, left = now(), phase.left
