"""Statistics of whole episodes by a user's function, across batches."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.records import Records
from pysampler._common.numbers import whole_number
from pysampler._common.torch import to_array
from pysampler._policies.trees import concatenated, mapped
from pysampler._rollouts.rollout import OF_HOSTS, Episode, Rollout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

__all__ = ["EpisodeStatistics"]

_PARTS = "observations", "actions", "rewards", "extras", "infos"


class EpisodeStatistics:
    """Compute statistics of whole episodes with your function, also across rollouts.

    Pass all rollouts, or all records, to ``add`` in the order in which you got them. Incomplete
    episodes are left out: those that began before the first batch, in which a worker was lost, or
    whose records were dropped.

    Of hosts on Ray pass the rollout of each, not ``joined``. Or pass the statistics to
    :func:`pysampler.evaluate`.

    Args:
        function: A function of an :class:`pysampler.Episode`, whose ``steps`` count from 0. It
            returns a dict of numbers, with the same names for each episode.
        keep: The parts of episodes that ``function`` reads, out of "observations", "actions",
            "rewards", "extras" and "infos". Other parts are None in the episode, which saves
            memory.
        window: The number of episodes over which ``means`` averages: the newest ones.

    >>> import pysampler
    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> def describe(episode):
    ...     return {"right": episode.actions.mean(), "length": len(episode)}
    >>> statistics = EpisodeStatistics(describe, keep=["actions"])
    >>> with pysampler.Rollouts("CartPole-v1", policy, 40, num_envs=4, seed=1) as rollouts:
    ...     for _ in range(4):
    ...         rollout = next(rollouts)
    ...         of_batch = statistics.add(rollout)
    >>> sorted(statistics.means)
    ['length', 'right']
    >>> bool((of_batch["length"] == rollout.ended.lengths).all())
    True
    """

    def __init__(
        self,
        function: Callable[[Episode], Mapping[str, float]],
        *,
        keep: Iterable[str] = ("actions", "rewards"),
        window: int = 100,
    ) -> None:
        self._function = function
        self.keep = [keep] if isinstance(keep, str) else list(keep)
        if not callable(function):
            raise TypeError(f"cannot count episodes: {function!r}, expected a function")
        if unknown := [name for name in self.keep if name not in _PARTS]:
            raise ValueError(
                f"cannot count episodes: keep {unknown[0]!r}, expected some of {_PARTS}"
            )
        window = whole_number("count episodes", "window", window, 1)
        self._newest: deque[dict[str, float]] = deque(maxlen=window)
        # By host and env, the parts of its current episode.
        self._open: dict[tuple[int, int], list[Episode]] = {}
        self._numbers: dict[int, int] = {}  # by env, the number of its newest record
        self._layout: Any = None  # of these records: each Actors has its own
        # By host, the run and the number of its next rollout.
        self._run: dict[int, tuple[int, int]] = {}
        self.count = 0

    def add(self, batch: Rollout | Records) -> dict[str, npt.NDArray[Any]]:
        """Add a batch, and return the statistics of the whole episodes that ended in it.

        Args:
            batch: A rollout, or records.

        Returns:
            By name, an array with a value for each of these episodes, env by env.

        Raises:
            TypeError: The function did not return a dict of numbers.
            ValueError: The batch is the ``joined`` rollout of several hosts.
        """
        if not isinstance(batch, (Rollout, Records)):
            raise TypeError(
                f"cannot count episodes: {type(batch).__name__}, expected a Rollout or Records"
            )
        if isinstance(batch, Rollout) and batch._run == OF_HOSTS:
            raise ValueError("cannot count episodes: a joined rollout, expected that of each host")
        found: list[dict[str, float]] = []
        for run in self._without_gaps(batch) if isinstance(batch, Records) else (batch,):
            self._add(run, found)
        self._newest.extend(found)
        self.count += len(found)
        names = found[0].keys() if found else ()
        return {name: np.array([one[name] for one in found]) for name in names}

    def describe(self, episode: Episode) -> dict[str, float]:
        """Return the statistics of a whole episode, without adding it.

        Args:
            episode: The episode.

        Raises:
            TypeError: The function did not return a dict of numbers.
        """
        return self._described(episode, like=[])

    def _add(self, batch: Rollout | Records, found: list[dict[str, float]]) -> None:
        """Append the statistics of the episodes that ended in a batch to ``found``."""
        # Runs of records have no gaps: an episode that began and ended there is complete.
        lengths = None if isinstance(batch, Records) else _lengths_of(batch)
        host = 0
        if isinstance(batch, Rollout):
            # Rollouts of a host have numbers: one that is missing has parts of episodes.
            host, number = getattr(batch, "host", 0), getattr(batch, "number", 0)
            if self._run.get(host) != (batch._run, number):
                self._open = {key: one for key, one in self._open.items() if key[0] != host}
            self._run[host] = batch._run, number + hasattr(batch, "number")
        for part in batch.episodes():
            before = self._open.pop((host, part.env), [])
            if part.begins:
                before = []
            elif not before:
                continue
            parts = [*before, self._kept(part)]
            length = sum(map(len, parts))
            if not (part.terminated or part.truncated):
                self._open[host, part.env] = parts
            elif lengths is None or lengths.get((part.env, part.steps.stop)) == length:
                found.append(self._described(_joined(parts), like=[*self._newest, *found][-1:]))

    @property
    def means(self) -> dict[str, float]:
        """The mean of each statistic over the newest ``window`` episodes; {} before the first."""
        names = self._newest[0].keys() if self._newest else ()
        return {name: float(np.mean([one[name] for one in self._newest])) for name in names}

    def _kept(self, part: Episode) -> Episode:
        """Return a part of an episode with copies of the kept fields, and None for the others."""
        kept: dict[str, Any] = {
            name: _copied(getattr(part, name)) if name in self.keep else None for name in _PARTS
        }
        last = part.last_observation if "observations" in self.keep else None
        return replace(part, **kept, last_observation=None if last is None else _copied(last))

    def _without_gaps(self, records: Records) -> Iterator[Records]:
        """Yield runs of records of one env; drop the open part of an episode before each gap."""
        if records._layout is not self._layout:
            self._layout, self._numbers = records._layout, {}
        order = np.lexsort((records.rows["number"], records.rows["env"]))
        numbers, envs = records.rows["number"][order], records.rows["env"][order]
        gaps = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(envs) != 0)) + 1
        for rows in np.split(order, gaps) if len(order) else ():
            first, last = (int(records.rows["number"][row]) for row in (rows[0], rows[-1]))
            env = int(records.rows["env"][rows[0]])
            if self._numbers.get(env) != first - 1:
                self._open.pop((0, env), None)
            self._numbers[env] = last
            yield records[rows]

    def _described(self, episode: Episode, like: list[dict[str, float]]) -> dict[str, float]:
        """Return the function's result for an episode, with the names of ``like`` if it has any."""
        described = self._function(episode)
        names = like[0].keys() if like else None
        try:
            found = {str(name): float(value) for name, value in described.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise TypeError(
                f"cannot count episodes: the function returned {described!r}, expected a dict of "
                "numbers"
            ) from error
        if names is not None and found.keys() != names:
            raise TypeError(
                f"cannot count episodes: the function returned {sorted(found)}, expected "
                f"{sorted(names)} as before"
            )
        return found

    def __repr__(self) -> str:
        return f"<pysampler.EpisodeStatistics of {self.count} episodes: {self.means}>"


def _lengths_of(rollout: Rollout) -> dict[tuple[int, int], int]:
    """Return the lengths of ended episodes, by env and where ``steps`` of their parts stop."""
    ended = rollout.ended
    places = zip(ended.env.tolist(), (ended.step + 1).tolist(), strict=True)
    return dict(zip(places, ended.lengths.tolist(), strict=True))


def _copied(tree: Any) -> Any:
    return mapped(lambda array: np.array(to_array(array)), tree)


def _joined(parts: list[Episode]) -> Episode:
    last, counts = parts[-1], [*map(len, parts)]
    joined = {name: concatenated([getattr(p, name) for p in parts], counts) for name in _PARTS}
    return replace(last, **joined, steps=slice(0, sum(counts)), begins=True)
