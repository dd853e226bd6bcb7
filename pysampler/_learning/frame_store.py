"""FrameStore: stacks of frames, each frame stored once although it is in many stacks."""

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
    """Stacks to add to a ``FrameStore``, and the progress of adding them.

    Attributes:
        stacks: The observations before the steps, in order for each env.
        next_stacks: The observations after the steps.
        envs: The envs.
        numbers: The numbers of their frames, ``[records, 2 * depth]``.
        oldest: For each record, a lower bound of the frame numbers of it and of later records.
        done: The number of records stored so far.
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
    """The newest frames of some envs: frame n is in slot ``n % capacity``.

    A record has two stacks: the observations before and after the step. A frame that is also in the
    env's last stack is reused instead of stored again, but only while it is recent, so
    that each record keeps all of its frames until ``capacity - reach`` newer ones have been stored.
    If old frames were reused too, as in an env with a constant picture, new records would soon
    lose them.

    Args:
        capacity: The number of frames to keep.
        reach: A frame is reused if at most this many were stored after it.
        depth: The number of frames in a stack.
        shape: The shape of a frame.
        dtype: Its dtype.
    """

    def __init__(
        self, capacity: int, reach: int, depth: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        # The frames of a record must not overwrite one that it reuses.
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

        After an interrupted call, call it again: it continues with the first record not yet done.
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
        """Return the numbers of a stack's frames. Try ``guesses`` before storing a frame."""
        numbers: list[int] = []
        for place, frame in enumerate(stack):
            tried = [] if guesses is None else [int(guesses[place])]
            tried += numbers[-1:]  # at the beginning of an episode the first frame is repeated
            found = next((n for n in tried if self._is(n, frame)), None)
            if found is None:
                found = self.added
                self.added = found + 1  # first: the old frame in this slot is lost from now on
                self.frames[found % self.capacity] = frame
            numbers.append(found)
        return numbers

    def _is(self, number: int, frame: Array) -> bool:
        return self.added - number <= self.reach and bool(
            (self.frames[number % self.capacity] == frame).all()
        )

    def stacks(self, numbers: Numbers) -> tuple[Array, Array]:
        """Return the observations before and after the steps of records with these frames."""
        slots = numbers % self.capacity
        return (self.frames[slots[..., : self.depth]], self.frames[slots[..., self.depth :]])

    def oldest_of(self, numbers: Numbers) -> Numbers:
        """Return ``oldest`` of consecutive records whose frames have these numbers."""
        after = np.append(numbers.min(axis=-1), self.added - self.reach)
        return np.minimum.accumulate(after[::-1])[::-1][:-1]

    def to_arrays(self) -> dict[str, Array]:
        """Return the frames, their count and each env's newest stack as arrays."""
        envs = np.array([*self.last], np.int64)
        last = np.array([*self.last.values()], np.int64).reshape(len(envs), self.depth)
        return {
            "frames": self.frames[: min(self.added, self.capacity)],
            "frames_of": np.column_stack((envs, last)),
            "frames_added": np.array(self.added),
        }

    def restore(self, arrays: Mapping[str, Array], numbers: Numbers) -> None:
        """Restore the arrays from ``to_arrays``; ValueError if they are inconsistent.

        Args:
            arrays: The arrays.
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
            raise ValueError("frames that do not belong to these records")
        self.frames[:count] = frames
        self.added = added
        self.last = {int(row[0]): row[1:].copy() for row in of}
