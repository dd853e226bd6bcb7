"""The results of an evaluation: a table of episodes, and its statistics."""

from __future__ import annotations

import csv
import json
import os
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._rollouts.episodes import EpisodeResult
from pysampler._rollouts.intervals import Interval, bootstrap, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["COLUMNS", "Comparison", "Evaluation"]

# The columns of a table that statistics cannot have.
COLUMNS = (
    *("seed", "task", "return", "length", "terminated", "success", "seconds"),
    *("steps_per_second", "video"),
)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The differences between two evaluations of the same episodes.

    Attributes:
        differences: For each episode, the first value less the second.
        interval: A bootstrap confidence interval of the mean difference.
    """

    differences: npt.NDArray[np.float64]
    interval: Interval

    @property
    def mean(self) -> float:
        """The mean difference."""
        return float(self.differences.mean())

    @property
    def counts(self) -> tuple[int, int, int]:
        """In how many episodes the first value is larger, equal and smaller."""
        signs = np.sign(self.differences)
        return int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum())

    def __str__(self) -> str:
        larger, equal, smaller = self.counts
        low, high = self.interval
        return (
            f"difference {self.mean:.4g} [{low:.4g}, {high:.4g}]; larger in {larger}, equal in "
            f"{equal}, smaller in {smaller} of {len(self.differences)} episodes"
        )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of an evaluation, episode by episode.

    Attributes:
        episodes: The result of each episode, in the order of the list that was run.
        env: The id of the env, if it is registered.
    """

    episodes: Sequence[EpisodeResult]
    env: str | None = None

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
        """Whether each episode succeeded; None if no info says so.

        An episode whose info does not say so has failed if the info of another one does.
        """
        if all(one.success is None for one in self.episodes):
            return None
        return np.array([bool(one.success) for one in self.episodes])

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        with np.errstate(invalid="ignore"):  # of infinite returns
            return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        with np.errstate(invalid="ignore"):
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

    def compare(self, other: Evaluation, column: str = "return", level: float = 0.95) -> Comparison:
        """Compare two evaluations of the same episodes, pair by pair.

        Pairs have the same seed and task, so their differences vary less than those of the means.
        Each policy should draw its random numbers from ``generators``, if it draws any.

        Args:
            other: An evaluation of the same seeds and tasks, in the same order.
            column: The column of the table to compare, such as "success".
            level: The confidence level.
        """
        if self.env != other.env and None not in (self.env, other.env):
            warnings.warn(
                f"pysampler: compared evaluations have other envs: {self.env} and {other.env}",
                stacklevel=2,
            )
        if (count := len(self.episodes)) != len(other.episodes):
            raise ValueError(
                f"cannot compare evaluations: they have {count} and {len(other.episodes)} "
                "episodes, expected the same episodes in the same order"
            )
        own, theirs = ([one.seed for one in both.episodes] for both in (self, other))
        if own != theirs or None in own:
            raise ValueError(
                f"cannot compare evaluations: the seeds are {own[:3]}... and {theirs[:3]}..., "
                "expected the same seeds in the same order"
            )
        for i, (one, two) in enumerate(zip(self.episodes, other.episodes, strict=True)):
            if one.task is not two.task and repr(one.task) != repr(two.task):
                raise ValueError(
                    f"cannot compare evaluations: the tasks of episode {i} are {one.task!r} and "
                    f"{two.task!r}, expected the same tasks in the same order"
                )
        differences = self._column(column) - other._column(column)
        return Comparison(differences, bootstrap(differences, level))

    def _column(self, name: str) -> npt.NDArray[np.float64]:
        if name == "success" and self.successes is not None:
            return self.successes.astype(np.float64)
        rows = [one.row for one in self.episodes]
        if missing := [row for row in rows if name not in row]:
            raise ValueError(
                f"cannot compare evaluations: column {name!r}, expected one of {list(missing[0])}"
            )
        try:
            return np.array([row[name] for row in rows], np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"cannot compare evaluations: column {name!r} has {rows[0][name]!r}, expected "
                "numbers"
            ) from error

    @property
    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for one in self.episodes for name in one.row))

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each episode."""
        import pandas as pd  # noqa: PLC0415 - an optional dependency

        return pd.DataFrame([one.row for one in self.episodes], columns=self._columns)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a table with a row for each episode to a file. Tasks are written as JSON.

        Args:
            path: The file.
        """
        with Path(path).open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            for one in self.episodes:
                row = one.row
                if "task" in row:
                    row["task"] = json.dumps(row["task"], default=str)
                writer.writerow(row)

    def plot(self, axes: Any = None) -> Any:
        """Draw the returns as a histogram, with their mean and its confidence interval.

        Infinite returns and NaN are left out of the histogram.

        Args:
            axes: The ``matplotlib`` axes to draw to, or a path to write a picture to; None: new
                axes.

        Returns:
            The axes.
        """
        if isinstance(axes, (str, os.PathLike)):
            from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

            figure = Figure()
            drawn = self.plot(figure.subplots())
            figure.savefig(axes)
            return drawn
        if axes is None:
            import matplotlib.pyplot as plt  # noqa: PLC0415 - an optional dependency

            axes = plt.subplots()[1]
        low, high = self.interval()
        axes.hist(self.returns[np.isfinite(self.returns)], bins="auto", alpha=0.5)
        if np.isfinite([low, high]).all():
            axes.axvspan(low, high, alpha=0.2, label="95 % interval of the mean")
            axes.axvline(self.mean, label=f"mean {self.mean:.4g}")
            axes.legend()
        axes.set(xlabel="return", ylabel="episodes")
        return axes

    def __str__(self) -> str:
        if not self.episodes:
            return "no episodes"
        low, high = self.interval()
        text = (
            f"return {self.mean:.4g} [{low:.4g}, {high:.4g}] +- {self.std:.2g} over "
            f"{len(self.episodes)} episodes of {self.lengths.mean():.4g} steps"
        )
        rate, interval = self.success_rate, self.success_interval()
        if rate is not None and interval is not None:
            text += f"; success {rate:.0%} [{interval.low:.0%}, {interval.high:.0%}]"
            if silent := sum(one.success is None for one in self.episodes):
                text += f", {silent} without a success in their infos counted as failures"
        return text
