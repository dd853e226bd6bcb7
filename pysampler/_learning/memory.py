"""Memory of a buffer: private to the process, so that a forked child gets a copy."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["own_array"]

_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_PIECE = 1 << 26  # Ctrl-C takes effect between two pieces


def own_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array of zeros with all pages allocated now, rather than hours into a training.

    Raises:
        MemoryError: The machine or a limit has too little memory left.
    """
    size = math.prod(shape) * dtype.itemsize
    if size >= 2**63:
        raise ValueError(f"cannot make replay: {size} bytes, expected less than an address space")
    left = _core.memory_left()
    if size > left:
        raise MemoryError(
            f"cannot make replay: {size} bytes, the machine and its limits leave {left}"
        )
    try:
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"cannot make replay: {size} bytes: {error}") from error
    for begin in range(0, len(memory), _PIECE):
        # An older kernel raises: pages are then allocated on the first write.
        with contextlib.suppress(OSError):
            memory.madvise(_MADV_POPULATE_WRITE, begin, min(_PIECE, len(memory) - begin))
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)
