"""SumTree: draws records with probabilities proportional to their priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MAX_PRIORITY", "MIN_PRIORITY", "SumTree"]

# Within these bounds, to the power of alpha, sums of priorities and weights stay positive and
# finite.
MIN_PRIORITY, MAX_PRIORITY = 1e-100, 1e100


class SumTree:
    """A binary tree of sums over the priorities of slots. Slots without a priority have 0."""

    def __init__(self, capacity: int) -> None:
        self._first_leaf = 1 << max(0, (capacity - 1).bit_length())
        self._sums = np.zeros(2 * self._first_leaf)
        self.highest = 1.0  # the highest priority so far
        # The arguments of an interrupted call of set(), not yet in all sums.
        self._unfinished: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None = None

    @property
    def leaves(self) -> npt.NDArray[np.float64]:
        """The priorities of all slots."""
        self._finish()
        return self._sums[self._first_leaf :]

    def set(self, slots: npt.NDArray[np.int64], priorities: Any = None) -> None:
        """Set the priorities of slots; if a slot comes more than once, the last one counts.

        Args:
            slots: The slots.
            priorities: An array of their priorities; None: the highest so far for each.
        """
        self._finish()
        if priorities is None:
            priorities = np.full(len(slots), self.highest)
        self._unfinished = slots, priorities
        self._finish()

    def _finish(self) -> None:
        """Do the work that ``set`` has stored, from its start; do nothing if there is none."""
        if self._unfinished is None:
            return
        slots, priorities = self._unfinished
        self._sums[slots + self._first_leaf] = priorities
        self.highest = max(self.highest, float(priorities.max(initial=0)))
        nodes = np.unique((slots + self._first_leaf) // 2)
        while len(nodes) and nodes[0] > 0:
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]
            nodes = np.unique(nodes // 2)
        self._unfinished = None

    def restore(self, priorities: npt.NDArray[Any], count: int, highest: float) -> None:
        """Restore the priorities of the first ``count`` slots, or raise ValueError."""
        found = np.append(priorities, highest)
        expected = priorities.shape == (count,) and priorities.dtype == np.float64
        in_range = (found >= MIN_PRIORITY) & (found <= MAX_PRIORITY) & (found <= highest)
        if not expected or not in_range.all():
            raise ValueError("priorities that do not match the records")
        self.set(np.arange(count), priorities)
        self.highest = float(highest)

    def draw(
        self, random: np.random.Generator, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Draw a slot from each of ``count`` equal parts of the sum; return their shares too.

        They are in random order, so that a part of a batch is as random as the whole.
        """
        self._finish()
        total = self._sums[1]
        left = (random.permutation(count) + random.random(count)) * (total / count)
        nodes = np.ones(count, np.int64)
        while nodes[0] < self._first_leaf:
            nodes *= 2
            below = self._sums[nodes]
            # Rounding may leave more than the right sum: never go right where it is 0.
            right = (left >= below) & (self._sums[nodes + 1] > 0)
            left -= np.where(right, below, 0.0)
            nodes += right
        return nodes - self._first_leaf, self._sums[nodes] / total
