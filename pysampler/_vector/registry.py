"""Copies the env specs that the user's program registered to the workers.

Workers do not run the program again, so they would not know envs that it registers itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.envs import registration

from pysampler._workers.remote import dumps_by_value

__all__ = ["register", "registered", "sendable"]


def registered() -> bytes:
    """Return a pickle of the specs that this process registered besides gymnasium's."""
    specs = [
        sendable(spec)
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
        pickled = []
        for spec in specs:
            with contextlib.suppress(Exception):
                dumps_by_value(spec)
                pickled.append(spec)
        return dumps_by_value(pickled)


def sendable(spec: registration.EnvSpec) -> registration.EnvSpec:
    """Return a spec with objects in place of their names in ``__main__``, which workers lack."""
    found: dict[str, Any] = {}
    for name in ("entry_point", "vector_entry_point"):
        entry_point = getattr(spec, name)
        if isinstance(entry_point, str) and entry_point.startswith("__main__:"):
            with contextlib.suppress(Exception):  # making the env will raise the error
                found[name] = registration.load_env_creator(entry_point)
    return dataclasses.replace(spec, **found) if found else spec


def register(specs: bytes) -> None:
    """Register the parent's specs, from ``registered``, in a worker."""
    new = [spec for spec in cloudpickle.loads(specs) if not _is_registered(spec)]
    gym.registry.update({spec.id: spec for spec in new})
    registration.logger = _Logger({spec.id for spec in new})  # type: ignore[assignment, attr-defined]


def _is_registered(spec: gym.envs.registration.EnvSpec) -> bool:
    try:
        return bool(gym.registry.get(spec.id) == spec)
    except Exception:  # == fails, as for arrays in kwargs
        return False


class _Logger:
    """gymnasium's logger for its registry in a worker.

    A worker registers the parent's specs first. If a module that it imports later registers the
    same envs, gymnasium's warning would only confuse.
    """

    def __init__(self, ids: set[str]) -> None:
        self._expected = {f"Overriding environment {one_id} already in registry." for one_id in ids}

    def __getattr__(self, name: str) -> Any:
        return getattr(gym.logger, name)

    def warn(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Warn, unless an inherited spec is replaced for the first time."""
        if message in self._expected:
            self._expected.remove(message)
        else:
            gym.logger.warn(message, *args, **kwargs)
