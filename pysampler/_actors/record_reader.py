"""RecordReader: the learner's side of the actors' ring; takes records in batches or phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._actors.records import BatchMemory, Records
from pysampler.errors import LostError, WaitTimeoutError
from pysampler.sync import now, sleep_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pysampler._actors.records import RecordLayout
    from pysampler._policies.progress import WorkerProgress
    from pysampler._policies.weights import SharedWeights
    from pysampler._vector.core import VectorCore
    from pysampler.sync import Board, SharedRing

    Rows = npt.NDArray[Any]
    # Returns whether all actors have ended, given the number of records to wait for.
    HaveEnded = Callable[[int], bool]

__all__ = ["CHECK_NS", "RecordReader"]

# How often the waiting learner checks the actors, in ns.
CHECK_NS = 20_000_000


class RecordReader:
    """Takes records from the actors' ring, and drops those that are too old.

    Records stay in the ring until they have been counted as taken: a signal handler may raise after
    any call, and the next call then finds them there. For the same reason, values that belong
    together are assigned in one statement. In a phase, the records of the last batch stay until the
    next call. The caller gets copies, in memory that is reused once nothing refers to it.

    Args:
        ring: The ring.
        layout: The layout of its records.
        board: The board of weights, if the policy has any.
        progress: Flags that pause and stop the actors.
        resumes: A board whose version tells paused actors to continue.
        core: The envs, whose pool notices lost workers.
        low: Blocked actors resume when only this many records are left.
        max_lag: Drop records if their weights are more than this many versions old.

    Attributes:
        returning: Records on their way to the caller, which sets it to None.
        taken: The number of records taken.
        dropped: The number of records dropped.
        lag: The age of the records of the last batch in versions, on average.
        waiting_ns: Time spent waiting for records.
        taking_ns: Time spent taking records, without waiting.
    """

    def __init__(
        self,
        ring: SharedRing,
        layout: RecordLayout,
        board: Board | SharedWeights | None,
        progress: WorkerProgress,
        resumes: Board,
        core: VectorCore,
        low: int,
        max_lag: int | None,
    ) -> None:
        self._ring = ring
        self._layout = layout
        self._board = board
        self._progress = progress
        self._resumes = resumes
        self._core = core
        self._gauges = core.pool.gauges
        self._low = low
        self._max_lag = max_lag
        self.returning: Records | None = None
        self.taken = self.dropped = 0
        self.lag = 0.0
        self.waiting_ns = self.taking_ns = 0
        self._held = 0  # records of the last batch that are still in the ring
        self._memory = BatchMemory()
        self._kept: list[Rows] = []  # copies for an incomplete batch
        self._phase_end: int | None = None  # ``passed`` at the end of the phase

    def __len__(self) -> int:
        """Return the number of records that wait to be taken."""
        return len(self._ring) - self._held

    @property
    def passed(self) -> int:
        """The number of records that have been taken or dropped."""
        return self.taken + self.dropped

    def take(
        self, count: int, min_records: int, deadline: int | None, have_ended: HaveEnded
    ) -> Records | None:
        """Return up to ``count`` records; fewer than ``min_records`` only at the deadline.

        Returns None if all actors have ended and nothing is left.
        """
        self._take_back()
        began, waited = now(), self.waiting_ns
        self._release()
        rows, held, kept = self._choose(count, min_records, deadline, have_ended)
        if rows is None:
            return None
        records = Records(rows, self._layout)
        if len(rows) > 0:
            self.lag = self._version - int(np.add.reduce(rows["version"])) / len(rows)
        self.taking_ns += now() - began - (self.waiting_ns - waited)
        taken = self.taken + len(rows)
        # One statement without a call: if an interrupt comes before it, the next call finds the
        # records in the ring; if it comes after, in ``returning``.
        self._held, self._kept, self.taken, self.returning = held, kept, taken, records
        if self._phase_end is None:
            self._release()
        return records

    @property
    def _version(self) -> int:
        return 0 if self._board is None else self._board.version

    def _take_back(self) -> None:
        """Keep the records of an interrupted call for the next one."""
        if (records := self.returning) is not None:
            rows = records.rows.copy()
            kept, taken = [rows, *self._kept], self.taken - len(rows)
            self._kept, self.taken, self.returning = kept, taken, None

    def _release(self) -> None:
        """Release the ring slots of the last batch; at the end of a phase, resume the actors."""
        if self._phase_end is not None and self.passed >= self._phase_end:
            self._resume()
        if self._held > 0:
            held, self._held = self._held, 0
            self._ring.release(held)
            self._gauges.records = len(self._ring)

    def _choose(
        self, count: int, min_records: int, deadline: int | None, have_ended: HaveEnded
    ) -> tuple[Rows | None, int, list[Rows]]:
        """Return records that are not too old, their number in the ring, and copies to keep."""
        while True:
            have = sum(map(len, self._kept))
            rows = None
            if have < min_records:
                # Blocked actors push no more until only ``low`` are left.
                needed = min(min_records - have, self._low + 1)
                rows = self._peek(max(1, count - have), needed, deadline, have_ended)
                if rows is None and have == 0:
                    return None, 0, []
            if rows is None or len(rows) == 0:  # there are enough, or no more will come
                if have == 0:
                    return rows, 0, []
                joined = np.concatenate(self._kept)
                return joined[:count], 0, [joined[count:]] if have > count else []
            chosen = rows
            if self._max_lag is not None:
                new_enough = rows["version"] >= self._version - self._max_lag
                chosen = rows if new_enough.all() else rows[new_enough]
            stale = len(rows) - len(chosen)
            if have == 0 and len(chosen) >= min_records:
                own = self._memory.copy_of(chosen) if chosen is rows else chosen
                self.dropped += stale
                return own, len(rows), []
            copies = [*self._kept, chosen.copy()] if len(chosen) > 0 else self._kept
            # One statement: the call after an interrupted one continues from here.
            self._kept, self._held, self.dropped = copies, len(rows), self.dropped + stale
            self._release()

    def _peek(
        self, count: int, min_records: int, deadline: int | None, have_ended: HaveEnded
    ) -> Rows | None:
        """Return a view of records in the ring, or None if no more come.

        It may have fewer than ``min_records`` at the deadline, or where the ring wraps around.
        """
        began = now()
        try:
            while True:
                ended = have_ended(min_records)
                at = now()
                late = deadline is not None and at >= deadline
                until = at
                if not (ended or late):
                    until = at + CHECK_NS if deadline is None else min(at + CHECK_NS, deadline)
                least = 1 if ended or late else min_records
                try:
                    return np.asarray(self._ring.peek(count, least, deadline=until))
                except WaitTimeoutError:
                    # The learner waits, so resume paused actors: lost workers may have left the
                    # phase incomplete.
                    self._resume()
                except LostError:  # all actors are lost; ``have_ended`` will notice
                    if not (ended or late):
                        sleep_until(until)
                if ended:
                    return None
                if late:
                    return np.empty(0, self._layout.dtype)
        finally:
            self.waiting_ns += now() - began
            if (track := self._core.pool.track) is not None:
                track.end(_core.Track.RECORDS, 0, began)

    # -- phases ----------------------------------------------------------------------------------

    def wait_full(self, high: int, have_ended: HaveEnded) -> int:
        """Wait until there are ``high`` records, pause the actors; return how many to take.

        Once all actors have stopped it returns fewer, and 0 at the end.
        """
        self._take_back()
        self._release()
        if self._peek(high, high, None, have_ended) is None:
            return 0
        count = len(self._ring)
        count = (
            count - self._low if count > self._low and not self._progress.stopped else max(1, count)
        )
        self._phase_end = self.passed + count
        self._progress.paused = True
        return count

    def drop_until(self, end: int, have_ended: HaveEnded) -> None:
        """Release the records of the last batch, and drop others until ``end`` have passed."""
        self._take_back()
        self._release()
        if self.passed < end:
            kept = sum(map(len, self._kept))
            self._kept, self.dropped = [], self.dropped + kept
        while (count := end - self.passed) > 0:
            if (rows := self._peek(count, 1, None, have_ended)) is None:
                break
            self._held, self.dropped = len(rows), self.dropped + len(rows)
            self._release()

    def _resume(self) -> None:
        """Resume actors that wait for the end of a phase."""
        if self._phase_end is not None:
            self._progress.paused = False
            self._resumes.publish({"number": [self._resumes.version]})
            self._phase_end = None
