"""Copies of rollouts to a GPU: CUDA reads the shared memory while the CPU does other work."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["cuda_in_use", "is_cuda", "record_copies", "register_memory", "wait_for_copies"]

_registered: set[int] = set()  # the addresses of memory that is registered with CUDA
_copy_events: dict[int, list[Any]] = {}  # by address, the CUDA events at the ends of copies


def is_cuda(device: Any) -> bool:
    """Return whether a device is a GPU that torch uses through CUDA."""
    import torch  # noqa: PLC0415 - only where tensors are wanted

    return device is not None and torch.device(device).type == "cuda"


def cuda_in_use() -> bool:
    """Return whether this process has imported torch, which can use a GPU through CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def register_memory(memory: npt.NDArray[np.uint8]) -> None:
    """Let CUDA copy from this memory by DMA. If CUDA refuses, copies are only slower."""
    import torch  # noqa: PLC0415

    address, size = memory.ctypes.data, memory.nbytes
    if size == 0 or address in _registered:  # infos that came since do not need it
        return
    # Read-write, mapped into every context: 0 is the default of cudaHostRegister.
    if int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0:
        _registered.add(address)
        weakref.finalize(memory, _unregister, address)


def _unregister(address: int) -> None:
    import torch  # noqa: PLC0415

    _copy_events.pop(address, None)
    _registered.remove(address)
    torch.cuda.cudart().cudaHostUnregister(address)


def record_copies(memory: npt.NDArray[np.uint8], device: Any) -> None:
    """Remember the copies started from this memory, for ``wait_for_copies``."""
    import torch  # noqa: PLC0415

    if memory.ctypes.data in _registered:  # copies from other memory have already ended
        event = torch.cuda.current_stream(device).record_event()
        _copy_events.setdefault(memory.ctypes.data, []).append(event)


def wait_for_copies(memory: npt.NDArray[np.uint8]) -> None:
    """Wait until the GPU has read this memory. Call this before the memory is written again."""
    events = _copy_events.get(memory.ctypes.data, [])  # another thread may append to it meanwhile
    while events:
        events[0].synchronize()
        del events[0]
