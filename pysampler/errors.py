"""What can go wrong, as one tree.

PysamplerError
├── ClosedError        you closed it, or it belongs to another process
├── BusyError          another thread is in a call that only one may make at a time
├── LayoutError        not what this version of pysampler lays out, or garbage in its place
├── LostError          a peer died
│   └── WorkerLostError   a worker of a vector env: which, how, and what it was doing
├── EnvError           an env raised; also an instance of what it raised, which is the cause
├── RecordingError        a recording is not of this program, or damaged
└── WaitTimeoutError   also a TimeoutError
    └── EnvTimeoutError   an env has not answered for longer than step_timeout

``StopActors`` is no error: an env or a policy raises it to end what it is acted in.

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
    "EnvError",
    "EnvTimeoutError",
    "LayoutError",
    "LostError",
    "PysamplerError",
    "RecordingError",
    "StopActors",
    "WaitTimeoutError",
    "WorkerLostError",
]


class PysamplerError(Exception):
    """The root of the tree."""


class ClosedError(PysamplerError):
    """It is closed, or the process that made it is not this one."""


class BusyError(PysamplerError):
    """Another thread is in a call that only one may make at a time."""


class LayoutError(PysamplerError):
    """What lies there is not what this version of pysampler lays out."""


class LostError(PysamplerError):
    """A peer died.

    Raised by a doorbell, it says which ``members`` were lost since the last wait, and who was
    ``ready`` all the same.
    """

    members: Sequence[int] = ()
    ready: npt.NDArray[np.uint32] | None = None


class WorkerLostError(LostError):
    """A worker ended by itself, or was killed."""

    worker: int = -1
    pid: int = 0
    exit_code: int | None = None  # negative: minus the signal; None: not known
    envs: range = range(0)


class EnvError(PysamplerError):
    """An env raised an exception.

    It is also an instance of that exception's type, where it can be, so that ``except ValueError``
    catches the env's ``ValueError``. The cause is the exception itself, and that one's the
    traceback in the worker.
    """

    env: int | None = None  # its index
    worker: int | None = None


class RecordingError(PysamplerError):
    """A recording does not fit what is to be replayed, or is damaged."""


class WaitTimeoutError(PysamplerError, TimeoutError):
    """The deadline came first."""


class EnvTimeoutError(WaitTimeoutError):
    """An env has not answered for longer than ``step_timeout``. What is pending stays so."""

    env: int = -1
    worker: int = -1


class StopActors(Exception):  # noqa: N818 - not an error
    """Raised by an env, or a policy in a worker: all actors stop, as if the learner had said so."""
