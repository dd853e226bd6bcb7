"""Start worker processes, in most cases through a nursery.

A nursery is a clean interpreter that imports once what workers need, and forks them. The user's
process is not forked: its threads, locks and CUDA contexts are not the workers'. One nursery serves
all pools of a process. ``context="fork"`` and ``"spawn"`` do without it.

    door:  this process ──▶ nursery     import these, take this line, leave
    line:  a pool       ◀─▶ nursery     fork; forked, cannot fork, ended

Each pool has a line of its own, and what it asks is answered there, by number: an answer to a
request that was given up is dropped. Closing a line ends the workers of that pool, and no others. A
nursery that has come to threads of its own forks no more, and leaves when its last line is closed.
nursery_process.py is the other end.

No lock is held where a finalizer may run that wants it: the finalizer of a pool asks nothing, and
takes no lock.
"""

from __future__ import annotations

import _socket
import atexit
import contextlib
import errno
import fcntl
import functools
import itertools
import json
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import warnings
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._workers.nursery_process import become_worker
from pysampler.errors import ClosedError, PysamplerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CONTEXTS", "Child", "Launcher", "allow_workers", "open_files", "preload"]

CONTEXTS = ("nursery", "fork", "spawn")

# One thread each for the numerical libraries of a worker, unless the user says otherwise: there is
# a worker for every CPU.
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# How long a nursery may take to end what is left of its workers, in seconds.
_LEAVING = 5.0
# How long to wait for word of how a worker ended that has, in seconds.
_WORD = 1.0
# Room for the name that ps shows, which is written over the arguments of the process.
_PADDING = "pysampler ".ljust(160, "-")
# What a new interpreter is deaf to until it has said what becomes of it.
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# File descriptors of this process for each worker: its connection, both ends of it at first, and
# two that tell of its end; and some for the rest of a pool.
_FILES_EACH, _FILES = 4, 32
# The descriptor at which a new interpreter finds its connection.
_CONNECTION = 3


# Pids of children of this process that nothing refers to any more: what an exception came past
# when they were started ends by itself, and is reaped with the next start.
_unclaimed: list[list[int]] = []


class _Process:
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
        return _readable(self._pidfd, timeout)

    def kill(self) -> None:
        """End it, whatever it is doing."""
        if self._pidfd is not None:
            self._pidfd.kill()

    def status(self) -> int | None:
        """Return its exit code, or minus the signal, once it has ended; None if that is unknown."""
        raise NotImplementedError

    def release(self) -> None:
        """Forget it, once it has ended. Asks nothing, and may be repeated."""
        if self._pidfd is not None:
            self._pidfd.close()


class _Own(_Process):
    """A child of this process."""

    _status: int | None = None
    _reaped = False
    _owner = 0

    def __init__(self, pid: int) -> None:
        self._owner = os.getpid()
        super().__init__(pid)

    def status(self) -> int | None:
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
        self.status()
        super().release()

    def __del__(self, unclaimed: list[list[int]] = _unclaimed) -> None:
        # An exception came past it, or into the finalizer that would have ended it.
        if not self._reaped and self.pid > 0 and os.getpid() == self._owner:
            self.kill()
            unclaimed.append([self.pid])


class _Forked(_Process):
    """A child of a nursery, which tells how it ended."""

    def __init__(self, pid: int, line: Line, connection: Connection) -> None:
        super().__init__(pid)
        self._line = line
        # It may have died and been reaped, and another process have its pid. It is the one we mean
        # if its end of the connection is still open: no other process has that.
        if _at_end(connection):
            self._pidfd = None

    def status(self) -> int | None:
        return self._line.status_of(self.pid)


class Child:
    """A worker process, as its parent sees it, and the connection to it."""

    def __init__(self, process: _Process, connection: Connection) -> None:
        self.pid = process.pid
        self.connection = connection
        self.ended = process.ended
        self.kill = process.kill
        self.status = process.status
        self._process = process

    def release(self) -> None:
        """Forget a worker that has ended. Asks nothing, and may be repeated."""
        self._process.release()
        self.connection.close()


class Launcher:
    """Starts the workers of one pool, each with an index."""

    def __init__(self, context: str) -> None:
        self._context = context
        self._lines: list[Line] = []
        self._closed = False

    def start(self, index: int, host: Any) -> Child:
        """Return a process that runs ``main`` of ``worker.py`` at the end of its connection.

        An earlier worker with this index is ended, if it lives. ``host`` is what a fork of this
        process inherits.
        """
        if self._closed:
            raise ClosedError("cannot start worker: the pool is closed")
        _keep_outputs()
        if self._context != "nursery":
            return _start_here(self._context, host)
        for _ in range(3):
            with contextlib.suppress(_NoNurseryError):
                return self._line().fork(index)
        return self._line().fork(index)

    def close(self, wait: float = 0) -> None:
        """End the workers that came from nurseries. Takes no lock, and may be repeated.

        They are reaped, and what they had started is ended, when this returns, unless it takes more
        than ``wait`` seconds.
        """
        self._closed = True
        for line in self._lines:
            line.close(wait)

    def _line(self) -> Line:
        nursery = _the_nursery()
        if not self._lines or self._lines[-1].nursery is not nursery:
            if self._lines and not self._lines[-1].used:  # its nursery would wait for its end
                self._lines.pop().close()
            self._lines.append(Line(nursery))
        return self._lines[-1]


