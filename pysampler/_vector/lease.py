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
    """A sampler's exclusive use of a vector env, known to both.

    The vector env takes itself back in its next call once the lease is over. A sampler that is
    garbage collected sets ``over`` and does nothing else, since finalizers may run anywhere. The
    lease refers neither to the sampler nor to anything that refers to the vector env.
    """

    name: str  # of the sampler, in errors
    work: str  # what the sampler has under way, in warnings
    over: bool = True  # until the vector env is lent
    owner_calls: bool = False  # the sampler itself calls methods of the vector env
    laid_out: bool = False  # the envs work on frames that the sampler laid out
    # Stop what the sampler has under way; return whether only the pool is at work afterwards.
    stop: Callable[[], bool] = _nothing_to_stop
