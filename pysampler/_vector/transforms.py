"""Wrappers of a vector env that only transform observations or rewards, for samplers.

A sampler steps the envs in its own way, past such wrappers, and applies what they do to what the
policy sees and to what is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorObservationWrapper, VectorRewardWrapper, VectorWrapper
from gymnasium.wrappers.vector import VectorizeTransformObservation

from pysampler._frames.spec import build, leaves, spec_of
from pysampler._vector.vector_env import VectorEnv

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._frames.spec import Spec

__all__ = ["Transforms", "unwrapped"]

# The steps of wrappers that do nothing but call observations() or rewards().
_PLAIN_STEPS = (
    VectorObservationWrapper.step,
    VectorizeTransformObservation.step,
    VectorRewardWrapper.step,
)


class Transforms:
    """What the wrappers of a vector env do to a batch of all its envs.

    Args:
        wrappers: The wrappers, the innermost first.
        spec: The spaces of an env without them.

    Attributes:
        spec: The spaces of an env as the outermost wrapper shows it.
        names: The names of the wrappers' classes, for errors.
    """

    def __init__(self, wrappers: Sequence[Any], spec: Spec) -> None:
        self._inner_spec = spec
        self._wrappers: list[Any] = [w for w in wrappers if isinstance(w, VectorObservationWrapper)]
        self._rewards = [w for w in wrappers if isinstance(w, VectorRewardWrapper)]
        outer = wrappers[-1]
        self.spec = spec_of(outer.single_observation_space, outer.single_action_space)
        self.names = ", ".join(type(wrapper).__name__ for wrapper in wrappers)

    def observations(
        self, arrays: Sequence[npt.NDArray[Any]], *, learn: bool = True
    ) -> list[npt.NDArray[Any]]:
        """Return the leaves of the transformed observations of all envs.

        Args:
            arrays: The leaves of the envs' observations, which wrappers may write to.
            learn: Whether running means, as of ``NormalizeObservation``, are updated.
        """
        batch = build(self._inner_spec.observation_tree, arrays.__getitem__, arrays.__getitem__)
        learning = [w for w in self._wrappers if getattr(w, "update_running_mean", False)]
        try:
            for wrapper in () if learn else learning:
                wrapper.update_running_mean = False
            for wrapper in self._wrappers:
                batch = wrapper.observations(batch)
        finally:
            for wrapper in () if learn else learning:
                wrapper.update_running_mean = True
        return [np.asarray(value) for _, value in leaves(self.spec.observation_tree, batch)]

    def rewards(self, rewards: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Return the transformed rewards of all envs."""
        for wrapper in self._rewards:
            rewards = wrapper.rewards(rewards)
        return rewards


def unwrapped(envs: Any, purpose: str) -> tuple[VectorEnv, list[Any]]:
    """Return the ``VectorEnv`` inside of wrappers, and these, the innermost first, or raise.

    Args:
        envs: A vector env.
        purpose: What the sampler cannot do with others: "sample rollouts".
    """
    wrappers: list[Any] = []
    while isinstance(envs, VectorWrapper):
        if type(envs).step not in _PLAIN_STEPS:
            raise TypeError(
                f"cannot {purpose}: the vector env is wrapped in {type(envs).__name__}, which does "
                "more than transform observations or rewards; wrap each env instead"
            )
        wrappers.insert(0, envs)
        envs = envs.env
    if not isinstance(envs, VectorEnv):
        raise TypeError(f"cannot {purpose}: {type(envs).__name__}, expected pysampler.VectorEnv")
    return envs, wrappers
