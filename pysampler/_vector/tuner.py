"""How many envs ``recv`` waits for, and how long, learned from what it gets."""

from __future__ import annotations

import math
import statistics
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pysampler._workers.counters import BatchChoice
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["BatchTuner", "Way", "ways"]

# A way to wait is measured in windows, and a window in parts, whose spread says how sure it is.
_PART = 16  # least steps of a part; it also has a step of each env, on average
_PARTS = 4  # least parts of a window
_WINDOW_NS = 10_000_000  # shorter windows would measure the scheduler
_SWEEPS = 1, 1, 2, 4, 8, 16, 32, 64  # of a trial: how many times as long its windows are
_SURE = 2.0  # standard errors that tell two ways apart
_TIE = 0.01  # what is as near to the best is as good
_TIMEOUTS = 1.25, 2.5  # that are tried, as multiples of the time in which all are usually ready
_REST = 20  # a choice stays this many times as long as its trial took,
_LONGEST_REST = 80  # up to so long if it is confirmed,
_SHORT_REST = 4  # or so long if the env steps a second change
_CHANGE = 1.5  # by this factor


class Way(NamedTuple):
    """A way to wait: until some envs are ready, or a time-out is over and one is."""

    min_envs: int
    timeout: float | None = None


class _Measured(NamedTuple):
    """What came of one way to wait in its windows."""

    windows: int = 0
    parts: int = 0
    envs: int = 0
    ns: int = 0
    squares: float = 0.0  # sum over parts: (ns / envs) ** 2

    def plus(self, window: Sequence[tuple[int, int]]) -> _Measured:
        """Add a window: envs and ns of each part."""
        return _Measured(
            self.windows + 1,
            self.parts + len(window),
            self.envs + sum(envs for envs, _ in window),
            self.ns + sum(ns for _, ns in window),
            self.squares + sum((ns / envs) ** 2 for envs, ns in window),
        )

    @property
    def cost(self) -> float:
        """The ns of an env step."""
        return self.ns / self.envs

    @property
    def spread(self) -> float:
        """The variance of the cost over parts, as a share of its square."""
        return max(0.0, self.squares / self.parts / self.cost**2 - 1)


def ways(groups: Sequence[int], max_envs: int) -> list[Way]:
    """Return ways to wait without a time-out, beginning with the one that waits for most envs.

    They lie close to one another near all groups, where a single slow env makes a difference.

    Args:
        groups: The number of envs of each group.
        max_envs: The number of envs that are returned at most.
    """
    least = [size for size in accumulate(sorted(groups)) if size <= max_envs]
    count, step, chosen = len(least), 1, {1, len(least)}
    while step <= count // 2:
        chosen |= {count - step, step} if step >= count // 4 else {count - step}
        step *= 2
    return [Way(least[groups - 1]) for groups in sorted(chosen, reverse=True)]


