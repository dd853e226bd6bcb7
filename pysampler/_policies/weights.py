"""Weights of a policy or trainer: arrays by name, and copies of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pysampler._common.torch import (
    copy_of_module,
    is_module,
    is_tensor,
    loaded_torch,
    tensor_from,
    to_array,
)
from pysampler.sync._board import fitting_fields

if TYPE_CHECKING:
    import numpy.typing as npt

    Weights = dict[str, npt.NDArray[Any]]

__all__ = [
    "SharedWeights",
    "arrays_of",
    "chosen_weights",
    "copy_weights",
    "has_weights",
    "load_weights",
    "portable",
    "weights_of",
    "without_weights",
]


_METHODS = "state_dict() and load_state_dict()"


def has_weights(policy: Any) -> bool:
    """Return whether a policy has ``state_dict()`` and ``load_state_dict()``."""
    return all(callable(getattr(policy, name, None)) for name in ("state_dict", "load_state_dict"))


def arrays_of(state: Mapping[str, Any]) -> Weights:
    """Return the values of a ``state_dict()``, tensors or not, as arrays."""
    return {name: _array_of(name, value) for name, value in state.items()}


def weights_of(policy: Any) -> Weights:
    """Return the parameters and buffers of a policy; TypeError if NumPy lacks their dtype."""
    state = policy.state_dict()
    if is_module(policy):
        for name, value in state.items():
            if not is_tensor(value):
                raise _refusal(name, value)
    return arrays_of(state)


def _array_of(name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return to_array(value)
    except TypeError as error:
        raise _refusal(name, value) from error


def _refusal(name: str, value: Any) -> TypeError:
    got = getattr(value, "dtype", type(value).__name__)
    return TypeError(
        f"cannot send weights: {name} is {got}, expected a tensor of a dtype that NumPy has"
    )


def chosen_weights(weights: Any, policy: Any) -> Mapping[str, Any]:
    """Return the weights that a user publishes: a dict without tensors.

    Args:
        weights: A dict of arrays or tensors, or an object with ``state_dict()``; None: the policy's
            weights.
        policy: The policy.
    """
    chosen = policy if weights is None else weights
    if isinstance(chosen, Mapping):
        return {
            name: _array_of(name, value) if is_tensor(value) else value
            for name, value in chosen.items()
        }
    if not hasattr(chosen, "state_dict"):
        raise TypeError(
            f"cannot publish weights: {type(chosen).__name__}, expected a dict of arrays or "
            "tensors, or an object with state_dict()"
        )
    return weights_of(chosen)


def without_weights(policy: Any) -> TypeError:
    """Return the TypeError for publishing weights of a policy without weights."""
    lacks = "any in its state_dict()" if has_weights(policy) else _METHODS
    return TypeError(
        f"cannot publish weights: the policy is a {type(policy).__name__} without {lacks}"
    )


class SharedWeights:
    """Versions of weights for workers of this process: a ``Board`` whose readers copy nothing.

    One writer publishes; any number of threads read.

    Args:
        like: By name, an example array of each field.
        copies: Whether a version is a copy of what is published, because the program may change
            that while workers act.
    """

    def __init__(self, like: Weights, *, copies: bool = True) -> None:
        self._fields = {name: (array.dtype, array.shape) for name, array in like.items()}
        self._copies = copies
        # Replaced as a whole, so that a reader never gets a mixture of two versions.
        self._newest: tuple[int, Weights] = 0, {}

    @property
    def version(self) -> int:
        """The version of the newest weights."""
        return self._newest[0]

    def publish(self, fields: Mapping[str, npt.ArrayLike]) -> int:
        """Publish all weights as a new version; return its number."""
        arrays = fitting_fields(fields, self._fields)
        if self._copies:
            arrays = [array.copy() for array in arrays]
        self._newest = self.version + 1, dict(zip(self._fields, arrays, strict=True))
        return self.version

    def read(self, out: Any = None) -> tuple[int, Weights]:  # noqa: ARG002
        """Return the newest version and its weights, which all readers share."""
        return self._newest

    def place(self) -> SharedWeights:
        """Return the weights: a worker of this process needs no other place."""
        return self

    def attach(self, segment: Any) -> SharedWeights:  # noqa: ARG002
        """Return the weights."""
        return self


def load_weights(
    policy: Any,
    weights: Mapping[str, npt.NDArray[Any]],
    device: Any = None,
    *,
    shared: bool = False,
) -> None:
    """Load weights into a policy. A module uses the memory of the arrays, or copies on a device.

    If other policies share the arrays, it uses only those of its parameters, which no call changes.
    """
    if not is_module(policy):
        policy.load_state_dict(copy.deepcopy(dict(weights)) if shared else dict(weights))
        return
    own = {name for name, _ in policy.named_parameters(remove_duplicate=False)}
    policy.load_state_dict(
        {
            name: tensor_from(array.copy() if shared and name not in own else array, device)
            for name, array in weights.items()
        },
        assign=True,
    )


def copy_weights(module: Any, other: Any) -> None:
    """Copy the weights of another module of the same class to a module."""
    with loaded_torch().no_grad():
        values = other.state_dict()
        for name, value in module.state_dict().items():
            value.copy_(values[name])


def portable(policy: Any) -> Any:
    """Return a policy that other processes can use: for a module, a copy on the CPU."""
    return copy_of_module(policy).cpu() if is_module(policy) else policy
