"""Statistics of a normalizer that workers share while they act without further commands.

Each worker publishes the moments of its data on its own board. The parent merges these, and
publishes the result on a board that all workers read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pysampler._policies.normalize import arrays_of_moments, merged, moments_of_arrays
from pysampler.sync import Board

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pysampler._policies.normalize import Normalization
    from pysampler.sync import Segment

__all__ = ["SharedStatistics", "StatisticsPlace", "WorkerStatistics"]

_BOARD_OVERHEAD = 1024  # bytes that a board takes in addition to its arrays, with alignment


class SharedStatistics:
    """The parent's side.

    Args:
        normalization: The parent's normalization, whose moments are merged from all workers.
        update: Whether workers update the statistics.
        first_envs: The first env of each worker.
        segment: The memory for the boards.
    """

    def __init__(
        self,
        normalization: Normalization,
        first_envs: Iterable[int],
        segment: Segment,
        *,
        update: bool,
    ) -> None:
        like = arrays_of_moments(normalization.statistics.moments)
        self._normalization = normalization
        self._update = update
        self._before = dict(normalization.statistics.moments)  # the moments when the workers began
        self._common = Board(like, segment)
        self._common.publish(like)
        self._of_workers = {env: Board(like, segment) for env in first_envs}

    @staticmethod
    def size_of(normalization: Normalization, workers: int) -> int:
        """Return the number of bytes of a segment that the boards need."""
        like = arrays_of_moments(normalization.statistics.moments).values()
        return (sum(array.nbytes + 8 for array in like) * 3 + _BOARD_OVERHEAD) * (workers + 1)

    def place(self) -> StatisticsPlace:
        """Return the places of the boards, for workers."""
        own = self._normalization.copy(update=self._update, keep_seen=True)
        places = {env: board.place() for env, board in self._of_workers.items()}
        return StatisticsPlace(own, self._common.place(), places)

    def merge(self) -> None:
        """Merge the moments that all workers have published."""
        if not self._update:
            return
        moments = self._before
        for board in self._of_workers.values():
            version, arrays = board.read()
            if version > 0:
                moments = merged(moments, moments_of_arrays(arrays))
        self._normalization.statistics.moments = moments

    def publish(self) -> None:
        """Publish the merged statistics to the workers."""
        self._common.publish(arrays_of_moments(self._normalization.statistics.moments))


@dataclass(frozen=True)
class StatisticsPlace:
    """The places of the boards, for a worker.

    Attributes:
        normalization: The initial normalization.
        common: The place of the board that the worker reads.
        of_workers: By first env of a worker, the place of the board that this worker writes.
    """

    normalization: Normalization
    common: Any
    of_workers: dict[int, Any]


class WorkerStatistics:
    """A worker's side; a replacement continues from the moments that the lost worker published.

    Args:
        place: The places of the boards.
        segment: The memory.
        first_env: The first env of the worker.

    Attributes:
        normalization: The worker's normalization.
    """

    def __init__(self, place: StatisticsPlace, segment: Segment, first_env: int) -> None:
        begun = place.normalization  # workers that are threads get the same object
        self.normalization = begun.copy(update=begun.statistics.update, keep_seen=True)
        self._common = place.common.attach(segment)
        self._own = place.of_workers[first_env].attach(segment)
        self._version = 0
        version, arrays = self._own.read()
        if version > 0:
            self.normalization.seen = moments_of_arrays(arrays)
        self.refresh()

    def refresh(self) -> None:
        """Load the newest merged statistics."""
        if self._common.version != self._version:
            version, arrays = self._common.read()
            if version > 0:  # 0: the parent overwrote the board during each of many reads
                moments = moments_of_arrays(arrays)
                self._version, self.normalization.statistics.moments = version, moments

    def hand_over(self) -> None:
        """Publish the moments of the rows counted here."""
        assert self.normalization.seen is not None
        if self.normalization.statistics.update:
            self._own.publish(arrays_of_moments(self.normalization.seen))
