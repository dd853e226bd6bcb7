"""Fork servers: the client side; fork_server_process.py is the server's process.

A fork server is a clean interpreter that imports the workers' modules once and forks the workers.
The user's process is not forked, so workers do not inherit its threads, locks and CUDA contexts.
One fork server serves all pools of a process.

    door:  this process ──▶ fork server     import these modules, take this line, leave
    line:  a pool       ◀─▶ fork server     fork; forked, cannot fork, ended

Each pool has a separate line, on which requests are answered by number: an answer to a request that
was given up is dropped. Closing a line ends the workers of that pool only. A fork server that has
started threads no longer forks, and exits when its last line is closed.

A finalizer may run while a lock is held, so finalizers never take one: a pool's finalizer sends
nothing and takes no lock.
"""

from __future__ import annotations

import _socket
import atexit
import contextlib
import itertools
import os
import pickle
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from pysampler._workers import children
from pysampler._workers.surroundings import import_path
from pysampler.errors import ClosedError, PysamplerError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ForkServer", "Line", "NoForkServerError", "current", "preload"]

# Seconds that a fork server may take to end its remaining workers.
_LEAVE_SECONDS = 5.0
# Modules in one request: the system limits the size of a message to about 200 KB.
_LOADS_AT_ONCE = 200
# Seconds to wait for a fork server to report a worker's exit code.
_STATUS_SECONDS = 1.0


class _ForkedProcess(children.Process):
    """A worker forked by a fork server, which reports its exit code."""

    def __init__(self, pid: int, line: Line, connection: children.OwnedConnection) -> None:
        super().__init__(pid)
        self._line = line
        # The worker may have died and been reaped, and another process may have its pid. The pid is
        # the worker's if the other end of the connection is open: only the worker has that.
        if children.is_at_end(connection):
            self._pidfd = None

    def status(self) -> int | None:
        """Return the exit code, or minus the signal, that the fork server reported."""
        return self._line.status_of(self.pid)


class NoForkServerError(PysamplerError):
    """The fork server has ended or no longer forks; a new one can take over."""


class Line:
    """A line between a pool and a fork server: requests workers and receives their exit codes.

    A message is recorded before it is removed from the socket: an exception in between makes it be
    recorded twice, but loses nothing.
    """

    def __init__(self, fork_server: ForkServer) -> None:
        self.fork_server = fork_server
        self.used = False  # whether a worker was forked for it
        self._owner = os.getpid()
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[Any, ...]] = {}  # by request number
        self._ended: dict[int, int] = {}  # status, by pid
        self._socket, theirs = children.socket_pair(socket.SOCK_SEQPACKET)
        self._identity = children.identity(self._socket)
        with contextlib.closing(theirs):
            fork_server.add_line(theirs)

    def fork(self, index: int) -> children.Child:
        """Return a new worker with this index; the server ends an earlier one that still lives."""
        ours, theirs = children.socket_pair()
        connection = children.OwnedConnection(ours)
        with contextlib.closing(theirs):
            number = next(self._numbers)
            request = pickle.dumps(("fork", number, index))
            try:
                socket.send_fds(self._socket, [request], [theirs.fileno(), 1, 2])  # type: ignore[arg-type]
            except OSError as error:
                raise self._lost() from error
        while number not in self._answers:
            self.fork_server.await_answer(self._socket)
            self._receive()
        kind, _, *content = self._answers.pop(number)
        self.used = self.used or kind == "forked"
        if kind == "error":
            raise OSError(*content)
        if kind == "retired":
            _retire(self.fork_server)
            raise NoForkServerError("cannot start worker: the fork server has started threads")
        return children.Child(_ForkedProcess(content[0], self, connection), connection)

    def status_of(self, pid: int) -> int | None:
        """Return the exit code of an ended worker, or minus the signal; None if unknown."""
        deadline = time.monotonic() + _STATUS_SECONDS
        with contextlib.suppress(PysamplerError, OSError):
            while pid not in self._ended:
                if not children.is_readable(self._socket, deadline - time.monotonic()):
                    break
                self._receive()
        return self._ended.get(pid)

    def close(self, wait: float = 0) -> None:
        """Make the fork server end the workers of this line. Takes no lock, and may be repeated.

        Waits up to ``wait`` seconds until the server, having reaped them, closes its end.
        """
        if os.getpid() == self._owner and children.is_own(self._socket, self._identity):
            wait = 0 if self.fork_server.busy() else wait
            with contextlib.suppress(OSError):  # shut down, since a fork may hold a copy
                self._socket.shutdown(socket.SHUT_WR)
                deadline = time.monotonic() + wait
                while wait > 0 and children.is_readable(self._socket, deadline - time.monotonic()):
                    if not self._socket.recv(1 << 16):
                        break
        children.close_own(self._socket, self._identity)

    def __del__(self) -> None:
        if hasattr(self, "_identity"):
            self.close()

    def _receive(self) -> None:
        """Record the next message of the fork server, then remove it from the socket."""
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
        """Mark the fork server as lost and return the error for a broken line."""
        if self._socket.fileno() < 0:
            return ClosedError("cannot start worker: the pool is closed")
        self.fork_server.lost = True
        return NoForkServerError(f"cannot start worker: {self.fork_server.how_it_ended()}")


