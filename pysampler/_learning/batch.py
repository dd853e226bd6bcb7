"""Batches of transitions, drawn from a replay buffer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pysampler._common.torch import tensor_from

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Batch"]


@dataclass(frozen=True, repr=False)
class Batch:
    """Transitions of up to n steps, a row for each, from :meth:`ReplayBuffer.sample`.

    The target of a value is ``rewards + discounts * values``, with the values of
    ``next_fields["next_observations"]``.

    Attributes:
        fields: The fields of each transition's first step, by name.
        next_fields: The fields ``next_...`` of each transition's last step.
        rewards: The discounted sums of the steps' rewards.
        discounts: gamma to the power of the number of steps; 0 if the episode terminated. Truncated
            episodes are bootstrapped from their last observation.
        weights: Importance weights for the loss: 1 if all records are equally likely.
        indices: The numbers of the records, for :meth:`ReplayBuffer.update`. They are never reused.
    """

    fields: dict[str, Any]
    next_fields: dict[str, Any]
    rewards: Any
    discounts: Any
    weights: Any
    indices: npt.NDArray[Any]

    def __repr__(self) -> str:
        names = ", ".join([*self.fields, *self.next_fields])
        return f"<pysampler.Batch of {len(self.indices)} transitions: {names}>"

    def torch(self, device: Any = None) -> Batch:
        """Return the batch with tensors instead of arrays.

        Args:
            device: The torch device to copy to. None: tensors on the CPU that share memory with the
                arrays.

        Returns:
            The batch; its ``indices`` remain an array.
        """
        tensor = functools.partial(tensor_from, device=device, non_blocking=True)
        return Batch(
            {name: tensor(array) for name, array in self.fields.items()},
            {name: tensor(array) for name, array in self.next_fields.items()},
            *(tensor(self.rewards), tensor(self.discounts), tensor(self.weights)),
            self.indices,
        )
