"""Statistics of actors and their learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ActorStats"]


@dataclass(frozen=True)
class ActorStats:
    """Counts and times of actors and their learner so far.

    Attributes:
        taken: Records that were taken.
        dropped: Records that were dropped because they were too old.
        ready: Records that wait to be taken.
        version: The version of the newest weights.
        lag: The age of the records of the last batch in versions, on average.
        waiting: Seconds that the learner spent waiting for records.
        taking: Seconds that the learner spent taking records, without waiting.
        publishing: Seconds that the learner spent publishing weights.
        acting: By worker, seconds in the policy.
        blocked: By worker, seconds of waiting for room in the ring.
        refreshing: By worker, seconds of loading weights.
    """

    taken: int
    dropped: int
    ready: int
    version: int
    lag: float
    waiting: float
    taking: float
    publishing: float
    acting: npt.NDArray[np.float64]
    blocked: npt.NDArray[np.float64]
    refreshing: npt.NDArray[np.float64]