class ForkServer:
    """The client of a fork server. Requests through its door are not answered."""

    def __init__(self) -> None:
        self.preloaded: set[str] = set()
        self.lost = False  # a line to it has broken
        self.retired = False  # it no longer forks
        # Import requests that it has not confirmed, by number, and how many were sent in all.
        self._loads: dict[int, list[str]] = {}
        self._load_count = 0
        self._owner = os.getpid()
        self._used = False
        children.open_standard_files()
        self._surroundings = _surroundings()
        self._door, theirs = children.socket_pair(socket.SOCK_SEQPACKET)
        self._identity = children.identity(self._door)
        with contextlib.closing(theirs):
            start = children.interpreter("pysampler._workers.fork_server_process", theirs)
            self._process = children.start_own(start)

    @property
    def alive(self) -> bool:
        """Whether the server can fork workers for this process."""
        return not (self.lost or self.retired or os.getpid() != self._owner or self.ended)

    @property
    def ended(self) -> bool:
        """Whether the server's process has ended."""
        return self._process.ended()

    def has_surroundings(self) -> bool:
        """Return whether this process's environment variables and path still are the server's."""
        return self._surroundings == _surroundings()

    def add_line(self, line: _socket.socket) -> None:
        """Send the server its end of a line."""
        self._used = True
        self._send(("line",), line.fileno())

    def load(self, modules: Iterable[str]) -> bool:
        """Request imports of modules for later workers, without waiting.

        Returns whether any of them is new.
        """
        new = [name for name in modules if name not in self.preloaded]
        for begin in range(0, len(new), _LOADS_AT_ONCE):
            some = new[begin : begin + _LOADS_AT_ONCE]
            self._load_count += 1
            self._loads[self._load_count] = some
            try:
                self._send(("import", self._load_count, some), flags=socket.MSG_DONTWAIT)
            except BlockingIOError:  # it is busy with earlier ones: workers import the rest
                del self._loads[self._load_count]
                break
            self.preloaded.update(some)
        return bool(new)

    def loading(self) -> list[str]:
        """Return the modules that the server may be importing now, or was when it ended."""
        if self._door.fileno() >= 0:
            with contextlib.suppress(OSError):
                while self._loads and (done := self._door.recv(64, socket.MSG_DONTWAIT)):
                    # Over copies, with a default: a finalizer may run this too, at any allocation.
                    for number in list(self._loads):
                        if number <= int(done):
                            self._loads.pop(number, None)
        return [name for names in list(self._loads.values()) for name in names]

    def busy(self) -> bool:
        """Return whether answers may take long: the server imports modules, or is stopped."""
        return bool(self.loading()) or self._process.stopped()

    def await_answer(self, line: _socket.socket) -> None:
        """Wait until a line is readable, or raise if the server stays stopped."""
        children.await_answer(line, self._process, "the fork server")

    def how_it_ended(self) -> str:
        """Return the server's end as text for errors."""
        if not self._process.ended(_STATUS_SECONDS):
            return "the fork server is lost"
        status = self._process.status()
        return "the fork server ended" + ("" if status is None else f" with exit code {status}")

    def retire(self) -> None:
        """Make the server exit when its last line is closed."""
        self.retired = True
        self._shut()

    def leave(self) -> None:
        """End the server, its workers and their descendants. May be repeated."""
        if os.getpid() != self._owner:
            return
        if self.busy():  # it would first finish its imports
            self._end_workers()
            self._process.kill()
        elif self._door.fileno() >= 0:
            with contextlib.suppress(PysamplerError):
                self._send(("leave",))
        self._shut()
        if not self._process.ended(_LEAVE_SECONDS):
            self._process.kill()
            self._process.ended(_LEAVE_SECONDS)
        self._process.release()

    def _end_workers(self) -> None:
        """Kill the workers and their process groups: a busy server does not reap them."""
        pid = self._process.pid
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
                listed = file.read()
            for child in map(int, listed.split()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getpgid(child) == child:
                        os.killpg(child, signal.SIGKILL)

    def close_inherited(self) -> None:
        """Close the copy of the door that a fork of the owner has inherited."""
        children.close_own(self._door, self._identity)

    def __del__(self) -> None:
        if not hasattr(self, "_process") or os.getpid() != self._owner:
            return
        if not self._used:  # an exception interrupted its creation or first use
            self._process.kill()
            self._process.ended(_LEAVE_SECONDS)
        if self._process.ended():
            self._process.release()
        self._shut()

    def _shut(self) -> None:
        if children.is_own(self._door, self._identity):
            with contextlib.suppress(OSError):  # shut down, since forks may hold a copy
                self._door.shutdown(socket.SHUT_RDWR)
        children.close_own(self._door, self._identity)

    def _send(self, request: tuple[Any, ...], *fds: int, flags: int = 0) -> None:
        """Send a request through the door, or raise NoForkServerError."""
        try:
            if fds:
                socket.send_fds(self._door, [pickle.dumps(request)], fds)  # type: ignore[arg-type]
            else:
                self._door.send(pickle.dumps(request), flags)
        except BlockingIOError:
            raise
        except OSError as error:
            self.lost = True
            raise NoForkServerError(f"cannot start worker: {self.how_it_ended()}") from error


def _surroundings() -> tuple[dict[str, str], list[str]]:
    """Return the environment variables of workers and the path, on which imports depend."""
    return children.environment(), import_path()


# -- the fork servers of this process --------------------------------------------------------------

# The last one is in use; earlier ones are retired or lost.
_fork_servers: list[ForkServer] = []
# Held while a fork server is created; finalizers never take it. A signal handler in the thread that
# holds it may create another server: the last in the list is used.
_lock = threading.RLock()
_preload_allowed = True  # until an import starts threads in a fork server
# Modules that a fork server was importing when it died.
_deadly: set[str] = set()


def current() -> ForkServer:
    """Return the fork server in use, starting one if necessary."""
    with _lock:
        for fork_server in list(_fork_servers):
            if fork_server.ended:
                _deadly.update(fork_server.loading())
                fork_server.leave()
                with contextlib.suppress(ValueError):  # a signal handler has removed it
                    _fork_servers.remove(fork_server)
        if not _fork_servers or not _fork_servers[-1].alive:
            _fork_servers.append(ForkServer())
        return _fork_servers[-1]


def _retire(fork_server: ForkServer) -> None:
    """Retire a fork server that has started threads; preload nothing in its successors."""
    global _preload_allowed
    _preload_allowed = False
    fork_server.retire()


def preload(modules: Iterable[str]) -> bool:
    """Request imports of modules in the fork server for later workers, without waiting.

    Returns whether any of them is new to it.
    """
    names = [name for name in modules if name not in _deadly]
    return bool(names) and _preload_allowed and current().load(names)


def _leave() -> None:
    for fork_server in _fork_servers:
        fork_server.leave()


def _after_fork() -> None:
    """Forget all fork servers in a fork of this process: they belong to the parent."""
    global _lock
    _lock = threading.RLock()
    for fork_server in _fork_servers:
        fork_server.close_inherited()
    _fork_servers.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_after_fork)
