"""Versions of the policy: how the driver publishes them, and how a host loads them.

The changing part of a policy is its *state*: the weights, if it has ``state_dict()`` and
``load_state_dict()``; otherwise the whole policy, as a pickle.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import ray

from pysampler._policies.copying import pickled
from pysampler._policies.seeds import seed_policy
from pysampler._policies.weights import has_weights, load_weights, weights_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = ["HostPolicy", "PolicyVersions", "policy_on_host", "update_policy"]

# Versions that stay in Ray's store for starting hosts; calls keep alive those that they carry.
_KEPT = 2


class PolicyVersions:
    """The versions of a policy that the driver has published, in Ray's object store.

    Attributes:
        version: The newest version: 1 for the first, 0 if there is none.
        bytes_put: The number of bytes put into the store.
    """

    def __init__(self) -> None:
        self.version = 0
        self.bytes_put = 0
        self._kept: tuple[ray.ObjectRef[Any], ...] = ()
        self._state: Any = None  # the newest, in the store

    @property
    def newest(self) -> ray.ObjectRef[Any] | None:
        """The newest version; None if there is none."""
        return self._kept[-1] if self._kept else None

    def publish(self, state: Mapping[str, npt.NDArray[Any]] | bytes) -> int:
        """Put a state into the store as the newest version, and return its number.

        Raises:
            ValueError: Weights have other names or shapes than the first.
        """
        if self._state is not None and not isinstance(state, bytes):
            _expect_same_shapes(state, self._state)
        ref = ray.put(state if isinstance(state, bytes) else dict(state))
        kept, stored = (*self._kept, ref)[-_KEPT:], ray.get(ref)
        version, bytes_put = self.version + 1, self.bytes_put + _size(state)
        # One statement without a call: a signal handler may raise after any other.
        self._kept, self._state, self.bytes_put, self.version = kept, stored, bytes_put, version
        return version

    def publish_if_changed(self, policy: Any) -> None:
        """Publish the policy if it has changed."""
        state = weights_of(policy) if has_weights(policy) else pickled(policy)
        if self.newest is None or not _equal(self._state, state):
            self.publish(state)


def _expect_same_shapes(
    state: Mapping[str, npt.NDArray[Any]], first: Mapping[str, npt.NDArray[Any]]
) -> None:
    if state.keys() != first.keys():
        raise ValueError(f"cannot publish weights: {sorted(state)}, expected {sorted(first)}")
    for name, array in state.items():
        if np.shape(array) != first[name].shape:
            raise ValueError(
                f"cannot publish weights: {name} of shape {np.shape(array)}, expected "
                f"{first[name].shape}"
            )


def _size(state: Mapping[str, npt.NDArray[Any]] | bytes) -> int:
    return len(state) if isinstance(state, bytes) else sum(one.nbytes for one in state.values())


def _equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal, bit for bit, so that NaN equals itself."""
    if isinstance(one, bytes) or isinstance(other, bytes):
        return bool(one == other)
    return one.keys() == other.keys() and all(
        array.dtype == other[name].dtype
        and array.shape == other[name].shape
        and np.array_equal(_bytes_of(array), _bytes_of(other[name]))
        for name, array in one.items()
    )


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class HostPolicy:
    """Calls a policy that is replaced as a whole when the driver's policy has changed.

    Attributes:
        policy: The policy.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.policy(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.policy)

    def __getattr__(self, name: str) -> Any:  # recurrent, initial_state, seed
        if name.startswith("_") or name == "policy":
            raise AttributeError(name)
        return getattr(self.policy, name)


def policy_on_host(policy: Any) -> Any:
    """Return a policy that ``update_policy`` can update."""
    return policy if has_weights(policy) else HostPolicy(policy)


def update_policy(policy: Any, state: Any, entropy: tuple[int, ...], device: Any = None) -> None:
    """Set the state of a policy on a host. A policy that is replaced as a whole is seeded anew."""
    if isinstance(policy, HostPolicy):
        policy.policy = cloudpickle.loads(state)
        seed_policy(policy.policy, np.random.SeedSequence(entropy), own_process=True)
    else:
        # Copies: a module keeps the arrays that it loads, and with them the object in Ray's store.
        load_weights(policy, {name: array.copy() for name, array in state.items()}, device)
