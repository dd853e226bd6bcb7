"""PredictPolicy: a policy that calls ``predict`` of a model, as Stable-Baselines3 has it."""

from __future__ import annotations

from typing import Any

__all__ = ["PredictPolicy"]


class PredictPolicy:
    """A policy that calls ``predict`` of a model of Stable-Baselines3."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, observations: Any) -> Any:
        """Return the most likely actions."""
        return self.model.predict(observations, deterministic=True)[0]
