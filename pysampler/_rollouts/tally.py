"""Counts across rollouts: which of their steps were made, and which episodes ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._frames.frames import LOST
from pysampler._rollouts.rollout import Ended

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.warm_up import EpisodesSoFar

__all__ = ["Tally"]


class Tally:
    """Counts the steps and returns of episodes, which may go on from one rollout to the next.

    Args:
        so_far: What the episode under way in each env has come to.
    """

    def __init__(self, so_far: EpisodesSoFar) -> None:
        self._episodes = _core.Tally(so_far.returns.tolist(), so_far.lengths.tolist(), LOST)
        self.begin_episodes = self._episodes.begin_episodes

    def count(
        self,
        frames: Frames,
        steps: slice,
        lengths: npt.NDArray[np.int64],
        marks: Mapping[str, npt.NDArray[np.bool_]],
    ) -> dict[str, Any]:
        """Return the fields of a rollout that say what its steps are.

        Args:
            frames: The frames.
            steps: Those with the results of the rollout's steps.
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
