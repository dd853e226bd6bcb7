"""The device of a policy in the main process: ordered copies in both directions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pysampler._common.torch import is_tensor, tensor_from

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import numpy.typing as npt

__all__ = ["PolicyDevice", "device_of", "policy_device"]


class PolicyDevice:
    """Copies observations to a device, and the policy's outputs back.

    On a GPU, the copies and the policy use a separate stream: they wait for the weights, but not
    for work that a learner queues after ``follow``. Copies to the GPU overlap with CPU work if the
    memory is page-locked; the CPU waits once per call, for the last copy back.

    Args:
        device: A ``torch.device``.
    """

    def __init__(self, device: Any) -> None:
        import torch  # noqa: PLC0415 - only where tensors are wanted

        self.device = device
        self.is_gpu = device.type == "cuda"
        self._torch = torch
        self._stream: Any = torch.cuda.Stream(device) if self.is_gpu else None
        self._followed: Any = None

    def follow(self) -> None:
        """Make further calls of the policy wait for all work that this thread has queued."""
        if self.is_gpu:
            self._followed = self._torch.cuda.current_stream(self.device).record_event()

    def acting(self) -> AbstractContextManager[Any]:
        """Return the context in which to call the policy."""
        context: AbstractContextManager[Any] = self._torch.no_grad()
        return self._on_stream() if self.is_gpu else context

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        with self._torch.cuda.stream(self._stream), self._torch.no_grad():
            if self._followed is not None:
                self._stream.wait_event(self._followed)
            try:
                yield
            except BaseException:  # copies from the frames must end before frames are reused
                self._stream.synchronize()
                raise

    def tensor(self, array: npt.NDArray[Any]) -> Any:
        """Return an array as a tensor on the device. Call this in ``acting``."""
        return tensor_from(array, self.device, non_blocking=True)

    def fetched(self, returned: Any) -> Any:
        """Copy a tree's tensors to the CPU, wait, and return the tree. Call it in ``acting``."""
        if not self.is_gpu:
            return returned
        fetched = _on_cpu(returned, self.device)
        self._stream.synchronize()
        return fetched


def _begin_copy(tensor: Any, device: Any) -> Any:
    """Queue a copy from this device to page-locked memory, and return the tensor there.

    A tensor on another device is copied before this returns.
    """
    return tensor.detach().to("cpu", non_blocking=tensor.device == device)


def _on_cpu(value: Any, device: Any) -> Any:
    """Queue copies of all tensors in a policy's outputs."""
    if is_tensor(value):
        return _begin_copy(value, device)
    if isinstance(value, Mapping):
        return {key: _on_cpu(one, device) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return (list if isinstance(value, list) else tuple)(_on_cpu(one, device) for one in value)
    return value


def device_of(module: Any) -> Any:
    """Return the device of a module's parameters; None if it has none."""
    return next((parameter.device for parameter in module.parameters()), None)


def policy_device(given: Any, before: PolicyDevice | None) -> PolicyDevice:
    """Return the device of a name, or ``before`` if it is the same; ValueError if invalid."""
    import torch  # noqa: PLC0415

    try:
        device = torch.device(given)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if before is not None and before.device == device:
            return before
        return PolicyDevice(device)
    except (RuntimeError, TypeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"cannot act: device {given!r}: {reason}") from error
