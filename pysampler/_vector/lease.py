"""Who uses a vector env in its owner's place: rollouts, actors or a watcher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lease"]


def _nothing() -> bool:
    return True


@dataclass(eq=False)
class Lease:
    """A sampler's use of a vector env, known to both.

    The vector env takes itself back when the lease is over, in its next call: a sampler that is
    dropped says so and does nothing else, since finalizers may run anywhere. The lease does not
    refer to the sampler, nor to what refers to the vector env.
    """

    name: str  # as errors speak of it
    what: str  # is under way
    over: bool = False
    lent_back: bool = False  # the sampler itself calls the vector env
    laid_out: bool = False  # the envs work on frames of the sampler's
    # Tell what is under way to end; returns whether nothing but the pool is at work then.
    end: Callable[[], bool] = _nothing
