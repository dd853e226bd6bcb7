"""Counts across rollouts: the steps that were made, and the episodes that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._frames.frames import BEGUN, LOST
from pysampler._rollouts.rollout import Ended

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.warm_up import EpisodesSoFar

__all__ = ["Tally"]


class Tally:
    """Counts the steps and returns of episodes, which may span several rollouts.

    Args:
        so_far: Return and length so far of the episode under way in each env.
    """

    def __init__(self, so_far: EpisodesSoFar) -> None:
        self._episodes = _core.Tally(
            *(so_far.returns.ravel().tolist(), so_far.lengths.tolist(), LOST, BEGUN)
        )
        self.begin_episodes = self._episodes.begin_episodes

    def count(
        self,
        frames: Frames,
        steps: slice,
        lengths: npt.NDArray[np.int64],
        marks: Mapping[str, npt.NDArray[np.bool_]],
    ) -> dict[str, Any]:
        """Return the fields of a rollout that classify its steps.

        Args:
            frames: The frames.
            steps: The frames with the results of the rollout's steps.
            lengths: The number of steps of each env.
            marks: The arrays to fill: "starts", "valid" and "lost".
        """
        ended = self._episodes.count(
            *(frames.rewards[steps], frames.terminated[steps], frames.truncated[steps]),
            *(frames.has_final[steps], lengths, marks["starts"], marks["valid"], marks["lost"]),
        )
        return {
            **marks,
            "lengths": lengths,
            "ended": Ended(*ended),
        }
