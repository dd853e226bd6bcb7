"""Policies that call ``predict`` of a model, as Stable-Baselines3 has it."""

from __future__ import annotations

from typing import Any

__all__ = ["PredictPolicy", "predict_policy"]


def predict_policy(model: Any) -> PredictPolicy:
    """Return a policy that calls ``predict`` of a model."""
    recurrent = hasattr(getattr(model, "policy", None), "lstm_actor")
    return RecurrentPredictPolicy(model) if recurrent else PredictPolicy(model)


class PredictPolicy:
    """A policy that calls ``predict`` of a model of Stable-Baselines3."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, observations: Any) -> Any:
        """Return the most likely actions."""
        return self.model.predict(observations, deterministic=True)[0]


class RecurrentPredictPolicy(PredictPolicy):
    """The same for ``RecurrentPPO``, whose states have a row for each layer before that of envs."""

    def __call__(self, observations: Any, state: Any = None) -> Any:
        """Return the most likely actions, and the next state."""
        if state is not None:
            state = tuple(part.swapaxes(0, 1) for part in state)
        actions, state = self.model.predict(observations, state, deterministic=True)
        return actions, {"state": tuple(part.swapaxes(0, 1) for part in state)}
