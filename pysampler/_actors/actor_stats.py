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
        taken: The number of records taken.
        dropped: The number of records dropped: too old, or left in a phase.
        ready: The number of records that wait to be taken.
        version: The version of the newest weights.
        lag: The mean age of the records of the last batch, in versions.
        waiting: Seconds that the learner waited for records.
        taking: Seconds that the learner spent taking records, without waiting.
        publishing: Seconds that the learner spent publishing weights.
        acting: For each worker, seconds spent in the policy, or waiting for it with ``device``.
        blocked: For each worker, seconds spent waiting for room in the ring, or for the learner in
            a phase.
        refreshing: For each worker, seconds spent loading weights.
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
