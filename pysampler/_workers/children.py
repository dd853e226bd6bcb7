"""Child processes: starting, watching, ending and reaping them, and connections to them.

A signal handler may raise after any call. So an object of C++ owns each child from the moment it
exists: if an exception drops the object, the child is killed and reaped.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import fcntl
import functools
import json
import math
import os
import select
import signal
import subprocess
import sys
import termios
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._common.closing import comes_true
from pysampler._workers.limits import naming_process_limit
from pysampler._workers.surroundings import import_path
from pysampler.errors import PysamplerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "STOPPED",
    "Child",
    "OwnProcess",
    "OwnedConnection",
    "Process",
    "await_answer",
    "await_ends",
    "environment",
    "has_left",
    "interpreter",
    "is_at_end",
    "is_readable",
    "open_descriptors",
    "open_standard_files",
    "socket_pair",
    "stopped_error",
]

# One thread for each numerical library in a worker, unless the user sets these: there is a worker
# for every CPU already.
_LIBRARIES = "OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR"
_THREADS = *(f"{library}_NUM_THREADS" for library in _LIBRARIES), "VECLIB_MAXIMUM_THREADS"
# Reserves bytes for the name that ps shows: it overwrites the arguments of the process.
_TITLE_PADDING = "pysampler ".ljust(160, "-")
# Seconds to wait for a process to answer before checking whether it is stopped.
STOPPED = 5.0
# Seconds of one poll of a file that is not readable yet.
_LOOK = 0.25
# Signals that a new interpreter starts with blocked, until it has arranged to outlive them.
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# The hash seed of a new interpreter, unless the user has chosen one: with a random seed, each fork
# server would iterate over sets of strings in a different order.
_HASH_SEED = "0"
# The descriptor of the connection in a new interpreter.
_CONNECTION_FD = 3


class Process:
    """A process that this one may end.

    Args:
        handle: Its pidfd, or this process's own child; None: it has ended.
    """

    def __init__(self, pid: int, handle: _core.Pidfd | None) -> None:
        self.pid = pid
        self._handle = handle

    def ended(self, timeout: float = 0) -> bool:
        """Return whether the process ends within ``timeout`` seconds, or has ended."""
        if self._handle is None or self._handle.fileno() < 0:
            return True
        return is_readable(self._handle, timeout)

    def kill(self) -> bool:
        """Kill the process; return False if this process lacks permission."""
        return self._handle is None or self._handle.kill()

    def stopped(self) -> bool:
        """Return whether the process is stopped, for example by SIGSTOP."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] == "T"
        return False

    def status(self) -> int | None:
        """Return the exit code, or minus the signal, once it has ended; None if unknown."""
        raise NotImplementedError

    def release(self) -> None:
        """Close the handle of an ended process. Sends nothing, and may be repeated."""
        if self._handle is not None:
            self._handle.close()


class OwnProcess(Process):
    """A child of this process, to be reaped here.

    Args:
        start: Starts it and returns its pid, or 0 in a fork.
    """

    def __init__(self, start: Callable[[], int]) -> None:
        with naming_process_limit():
            self._child = _core.OwnChild(start)
        super().__init__(self._child.pid, self._child)

    def status(self) -> int | None:
        """Reap it after killing its process group; return its exit code or minus the signal."""
        return self._child.status()

    def release(self) -> None:
        """Reap the child and close its handle. May be repeated."""
        self.status()
        super().release()


class Child:
    """The parent's handle to a worker process, and the connection to it."""

    def __init__(self, process: Process, connection: OwnedConnection) -> None:
        self.pid = process.pid
        self.connection = connection
        self.ended = process.ended
        self.stopped = process.stopped
        self.status = process.status
        self._process = process

    def kill(self) -> None:
        """Kill the worker; without permission to, close the connection so that it ends itself."""
        if not self._process.kill():
            self.connection.shut()

    def release(self) -> None:
        """Release an ended worker's handles. Sends nothing, and may be repeated."""
        self._process.release()
        self.connection.close()


def await_answer(file: Any, process: Process | Child, name: str) -> None:
    """Wait until ``file``, which ``process`` writes, is readable; raise if it stays stopped."""
    stopped = False
    while not is_readable(file, STOPPED):
        before, stopped = stopped, process.stopped()
        if before and stopped:
            raise stopped_error(process, name)


def stopped_error(process: Process | Child, name: str) -> PysamplerError:
    """Return the error for a process that does not answer because it is stopped."""
    return PysamplerError(
        f"cannot start workers: {name} (pid {process.pid}) is stopped; continue it "
        f"(kill -CONT {process.pid}) and try again"
    )


def await_ends(children: Iterable[Any], left: Callable[[], float]) -> None:
    """Wait until all children have ended, or ``left()`` returns no more seconds."""
    for child in children:
        child.ended(left())


def has_left(thread: threading.Thread, seconds: float) -> bool:
    """Wait until a thread does not exist any more; return whether it is in time.

    Not with join(), which Python 3.11 ends too early. A thread frees memory of libraries after it,
    and one that MKL frees holds a lock: a fork at that time would wait for it for ever. If a signal
    handler raises in join(), a thread counts as ended that goes on.
    """
    if thread is threading.current_thread():  # in which the garbage collector runs
        return False
    return comes_true(lambda: not _core.has_thread(thread.native_id or 0), seconds)


