"""Counts across rollouts: which of their steps were made, and which episodes ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._frames.frames import LOST
from pysampler._rollouts.rollout import Ended

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.warm_up import EpisodesSoFar

__all__ = ["Tally"]


class Tally:
    """Counts the steps and returns of episodes, which may go on from one rollout to the next.

    Args:
        slots: The number of rollouts that are counted at a time.
        horizon: The number of steps of a rollout.
        so_far: What the episode under way in each env has come to.
    """

    def __init__(self, slots: int, horizon: int, so_far: EpisodesSoFar) -> None:
        num_envs = len(so_far.lengths)
        self._starts = np.zeros((slots, horizon + 1, num_envs), np.bool_)
        self._valid = np.zeros((slots, horizon, num_envs), np.bool_)
        self._lost = np.zeros((slots, horizon, num_envs), np.bool_)
        self._begins = so_far.lengths == 0  # whether the next observation begins an episode
        self._return, self._length = so_far.returns.copy(), so_far.lengths.copy()
        self._time = np.arange(horizon)[:, None]

    def begin_episodes(self) -> None:
        """Begin an episode in every env: all were reset."""
        self._begins[:] = True
        self._return[:] = 0
        self._length[:] = 0

    def count(
        self, slot: int, frames: Frames, steps: slice, lengths: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the fields of a rollout that say what its steps are.

        Args:
            slot: The slot that the rollout lies in.
            frames: The frames.
            steps: Those with the results of the rollout's steps.
            lengths: The number of steps of each env.
        """
        starts, valid, lost = self._starts[slot], self._valid[slot], self._lost[slot]
        rewards, over = frames.rewards[steps], starts[1:]
        np.less(self._time, lengths, out=valid)
        np.logical_or(frames.terminated[steps], frames.truncated[steps], out=over)
        np.logical_and(over, valid, out=over)
        starts[0] = self._begins
        np.equal(frames.has_final[steps], LOST, out=lost)
        np.logical_and(lost, valid, out=lost)
        ended: list[tuple[int, int, float, int]] = []
        # Step by step: an episode's return must be the sum of its own rewards alone.
        for t, any_over in enumerate(over.any(axis=1)):
            np.add(self._return, rewards[t], out=self._return, where=valid[t])
            np.add(self._length, 1, out=self._length, where=valid[t])
            if any_over:
                envs = np.flatnonzero(over[t])
                ended += [
                    (int(env), t, float(self._return[env]), int(self._length[env]))
                    for env in envs[~lost[t, envs]]
                ]
                self._return[envs] = 0
                self._length[envs] = 0
        ended.sort()
        env, step, returns, episode_lengths = list(zip(*ended, strict=True)) or [()] * 4
        self._begins = starts[lengths, np.arange(len(lengths))].copy()
        np.greater(valid, lost, out=valid)  # made, and not lost
        return {
            "starts": starts,
            "valid": valid,
            "lost": lost,
            "lengths": lengths,
            "ended": Ended(
                np.array(env, np.int64),
                np.array(step, np.int64),
                np.array(returns, np.float64),
                np.array(episode_lengths, np.int64),
            ),
        }
