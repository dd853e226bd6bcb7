"""Builds rollouts from the frames that a walker has filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._policies.trees import batch_from
from pysampler._rollouts.info_arrays import info_arrays
from pysampler._rollouts.rollout import Rollout
from pysampler._rollouts.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._rollouts.walker import Walker, WalkerSetup

__all__ = ["RolloutBuilder"]


class RolloutBuilder:
    """Builds rollouts from frames, one after the other.

    Args:
        setup: What the walker was made with.
        spec: The spaces that the policy sees.
        slots: How many rollouts the frames have room for.
    """

    def __init__(self, setup: WalkerSetup, spec: Spec, slots: int) -> None:
        self._core = setup.core
        self._num_workers = setup.num_workers
        self._options = setup.options
        self._spec = spec
        self._tally = Tally(slots, setup.options.horizon, setup.prepared.so_far)
        self._busy = setup.core.pool.busy_seconds()  # of all envs together, up to the last rollout

    def build(
        self, walker: Walker, slot: int, *, version: int, lag: int, learner_seconds: float
    ) -> Rollout:
        """Return the rollout that a walker has filled, as views of the frames.

        Args:
            walker: The walker.
            slot: The slot that the rollout lies in.
            version: The version of the policy.
            lag: How many rollouts old the policy is.
            learner_seconds: Seconds since the last rollout was returned.
        """
        horizon, frames, policy, spec = (
            self._options.horizon,
            walker.frames,
            walker.policy,
            self._spec,
        )
        base = slot * (horizon + 1)
        observed, acted = slice(base, base + 1 + horizon), slice(base, base + horizon)
        steps = slice(base + 1, base + 1 + horizon)
        if self._options.reset_each:
            self._tally.begin_episodes()
        marks = self._tally.count(slot, frames, steps, walker.lengths)
        mailed_infos, walker.mailed_infos = walker.mailed_infos, []
        infos, info_masks = info_arrays(
            *(self._options.info_keys, self._core.results, frames, steps, mailed_infos),
            *(marks["starts"][1:], marks["valid"]),
        )
        rewards = policy.rewards[steps]
        if self._options.allow_partial:  # a step under way may still be writing to its row
            rewards = np.where(marks["valid"], rewards, 0.0)
        return Rollout(
            observations=_batch(spec.observation_tree, policy.observations, observed),
            actions=_batch(spec.action_tree, policy.actions, steps),
            rewards=rewards,
            terminated=frames.terminated[steps],
            truncated=frames.truncated[steps],
            final_observations=_batch(spec.observation_tree, policy.final_observations, steps),
            extras={name: array[acted] for name, array in policy.recorded.items()},
            state=policy.recorded_state(acted),
            infos=infos,
            info_masks=info_masks,
            options=frames.options_versions[observed],
            version=version,
            lag=lag,
            seconds={**self._seconds(walker), "learner": learner_seconds},
            memory=frames.memory,
            **marks,
        )

    def _seconds(self, walker: Walker) -> dict[str, float]:
        """Return where the time since the last rollout went."""
        busy_before, self._busy = self._busy, self._core.pool.busy_seconds()
        per_worker = (self._busy - busy_before) / max(1, self._num_workers)
        seconds, walker.seconds = walker.seconds, dict.fromkeys(walker.seconds, 0.0)
        return {**seconds, "envs": per_worker}


def _batch(tree: Any, arrays: Sequence[npt.NDArray[Any]], frames: slice) -> Any:
    return batch_from(tree, lambda leaf: arrays[leaf][frames])
