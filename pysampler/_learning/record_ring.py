"""A ring of the newest records, with links between consecutive ones.

Records of several envs alternate, so the next record of an env is found by a link instead of by
its position. Links are stored only for buffers that need them (``n_step``, ``sequences``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._learning.memory import own_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["FOLLOWING", "PRECEDING", "Addition", "RecordRing"]

# Fields with the numbers of the next and the previous record of the same env, even of another
# episode; -1 if there is none.
FOLLOWING, PRECEDING = "following", "preceding"


@dataclass(frozen=True)
class Addition:
    """Checked records to add."""

    count: int
    arrays: Mapping[str, npt.NDArray[Any]]
    numbers: npt.NDArray[np.int64]  # count of the env's steps
    begins: npt.NDArray[np.bool_]  # whether each record begins an episode
    numbers_known: bool  # otherwise ``numbers`` are zeros


class RecordRing:
    """Arrays ``[capacity, ...]``: record n is in slot ``n % capacity``.

    Args:
        capacity: The number of records to keep.
        fields: Dtype and shape of each field.
        links: The link fields to store: none, ``FOLLOWING``, or both.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        *,
        links: Sequence[str] = (),
    ) -> None:
        fields = {**fields, **{name: (np.dtype(np.int64), ()) for name in links}}
        self.capacity = capacity
        self.fields = {
            name: own_array((capacity, *shape), dtype) for name, (dtype, shape) in fields.items()
        }
        self._added = 0
        # For the newest record of each env: the env, ascending; its number in the ring; the count
        # of the env's steps.
        self.newest = np.empty((3, 0), np.int64)
        self.adding: Addition | None = None

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def added(self) -> int:
        """The total number of records added so far, including those being added."""
        added, one = self._added, self.adding
        return added + (one.count if one is not None else 0)

    def finish_adding(self, on_new: Callable[[npt.NDArray[np.int64]], None]) -> None:
        """Write the records that are being added; call ``on_new`` with their slots.

        After an interrupted call, call it again: everything it does is safe to repeat.
        """
        if (one := self.adding) is None:
            return
        added, newest = self._added + one.count, self.newest
        count = min(one.count, self.capacity)  # older ones do not fit
        numbers = np.arange(added - count, added)
        slots = numbers % self.capacity
        if count < one.count:
            newest = newest[:, :0]
        if count > 0:
            split = min(count, self.capacity - int(slots[0]))
            arrays = {name: array[one.count - count :] for name, array in one.arrays.items()}
            for name, array in arrays.items():
                to = self.fields[name]
                to[slots[0] : slots[0] + split] = array[:split]
                to[: count - split] = array[split:]
            if FOLLOWING in self.fields:
                newest = self._link(newest, numbers, arrays, one)
            on_new(slots)
        self._added, self.newest, self.adding = added, newest, None  # together

    def _link(
        self,
        newest: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        arrays: Mapping[str, Any],
        one: Addition,
    ) -> npt.NDArray[np.int64]:
        """Store the links between new records and to ``newest``; return the new ``newest``."""
        for name in (FOLLOWING, PRECEDING):
            if name in self.fields:
                self.fields[name][numbers % self.capacity] = -1
        in_life, begins = one.numbers[-len(numbers) :], one.begins[-len(numbers) :]
        env = arrays["env"]
        over = arrays["terminated"] | arrays["truncated"]
        order = np.argsort(env, kind="stable")
        same = env[order[1:]] == env[order[:-1]]
        before, after = order[:-1][same], order[1:][same]
        goes_on = over[before] | ~begins[after]
        if one.numbers_known:
            goes_on &= in_life[after] == in_life[before] + 1
        self._join(numbers[before[goes_on]], numbers[after[goes_on]])
        ends = np.append(~same, True)
        firsts, lasts = order[np.append(True, ends[:-1])], order[ends]
        newest, at = _with_envs(newest, env[firsts])
        _, last, number = newest[:, at]
        there = last >= max(int(numbers[-1]) + 1 - self.capacity, 0)
        ended = self.fields["terminated"][last % self.capacity]
        ended = ended | self.fields["truncated"][last % self.capacity]
        joined = there & (ended | ~begins[firsts])
        if one.numbers_known:
            joined &= in_life[firsts] == number + 1
        self._join(last[joined], numbers[firsts[joined]])
        newest[1, at] = numbers[lasts]
        newest[2, at] = in_life[lasts]
        return newest

    def _join(self, earlier: npt.NDArray[np.int64], later: npt.NDArray[np.int64]) -> None:
        self.fields[FOLLOWING][earlier % self.capacity] = later
        if PRECEDING in self.fields:
            self.fields[PRECEDING][later % self.capacity] = earlier

    def following(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slots of the records after those in some slots; -1 for none."""
        numbers = self.fields[FOLLOWING][slots]
        return np.where(numbers >= 0, numbers % self.capacity, -1)

    def preceding(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slots of the records before those in some slots; -1 for none."""
        numbers = self.fields[PRECEDING][slots]  # newer records may have replaced them
        kept = (numbers >= 0) & (numbers >= self._added - len(self))
        return np.where(kept, numbers % self.capacity, -1)

    def numbers_in(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the records in ``slots``: the counts of records before them."""
        last = self._added - 1
        return last - (last - slots) % self.capacity

    def restore(
        self, added: int, arrays: Sequence[npt.NDArray[Any]], newest: npt.NDArray[Any]
    ) -> None:
        """Restore an array for each field; ValueError if they are inconsistent."""
        self._added = added
        count = len(self)
        for (name, to), array in zip(self.fields.items(), arrays, strict=True):
            if (array.shape, array.dtype) != ((count, *to.shape[1:]), to.dtype):
                raise ValueError(f"{name!r} of {array.shape} {array.dtype}, expected {count} rows")
            to[:count] = array
        envs, last, _ = newest
        expected = newest.dtype == np.int64 and (np.diff(envs) > 0).all()
        if not expected or (last < -1).any() or (last >= added).any():
            raise ValueError("invalid numbers of the envs' newest records")
        own = self.numbers_in(np.arange(count))
        for name in (FOLLOWING, PRECEDING):
            if name in self.fields:
                linked = self.fields[name][:count]
                onward = (linked > own) if name == FOLLOWING else (linked < own) & (linked >= 0)
                if not ((onward & (linked < added)) | (linked == -1)).all():
                    raise ValueError("invalid links between records")
        self.newest = newest


def _with_envs(
    newest: npt.NDArray[np.int64], envs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """Return a copy with a column for each of these envs, and the indices of those columns.

    ``envs`` must be ascending, without duplicates.
    """
    known = newest[0]
    at = np.searchsorted(known, envs)
    if len(known) and (known.take(at, mode="clip") == envs).all():
        return newest.copy(), at
    joined = np.union1d(known, envs)
    grown = np.full((3, len(joined)), -1)
    grown[0] = joined
    grown[:, joined.searchsorted(known)] = newest
    return grown, np.searchsorted(joined, envs)
