"""Random steps before the first rollout, so that envs do not end their episodes in lockstep."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.vector.vector_env import AutoresetMode

from pysampler._vector.env_calls import reward_shape

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._vector.vector_env import VectorEnv

__all__ = ["EpisodesSoFar", "warm_up"]


class EpisodesSoFar(NamedTuple):
    """The return and length so far of each env's current episode."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]


def warm_up(envs: VectorEnv, most: int, entropy: Any) -> EpisodesSoFar:
    """Make up to ``most`` random steps in each env. The envs must have been reset.

    All envs step together; each is reset again before a step drawn at random.

    Args:
        envs: The envs.
        most: The maximum number of steps; 0 makes none.
        entropy: Entropy of the actions and of each env's number of steps.
    """
    of_returns = envs.num_envs, *reward_shape(envs.reward_space)
    so_far = EpisodesSoFar(np.zeros(of_returns), np.zeros(envs.num_envs, np.int64))
    if most == 0:
        return so_far
    random = np.random.default_rng(entropy)
    begins = random.integers(0, most, envs.num_envs, endpoint=True)
    actions = copy.deepcopy(envs.action_space)  # a copy, to leave the user's space unseeded
    actions.seed(int(random.integers(1 << 31)))
    resets_itself = envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    ended = np.zeros(envs.num_envs, np.bool_)
    for at in range(most + 1):
        resets = (begins == at) if at > 0 else np.zeros_like(ended)
        if not resets_itself:
            resets |= ended
        if resets.any():
            envs.reset(options={"reset_mask": resets})
        for array in so_far:
            array[resets | ended] = 0
        if at == most:
            break
        _, rewards, terminated, truncated, _ = envs.step(actions.sample())
        so_far.returns[:] = so_far.returns + rewards
        so_far.lengths[:] += 1
        ended = terminated | truncated
    return so_far
