"""Child processes: how this process starts, watches, ends and reaps them, and talks to them.

An exception of a signal handler may come after any call. So a child is owned by an object from the
moment it exists: one that an exception came past ends by itself, and is reaped with the next start.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import fcntl
import functools
import itertools
import json
import math
import os
import select
import signal
import subprocess
import sys
import termios
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler import _core
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
    "interpreter",
    "is_at_end",
    "is_readable",
    "open_descriptors",
    "open_standard_files",
    "reap_unclaimed",
    "socket_pair",
    "start_own",
    "stopped_error",
]

# One thread each for the numerical libraries of a worker, unless the user says otherwise: there is
# a worker for every CPU.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# Bytes for the name that ps shows, which is written over the arguments of the process.
_TITLE_PADDING = "pysampler ".ljust(160, "-")
# How long to wait for the answer of a process before looking whether it is stopped, in seconds.
STOPPED = 5.0
# How long a look is at something that does not answer, in seconds.
_LOOK = 0.25
# Signals that a new interpreter has blocked until it can say that it outlives them.
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# The seed of hashes in a new interpreter, unless the user has chosen one: with a random one, each
# fork server would iterate over sets of strings in another order.
_HASH_SEED = "0"
# The descriptor at which a new interpreter finds its connection.
_CONNECTION_FD = 3


# Pids of children of this process that no object owns any more, each in a list of its own.
_unclaimed: list[list[int]] = []
os.register_at_fork(after_in_child=_unclaimed.clear)  # they are the children of the parent


class Process:
    """A process that this one may end."""

    # As they are where an exception of a signal handler comes into __init__.
    pid = 0
    _pidfd: _core.Pidfd | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        if pid > 0:
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = _core.Pidfd(pid)

    def ended(self, timeout: float = 0) -> bool:
        """Return whether it has ended, or does so within ``timeout`` seconds."""
        if self._pidfd is None or self._pidfd.fileno() < 0:
            return True
        return is_readable(self._pidfd, timeout)

    def kill(self) -> bool:
        """End it, whatever it is doing; return False if this process may not."""
        return self._pidfd is None or self._pidfd.kill()

    def stopped(self) -> bool:
        """Return whether it is stopped, as by SIGSTOP."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        return False

    def status(self) -> int | None:
        """Return its exit code, or minus the signal, once it has ended; None if that is unknown."""
        raise NotImplementedError

    def release(self) -> None:
        """Close what refers to it, once it has ended. Sends nothing, and may be repeated."""
        if self._pidfd is not None:
            self._pidfd.close()


class OwnProcess(Process):
    """A child of this process, which reaps it."""

    _status: int | None = None
    _reaped = False
    _owner = 0

    def __init__(self, pid: int) -> None:
        self._owner = os.getpid()
        super().__init__(pid)

    def status(self) -> int | None:
        """Reap it, with all that it had started; return its exit code or minus the signal."""
        if not self._reaped:
            # What it had started ends with it. Until it is reaped no other group has its number.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another part of the program has waited for it
                self._reaped = True
            else:
                if ended:
                    self._status = os.waitstatus_to_exitcode(status)
                    self._reaped = True
        return self._status

    def release(self) -> None:
        """Reap it, and close what refers to it. May be repeated."""
        self.status()
        super().release()

    def __del__(self, unclaimed: list[list[int]] = _unclaimed) -> None:
        # An exception came past it, or into the finalizer that would have ended it.
        if not self._reaped and self.pid > 0 and os.getpid() == self._owner:
            self.kill()
            unclaimed.append([self.pid])


class Child:
    """A worker process as its parent sees it, and the connection to it."""

    def __init__(self, process: Process, connection: OwnedConnection) -> None:
        self.pid = process.pid
        self.connection = connection
        self.ended = process.ended
        self.stopped = process.stopped
        self.status = process.status
        self._process = process

    def kill(self) -> None:
        """End it, whatever it is doing."""
        if not self._process.kill():
            self.connection.shut()

    def release(self) -> None:
        """Close what refers to a worker that has ended. Sends nothing, and may be repeated."""
        self._process.release()
        self.connection.close()


def await_answer(file: Any, process: Process | Child, name: str) -> None:
    """Wait until a file can be read from to which a process writes, or raise if it is stopped."""
    stopped = False
    while not is_readable(file, STOPPED):
        before, stopped = stopped, process.stopped()
        if before and stopped:
            raise stopped_error(process, name)


def stopped_error(process: Process | Child, name: str) -> PysamplerError:
    """Return the error for a process that is stopped and does not answer."""
    return PysamplerError(
        f"cannot start workers: {name} (pid {process.pid}) is stopped; continue it "
        f"(kill -CONT {process.pid}) and try again"
    )


def await_ends(children: Iterable[Child], left: Callable[[], float]) -> None:
    """Wait until all children have ended, as long as seconds are left."""
    for child in children:
        child.ended(left())


def start_own(start: Callable[[], int]) -> OwnProcess:
    """Start a child of this process with a function that returns its pid (0 in a fork)."""
    reap_unclaimed()
    pid = _NewPid()
    # Within one call into C: no signal handler comes between the start and the pid.
    pid.extend(itertools.islice(iter(start, None), 1))
    process = OwnProcess(pid[0])
    pid.clear()
    return process


