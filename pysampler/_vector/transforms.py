"""Applies the wrappers of a vector env that only transform observations or rewards, for samplers.

A sampler steps the envs without calling the ``step`` of these wrappers, so it applies their
transformations itself, to the inputs of the policy and to the records.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import (
    AutoresetMode,
    VectorObservationWrapper,
    VectorRewardWrapper,
    VectorWrapper,
)
from gymnasium.wrappers.vector import (
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    VectorizeTransformObservation,
)

from pysampler._frames.spec import build, leaves, spec_of
from pysampler._vector.env_calls import autoreset_of
from pysampler._vector.frozen import has_seen_nothing
from pysampler._vector.vector_env import VectorEnv

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from gymnasium.vector import VectorEnv as GymVectorEnv

    from pysampler._frames.spec import Spec

__all__ = ["Transforms", "adopted", "is_ours", "unwrapped"]

# Methods of wrappers that only call observations() or rewards().
_STEPS = (
    VectorObservationWrapper.step,
    VectorizeTransformObservation.step,
    VectorRewardWrapper.step,
)
_RESETS = VectorObservationWrapper.reset, VectorWrapper.reset, NormalizeObservation.reset

# What to do without a wrapper; by default, wrap each env.
_INSTEAD = {
    NormalizeReward: "leave it out and pass normalize=pysampler.Normalizer(observations=False)",
    RecordEpisodeStatistics: "leave it out, since rollout.ended has returns and lengths",
}

# By adopted vector env, the newest VectorEnv for it.
_adopted: weakref.WeakKeyDictionary[Any, weakref.ref[VectorEnv]] = weakref.WeakKeyDictionary()


class Transforms:
    """Applies the transformations of a vector env's wrappers to a batch of all envs.

    Args:
        wrappers: The wrappers, the innermost first.
        spec: The spaces of an env without them.

    Attributes:
        spec: The spaces of an env as the outermost wrapper shows it.
        names: The names of the wrappers' classes, for errors.
        learns: Whether a wrapper updates running means, like ``NormalizeObservation``.
    """

    def __init__(self, wrappers: Sequence[Any], spec: Spec) -> None:
        self._inner_spec = spec
        self._wrappers: list[Any] = [w for w in wrappers if isinstance(w, VectorObservationWrapper)]
        self._rewards = [w for w in wrappers if isinstance(w, VectorRewardWrapper)]
        self._num_envs: int = wrappers[-1].num_envs
        outer = wrappers[-1]
        self.spec = spec_of(outer.single_observation_space, outer.single_action_space, spec.rewards)
        self.names = ", ".join(type(wrapper).__name__ for wrapper in wrappers)
        self.learns = True

    @property
    def unseen(self) -> list[str]:
        """The names of wrappers that learn statistics of observations, but have none yet."""
        return [type(one).__name__ for one in self._wrappers if has_seen_nothing(one)]

    def observations(
        self, arrays: Sequence[npt.NDArray[Any]], *, final: bool = False
    ) -> list[npt.NDArray[Any]]:
        """Return the leaves of the transformed observations of all envs.

        Args:
            arrays: The leaves of the envs' observations, which wrappers may write to.
            final: Whether these are final observations of episodes. They come in addition to the
                observations of the step, so copies of the wrappers transform them.
        """
        batch = build(self._inner_spec.observation_tree, arrays.__getitem__, arrays.__getitem__)
        for wrapper in self._wrappers:
            own = wrapper if self.learns and not final else _frozen_copy(wrapper)
            batch = own.observations(batch)
        transformed = []
        for (place, value), field in zip(
            leaves(self.spec.observation_tree, batch), self.spec.observations, strict=True
        ):
            array = np.asarray(value)
            at = f" at {place}" if place else ""
            self._expect(f"observations{at}", array.shape, (self._num_envs, *field.shape))
            transformed.append(array.astype(field.dtype, copy=False))
        return transformed

    def rewards(self, rewards: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Return the transformed rewards of all envs."""
        for wrapper in self._rewards:
            rewards = np.asarray(wrapper.rewards(rewards))
        self._expect("rewards", rewards.shape, (self._num_envs, *self.spec.rewards))
        return rewards

    def _expect(self, what: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if got != expected:
            raise ValueError(
                f"cannot sample rollouts: {self.names} returned {what} of shape {got}, expected "
                f"{expected}"
            )


def _frozen_copy(wrapper: Any) -> Any:
    """Return a copy of a wrapper, to call it without changing the wrapper's state."""
    copied = copy.copy(wrapper)
    copied.close = lambda **_: None  # gymnasium 1.1 calls it when an object is dropped
    for name, value in vars(wrapper).items():
        if not isinstance(value, (gym.Space, gym.vector.VectorEnv)):
            with contextlib.suppress(Exception):  # attributes that cannot be copied are shared
                setattr(copied, name, copy.deepcopy(value))
    if hasattr(copied, "update_running_mean"):
        copied.update_running_mean = False
    return copied


def unwrapped(envs: Any, purpose: str) -> tuple[VectorEnv, list[Any]]:
    """Return the ``VectorEnv`` inside wrappers, and the wrappers, innermost first, or raise.

    Args:
        envs: A vector env.
        purpose: The sampler's action, for errors: "sample rollouts".
    """
    wrappers: list[Any] = []
    while isinstance(envs, VectorWrapper):
        if type(envs).step not in _STEPS or type(envs).reset not in _RESETS:
            instead = _INSTEAD.get(type(envs), "wrap each env instead")
            raise TypeError(
                f"cannot {purpose}: the vector env is wrapped in {type(envs).__name__}, which does "
                f"more than transform observations or rewards; {instead}"
            )
        wrappers.insert(0, envs)
        envs = envs.env
    assert isinstance(envs, VectorEnv)
    return envs, wrappers


def adopted(envs: GymVectorEnv[Any, Any, Any], mode: AutoresetMode | None = None) -> VectorEnv:
    """Return a ``VectorEnv`` around another vector env of this process, for samplers.

    It steps the other one in one call, and does not close it. While it is in use, the same object
    is returned again, so that two samplers cannot step the envs at once.

    Args:
        envs: The vector env.
        mode: The autoreset mode to offer; None: the mode of ``envs``.
    """
    known = _adopted.get(envs)
    if mode is None and known is not None and (made := known()) is not None and not made.closed:
        return made
    chosen = autoreset_of(envs) if mode is None else mode
    made = VectorEnv([_Adopted(envs)], autoreset_mode=chosen, num_workers=0, shared_memory=False)
    _adopted[envs] = weakref.ref(made)
    return made


class _Adopted:
    """A function that returns the caller's vector env, which the caller closes."""

    keeps_open = True

    def __init__(self, envs: GymVectorEnv[Any, Any, Any]) -> None:
        self._envs = envs

    def __call__(self) -> Any:
        return self._envs


def is_ours(envs: GymVectorEnv[Any, Any, Any]) -> bool:
    """Return whether a vector env, perhaps in wrappers, is a ``VectorEnv``."""
    while isinstance(envs, VectorWrapper):
        envs = envs.env
    return isinstance(envs, VectorEnv)
