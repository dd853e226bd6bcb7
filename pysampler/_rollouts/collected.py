"""Episodes by task, and all of them as one set of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._policies.trees import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._rollouts.rollout import Episode

__all__ = ["RESERVED", "Collected"]

# Fields of collected episodes, whose names the policy's extras cannot have.
RESERVED = {
    *("observations", "actions", "rewards", "offsets", "mask", "task", "env", "terminated"),
    *("truncated", "last_observations"),
}


@dataclass(frozen=True)
class Collected:
    """The episodes of a sample by task, as views of the rollout's arrays.

    Attributes:
        tasks: The tasks.
        episodes: For each task, the list of its episodes.
    """

    tasks: list[Any]
    episodes: list[list[Episode]]

    def ragged(self) -> dict[str, Any]:
        """Return the steps of all episodes as flat arrays, one episode after the other.

        Returns:
            A dict of arrays. ``observations``, ``actions``, ``rewards`` and the policy's extras
            have a row for each step; episode i has the rows ``offsets[i]`` to ``offsets[i + 1]``.
            ``task``, ``env``, ``terminated``, ``truncated`` and ``last_observations`` have a row
            for each episode; ``last_observations`` is zeros if the episode terminated.
        """
        episodes = self._flat()
        return {
            "offsets": np.cumsum([0, *map(len, episodes)]),
            **self._by_episode(episodes),
            **_by_step(lambda *parts: np.concatenate(parts), episodes),
        }

    def padded(self) -> dict[str, Any]:
        """Return the steps of all episodes as arrays ``[episodes, longest episode, ...]``.

        Returns:
            A dict of arrays: ``observations``, ``actions``, ``rewards`` and the policy's extras,
            padded with zeros after each episode; a ``mask`` that is True for steps; and the
            per-episode fields of ``ragged``.
        """
        episodes = self._flat()
        lengths = np.array([len(episode) for episode in episodes])
        longest = int(lengths.max(initial=0))

        def pad(*parts: npt.NDArray[Any]) -> npt.NDArray[Any]:
            array = np.zeros((len(parts), longest, *parts[0].shape[1:]), parts[0].dtype)
            for row, part in zip(array, parts, strict=True):
                row[: len(part)] = part
            return array

        return {
            "mask": np.arange(longest) < lengths[:, None],
            **self._by_episode(episodes),
            **_by_step(pad, episodes),
        }

    def _flat(self) -> list[Episode]:
        return [episode for of_task in self.episodes for episode in of_task]

    def _by_episode(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        tasks = [task for task, of_task in enumerate(self.episodes) for _ in of_task]
        last = [
            episode.last_observation
            if episode.last_observation is not None
            else mapped(lambda array: np.zeros_like(array[0]), episode.observations)
            for episode in episodes
        ]
        return {
            "task": np.array(tasks, np.int64),
            "env": np.array([episode.env for episode in episodes], np.int64),
            "terminated": np.array([episode.terminated for episode in episodes], np.bool_),
            "truncated": np.array([episode.truncated for episode in episodes], np.bool_),
            "last_observations": mapped(lambda *rows: np.stack(rows), *last) if last else None,
        }


def _by_step(join: Callable[..., npt.NDArray[Any]], episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the per-step fields of all episodes; ``join`` combines their arrays into one."""
    trees = [
        {
            "observations": episode.observations,
            "actions": episode.actions,
            "rewards": episode.rewards,
            **episode.extras,
        }
        for episode in episodes
    ]
    return mapped(join, *trees) if trees else {}
