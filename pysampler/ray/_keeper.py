"""Keeper: a Ray actor that releases its creator's cluster resources when the creator dies.

Ray removes a placement group when the *job* that created it ends. If the creator is an actor or a
task of a longer job, as in Ray Tune and Ray Train, its hosts end with it, but their CPUs would
stay reserved. A request to the autoscaler would stay forever.

Two actors that reserve no CPU prevent this. The *anchor* is owned by the creator: Ray ends it when
the creator ends, and restarts it if it dies by itself. The *keeper* is detached, so it outlives the
creator, and looks the anchor up by name. It must not hold a reference that the creator owns, nor
answer one of its calls late: a process that exits in Ray's orderly way waits for both, and the
keeper would wait for the exit.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Keeper"]

_INTERVAL = 1.0  # seconds between two looks at the anchor


class Keeper:
    """Calls a function on the cluster once this process has died.

    Args:
        undo: The function. It and the actors are defined inside functions, so Ray pickles them by
            value, and their processes do not import pysampler.
    """

    def __init__(self, undo: Callable[[], None]) -> None:
        name = f"pysampler-{uuid.uuid4().hex}"
        anchor, keeper = (ray.remote(num_cpus=0, max_restarts=-1)(kind) for kind in _actors())
        # The anchor first: if the keeper does not find it, it must have died.
        self._actors = [anchor.options(name=name).remote()]
        self._actors.append(keeper.options(lifetime="detached").remote(name, undo))

    def end(self) -> None:
        """End the keeper without calling ``undo``."""
        for actor in reversed(self._actors):
            with contextlib.suppress(RayError):
                ray.kill(actor)


def _actors() -> tuple[type[Any], type[Any]]:
    """Return the classes of the anchor and of the keeper."""

    class PysamplerAnchor:
        pass

    class PysamplerKeeper:
        def __init__(self, name: str, undo: Callable[[], None]) -> None:
            self._name, self._undo = name, undo
            threading.Thread(target=self._watch, daemon=True).start()

        def _watch(self) -> None:
            while not self._undone():
                time.sleep(_INTERVAL)
            ray.kill(ray.get_runtime_context().current_actor)  # an exit would be a restart

        def _undone(self) -> bool:
            with contextlib.suppress(RayError):  # such as a time-out: look again
                try:
                    ray.get_actor(self._name)
                except ValueError:  # no such actor
                    self._undo()
                    return True
            return False

    return PysamplerAnchor, PysamplerKeeper