class _NoNurseryError(PysamplerError):
    """The nursery has ended, or forks no more: another one can do it."""


class Line:
    """What a pool and a nursery say to each other.

    What has been received is noted before it is taken from the socket: an exception in between
    makes the note be written twice, and loses nothing.
    """

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.used = False  # a worker has come of it
        self._owner = os.getpid()
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[Any, ...]] = {}  # by the number of their request
        self._ended: dict[int, int] = {}  # status, by pid
        self._socket, theirs = _pair(socket.SOCK_SEQPACKET)
        with contextlib.closing(theirs):
            nursery.take(theirs)

    def fork(self, index: int) -> Child:
        """Return a new worker with this index."""
        ours, theirs = _pair()
        connection = _Connected(ours)
        with contextlib.closing(theirs):
            number = next(self._numbers)
            request = pickle.dumps(("fork", number, index))
            try:
                socket.send_fds(self._socket, [request], [theirs.fileno(), 1, 2])  # type: ignore[arg-type]
            except OSError as error:
                raise self._lost() from error
        while number not in self._answers:
            self._receive()
        kind, _, *content = self._answers.pop(number)
        self.used = self.used or kind == "forked"
        if kind == "error":
            raise OSError(*content)
        if kind == "retired":
            _retire(self.nursery)
            raise _NoNurseryError("cannot start worker: the nursery has come to threads")
        return Child(_Forked(content[0], self, connection), connection)

    def status_of(self, pid: int) -> int | None:
        """Return how a worker ended that has; None if that is not known."""
        deadline = time.monotonic() + _WORD
        with contextlib.suppress(PysamplerError, OSError):
            while pid not in self._ended:
                if not _readable(self._socket, max(0.0, deadline - time.monotonic())):
                    break
                self._receive()
        return self._ended.get(pid)

    def close(self, wait: float = 0) -> None:
        """Let the nursery end the workers of this line. Takes no lock, and may be repeated.

        The nursery closes its end once it has reaped them: wait for that, ``wait`` seconds at most.
        """
        if os.getpid() == self._owner and self._socket.fileno() >= 0:
            wait = 0 if self.nursery.loading() else wait  # which may take it long
            with contextlib.suppress(OSError):  # forks of this process have a copy of it: shut down
                self._socket.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + wait
                while wait > 0 and _readable(self._socket, max(0.0, deadline - time.monotonic())):
                    if not self._socket.recv(1 << 16):
                        break
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self.close()

    def _receive(self) -> None:
        try:
            message = self._socket.recv(1 << 16, socket.MSG_PEEK)
        except OSError as error:
            raise self._lost() from error
        if not message:
            raise self._lost()
        kind, number, *content = pickle.loads(message)
        if kind == "ended":
            self._ended[number] = content[0]
        else:
            self._answers[number] = (kind, number, *content)
        self._socket.recv(1 << 16)

    def _lost(self) -> PysamplerError:
        if self._socket.fileno() < 0:
            return ClosedError("cannot start worker: the pool is closed")
        self.nursery.lost = True
        return _NoNurseryError(f"cannot start worker: {self.nursery.told()}")


