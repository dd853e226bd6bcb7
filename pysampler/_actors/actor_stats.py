"""What actors and their learner report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ActorStats"]


@dataclass(frozen=True)
class ActorStats:
    """What actors and their learner have done so far.

    Attributes:
        taken: Records that were taken.
        dropped: Records that were dropped because they were too old.
        ready: Records that wait to be taken.
        version: The version of the newest weights.
        lag: How many versions old the records of the last batch were, on average.
        waiting: Seconds that the learner waited for records.
        taking: Seconds that the learner took records, without waiting.
        publishing: Seconds that the learner published weights.
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
