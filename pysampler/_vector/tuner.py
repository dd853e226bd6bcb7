"""BatchTuner: measures how many envs a batch should wait for, and for how long.

It tries rules in turn, in short windows. Standard errors decide which rules are slower, since a
window is noisy (long steps, other processes). Trials repeat rarely: a slow rule costs steps.
"""

from __future__ import annotations

import math
import statistics
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from pysampler._workers.counters import BatchChoice
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["BatchTuner", "WaitRule", "tuner_of", "wait_rules"]

# A rule is measured in windows of several parts, whose spread gives the standard error.
_PART = 16  # env steps of a part, or the number of envs if that is larger
_PARTS = 4  # least number of parts of a window
_WINDOW_NS = 10_000_000  # ns; shorter windows would measure the scheduler
_SWEEPS = 1, 1, 2, 4, 8, 16, 32, 64  # window lengths in each sweep of a trial, as multiples
_SURE = 2.0  # standard errors by which two rules must differ
_TIE = 0.01  # rules within this share of the best count as equal
_TIMEOUTS = 1.25, 2.5  # time-outs to try, as multiples of the usual time until all envs are ready
_REST = 20  # a choice holds for this many times the length of its trial,
_LONGEST_REST = 80  # up to this many if it is confirmed,
_SHORT_REST = 4  # or this many if the env steps per second change
_CHANGE = 1.5  # by this factor


class WaitRule(NamedTuple):
    """Wait for ``min_envs`` envs, or after the time-out for one."""

    min_envs: int
    timeout: float | None = None


class _Measured(NamedTuple):
    """Sums over the windows of one rule."""

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
        """The ns per env step."""
        return self.ns / self.envs

    @property
    def spread(self) -> float:
        """The variance of the cost over parts, as a share of its square."""
        return max(0.0, self.squares / self.parts / self.cost**2 - 1)


def wait_rules(groups: Sequence[int], max_envs: int) -> list[WaitRule]:
    """Return rules without a time-out, beginning with the one that waits for most envs.

    They are dense near the number of all envs, where a single slow env makes a difference.

    Args:
        groups: The number of envs of each group.
        max_envs: The largest number of envs of a batch.
    """
    least = [size for size in accumulate(sorted(groups)) if size <= max_envs]
    count, step, chosen = len(least), 1, {1, len(least)}
    while step <= count // 2:
        chosen |= {count - step, step} if step >= count // 4 else {count - step}
        step *= 2
    return [WaitRule(least[groups - 1]) for groups in sorted(chosen, reverse=True)]


def tuner_of(
    groups: Sequence[range], min_envs: int | None, max_envs: int, *, timeouts: bool
) -> BatchTuner:
    """Return a tuner for batches of these groups.

    Args:
        groups: The envs of each group.
        min_envs: The least number of envs of a batch; None: the tuner chooses it.
        max_envs: The largest number.
        timeouts: Whether the tuner chooses a time-out.
    """
    if min_envs is None:
        rules = wait_rules([len(envs) for envs in groups], max_envs)
    else:
        rules = [WaitRule(min_envs)]
    return BatchTuner(rules, groups[-1].stop, timeouts=timeouts)