class BatchTuner:
    """Finds the way to wait that gives the most env steps a second.

    It tries ways in turn, several times, in a short trial, and drops those that are clearly slower.
    Then it stays with the best one until the next trial, which is far away.

    Any call may be interrupted by an exception: that spoils a measurement at most.

    Args:
        ways: What it may choose; the first is taken where nothing is better.
        envs: The number of envs.
        timeouts: Whether to try time-outs with the first of the ways too.
        clock: Returns ns.

    Attributes:
        way: The way to wait now.
    """

    def __init__(
        self,
        ways: Iterable[Way],
        envs: int,
        *,
        timeouts: bool = True,
        clock: Callable[[], int] = now,
    ) -> None:
        self._ways = tuple(ways)
        self._part = max(envs, _PART)
        self._timeouts = timeouts
        self._clock = clock
        self._trials = 0
        self._rates: dict[tuple[int, float | None], float] = {}
        self._chosen = self._ways[0]
        self._rest = _REST
        self._longest_gap = 0
        self._called = self._returned = clock()
        self._begin_trial(self._called)

    def called(self) -> int:
        """Take note that ``recv`` begins, and return now."""
        self._called = at = self._clock()
        gap = at - self._returned
        if gap > self._longest_gap:
            self._longest_gap = gap
        return at

    def received(self, count: int) -> None:
        """Take note that ``recv`` returns ``count`` envs."""
        self._returned = at = self._clock()
        if self._waits is not None:
            self._waits.append(at - self._called)
        self._left -= count
        if self._left <= 0:
            self._end_part(at)

    @property
    def choice(self) -> BatchChoice:
        """What was chosen in the last trial."""
        return BatchChoice(*self._chosen, self._rates, self._trials)

    # An interrupt may come between any two lines. Until the last line of a method it leaves a state
    # from which the same is done again, or a window that is a little wrong.

    def _begin_trial(self, at: int) -> None:
        self._rest_until: int | None = None
        self._trial_since = at
        self._measured: dict[Way, _Measured] = {}
        self._alive = self._ways
        self._size = _SWEEPS[0]
        self._take(self._ways[0])

    def _take(self, way: Way) -> None:
        """Wait in another way from now on; measure it once all envs have stepped like that."""
        self.way = way
        self._window: list[tuple[int, int]] | None = None
        self._waits: list[int] | None = None
        self._repeats = 0
        self._left = self._part

    def _begin_window(self, at: int) -> None:
        first = self._timeouts and self.way is self._ways[0] and not self._measured
        self._waits = [] if first else None
        self._window = []
        self._window_since = self._part_since = at
        self._longest_gap = 0
        self._left = self._part

    def _end_part(self, at: int) -> None:
        if self._window is None:
            self._begin_window(at)
            return
        self._window.append((self._part - self._left, at - self._part_since))
        self._part_since = at
        self._left = self._part
        ns = at - self._window_since
        if ns < _WINDOW_NS * self._size or len(self._window) < _PARTS * self._size:
            return
        if self._longest_gap > ns // 2 and self._repeats < 2:
            # The caller did something else than to call its policy.
            self._repeats += 1
            self._begin_window(at)
        elif self._rest_until is None:
            self._measured[self.way] = self._measure_of(self.way).plus(self._window)
            self._go_on(at)
        elif at < self._rest_until:
            change = _Measured().plus(self._window).cost / self._measure_of(self.way).cost
            if not 1 / _CHANGE < change < _CHANGE:
                self._rest_until = min(self._rest_until, self._short_rest_until)
            self._begin_window(at)
        else:
            self._begin_trial(at)

    def _measure_of(self, way: Way) -> _Measured:
        return self._measured.get(way, _Measured())

    def _go_on(self, at: int) -> None:
        """Take the next way; where each was measured as often, drop those that are slow first."""
        if self._waits is not None:
            usually = sorted(self._waits)[len(self._waits) // 4] / 1e9
            first = self._ways[0].min_envs
            self._alive = *self._ways, *(Way(first, usually * share) for share in _TIMEOUTS)
        windows = {way: self._measure_of(way).windows for way in self._alive}
        sweeps = min(windows.values())
        if sweeps == max(windows.values()):
            self._drop_slow()
            if sweeps >= len(_SWEEPS) or len(self._alive) == 1:
                self._choose(at)
                return
            self._size = _SWEEPS[sweeps]
        self._take(min(self._alive, key=windows.__getitem__))

    def _drop_slow(self) -> None:
        measured = self._measured
        # Of all ways: a single one may have met no rare event, such as a long reset.
        usual = statistics.fmean(one.spread for one in measured.values())
        errors = {
            way: _SURE * one.cost * math.sqrt(max(usual, one.spread) / one.parts)
            for way, one in measured.items()
        }
        limit = min(measured[way].cost + errors[way] for way in self._alive) / (1 - _TIE)
        self._alive = tuple(way for way in self._alive if measured[way].cost - errors[way] <= limit)

    def _choose(self, at: int) -> None:
        """Take the best way, and rest."""
        near = min(self._measured[way].cost for way in self._alive) / (1 - _TIE)
        chosen = next(way for way in self._alive if self._measured[way].cost <= near)
        confirmed = self._trials > 0 and chosen.min_envs == self._chosen.min_envs
        self._rest = min(2 * self._rest, _LONGEST_REST) if confirmed else _REST
        self._rates = {(*way,): 1e9 / one.cost for way, one in self._measured.items()}
        self._trials += 1
        self._chosen = chosen
        self._take(chosen)
        self._size = _SWEEPS[-1]
        took = at - self._trial_since
        self._short_rest_until = at + _SHORT_REST * took
        self._rest_until = at + self._rest * took