class Nursery:
    """This process's handle to a nursery. Requests at the door have no answers."""

    def __init__(self) -> None:
        self.preloaded: set[str] = set()
        self.lost = False  # a line to it has broken
        self.retired = False  # it forks no more
        # Imports it is not known to be done with, by number, and how many there were.
        self._loads: dict[int, list[str]] = {}
        self._asked = 0
        self._owner = os.getpid()
        self._used = False
        _keep_outputs()
        self._door, theirs = _pair(socket.SOCK_SEQPACKET)
        with contextlib.closing(theirs):
            self._process = _own(_interpreter("pysampler._workers.nursery_process", theirs))

    @property
    def alive(self) -> bool:
        """Whether it can fork workers."""
        if self.lost or self.retired or os.getpid() != self._owner:
            return False
        return not self.ended

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._process.ended()

    def take(self, line: _socket.socket) -> None:
        """Give it the other end of a line."""
        self._used = True
        self._send(("line",), [line.fileno()])

    def load(self, modules: Iterable[str]) -> None:
        """Let it import modules, so that later workers have them. Does not wait for that."""
        new = [name for name in modules if name not in self.preloaded]
        if new:
            self.preloaded.update(new)
            self._asked += 1
            self._loads[self._asked] = new
            self._send(("import", self._asked, new), [])

    def loading(self) -> list[str]:
        """Return the modules that it may be importing now, or was when it ended."""
        if self._door.fileno() >= 0:
            with contextlib.suppress(OSError):
                while self._loads and (done := self._door.recv(64, socket.MSG_DONTWAIT)):
                    # A finalizer may come here too, at any allocation.
                    for number in list(self._loads):
                        if number <= int(done):
                            self._loads.pop(number, None)
        return [name for some in list(self._loads.values()) for name in some]

    def told(self) -> str:
        """Say how it ended."""
        if not self._process.ended(_WORD):
            return "the nursery is lost"
        status = self._process.status()
        return "the nursery ended" + ("" if status is None else f" with exit code {status}")

    def retire(self) -> None:
        """Let it leave when its last line is closed."""
        self.retired = True
        self._shut()

    def leave(self) -> None:
        """End it, its workers and what they had started."""
        if os.getpid() != self._owner:
            return
        if self.loading():  # it would go on with its imports first
            self._end_family()
            self._process.kill()
        elif self._door.fileno() >= 0:
            with contextlib.suppress(PysamplerError):
                self._send(("leave",), [])
        self._shut()
        if not self._process.ended(_LEAVING):
            self._process.kill()
            self._process.ended(_LEAVING)
        self._process.release()

    def _end_family(self) -> None:
        """End its workers and their groups: it is busy, and reaps none of them meanwhile."""
        pid = self._process.pid
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            for child in map(int, listed.split()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getpgid(child) == child:
                        os.killpg(child, signal.SIGKILL)

    def forget(self) -> None:
        """In a fork of its owner: close what was inherited."""
        self._door.close()

    def __del__(self) -> None:
        if not hasattr(self, "_process") or os.getpid() != self._owner:
            return
        if not self._used:  # made, and interrupted before it was of any use
            self._process.kill()
            self._process.ended(_LEAVING)
        if self._process.ended():
            self._process.release()
        self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # a fork of this process may have a copy: shut it down
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _send(self, request: tuple[Any, ...], fds: Iterable[int]) -> None:
        try:
            socket.send_fds(self._door, [pickle.dumps(request)], list(fds))  # type: ignore[arg-type]
        except OSError as error:
            self.lost = True
            raise _NoNurseryError(f"cannot start worker: {self.told()}") from error


# -- the nurseries of this process ---------------------------------------------------------------

# The last is the one in use; those before have retired, or are lost.
_nurseries: list[Nursery] = []
# Taken to make a nursery, by threads and not by finalizers. A signal handler of the thread that has
# it may make another: the last one in the list is used.
_making = threading.RLock()
_preload_allowed = True  # until that gave a nursery threads
# Modules that a nursery was importing when it died.
_deadly: set[str] = set()


def _the_nursery() -> Nursery:
    with _making:
        for nursery in list(_nurseries):
            if nursery.ended:
                _deadly.update(nursery.loading())
                nursery.leave()
                with contextlib.suppress(ValueError):  # a signal handler has done so
                    _nurseries.remove(nursery)
        if not _nurseries or not _nurseries[-1].alive:
            _nurseries.append(Nursery())
        return _nurseries[-1]


def _retire(nursery: Nursery) -> None:
    global _preload_allowed
    _preload_allowed = False
    nursery.retire()


def preload(modules: Iterable[str]) -> None:
    """Import modules in the nursery, so that later workers start with them. Does not wait."""
    names = [name for name in modules if name not in _deadly]
    if names and _preload_allowed:
        _the_nursery().load(names)


def _leave() -> None:
    for nursery in _nurseries:
        nursery.leave()


def _after_fork() -> None:
    """In a fork of the user's: nurseries are its parent's."""
    global _making
    _making = threading.RLock()
    for nursery in _nurseries:
        nursery.forget()
    _nurseries.clear()
    _unclaimed.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_after_fork)


# -- processes -----------------------------------------------------------------------------------


# This process's ends of the connections to its own children.
_own_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


def _start_here(context: str, host: Any) -> Child:
    """A worker that is a child of this process."""
    parent = os.getpid()
    try:
        return _started_here(context, host, parent)
    finally:
        if os.getpid() != parent:  # a handler's exception, in the fork, which must not go on
            os._exit(1)


