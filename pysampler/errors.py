"""What can go wrong, as one tree.

PysamplerError
├── ClosedError        you closed it, or it belongs to another process
├── BusyError          somebody else waits where only one may
├── LayoutError        not what this version of pysampler lays out, or garbage in its place
├── LostError          a peer died
└── WaitTimeoutError   also a TimeoutError

Each says *cannot <verb> <thing>: <cause>, <got and expected>*. A bad argument is a ValueError,
IndexError or TypeError, too little memory a MemoryError, a refusal of the system an OSError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BusyError",
    "ClosedError",
    "LayoutError",
    "LostError",
    "PysamplerError",
    "WaitTimeoutError",
]


class PysamplerError(Exception):
    """The root of the tree."""


class ClosedError(PysamplerError):
    """It is closed, or the process that made it is not this one."""


class BusyError(PysamplerError):
    """Somebody else waits where only one may."""


class LayoutError(PysamplerError):
    """What lies there is not what this version of pysampler lays out."""


class LostError(PysamplerError):
    """A peer died.

    Raised by a doorbell, it says which ``members`` were lost since the last wait, and who was
    ``ready`` all the same.
    """

    members: Sequence[int] = ()
    ready: npt.NDArray[np.uint32] | None = None


class WaitTimeoutError(PysamplerError, TimeoutError):
    """The deadline came first."""
