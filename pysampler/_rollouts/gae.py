"""Generalized advantage estimation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.numbers import fitting_array, is_real, plain_array

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["gae"]

_DOING = "estimate advantages"


def gae(
    rewards: npt.NDArray[Any],
    values: npt.NDArray[Any],
    last_values: npt.NDArray[Any],
    terminated: npt.NDArray[np.bool_],
    truncated: npt.NDArray[np.bool_],
    cut_values: npt.NDArray[Any] = np.zeros(0),  # noqa: B008 - never written to
    *,
    valid: npt.NDArray[np.bool_] | None = None,
    cut: tuple[Any, Any] | None = None,
    lengths: npt.NDArray[np.int64] | None = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Compute advantages by generalized advantage estimation (GAE), and returns.

    :meth:`pysampler.Rollout.gae` calls this with the arrays of a rollout. Envs must be reset in the
    step that ends their episode: after such a step, ``values[t + 1]`` belongs to the next episode.
    If a reward has k numbers, rewards and values have a further dimension: ``[T, N, k]``.

    Args:
        rewards: ``[T, N]``: the rewards of T steps of N envs.
        values: ``[T, N]``: the values of the observations that the policy acted on.
        last_values: ``[N]``: the values of the observations after each env's last step.
        terminated: ``[T, N]``: whether the step terminated the episode: the value after it is 0.
        truncated: ``[T, N]``: whether the step truncated the episode: the value after it comes from
            ``cut_values``.
        cut_values: The values of the last observations of truncated episodes, in the order of
            ``cut``.
        valid: ``[T, N]``: whether the step was made; None: all. Both results are 0 for other steps,
            and earlier steps ignore them.
        cut: The steps and the envs of the truncated episodes; by default, of all that did not
            terminate in the same step.
        lengths: ``[N]``: the number of steps of each env, if some made fewer than T.
        gamma: The discount factor.
        gae_lambda: How much longer estimates count: with 0 the advantage is the one-step error (low
            variance), with 1 the return minus the value (low bias).

    Returns:
        Advantages, and returns (advantages + values): ``[T, N]`` each.

    Raises:
        ValueError: Shapes do not fit together, or ``gamma`` or ``gae_lambda`` is not in 0 to 1.

    >>> ones = np.ones((3, 1))
    >>> never = np.zeros((3, 1), bool)
    >>> gae(ones, 0 * ones, np.array([8.0]), never, never, gamma=0.5, gae_lambda=1.0)[0].ravel()
    array([2.75, 3.5 , 5.  ])
    """
    for name, value in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not (is_real(value, 0) and value <= 1):
            raise ValueError(f"cannot {_DOING}: {name} {value!r}, expected 0 to 1")
    rewards = plain_array(_DOING, "rewards", rewards)
    values = plain_array(_DOING, "values", values)
    last_values = plain_array(_DOING, "last_values", last_values)
    cut_values = plain_array(_DOING, "cut_values", cut_values)
    if rewards.ndim not in (2, 3):
        raise ValueError(f"cannot {_DOING}: rewards of shape {rewards.shape}, expected [T, N]")
    steps, envs = shape = rewards.shape[:2]
    numbers = rewards.shape[2:]
    if values.shape != rewards.shape or last_values.shape != (envs, *numbers):
        raise ValueError(
            f"cannot {_DOING}: values of shape {values.shape} and last_values of "
            f"{last_values.shape}, expected {rewards.shape} and {(envs, *numbers)}"
        )
    terminated = _bool_array("terminated", terminated, shape)
    truncated = _bool_array("truncated", truncated, shape)
    valid = None if valid is None else _bool_array("valid", valid, shape)
    if cut is None:
        step, env = np.nonzero(truncated & ~terminated)
        cut = step, env
    expected = len(cut[0]), *numbers
    if cut_values.shape != expected and not (cut_values.size == expected[0] == 0):
        raise ValueError(
            f"cannot {_DOING}: cut_values of shape {cut_values.shape}, expected {expected}: "
            "the values of cut_observations"
        )
    cut_values = cut_values.reshape(expected)
    dtype = np.result_type(values.dtype, np.float32)
    next_values = np.empty(rewards.shape, dtype)  # of the observation after each step
    next_values[:-1] = values[1:]
    next_values[-1] = last_values
    if lengths is not None and (lengths < steps).any():
        short = np.flatnonzero((lengths < steps) & (lengths > 0))
        next_values[lengths[short] - 1, short] = last_values[short]
    next_values[terminated] = 0
    next_values[cut] = cut_values
    decay = dtype.type(gamma * gae_lambda)
    goes_on = ~(terminated | truncated).reshape(*shape, *[1] * len(numbers))
    advantages = (rewards + gamma * next_values - values).astype(dtype)
    if valid is not None:
        advantages[~valid] = 0
    for t in range(steps - 2, -1, -1):
        # Not times 0 where an episode ends: the next one may have rewards that are not finite.
        np.add(advantages[t], decay * advantages[t + 1], out=advantages[t], where=goes_on[t])
    returns = advantages + values
    if valid is not None:
        advantages[~valid] = 0
        returns[~valid] = 0
    return advantages, returns


def _bool_array(name: str, got: Any, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    array = fitting_array(_DOING, name, got, np.dtype(np.bool_))
    if array.shape != shape:
        raise ValueError(f"cannot {_DOING}: {name} of shape {array.shape}, expected {shape}")
    return array
