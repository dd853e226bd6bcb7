"""Confidence intervals of means and of rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pysampler._common.numbers import is_real

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Interval", "bootstrap", "wilson"]

# Resamples of the bootstrap: the ends of an interval then repeat to about 1 % of its width.
_RESAMPLES = 10_000
_CHUNK = 1 << 22  # numbers drawn at a time


class Interval(NamedTuple):
    """A confidence interval.

    Attributes:
        low: Its lower end.
        high: Its upper end.
    """

    low: float
    high: float


def expect_level(level: float) -> None:
    """Raise ValueError unless this is a confidence level."""
    if not (is_real(level, 0) and 0 < level < 1):
        raise ValueError(f"cannot compute interval: level {level!r}, expected 0 < level < 1")


def bootstrap(values: npt.NDArray[np.float64], level: float = 0.95) -> Interval:
    """Return the percentile bootstrap interval of a mean; the same values give the same one."""
    expect_level(level)
    count = len(values)
    rng = np.random.default_rng(0)
    means: list[npt.NDArray[np.float64]] = []
    left = _RESAMPLES
    with np.errstate(invalid="ignore"):  # of infinite values
        while left > 0:
            rows = min(left, max(1, _CHUNK // count))
            means.append(values[rng.integers(count, size=(rows, count))].mean(axis=1))
            left -= rows
        low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def wilson(successes: int, count: int, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a rate, which is right for few trials and extreme rates."""
    expect_level(level)
    from statistics import NormalDist  # noqa: PLC0415 - evaluations of success only

    z = NormalDist().inv_cdf((1 + level) / 2)
    rate = successes / count
    center = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + (z / count / 2) ** 2)
    return Interval(max(0.0, center - half), min(1.0, center + half))
