"""Policies that call ``predict`` of a model, as Stable-Baselines3 has it.

A model that was trained in ``VecNormalize`` expects normalised observations, which ``predict`` does
not make. The statistics belong to the vector env: a model that was loaded without it lacks them.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import numpy as np

__all__ = ["PredictPolicy", "predict_policy"]


def predict_policy(model: Any, vec_normalize: Any = None) -> PredictPolicy:
    """Return a policy that calls ``predict`` of a model.

    Args:
        model: The model.
        vec_normalize: The ``VecNormalize`` of its training; None: that of the model's vector env.

    Raises:
        TypeError: The model chooses among the actions of a mask, which a policy does not get.
    """
    if "action_masks" in inspect.signature(model.predict).parameters:
        raise TypeError(
            f"cannot evaluate: {type(model).__name__}.predict takes action_masks, and a policy "
            "gets observations; put the mask into these, and pass a function that predicts with it"
        )
    recurrent = hasattr(getattr(model, "policy", None), "lstm_actor")
    return (RecurrentPredictPolicy if recurrent else PredictPolicy)(model, vec_normalize)


class PredictPolicy:
    """A policy that calls ``predict`` of a model of Stable-Baselines3."""

    def __init__(self, model: Any, vec_normalize: Any) -> None:
        self.model = model
        if vec_normalize is None and hasattr(model, "get_vec_normalize_env"):
            vec_normalize = model.get_vec_normalize_env()
        if vec_normalize is None:
            _expect_statistics(model)
        self.vec_normalize = None if vec_normalize is None else _frozen(vec_normalize)

    def normalized(self, observations: Any) -> Any:
        """Return observations as the model expects them."""
        if self.vec_normalize is None:
            return observations
        parts, space = observations, self.vec_normalize.observation_space
        if not isinstance(parts, dict):
            parts, space = {"": parts}, {"": space}
        for name, array in parts.items():
            if (got := array.shape[1:]) != (expected := space[name].shape):
                raise ValueError(
                    f"cannot evaluate: observations have the shape {got}, expected {expected} as "
                    "in VecNormalize; wrap each env as the vector env does within VecNormalize"
                )
        return self.vec_normalize.normalize_obs(observations)

    def __call__(self, observations: Any) -> Any:
        """Return the most likely actions."""
        return self.model.predict(self.normalized(observations), deterministic=True)[0]


def _expect_statistics(model: Any) -> None:
    """Raise ValueError if a model without a vector env got normalised observations in its training.

    SB3 saves the last observations with a model, and original ones beside them: on-policy
    algorithms only in ``VecNormalize``; others always, those before the last, of the env's dtype.
    """
    last, original = getattr(model, "_last_obs", None), getattr(model, "_last_original_obs", None)
    if last is None or original is None or getattr(model, "env", None) is not None:
        return
    if not isinstance(original, dict):
        last, original = {"": last}, {"": original}
    off_policy = hasattr(model, "replay_buffer_class")
    expected = (
        f"expected {type(model).__name__}.load(FILE, env=VecNormalize.load(STATISTICS, envs)), or "
        "on the command line --vec-normalize STATISTICS"
    )
    for name, array in original.items():
        if last[name].dtype != array.dtype or not (off_policy or np.array_equal(last[name], array)):
            raise ValueError(
                "cannot evaluate: the model was trained in VecNormalize, whose statistics it "
                f"lacks; {expected}"
            )
    if off_policy and any(array.dtype == np.float32 for array in last.values()):
        warnings.warn(
            "pysampler: if the model was trained in VecNormalize, it lacks its statistics: "
            f"{expected}. If it was not, load it with env=, which says so",
            stacklevel=5,
        )


def _frozen(vec_normalize: Any) -> Any:
    """Return a copy of a ``VecNormalize`` without its vector env, which cannot be pickled."""
    copied = object.__new__(type(vec_normalize))
    of_envs: dict[str, Any] = {"venv": None, "class_attributes": {}, "returns": None}
    state = {name: value for name, value in vars(vec_normalize).items() if name not in of_envs}
    vars(copied).update(copy.deepcopy(state), **of_envs)
    return copied


class RecurrentPredictPolicy(PredictPolicy):
    """The same for ``RecurrentPPO``, whose states have a row for each layer before that of envs."""

    def __call__(self, observations: Any, state: Any = None) -> Any:
        """Return the most likely actions, and the next state."""
        if state is not None:
            state = tuple(part.swapaxes(0, 1) for part in state)
        seen = self.normalized(observations)
        actions, state = self.model.predict(seen, state, deterministic=True)
        return actions, {"state": tuple(part.swapaxes(0, 1) for part in state)}
