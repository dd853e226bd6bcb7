"""Rollout: the steps of all envs as arrays, and views of single episodes."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.torch import tensor_from, to_array
from pysampler._policies.trees import mapped
from pysampler._rollouts import cuda
from pysampler._rollouts.gae import gae

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    import numpy.typing as npt

__all__ = ["OF_HOSTS", "STEP_FIELDS", "Ended", "Episode", "Rollout"]

# The fields of a rollout that are arrays, or trees of arrays, with axes of steps and of envs.
STEP_FIELDS = (
    *("observations", "actions", "rewards", "terminated", "truncated", "final_observations"),
    *("starts", "valid", "lost", "extras", "state", "infos", "info_masks", "options"),
)
OF_HOSTS = -1  # the run of a rollout with the envs of several hosts


@dataclass(frozen=True)
class Ended:
    """The episodes that ended during a rollout: one row each, sorted by env, then by step.

    Attributes:
        env: The index of each episode's env.
        step: The step of the rollout in which each episode ended.
        returns: The sum of all rewards of each episode, including those in earlier rollouts.
        lengths: The number of steps of each episode, including those in earlier rollouts.
    """

    env: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.env)


@dataclass(frozen=True, repr=False)
class Episode:
    """An episode of an env, or the part of it in one rollout, as views of the rollout's arrays.

    Attributes:
        env: The index of the env.
        steps: Which steps of the rollout these are, as a slice.
        observations: The observations that the policy acted on, one per step.
        actions: The actions.
        rewards: The rewards.
        extras: The policy's extras, by name.
        last_observation: The observation after the last step; None if the episode terminated.
        begins: Whether the episode begins here; False if it continues from an earlier rollout.
        terminated: Whether the episode terminated here.
        truncated: Whether the episode was truncated here.
        infos: The infos with the ``info_keys`` of the rollouts.
    """

    env: int
    steps: slice
    observations: Any
    actions: Any
    rewards: Any
    extras: dict[str, Any]
    last_observation: Any
    begins: bool
    terminated: bool
    truncated: bool
    infos: dict[str, Any]

    def __len__(self) -> int:
        return self.steps.stop - self.steps.start

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "truncated" if self.truncated else "not over"
        return f"<pysampler.Episode of env {self.env}: {len(self)} steps, {end}>"


@dataclass(frozen=True, repr=False)
class Rollout:
    """T steps of N envs, as arrays ``[T, N, ...]``.

    The arrays are views of the memory that the workers wrote to. They do not change while you hold
    any of them: that memory is reused only once nothing refers to it. You can hold a few rollouts
    this way, see ``keep_last`` of :class:`pysampler.Rollouts`; to keep more, use ``copy()``. If the
    env's observations or actions are dicts or tuples, you get dicts or tuples of arrays.

    Attributes:
        observations: ``[T + 1, N, ...]``: the policy chose ``actions[t]`` for ``observations[t]``;
            the last row holds the observations after the last step.
        actions: The actions.
        rewards: The rewards, float64.
        terminated: Whether the step terminated the episode.
        truncated: Whether the step truncated the episode.
        final_observations: The last observation of an episode, in the row of the step that ended
            it. Other rows hold no data.
        starts: ``[T + 1, N]``: whether an episode begins with this observation.
        valid: ``[T, N]``: whether the step was made; if not, the other arrays hold no data there.
            It is False if a worker was lost in the step; with ``allow_partial=True``, if the
            rollout ended first; and if a vector env with gymnasium's mode ``NEXT_STEP`` only reset
            the env in it.
        lost: ``[T, N]``: whether a worker was lost in the step.
        lengths: ``[N]``: the number of steps of each env; T unless ``allow_partial=True``.
        extras: The policy's extras, by name.
        state: The recurrent state with which the policy chose the actions; None if it has none.
        infos: ``[T, N, ...]`` by key of ``info_keys``; nested if the env's info is a dict. Rows
            without this info are 0, see ``info_masks``. Keys that no env has returned yet are
            missing.
        info_masks: ``[T, N]``, with the structure of ``infos``: whether the env returned the info.
        options: ``[T + 1, N]``: the version of ``set_options`` that the episode began with, or 0.
        ended: The episodes that ended: returns and lengths.
        version: The version of the policy: the number of rollouts begun, including this one.
        lag: The age of the policy: the number of rollouts returned between copying the policy and
            this rollout. 0 without ``overlap``; 1 with it, except for the first rollout.
        seconds: Seconds spent in "policy", "envs", "waiting" and "learner".
        memory: The memory that holds all these arrays.
    """

    observations: Any
    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any
    final_observations: Any
    starts: Any
    valid: Any
    lost: Any
    lengths: npt.NDArray[np.int64]
    extras: dict[str, Any]
    state: Any
    infos: dict[str, Any]
    info_masks: dict[str, Any]
    options: Any
    ended: Ended
    version: int
    lag: int
    seconds: dict[str, float]
    memory: npt.NDArray[np.uint8]
    # Another one after other callers have used the envs; OF_HOSTS: they are of several hosts.
    _run: int = field(default=0, kw_only=True)

    def __repr__(self) -> str:
        steps, envs = self.terminated.shape
        return (
            f"<pysampler.Rollout of {steps} steps of {envs} envs, {len(self.ended)} episodes "
            f"ended, policy version {self.version}>"
        )

    @property
    def steps(self) -> int:
        """The total number of steps of all envs: the ``valid`` ones."""
        return int(to_array(self.valid).sum())

    @property
    def cut_indices(self) -> tuple[Any, Any]:
        """The steps and the envs of truncated episodes, in the order of ``cut_observations``.

        They are two arrays, which index arrays ``[T, N]``: ``values[rollout.cut_indices]``.
        """
        cut = to_array(self.truncated) & ~to_array(self.terminated)
        step, env = np.nonzero(cut & (to_array(self.valid) | to_array(self.lost)))
        return step, env

    @property
    def cut_observations(self) -> Any:
        """The last observations of truncated episodes, one per row, to bootstrap values from.

        There are no rows if no episode was truncated.
        """
        step, env = self.cut_indices
        return mapped(lambda array: array[step, env], self.final_observations)

    @property
    def last_observations(self) -> Any:
        """The observation of each env after its last step, to bootstrap values from."""
        lengths = self.lengths
        if (lengths == len(self.rewards)).all():
            return mapped(lambda array: array[-1], self.observations)
        return mapped(lambda array: array[lengths, np.arange(len(lengths))], self.observations)

    def gae(
        self,
        values: Any,
        last_values: Any,
        cut_values: Any = (),
        *,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
    ) -> tuple[Any, Any]:
        """Compute advantages by generalized advantage estimation (GAE), and returns.

        Args:
            values: ``[T, N]``: the values of ``observations[:-1]``.
            last_values: ``[N]``: the values of ``last_observations``.
            cut_values: The values of ``cut_observations``; needed if episodes were truncated.
            gamma: The discount factor.
            gae_lambda: How much longer estimates count: with 0 the advantage is the one-step error
                (low variance), with 1 the return minus the value (low bias).

        Returns:
            Advantages, and returns (advantages + values). Tensors if ``values`` is one.
        """
        results = gae(
            to_array(self.rewards),
            to_array(values),
            to_array(last_values),
            to_array(self.terminated),
            to_array(self.truncated),
            to_array(cut_values),
            valid=to_array(self.valid),
            cut=self.cut_indices,
            lengths=self.lengths,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        if isinstance(values, np.ndarray):
            return results
        advantages, returns = (tensor_from(array).to(values) for array in results)
        return advantages, returns

    def episodes(self) -> Iterator[Episode]:
        """Yield each episode, or the part of it in this rollout, env by env.

        If a worker was lost, the episode is truncated before the lost step.
        """
        over = to_array(self.terminated) | to_array(self.truncated)
        starts, lost, valid = to_array(self.starts), to_array(self.lost), to_array(self.valid)
        for env, length in enumerate(self.lengths.tolist()):
            ends = (np.flatnonzero(over[:length, env]) + 1).tolist()
            begin = 0
            for end in [*ends, *([length] if not ends or ends[-1] < length else [])]:
                stop = end - bool(lost[end - 1, env])
                # These only reset the env, or were left out of a chunk.
                while begin < stop and not valid[begin, env]:
                    begin += 1
                if stop > begin:
                    yield self._episode(env, slice(begin, stop), end, bool(starts[begin, env]))
                begin = end

    def _episode(self, env: int, steps: slice, end: int, begins: bool) -> Episode:  # noqa: FBT001
        terminated = bool(self.terminated[end - 1, env])
        truncated = bool(self.truncated[end - 1, env])
        last = None
        if truncated and not terminated:
            last = mapped(lambda array: array[end - 1, env], self.final_observations)
        elif not terminated:
            last = mapped(lambda array: array[end, env], self.observations)
        observations, actions, rewards, extras, infos = mapped(
            lambda array: array[steps, env],
            (self.observations, self.actions, self.rewards, self.extras, self.infos),
        )
        return Episode(
            *(env, steps, observations, actions, rewards, extras),
            *(last, begins, terminated, truncated, infos),
        )

    def torch(self, device: Any = None) -> Self:
        """Return the rollout with tensors instead of arrays.

        Each array goes to a GPU as one asynchronous copy, which overlaps with CPU work if the
        memory could be registered with CUDA. Work that you queue on the tensors waits for the copy,
        and so does the next rollout in the same memory.

        Args:
            device: The torch device to copy to. None: tensors on the CPU that share memory with the
                arrays.
        """
        if to_gpu := cuda.is_cuda(device):
            cuda.register_memory(self.memory)
        converted = self._converted(
            functools.partial(tensor_from, device=device, non_blocking=True)
        )
        if to_gpu:
            cuda.record_copies(self.memory, device)
        return converted

    def copy(self) -> Self:
        """Return a copy in separate memory, which you can keep for as long as you like."""
        own = self._converted(lambda array: array.copy())
        return dataclasses.replace(own, memory=np.zeros(0, np.uint8))

    def _converted(self, function: Callable[[Any], Any]) -> Self:
        trees = {name: getattr(self, name) for name in STEP_FIELDS}
        converted = {
            name: mapped(function, tree) for name, tree in trees.items() if tree is not None
        }
        return dataclasses.replace(self, **converted)
