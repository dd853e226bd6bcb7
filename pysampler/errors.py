"""The exceptions of pysampler, as one tree.

PysamplerError
├── ClosedError           the object is closed, or belongs to another process
├── BusyError             another thread is using the object, or all its places are taken
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

from typing import TYPE_CHECKING, Any

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
    """You used an object that is closed, or that belongs to another process, such as the parent."""


class BusyError(PysamplerError):
    """Another thread is using the object, or all its places are taken, as by rollouts you hold."""


class LayoutError(PysamplerError):
    """Shared memory was laid out by another version of pysampler, or is corrupt."""


class LostError(PysamplerError):
    """A process died while this one waited for it.

    Attributes:
        members: From a doorbell: the members that were lost since the last wait.
        ready: From a doorbell: the members that are ready in spite of the loss.
    """

    members: Sequence[int] = ()
    ready: npt.NDArray[np.uint32] | None = None


class WorkerLostError(LostError):
    """A worker exited, crashed or was killed.

    Attributes:
        worker: The index of the worker.
        pid: Its process id.
        exit_code: Its exit code, or minus the number of the signal that killed it; None if unknown.
        envs: The indices of its envs.
        env: The index of the env that it was in; None if unknown.
    """

    worker: int = -1
    pid: int = 0
    exit_code: int | None = None
    envs: range = range(0)
    env: int | None = None


class HostLostError(LostError):
    """A host of a sampler on Ray died, hung or was removed, or none could be started.

    Attributes:
        host: The index of the host; None if the error is not about one host.
    """

    host: int | None = None


class EnvError(PysamplerError):
    """An env raised an exception.

    This error is also an instance of that exception's type, with its attributes:
    ``except ValueError`` catches an env's ``ValueError``. Its ``__cause__`` is the env's exception,
    and the cause of that shows the traceback in the worker. If the worker could not send all of the
    exception, notes say so: attributes that cannot be pickled are missing, and a type that cannot
    be imported here is replaced by the bases that can.

    Attributes:
        env: The index of the env; None if other code in the worker raised, such as a policy.
        worker: The index of the worker; None if the env runs in this process.
        results: From ``step`` and ``step_wait``: what they would have returned, if the infos can be
            batched. ``info["env_error"]`` is True for the envs that have no results: their rows
            have the last observation before the step, reward 0, and no end or other info. None
            from all other calls.
    """

    env: int | None = None
    worker: int | None = None
    results: tuple[Any, ...] | None = None


class RecordingError(PysamplerError):
    """A recording does not fit the vector env that replays it, or is damaged."""


class WaitTimeoutError(PysamplerError, TimeoutError):
    """A wait reached its deadline. The operation stays pending, so you can usually wait again."""


class EnvTimeoutError(WaitTimeoutError):
    """An env has not answered for longer than ``step_timeout``; its step stays pending.

    Attributes:
        env: The index of the env.
        worker: The index of its worker.
    """

    env: int = -1
    worker: int = -1


class StopActors(Exception):  # noqa: N818 - not an error
    """Raise this in an env or a policy to stop all actors, like ``Actors.stop()``."""