class _NewPid(list[int]):
    """The pid of a child that has just been started, until an object owns it."""

    def __del__(self, unclaimed: list[list[int]] = _unclaimed) -> None:
        if self and self[0] > 0:
            unclaimed.append([*self])


def reap_unclaimed() -> None:
    """Reap the children that have ended and that no object owns any more."""
    for pid in list(_unclaimed):
        ended = True
        with contextlib.suppress(ChildProcessError, IndexError):
            ended = os.waitpid(pid[0], os.WNOHANG)[0] != 0
        if ended:
            with contextlib.suppress(ValueError):  # another thread has done so
                _unclaimed.remove(pid)


# -- clean interpreters --------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Return the environment of a worker.

    Once Ray runs in this process, breakpoint() means Ray's debugger. In a worker, which Ray does
    not know, that debugger does nothing or waits without end: so the worker does not get it.
    """
    variables = {**dict.fromkeys(_THREADS, "1"), **os.environ}
    if variables.get("PYTHONBREAKPOINT", "").startswith("ray."):
        del variables["PYTHONBREAKPOINT"]
    return variables


def interpreter(module: str, connection: _socket.socket, *arguments: int) -> Callable[[], int]:
    """Return a function that starts a clean interpreter, which calls ``main`` of a module.

    ``main`` gets a descriptor of the connection and ``arguments``. The interpreter has the flags
    and the path of this one, and imports nothing from the current directory. It leads a session of
    its own, and signals that are meant for this process and its group wait until it outlives them.
    Its hash seed is for itself and its forks: the environment of what they start is this one's.
    """
    open_descriptors()  # an interpreter without /proc ends without saying why to this process
    variables = environment()
    forget = "" if "PYTHONHASHSEED" in variables else 'del os.environ["PYTHONHASHSEED"]'
    code = f"""
import json, os, sys
{forget}
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if fd > {_CONNECTION_FD}:
            os.close(fd)
    except OSError:  # the one that it was listed with
        pass
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main{(_CONNECTION_FD, *arguments)}
"""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = json.dumps([p for p in sys.path if isinstance(p, str)])
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, connection.fileno(), _CONNECTION_FD),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
    ]
    actions += [
        (os.POSIX_SPAWN_DUP2, fd, fd)
        for fd in (1, 2)
        if not os.get_inheritable(fd)  # which took the place of one that was closed
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
    """Return the numbers of this process's open files; raise OSError where /proc is missing."""
    try:
        return os.listdir("/proc/self/fd")  # noqa: PTH208
    except FileNotFoundError as error:
        raise OSError(
            errno.ENOENT,
            "cannot start workers: /proc is not mounted, which lists their files, threads and "
            "children; mount it (mount -t proc proc /proc), or pass num_workers=0",
        ) from error


def open_standard_files() -> None:
    """Open what is closed of stdin, stdout and stderr: a socket could get its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # the lowest that is free, and it stays open
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003


# -- connections ---------------------------------------------------------------------------------


def socket_pair(kind: int = _socket.SOCK_STREAM) -> tuple[_socket.socket, _socket.socket]:
    """Return two connected sockets.

    Python's own ``socketpair`` takes descriptors out of one object and puts them into another: an
    exception of a signal handler in between would lose them.
    """
    return _socket.socketpair(_socket.AF_UNIX, kind)


def identity(file: Any) -> tuple[int, int]:
    """Return what tells the file behind a descriptor from others that get its number later."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def is_own(file: Any, known: tuple[int, int]) -> bool:
    """Return whether a descriptor still is what it was: the program may have closed it."""
    with contextlib.suppress(OSError):
        return identity(file) == known
    return False


def close_own(end: _socket.socket, known: tuple[int, int]) -> None:
    """Close a socket, unless its number belongs to a file of the program now."""
    if is_own(end, known):
        end.close()
    else:
        end.detach()


class OwnedConnection(Connection):
    """A connection that owns a descriptor, not just its number: it is closed when dropped."""

    def __init__(self, end: _socket.socket) -> None:
        self._end = _core.Detached(end)
        super().__init__(self._end.fileno())

    def shut(self) -> None:
        """Let the other end see that nothing more will come: a worker ends with that."""
        self._end.shut()

    def _close(self) -> None:
        self._end.close()


def is_readable(file: Any, timeout: float = 0) -> bool:
    """Return whether a file or socket can be read from, now or within ``timeout`` seconds."""
    poller = select.poll()
    poller.register(file, select.POLLIN)
    # By looks: where this process is suspended, the other end may be too, and go on after it.
    looks = max(1, math.ceil(timeout / _LOOK))
    return any(poller.poll(max(0.0, timeout) * 1000 / looks) for _ in range(looks))


def is_at_end(connection: Connection) -> bool:
    """Return whether the other end is closed, and all that it sent has been read."""
    if not is_readable(connection):
        return False
    unread = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(unread, sys.byteorder) == 0
