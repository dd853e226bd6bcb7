"""Specs of envs that the user's program has registered, for workers, which import it anew."""

from __future__ import annotations

import contextlib
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs import registration

from pysampler._workers.remote import dumps_by_value

__all__ = ["register", "registered"]


def registered() -> bytes:
    """Return the specs that this process has registered beside gymnasium's, pickled."""
    specs = [
        spec
        for spec in gym.registry.values()
        if not (
            isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.envs.")
        )
    ]
    if not specs:
        return b""
    try:
        return dumps_by_value(specs)
    except Exception:
        sendable = []
        for spec in specs:
            with contextlib.suppress(Exception):
                dumps_by_value(spec)
                sendable.append(spec)
        return dumps_by_value(sendable)


def register(specs: bytes) -> None:
    """Register what ``registered`` returned in the parent, in a worker."""
    new = [spec for spec in cloudpickle.loads(specs) if not _is_registered(spec)]
    gym.registry.update({spec.id: spec for spec in new})
    registration.logger = _Logger({spec.id for spec in new})  # type: ignore[assignment, attr-defined]


def _is_registered(spec: gym.envs.registration.EnvSpec) -> bool:
    try:
        return bool(gym.registry.get(spec.id) == spec)
    except Exception:  # arrays among its keywords, say, which have no single answer
        return False


class _Logger:
    """gymnasium's logger for its registry in a worker.

    A module that registers envs is imported after the parent's specs have entered the registry,
    which gymnasium alone would warn about.
    """

    def __init__(self, ids: set[str]) -> None:
        self._expected = {f"Overriding environment {one_id} already in registry." for one_id in ids}

    def __getattr__(self, name: str) -> Any:
        return getattr(gym.logger, name)

    def warn(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Warn, unless it is the first time that an inherited spec is replaced."""
        if message in self._expected:
            self._expected.remove(message)
        else:
            gym.logger.warn(message, *args, **kwargs)