# -- clean interpreters --------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Return the environment variables of a worker.

    Once Ray runs in this process, breakpoint() means Ray's debugger. Ray does not know our workers,
    where its debugger does nothing or waits forever, so they do not inherit that setting.
    """
    variables = {**dict.fromkeys(_THREADS, "1"), **os.environ}
    if variables.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del variables["PYTHONBREAKPOINT"]
    return variables


def interpreter(module: str, connection: _socket.socket, *arguments: int) -> Callable[[], int]:
    """Return a function that starts a clean interpreter, which calls ``main`` of a module.

    ``main`` gets a descriptor of the connection and ``arguments``. The interpreter has this one's
    flags and path, and imports nothing from the current directory. It leads a new session, and
    signals meant for this process and its group stay blocked until it has arranged to outlive them.
    The hash seed applies to it and its forks; programs that they start inherit this environment.
    """
    open_descriptors()  # raises here: an interpreter without /proc would end without reporting why
    variables = environment()
    forget = "" if "PYTHONHASHSEED" in variables else 'del os.environ["PYTHONHASHSEED"]'
    code = f"""
import gc, json, os, sys
{forget}
thresholds = gc.get_threshold()
gc.set_threshold(0)  # no search for garbage: what imports make stays
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if fd > {_CONNECTION_FD}:
            os.close(fd)
    except OSError:  # the descriptor of the listing
        pass
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
gc.freeze()
gc.set_threshold(*thresholds)
main{(_CONNECTION_FD, *arguments)}
"""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = json.dumps(import_path())
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, connection.fileno(), _CONNECTION_FD),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    ]
    actions += [
        (os.POSIX_SPAWN_DUP2, fd, fd)
        for fd in (1, 2)
        if not os.get_inheritable(fd)  # opened in place of a closed one
    ]
    if not sys.executable:
        raise PysamplerError(
            f"cannot start workers: sys.executable is {sys.executable!r}, expected the path of the "
            'interpreter; set it, or pass context="fork"'
        )
    return functools.partial(
        os.posix_spawn,
        sys.executable,
        [sys.executable, *flags, "-P", "-c", code, path, _TITLE_PADDING],
        {"PYTHONHASHSEED": _HASH_SEED, **variables},
        file_actions=actions,
        setsigmask=_BLOCKED,
        setsid=True,
    )


def open_descriptors() -> list[str]:
    """Return the numbers of this process's open files; raise OSError if /proc is missing."""
    try:
        return os.listdir("/proc/self/fd")  # noqa: PTH208
    except FileNotFoundError as error:
        raise OSError(
            errno.ENOENT,
            "cannot start workers: /proc is not mounted, which lists their files, threads and "
            "children; mount it (mount -t proc proc /proc), or pass num_workers=0",
        ) from error


def open_standard_files() -> None:
    """Open stdin, stdout and stderr if closed: otherwise a socket could get such a number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # open() takes the lowest free number, this one; it stays open
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003


# -- connections ---------------------------------------------------------------------------------


def socket_pair(kind: int = _socket.SOCK_STREAM) -> tuple[_socket.socket, _socket.socket]:
    """Return two connected sockets.

    ``socket.socketpair`` moves descriptors from one object to another: if a signal handler raised
    in between, they would leak.
    """
    return _socket.socketpair(_socket.AF_UNIX, kind)


def identity(file: Any) -> tuple[int, int]:
    """Return (device, inode), which identifies a file even if its descriptor is reused later."""
    status = os.fstat(file if isinstance(file, int) else file.fileno())
    return status.st_dev, status.st_ino


def is_own(file: Any, known: tuple[int, int]) -> bool:
    """Return whether a descriptor is still the known file: the program may have closed it."""
    with contextlib.suppress(OSError):
        return identity(file) == known
    return False


def close_own(end: _socket.socket, known: tuple[int, int]) -> None:
    """Close a socket, unless the program has reused its number for another file."""
    if is_own(end, known):
        end.close()
    else:
        end.detach()


class OwnedConnection(Connection):
    """A connection that owns its descriptor, and closes it when dropped."""

    def __init__(self, end: _socket.socket) -> None:
        self._end = _core.Detached(end)
        super().__init__(self._end.fileno())

    def shut(self) -> None:
        """Signal the end of the connection to the other side: a worker then exits."""
        self._end.shut()

    def _close(self) -> None:
        self._end.close()


def is_readable(file: Any, timeout: float = 0) -> bool:
    """Return whether a file or socket is readable now or becomes so in ``timeout`` seconds."""
    poller = select.poll()
    poller.register(file, select.POLLIN)
    # In short polls: if this process is suspended, the other end may be too, and resume later; the
    # suspension then uses up one poll instead of the whole timeout.
    polls = max(1, math.ceil(timeout / _LOOK))
    return any(poller.poll(max(0.0, timeout) * 1000 / polls) for _ in range(polls))


def is_at_end(connection: Connection) -> bool:
    """Return whether the other end is closed and everything it sent has been read."""
    if not is_readable(connection):
        return False
    unread = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(unread, sys.byteorder) == 0
