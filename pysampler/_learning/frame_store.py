"""Stacks of frames whose frames are stored once, though each is in many stacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._learning.memory import own_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Numbers = npt.NDArray[np.int64]

__all__ = ["FrameStore", "StackAddition"]


@dataclass
class StackAddition:
    """Stacks that are being added.

    Attributes:
        stacks: What was observed, in the order in which each env made it.
        next_stacks: What came of the steps.
        envs: The envs.
        numbers: The numbers of their frames, ``[records, 2 * depth]``.
        oldest: For each, no frame of it or of a later record has a smaller number.
        done: How many records have been stored.
    """

    stacks: Array
    next_stacks: Array
    envs: Numbers
    numbers: Numbers = field(init=False)
    oldest: Numbers = field(init=False)
    done: int = 0

    def __post_init__(self) -> None:
        self.numbers = np.empty((len(self.envs), 2 * self.stacks.shape[1]), np.int64)
        self.oldest = np.empty(len(self.envs), np.int64)


class FrameStore:
    """The newest frames of some envs: frame n lies in slot ``n % capacity``.

    Two stacks belong to a record: what was observed, and what came of the step. A frame of a stack
    that is known from the one before, of the same env, is not stored again while it is young: each
    record keeps all of its frames until ``capacity - reach`` newer ones have been stored. If old
    frames were taken too, as of an env whose picture stands still, new records would lose them
    soon.

    Args:
        capacity: How many frames there is room for.
        reach: How many frames may have been stored since one that is taken again.
        depth: How many frames a stack has.
        shape: The shape of a frame.
        dtype: Its dtype.
    """

    def __init__(
        self, capacity: int, reach: int, depth: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        # The frames of a record must not replace one that it takes again.
        assert reach <= capacity - 2 * depth
        self.capacity, self.reach, self.depth = capacity, reach, depth
        self.frames: Array = own_array((capacity, *shape), dtype)
        self.added = 0
        self.last: dict[int, Numbers] = {}  # by env, its newest stack

    @property
    def nbytes(self) -> int:
        """The number of bytes of all frames."""
        return self.frames.nbytes

    def add(self, one: StackAddition) -> None:
        """Store stacks and fill in the numbers of their frames.

        A call that was interrupted is repeated: it goes on with the record that it had come to.
        """
        while one.done < len(one.envs):
            row, env = one.done, int(one.envs[one.done])
            one.oldest[row] = self.added - self.reach
            observed = self._numbers_of(one.stacks[row], self.last.get(env))
            after = self._numbers_of(one.next_stacks[row], [*observed[1:], observed[-1]])
            one.numbers[row] = [*observed, *after]
            self.last[env] = np.array(after, np.int64)
            one.done = row + 1

    def _numbers_of(self, stack: Array, guesses: Sequence[int] | Numbers | None) -> list[int]:
        """Store the frames of a stack; return their numbers, of which ``guesses`` may be some."""
        numbers: list[int] = []
        for place, frame in enumerate(stack):
            tried = [] if guesses is None else [int(guesses[place])]
            tried += numbers[-1:]  # as where an episode begins: the first frame, repeated
            found = next((n for n in tried if self._is(n, frame)), None)
            if found is None:
                found = self.added
                self.added = found + 1  # first: what lay there is counted as lost
                self.frames[found % self.capacity] = frame
            numbers.append(found)
        return numbers

    def _is(self, number: int, frame: Array) -> bool:
        return self.added - number <= self.reach and bool(
            (self.frames[number % self.capacity] == frame).all()
        )

    def stacks(self, numbers: Numbers) -> tuple[Array, Array]:
        """Return what was observed, and what came of the steps, of records with these numbers."""
        slots = numbers % self.capacity
        return (
            self.frames[slots[..., : self.depth]],
            self.frames[slots[..., self.depth :]],
        )

    def oldest_of(self, numbers: Numbers) -> Numbers:
        """Return ``oldest`` of consecutive records whose frames have these numbers."""
        after = np.append(numbers.min(axis=-1), self.added - self.reach)
        oldest: Numbers = np.minimum.accumulate(after[::-1])[::-1][:-1]
        return oldest

    def to_arrays(self) -> dict[str, Array]:
        """Return the frames and what is known of them as arrays."""
        envs = np.array([*self.last], np.int64)
        last = np.array([*self.last.values()], np.int64).reshape(len(envs), self.depth)
        return {
            "frames": self.frames[: min(self.added, self.capacity)],
            "frames_of": np.column_stack((envs, last)),
            "frames_added": np.array(self.added),
        }

    def restore(self, arrays: Mapping[str, Array], numbers: Numbers) -> None:
        """Take over what ``to_arrays`` returned; ValueError if it makes no sense.

        Args:
            arrays: What it returned.
            numbers: The numbers of the frames of all records.
        """
        frames, of, added = arrays["frames"], arrays["frames_of"], int(arrays["frames_added"])
        count = min(added, self.capacity)
        expected = (count, *self.frames.shape[1:]), self.frames.dtype
        sane = added >= 0 and (frames.shape, frames.dtype) == expected
        sane = sane and of.ndim == 2 and of.shape[1] == 1 + self.depth and of.dtype == np.int64
        for known in (numbers, of[:, 1:] if sane else numbers):
            sane = sane and bool((known >= 0).all() and (known < added).all())
        if not sane:
            raise ValueError("frames that are none of these records")
        self.frames[:count] = frames
        self.added = added
        self.last = {int(row[0]): row[1:].copy() for row in of}
