"""TorchRL on pysampler: envs for its collectors, and rollouts as TensorDicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict
from torchrl.envs import GymWrapper

from pysampler._common.torch import tensor_from
from pysampler._policies.trees import mapped
from pysampler._vector.make import make_vec, vector_options
from pysampler.adapters import _env_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec

    from pysampler._rollouts.rollout import Rollout
    from pysampler._rollouts.rollouts import Rollouts

__all__ = ["RolloutCollector", "make_env", "tensordict_of"]

_RESERVED = {"action", "collector", "done", "is_init", "next", "reward", "terminated", "truncated"}


def make_env(
    id: str | EnvSpec | Callable[..., gym.Env[Any, Any]],  # noqa: A002 - gymnasium's name
    num_envs: int = 1,
    *,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Make a vector env for TorchRL's collectors, transforms and ``rollout``.

    TorchRL resets envs itself, so the vector env's ``autoreset_mode`` is "Disabled". TorchRL also
    accepts "SameStep", but not gymnasium's default; pass ``autoreset_mode`` to choose.

    TorchRL does not support tuples of different spaces: the parts of a tuple observation get the
    keys ``("observation", "0")`` and so on.

    Args:
        id: An env id, an ``EnvSpec``, or a function that makes one env.
        num_envs: The number of envs.
        vector_kwargs: Options of ``pysampler.VectorEnv`` in a dict.
        wrappers: Gymnasium wrappers of each env.
        wrapper_kwargs: Arguments of TorchRL's ``GymWrapper``, such as ``device`` or
            ``categorical_action_encoding``.
        kwargs: Options of ``pysampler.VectorEnv`` and arguments of the env: see ``make_vec``.

    Returns:
        TorchRL's ``GymWrapper`` of a ``pysampler.VectorEnv``, of batch size ``[num_envs]``.
    """
    chosen = vector_options("make vector env", vector_kwargs)
    if "autoreset_mode" not in kwargs:
        chosen.setdefault("autoreset_mode", AutoresetMode.DISABLED)
    envs = make_vec(id, num_envs, vector_kwargs=chosen, wrappers=wrappers, **kwargs)
    if _env_calls.has_tuples(envs.single_observation_space):  # known only once the envs are made
        envs.close()
        wrappers = [*(wrappers or ()), _env_calls.TuplesAsDicts]
        envs = make_vec(id, num_envs, vector_kwargs=chosen, wrappers=wrappers, **kwargs)
    try:
        return GymWrapper(envs, **(wrapper_kwargs or {}))
    except BaseException:
        envs.close()
        raise


