"""The results of an evaluation: a table of episodes, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._rollouts.intervals import Interval, bootstrap, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["EpisodeResult", "Evaluation"]


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one episode.

    Attributes:
        seed: The seed of its reset and of the policy's random numbers. None if a vector env reset
            itself.
        task: Its task, if its :class:`pysampler.EpisodeSpec` has one.
        return_: The sum of its rewards.
        length: The number of its steps.
        terminated: Whether it terminated; otherwise it was truncated.
        success: The last info's "is_success" or "success"; None if it has neither.
        seconds: The time from its first observation to its last.
        statistics: Your statistics, by name.
    """

    seed: int | None
    return_: float
    length: int
    terminated: bool
    success: bool | None = None
    task: Any = None
    seconds: float = field(default=0.0, compare=False)
    statistics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of an evaluation, episode by episode.

    Attributes:
        episodes: The result of each episode, in the order of the list that was run.
    """

    episodes: Sequence[EpisodeResult]

    @cached_property
    def returns(self) -> npt.NDArray[np.float64]:
        """The return of each episode."""
        return np.array([one.return_ for one in self.episodes], np.float64)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of steps of each episode."""
        return np.array([one.length for one in self.episodes], np.int64)

    @cached_property
    def successes(self) -> npt.NDArray[np.bool_] | None:
        """Whether each episode succeeded; None unless the info of every episode says so."""
        found = [one.success for one in self.episodes if one.success is not None]
        return np.array(found) if len(found) == len(self.episodes) else None

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return float(self.returns.std())

    def interval(self, level: float = 0.95) -> Interval:
        """Return a bootstrap confidence interval of the mean return.

        Args:
            level: The confidence level.
        """
        return bootstrap(self.returns, level)

    @property
    def success_rate(self) -> float | None:
        """The share of episodes that succeeded; None if their infos do not say so."""
        return None if self.successes is None else float(self.successes.mean())

    def success_interval(self, level: float = 0.95) -> Interval | None:
        """Return Wilson's confidence interval of the success rate; None without successes.

        Args:
            level: The confidence level.
        """
        if self.successes is None:
            return None
        return wilson(int(self.successes.sum()), len(self.successes), level)

    def __str__(self) -> str:
        low, high = self.interval()
        text = (
            f"return {self.mean:.4g} [{low:.4g}, {high:.4g}] +- {self.std:.2g} over "
            f"{len(self.episodes)} episodes of {self.lengths.mean():.4g} steps"
        )
        if (rate := self.success_rate) is not None:
            low, high = self.success_interval() or (0, 0)
            text += f"; success {rate:.0%} [{low:.0%}, {high:.0%}]"
        return text
