"""The exclusive use of a vector env by a sampler: rollouts, actors or a watcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lease"]


def _nothing_to_stop() -> bool:
    return True


@dataclass(eq=False)
class Lease:
    """A sampler's exclusive use of a vector env, shared by both.

    Once the lease is over, the next call of the vector env reclaims the envs. A sampler that is
    garbage collected sets ``over`` and does nothing else, since finalizers may run anywhere. The
    lease refers neither to the sampler nor to anything that refers to the vector env.
    """

    name: str  # the sampler, in errors
    work: str  # its pending work, in warnings
    over: bool = True  # until the vector env is lent
    owner_calls: bool = False  # the sampler itself is calling methods of the vector env
    laid_out: bool = False  # the envs work on frames that the sampler laid out
    free_running: bool = False  # workers read no commands until the work has ended
    # Stops the sampler's pending work; returns whether only the pool is at work afterwards.
    stop: Callable[[], bool] = _nothing_to_stop
