"""The exceptions of pysampler, as one tree.

PysamplerError
├── ClosedError           the object is closed, or belongs to another process
├── BusyError             another thread is in a call that one thread at a time may make
├── LayoutError           shared memory was laid out by another version, or is corrupt
├── LostError             another process died
│   ├── WorkerLostError   a worker of a vector env died: which, how, and while doing what
│   └── HostLostError     a host of a sampler on Ray died, hung or was removed: which, and how
├── EnvError              an env raised; also an instance of the type that the env raised
├── RecordingError        a recording belongs to another program, or is damaged
└── WaitTimeoutError      a wait reached its deadline; also a TimeoutError
    └── EnvTimeoutError   an env has not answered for longer than step_timeout

``StopActors`` is not an error: an env or a policy raises it to stop all actors.

Messages have the form *cannot <verb> <thing>: <cause>, <got and expected>*. A bad argument raises
ValueError, IndexError or TypeError, too little memory MemoryError, a failed system call OSError.
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
    "HostLostError",
    "LayoutError",
    "LostError",
    "PysamplerError",
    "RecordingError",
    "StopActors",
    "WaitTimeoutError",
    "WorkerLostError",
]


class PysamplerError(Exception):
    """Base class of all errors of pysampler."""


class ClosedError(PysamplerError):
    """The object is closed, or belongs to another process."""


class BusyError(PysamplerError):
    """Another thread is in a call that one thread at a time may make."""


class LayoutError(PysamplerError):
    """Shared memory was laid out by another version of pysampler, or is corrupt."""


class LostError(PysamplerError):
    """A process died that this one was waiting for.

    Attributes:
        members: From a doorbell: the members that were lost since the last wait.
        ready: From a doorbell: the members that were ready nevertheless.
    """

    members: Sequence[int] = ()
    ready: npt.NDArray[np.uint32] | None = None


class WorkerLostError(LostError):
    """A worker exited, crashed or was killed.

    Attributes:
        worker: The index of the worker.
        pid: Its process id.
        exit_code: Its exit code, or minus the signal that killed it; None if unknown.
        envs: The indices of its envs.
    """

    worker: int = -1
    pid: int = 0
    exit_code: int | None = None
    envs: range = range(0)


class HostLostError(LostError):
    """A host of a sampler on Ray died, hung or was removed, or none could be started.

    Attributes:
        host: The index of the host; None if the error is not about one host.
    """

    host: int | None = None


class EnvError(PysamplerError):
    """An env raised an exception.

    It is also an instance of that exception's type, with its attributes:
    ``except ValueError`` catches an env's ``ValueError``. Its ``__cause__`` is the env's exception,
    whose cause in turn shows the traceback in the worker. Notes name the parts that a worker could
    not send: attributes that cannot be pickled, types that cannot be imported here (their
    importable bases still match).

    Attributes:
        env: The index of the env, or None if something else in the worker raised.
        worker: The index of the worker, or None if the env runs in this process.
    """

    env: int | None = None
    worker: int | None = None


class RecordingError(PysamplerError):
    """A recording does not fit the vector env that replays it, or is damaged."""


class WaitTimeoutError(PysamplerError, TimeoutError):
    """A wait reached its deadline before the event."""


class EnvTimeoutError(WaitTimeoutError):
    """An env has not answered for longer than ``step_timeout``; its step stays pending.

    Attributes:
        env: The index of the env.
        worker: The index of its worker.
    """

    env: int = -1
    worker: int = -1


class StopActors(Exception):  # noqa: N818 - not an error
    """Raise this in an env, or in a policy in a worker, to stop all actors as the learner would."""