def tensordict_of(rollout: Rollout) -> Any:
    """Convert a rollout to a TensorDict in the layout of TorchRL's collectors.

    Its batch size is ``[N, T]``: time is the last dimension. Its keys are ``observation`` (for dict
    observations, their keys; for tuples, "0", "1", ...), ``action`` (discrete ones as an index, not
    one-hot), the other outputs of the policy, ``is_init``, and under ``next`` the observation,
    ``reward``, ``done``, ``terminated``, ``truncated`` and infos. Where an episode ends, the next
    observation is the last one of that episode. ``("collector", "mask")`` marks valid steps. The
    step before a lost one is ``truncated``, so that advantages do not depend on the lost one.

    All tensors are views of the rollout's memory, except ``reward``, which becomes float32,
    ``truncated`` and ``done``. The memory is not overwritten while you hold any of them (see
    ``keep_last`` of ``Rollouts``). If an episode has ended, ``rollout.final_observations`` become
    the ``next`` observations: its rows without data are filled with the observations that followed.

    Args:
        rollout: A rollout of arrays, not of tensors, in which every env made T steps.

    Raises:
        ValueError: An env made fewer steps (``allow_partial=True``), or a part of the observations,
            an extra or an info has the name of another key.
    """
    steps, envs = rollout.terminated.shape
    if (rollout.lengths != steps).any():
        raise ValueError(
            f"cannot make a TensorDict: an env has {rollout.lengths.min()} steps, expected {steps} "
            "for all; sample with allow_partial=False"
        )
    done = rollout.terminated | rollout.truncated
    named = {*rollout.extras, *rollout.infos, *_named("observation", rollout.observations)}
    if taken := named & _RESERVED:
        raise ValueError(f"cannot make a TensorDict: {min(taken)!r} has a reserved name; rename it")
    observed = mapped(lambda array: array[:-1], rollout.observations)
    following = mapped(lambda array: array[1:], rollout.observations)
    if done.any():
        final = rollout.final_observations  # transposed, masks fit arrays of any shape
        mapped(lambda to, rows: np.copyto(to.T, rows.T, where=~done.T), final, following)
        following = final
    # Advantages must not go on into a step that was lost: the step before it is truncated.
    truncated = rollout.truncated.copy()
    truncated[:-1] |= rollout.valid[:-1] & ~(rollout.valid[1:] | rollout.terminated[:-1])
    done = rollout.terminated | truncated
    ends = {"done": done, "terminated": rollout.terminated, "truncated": truncated}
    after = {"reward": rollout.rewards.astype(np.float32).reshape(steps, envs, -1)}
    after |= {key: array[..., None] for key, array in ends.items()}
    arrays = {
        **_named("observation", observed),
        **_named("action", rollout.actions),
        **rollout.extras,
        "is_init": rollout.starts[:-1, :, None],
        "next": {**rollout.infos, **_named("observation", following), **after},
        "collector": {"mask": rollout.valid},
    }
    return _tensordict(arrays, [envs, steps])


class RolloutCollector:
    """Iterate over ``pysampler.Rollouts`` as over a TorchRL collector: TensorDicts of rollouts.

    >>> rollouts = pysampler.Rollouts("CartPole-v1", policy, 128, num_envs=8)  # doctest: +SKIP
    >>> with RolloutCollector(rollouts, total_frames=100_000) as collector:  # doctest: +SKIP
    ...     for data in collector:
    ...         advantage(data)  # a TensorDict, whose arrays were not copied

    Args:
        rollouts: The rollouts. The collector closes them when it is closed.
        total_frames: Stop after the rollout that reaches this many steps, summed over all envs.
            None: never.

    Attributes:
        rollouts: The rollouts.
        frames: The number of steps so far, summed over all envs.
    """

    def __init__(self, rollouts: Rollouts, total_frames: int | None = None) -> None:
        self.rollouts = rollouts
        self.frames = 0
        self._total = math.inf if total_frames is None else total_frames

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Sample the next rollout and return it as a TensorDict; see ``tensordict_of``."""
        if self.frames >= self._total:
            raise StopIteration
        data = tensordict_of(next(self.rollouts))
        self.frames += data.numel()
        return data

    def shutdown(self) -> None:
        """Close the rollouts."""
        self.rollouts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<pysampler.adapters.torchrl.RolloutCollector of {self.rollouts!r}>"


def _named(name: str, tree: Any) -> dict[str, Any]:
    """Return arrays by name: keys of dicts, numbers of tuples, otherwise ``name``."""
    return _without_tuples(tree if isinstance(tree, dict) else {name: tree})


def _without_tuples(tree: Any) -> Any:
    if isinstance(tree, tuple):
        tree = {str(number): part for number, part in enumerate(tree)}
    if isinstance(tree, dict):
        return {key: _without_tuples(part) for key, part in tree.items()}
    return tree


def _tensordict(arrays: dict[str, Any], batch_size: list[int]) -> Any:
    """Return arrays ``[T, N, ...]`` as a TensorDict of tensors ``[N, T, ...]``."""
    tensors = {
        key: _tensordict(value, batch_size)
        if isinstance(value, dict)
        else tensor_from(value).transpose(0, 1)
        for key, value in arrays.items()
    }
    return TensorDict(tensors, batch_size=batch_size, names=[None, "time"])
