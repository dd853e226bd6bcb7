"""Builds rollouts from the frames that a runner has filled."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._frames.frames import BEGUN, LOST
from pysampler._policies.frame_policy import BETWEEN
from pysampler._policies.trees import batch_from, mapped
from pysampler._rollouts.info_arrays import info_arrays
from pysampler._rollouts.rollout import Ended, Rollout

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._rollouts.runner import RolloutRunner, RunnerSetup

__all__ = ["RolloutBuilder", "frames_of"]


def frames_of(slot: int, horizon: int) -> range:
    """Return the frames of a slot. They follow the frame ``BETWEEN``, which is never lent."""
    first = BETWEEN + 1 + slot * (horizon + 1)
    return range(first, first + horizon + 1)


class RolloutBuilder:
    """Builds rollouts from frames, one after the other.

    A rollout takes up a *slot*: ``horizon + 1`` frames in a row. It is lent to the user: the slot
    is free again once nothing refers to an array of that rollout.

    Args:
        setup: The arguments of the runner.
        spec: The spaces that the policy sees.
        run: How often frames had been prepared before.
    """

    def __init__(self, setup: RunnerSetup, spec: Spec, run: int) -> None:
        self._core = setup.core
        self._num_workers = setup.num_workers
        self._options = setup.options
        self._spec = spec
        self._run = run
        so_far = setup.prepared.so_far
        self._tally = _core.Tally(
            *(so_far.returns.ravel().tolist(), so_far.lengths.tolist(), LOST, BEGUN)
        )
        # By slot, then by the id of the array of all frames. Ids are unique, because that array
        # lives as long as the runner.
        self._lent: defaultdict[int, dict[int | str, _core.Lent]] = defaultdict(dict)
        self._busy = setup.core.pool.busy_seconds()  # steps of all envs until the last rollout

    def held(self, slot: int) -> bool:
        """Return whether anything refers to an array of the rollout in a slot."""
        return any(array.held for array in self._lent[slot].values())

    def _lend(self, slot: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the frames of a slot in an array of all frames."""
        lent = self._lent[slot]
        if (own := lent.get(id(array))) is None:
            frames = frames_of(slot, self._options.horizon)
            own = lent[id(array)] = _core.Lent(array[frames.start : frames.stop])
        return own.view()

    def _marks(self, slot: int, envs: int) -> dict[str, npt.NDArray[np.bool_]]:
        """Return the boolean arrays of a rollout, such as ``valid`` and ``lost``."""
        lent, horizon = self._lent[slot], self._options.horizon
        for name, rows in (("starts", horizon + 1), ("valid", horizon), ("lost", horizon)):
            if name not in lent:
                lent[name] = _core.Lent(np.zeros((rows, envs), np.bool_), of_this_process=True)
        return {name: lent[name].view() for name in ("starts", "valid", "lost")}

    def build(
        self, runner: RolloutRunner, slot: int, *, version: int, lag: int, learner_seconds: float
    ) -> Rollout:
        """Return the rollout that a runner has filled, as views of the frames.

        Args:
            runner: The runner.
            slot: The slot of the rollout.
            version: The version of the policy.
            lag: How many rollouts old the policy is.
            learner_seconds: Seconds since the last rollout was returned.
        """
        horizon, frames = self._options.horizon, runner.frames
        policy, spec = runner.policy, self._spec
        of_slot = frames_of(slot, horizon)
        steps = slice(of_slot.start + 1, of_slot.stop)
        if self._options.reset_each:
            self._tally.begin_episodes()
        marks, lengths = self._marks(slot, frames.envs), runner.lengths
        ended = self._tally.count(
            *(frames.rewards[steps], frames.terminated[steps], frames.truncated[steps]),
            *(frames.has_final[steps], lengths, *marks.values()),
        )
        mailed_infos, runner.mailed_infos = runner.mailed_infos, []
        infos, info_masks = info_arrays(
            *(self._options.info_keys, self._core.results, frames, steps, mailed_infos),
            *(marks["starts"][1:], marks["valid"]),
        )

        def observed(array: npt.NDArray[Any], rows: slice = slice(None)) -> npt.NDArray[Any]:
            return self._lend(slot, array)[rows]

        acted = functools.partial(observed, rows=slice(-1))
        stepped = functools.partial(observed, rows=slice(1, None))

        def batch(tree: Any, arrays: Sequence[npt.NDArray[Any]], rows: Any) -> Any:
            return batch_from(tree, lambda leaf: rows(arrays[leaf]))

        rewards, terminated, truncated = map(
            stepped, (policy.rewards, frames.terminated, frames.truncated)
        )
        if self._options.allow_partial:  # a step in progress may still write to its row
            valid = marks["valid"].reshape(rewards.shape[:2] + (1,) * (rewards.ndim - 2))
            rewards = np.where(valid, rewards, 0.0)
            made = marks["valid"] | marks["lost"]
            terminated, truncated = terminated & made, truncated & made
        return Rollout(
            observations=batch(spec.observation_tree, policy.observations, observed),
            actions=batch(spec.action_tree, policy.actions, stepped),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            final_observations=batch(spec.observation_tree, policy.final_observations, stepped),
            extras={name: acted(array) for name, array in policy.recorded.items()},
            state=policy.recorded_state(acted),
            infos=mapped(np.array, infos),  # copies, because info columns are reused
            info_masks=mapped(np.array, info_masks),
            options=observed(frames.options_versions),
            version=version,
            lag=lag,
            seconds={**self._seconds(runner), "learner": learner_seconds},
            memory=frames.memory,
            lengths=lengths,
            ended=Ended(*ended),
            _run=self._run,
            **marks,
        )

    def _seconds(self, runner: RolloutRunner) -> dict[str, float]:
        busy_before, self._busy = self._busy, self._core.pool.busy_seconds()
        per_worker = (self._busy - busy_before) / max(1, self._num_workers)
        seconds, runner.seconds = runner.seconds, dict.fromkeys(runner.seconds, 0.0)
        return {**seconds, "envs": per_worker}