class BatchTuner:
    """Finds the rule that gives the most env steps per second.

    In a short trial it tries the rules in turn, several times, and drops those that are clearly
    slower. Then it uses the best one for many times the length of the trial.

    An exception may interrupt any call; at worst, that spoils one measurement.

    Args:
        rules: The candidates; the first is the default if no other is better.
        envs: The number of envs.
        timeouts: Whether to try time-outs with the first rule too.
        clock: Returns ns.

    Attributes:
        rule: The rule to use now.
    """

    def __init__(
        self,
        rules: Iterable[WaitRule],
        envs: int,
        *,
        timeouts: bool = True,
        clock: Callable[[], int] = now,
    ) -> None:
        self._rules = tuple(rules)
        self._part = max(envs, _PART)
        self._timeouts = timeouts
        self._clock = clock
        self._trials = 0
        self._rates: dict[tuple[int, float | None], float] = {}
        self._chosen = self._rules[0]
        self._rest = _REST
        self._longest_gap = 0
        self._skipped = 0  # ns
        self._called = self._returned = clock()
        self._begin_trial(self._called)

    def called(self) -> None:
        """Record that the caller begins to wait for a batch."""
        self._called = at = self._clock() - self._skipped
        gap = at - self._returned
        if gap > self._longest_gap:
            self._longest_gap = gap

    def received(self, count: int) -> None:
        """Record that the caller gets a batch with ``count`` env steps."""
        self._returned = at = self._clock() - self._skipped
        if self._wait_times is not None:
            self._wait_times.append(at - self._called)
        self._left -= count
        if self._left <= 0:
            self._end_part(at)

    def resumed(self) -> None:
        """Ignore the time since the last batch, which the caller used for something else."""
        self._skipped += self._clock() - self._skipped - self._returned

    @property
    def choice(self) -> BatchChoice:
        """The choice of the last trial."""
        return BatchChoice(*self._chosen, self._rates, self._trials)

    # An interrupt may come between any two lines. Before the last line of a method, it leaves a
    # state from which the next call repeats the work, or a window that is slightly wrong.

    def _begin_trial(self, at: int) -> None:
        self._rest_until: int | None = None
        self._trial_since = at
        self._measured: dict[WaitRule, _Measured] = {}
        self._alive = self._rules
        self._size = _SWEEPS[0]
        self._use(self._rules[0])

    def _use(self, rule: WaitRule) -> None:
        """Use another rule from now on; measure it once all envs have stepped with it."""
        self.rule = rule
        self._window: list[tuple[int, int]] | None = None
        self._wait_times: list[int] | None = None
        self._repeats = 0
        self._left = self._part

    def _begin_window(self, at: int) -> None:
        first = self._timeouts and self.rule is self._rules[0] and not self._measured
        self._wait_times = [] if first else None
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
            # The caller spent over half of the window on something other than its policy.
            self._repeats += 1
            self._begin_window(at)
        elif self._rest_until is None:
            self._measured[self.rule] = self._measure_of(self.rule).plus(self._window)
            self._next_rule(at)
        elif at < self._rest_until:
            change = _Measured().plus(self._window).cost / self._measure_of(self.rule).cost
            if not 1 / _CHANGE < change < _CHANGE:
                self._rest_until = min(self._rest_until, self._short_rest_until)
            self._begin_window(at)
        else:
            self._begin_trial(at)

    def _measure_of(self, rule: WaitRule) -> _Measured:
        return self._measured.get(rule, _Measured())

    def _next_rule(self, at: int) -> None:
        """Use the rule with the fewest windows; after a sweep over all, drop slow ones first."""
        if self._wait_times is not None:
            usually = sorted(self._wait_times)[len(self._wait_times) // 4] / 1e9
            first = self._rules[0].min_envs
            self._alive = *self._rules, *(WaitRule(first, usually * share) for share in _TIMEOUTS)
        windows = {rule: self._measure_of(rule).windows for rule in self._alive}
        sweeps = min(windows.values())
        if sweeps == max(windows.values()):
            self._drop_slow()
            if sweeps >= len(_SWEEPS) or len(self._alive) == 1:
                self._choose(at)
                return
            self._size = _SWEEPS[sweeps]
        self._use(min(self._alive, key=windows.__getitem__))

    def _drop_slow(self) -> None:
        measured = self._measured
        # The mean over all rules, since a single one may have missed rare events (long resets).
        usual = statistics.fmean(one.spread for one in measured.values())
        error = {
            rule: _SURE * one.cost * math.sqrt(max(usual, one.spread) / one.parts)
            for rule, one in measured.items()
        }
        limit = min(measured[rule].cost + error[rule] for rule in self._alive) / (1 - _TIE)
        self._alive = tuple(
            rule for rule in self._alive if measured[rule].cost - error[rule] <= limit
        )

    def _choose(self, at: int) -> None:
        """Use the best rule until the next trial."""
        near = min(self._measured[rule].cost for rule in self._alive) / (1 - _TIE)
        chosen = next(rule for rule in self._alive if self._measured[rule].cost <= near)
        confirmed = self._trials > 0 and chosen.min_envs == self._chosen.min_envs
        self._rest = min(2 * self._rest, _LONGEST_REST) if confirmed else _REST
        self._rates = {(*rule,): 1e9 / one.cost for rule, one in self._measured.items()}
        self._trials += 1
        self._chosen = chosen
        self._use(chosen)
        self._size = _SWEEPS[-1]
        took = at - self._trial_since
        self._short_rest_until = at + _SHORT_REST * took
        self._rest_until = at + self._rest * took
