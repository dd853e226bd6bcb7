"""Sequences of consecutive records from a replay buffer, for recurrent policies."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.torch import tensor_from

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._learning.record_ring import RecordRing

    Slots = npt.NDArray[np.int64]

__all__ = ["Sequences", "n_step_returns", "steps_around"]


@dataclass(frozen=True, repr=False)
class Sequences:
    """Sequences of consecutive steps, a row for each, from :meth:`ReplayBuffer.sample_sequences`.

    The first ``burn_in`` columns are for warming up a recurrent state; learn from the others. If
    the buffer has no steps before or after, columns are padded with zeros, and their ``mask`` is
    False: at the left end of the burn-in and at the right end of the rest.

    ``rewards``, ``discounts`` and ``last`` are returns of up to ``n_step`` steps, as in a
    :class:`Batch`. They end with the sequence, so one pass of a recurrent network computes all
    values: the target of a column is ``rewards + discounts * next_values``, with the value of
    ``next_observations`` in the column ``last``.

    Attributes:
        fields: ``[sequences, burn_in + length, ...]`` of each field, and of ``rewards``,
            ``terminated`` and ``truncated``.
        mask: Whether the column holds a step.
        first: The column of each sequence's first step. The stored recurrent state of a sequence is
            ``fields[name][row, first[row]]``; see ``state``.
        burn_in: The number of columns of burn-in.
        rewards: ``[sequences, burn_in + length]``: the discounted sums of rewards.
        discounts: gamma to the power of the number of steps in the sum; 0 if the episode
            terminated.
        last: The column of the last step in each sum.
        weights: Importance weights for the loss: 1 if all records are equally likely.
        indices: The number of each sequence's first record after the burn-in, for
            :meth:`ReplayBuffer.update`.
    """

    fields: dict[str, Any]
    mask: Any
    first: Any
    burn_in: int
    rewards: Any
    discounts: Any
    last: Any
    weights: Any
    indices: npt.NDArray[Any]

    def __repr__(self) -> str:
        count, columns = self.mask.shape
        return (
            f"<pysampler.Sequences: {count} of {columns - self.burn_in} steps after "
            f"{self.burn_in} of burn-in: {', '.join(self.fields)}>"
        )

    def state(self, name: str) -> Any:
        """Return a field of the first step of each sequence, such as a stored recurrent state."""
        array = self.fields[name]
        return array[range(len(array)), self.first]

    def torch(self, device: Any = None) -> Sequences:
        """Return the sequences with tensors instead of arrays.

        Args:
            device: The torch device to copy to. None: tensors on the CPU that share memory with the
                arrays.

        Returns:
            The sequences; ``indices`` remain an array.
        """
        tensor = functools.partial(tensor_from, device=device, non_blocking=True)
        names = "mask", "first", "rewards", "discounts", "last", "weights"
        return replace(
            self,
            fields={name: tensor(array) for name, array in self.fields.items()},
            **{name: tensor(getattr(self, name)) for name in names},
        )


def steps_around(
    ring: RecordRing, slots: Slots, burn_in: int, length: int, *, beyond_ends: bool
) -> tuple[Slots, npt.NDArray[np.bool_]]:
    """Return the slots of the steps before and after some records, and which of them exist.

    Args:
        ring: The records.
        slots: The records of the first steps to learn from.
        burn_in: The number of steps before them.
        length: The number of steps from them on.
        beyond_ends: Whether to continue with the next episode when one has ended.
    """
    terminated, truncated = ring.fields["terminated"], ring.fields["truncated"]
    shape = len(slots), burn_in + length
    steps = np.zeros(shape, np.int64)
    mask = np.zeros(shape, bool)
    steps[:, burn_in], mask[:, burn_in] = slots, True
    for columns, link, of_link in (
        (range(burn_in + 1, burn_in + length), ring.following, lambda at, _: at),
        (range(burn_in - 1, -1, -1), ring.preceding, lambda _, to: to),
    ):
        at, going = slots.copy(), np.arange(len(slots))
        for column in columns:
            to = link(at[going])
            there = to >= 0
            to[~there] = 0
            if not beyond_ends:  # stop where the earlier of two steps ends an episode
                earlier = of_link(at[going], to)
                there &= ~(terminated[earlier] | truncated[earlier])
            going, to = going[there], to[there]
            at[going] = to
            if len(going) == 0:
                break
            steps[going, column], mask[going, column] = to, True
    return steps, mask


def n_step_returns(
    fields: dict[str, npt.NDArray[Any]], mask: npt.NDArray[np.bool_], n_step: int, gamma: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return ``rewards``, ``discounts`` and ``last`` of :class:`Sequences`."""
    rewards, terminated = fields["rewards"], fields["terminated"]
    total = rewards.copy()
    columns = np.arange(mask.shape[1])
    last = np.tile(columns, (len(mask), 1))
    continues = ~(terminated | fields["truncated"])[:, :-1] & mask[:, :-1] & mask[:, 1:]
    reached = mask
    for k in range(1, min(n_step, len(columns))):
        reached = reached[:, :-1] & continues[:, k - 1 :]  # from a column to the k-th after it
        total[:, :-k] += gamma**k * np.where(reached.T, rewards[:, k:].T, 0).T
        last[:, :-k] += reached
    is_terminated = np.take_along_axis(terminated, last, axis=1)
    discounts = gamma ** (last - columns + 1) * (mask & ~is_terminated)
    return total.astype(np.float32), discounts.astype(np.float32), last