def _started_here(context: str, host: Any, parent: int) -> Child:
    ours, theirs = _pair()
    connection = _Connected(ours)
    _own_ends.add(connection)
    with contextlib.closing(theirs):
        if context == "spawn":
            process = _own(_interpreter("pysampler._workers.worker", theirs, parent))
        else:
            with warnings.catch_warnings():  # of forking threads: asked for
                warnings.simplefilter("ignore", DeprecationWarning)
                # Signals wait until it outlives them; this process's handlers are not its own.
                process = _own(_core.fork_with_signals_blocked)
            if process.pid == 0:
                for one in _own_ends:  # or their workers would miss their end
                    one.close()
                become_worker(theirs.detach(), [1, 2], parent, host)
    return Child(process, connection)


def _own(start: Callable[[], int]) -> _Own:
    """Start a child of this process; in a fork, its pid is 0."""
    _reap()
    born = _Born()
    # Within one call into C: no signal handler comes between the start and the pid.
    born.extend(itertools.islice(iter(start, None), 1))
    process = _Own(born[0])
    born.clear()
    return process


def _reap() -> None:
    """Reap what has ended of the children that nothing refers to."""
    for lost in list(_unclaimed):
        ended = True
        with contextlib.suppress(ChildProcessError, IndexError):
            ended = os.waitpid(lost[0], os.WNOHANG)[0] != 0
        if ended:
            with contextlib.suppress(ValueError):  # another thread has done so
                _unclaimed.remove(lost)


def _pair(kind: int = socket.SOCK_STREAM) -> tuple[_socket.socket, _socket.socket]:
    """Return two connected sockets.

    Python's own ``socketpair`` takes descriptors out of one object and puts them into another: an
    exception of a signal handler in between would lose them.
    """
    return _socket.socketpair(socket.AF_UNIX, kind)


class _Connected(Connection):
    """A connection that has a descriptor, and not its number: one that is dropped is closed."""

    def __init__(self, end: _socket.socket) -> None:
        self._end = _core.Detached(end)
        super().__init__(self._end.fileno())

    def _close(self) -> None:
        self._end.close()


class _Born(list[int]):
    """The pid of a child that has just been started, until it has its own object."""

    def __del__(self, unclaimed: list[list[int]] = _unclaimed) -> None:
        if self and self[0] > 0:
            unclaimed.append([*self])


def _keep_outputs() -> None:
    """Open what is closed of stdin, stdout and stderr: a socket could have its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # the lowest that is free, and it stays open
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003


def await_ends(children: Iterable[Child], deadline: float) -> None:
    """Wait until the children have ended, or until that time of time.monotonic()."""
    for child in children:
        child.ended(max(0.0, deadline - time.monotonic()))


_files_before: int | None = None  # the limit on open files, if it was raised here


def allow_workers(count: int) -> None:
    """Raise this process's limit on open files as far as this many more workers need it.

    OSError if that is more than it may be. Workers have the limit that there was before: what an
    env runs may rely on small numbers (``select`` does).
    """
    global _files_before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    already = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    needed = already + _FILES_EACH * count + _FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise OSError(
            errno.EMFILE,
            f"cannot start {count} workers: they need {needed} open files, the hard limit is "
            f"{hard}; raise it (ulimit -Hn), or pass a smaller num_workers",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    _files_before = soft if _files_before is None else _files_before


def open_files() -> int:
    """Return the limit on open files of a worker: what this process's was before it was raised."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if _files_before is None else min(soft, _files_before)


def environment() -> dict[str, str]:
    """Return the environment of a worker."""
    return {**dict.fromkeys(THREADS, "1"), **os.environ}


def _interpreter(
    module: str, connection: _socket.socket, *arguments: int
) -> functools.partial[int]:
    """What starts a clean interpreter with this one's flags and path, calling ``main`` of a module.

    Its arguments are a descriptor of the connection, and these.

    Nothing is imported from the current directory: this one's path is set first. It has a session
    of its own, and signals that are meant for this process and its group wait until it can say that
    it outlives them.
    """
    code = f"""
import json, os, sys
for fd in map(int, os.listdir("/proc/self/fd")):
    try:
        if fd > {_CONNECTION}:
            os.close(fd)
    except OSError:  # the one that it was listed with
        pass
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main{(_CONNECTION, *arguments)}
"""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = json.dumps([p for p in sys.path if isinstance(p, str)])
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, connection.fileno(), _CONNECTION),
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
        [sys.executable, *flags, "-P", "-c", code, path, _PADDING],
        environment(),
        file_actions=actions,
        setsigmask=_BLOCKED,
        setsid=True,
    )


def _readable(file: Any, timeout: float = 0) -> bool:
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return bool(poller.poll(timeout * 1000))


def _at_end(connection: Connection) -> bool:
    """Whether the other end of a connection is closed, and all that it sent has been read."""
    if not _readable(connection):
        return False
    unread = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(unread, sys.byteorder) == 0
