"""How many envs ``recv`` waits for, and how long, learned from what it gets."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pysampler._workers.counters import BatchChoice
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["BatchTuner", "Way", "ways"]

# A window is a time in which one way to wait is measured.
_ROUNDS = 4  # steps of each env in a window, on average
_WINDOW_NS = 10_000_000  # shorter windows would measure the scheduler
_SWEEPS = 1, 1, 2, 4, 8  # of a trial: how many times as long its windows are
_MARGIN = 0.4  # ways that are slower than the best by this share / sweeps are dropped
_TIE = 0.01  # what is as near to the best is as good
_TIMEOUTS = 1.25, 2.5  # that are tried, as multiples of the time in which all are usually ready
_REST = 20  # trials take less of the time than 1 / this
_LONGEST_REST = 80  # while they confirm the choice


class Way(NamedTuple):
    """A way to wait: until some envs are ready, or a time-out is over and one is."""

    min_envs: int
    timeout: float | None = None


class _Measured(NamedTuple):
    """What came of one way to wait in its windows."""

    windows: int = 0
    envs: int = 0
    ns: int = 0

    @property
    def rate(self) -> float:
        """Env steps a second."""
        return self.envs / self.ns * 1e9


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
        self._envs = envs
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
        """Take note that ``recv`` returns so many envs."""
        self._returned = at = self._clock()
        if self._waits is not None:
            self._waits.append(at - self._called)
        self._left -= count
        if self._left <= 0:
            self._end_window(at)

    @property
    def choice(self) -> BatchChoice:
        """What was chosen in the last trial."""
        return BatchChoice(*self._chosen, self._rates, self._trials)

    def _begin_trial(self, at: int) -> None:
        self._trial_since = at
        self._rest_until: int | None = None
        self._measured: dict[Way, _Measured] = {}
        self._alive = self._ways
        self._size = _SWEEPS[0]
        self._take(self._ways[0])

    def _take(self, way: Way) -> None:
        """Wait in another way from now on; measure it once all envs have stepped as it wants."""
        self.way = way
        self._since: int | None = None
        self._repeats = 0
        self._longest_gap = 0
        self._waits: list[int] | None = None
        self._left = self._envs

    def _begin_window(self, at: int) -> None:
        self._since = at
        self._longest_gap = 0
        first = self._timeouts and self.way is self._ways[0] and not self._measured
        self._waits = [] if first else None
        self._work = self._left = _ROUNDS * self._envs * self._size

    def _end_window(self, at: int) -> None:
        if self._since is None:
            self._begin_window(at)
            return
        ns = at - self._since
        if ns < _WINDOW_NS * self._size:
            self._work += self._envs
            self._left += self._envs
        elif self._longest_gap > ns // 2 and self._repeats < 2:
            # The caller did something else than to call its policy.
            self._repeats += 1
            self._begin_window(at)
        elif self._rest_until is None:
            before = self._measured.get(self.way, _Measured())
            self._measured[self.way] = _Measured(
                before.windows + 1, before.envs + self._work - self._left, before.ns + ns
            )
            self._go_on(at)
        elif at < self._rest_until:
            self._begin_window(at)
        else:
            self._begin_trial(at)

    def _go_on(self, at: int) -> None:
        """Drop ways that are slow, and take the next one, or the best."""
        if self._waits is not None:
            usual = sorted(self._waits)[len(self._waits) // 4] / 1e9
            first = self._ways[0].min_envs
            self._alive = *self._ways, *(Way(first, usual * share) for share in _TIMEOUTS)
        windows = {way: self._measured.get(way, _Measured()).windows for way in self._alive}
        sweeps = min(windows.values())
        if sweeps == max(windows.values()):
            rates = {way: self._measured[way].rate for way in self._alive}
            best = max(rates.values())
            self._alive = tuple(
                way for way in self._alive if rates[way] >= best * (1 - _MARGIN / sweeps)
            )
            if sweeps == len(_SWEEPS) or len(self._alive) == 1:
                self._choose(at, next(w for w in self._alive if rates[w] >= best * (1 - _TIE)))
                return
            self._size = _SWEEPS[sweeps]
        self._take(min(self._alive, key=windows.__getitem__))

    def _choose(self, at: int, way: Way) -> None:
        same = way.min_envs == self._chosen.min_envs and self._trials > 0
        self._rest = min(2 * self._rest, _LONGEST_REST) if same else _REST
        self._rest_until = at + self._rest * (at - self._trial_since)
        self._rates = {(*way,): done.rate for way, done in self._measured.items()}
        self._trials += 1
        self._chosen = way
        self._take(way)
