"""Fork servers, as the process that uses them sees them.

A fork server is a clean interpreter that imports what workers need, once, and forks them. The
process of the user is not forked: its threads, locks and CUDA contexts are not for the workers. One
fork server serves all pools of a process.

    door:  this process ──▶ fork server     import these modules, take this line, leave
    line:  a pool       ◀─▶ fork server     fork; forked, cannot fork, ended

Each pool has a line of its own, on which its requests are answered by number: an answer to a
request that was given up is dropped. Closing a line ends the workers of that pool, and no others. A
fork server that has got threads of its own no longer forks, and exits when its last line is closed.
fork_server_process.py is the other end.

No lock is held where a finalizer may run that wants it: the finalizer of a pool sends nothing, and
takes no lock.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler._workers import children
from pysampler.errors import ClosedError, PysamplerError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ForkServer", "Line", "NoForkServerError", "current", "preload"]

# How long a fork server may take to end its remaining workers, in seconds.
_LEAVE_SECONDS = 5.0
# How long to wait for a fork server to report how a worker ended, in seconds.
_STATUS_SECONDS = 1.0


class _ForkedProcess(children.Process):
    """A worker that a fork server has forked, and which reports how it ended."""

    def __init__(self, pid: int, line: Line, connection: children.OwnedConnection) -> None:
        super().__init__(pid)
        self._line = line
        # The worker may have died and been reaped, and another process may have its pid. It is the
        # worker if its end of the connection is still open: no other process has that.
        if children.is_at_end(connection):
            self._pidfd = None

    def status(self) -> int | None:
        """Return its exit code, or minus the signal, as the fork server reported it."""
        return self._line.status_of(self.pid)


class NoForkServerError(PysamplerError):
    """The fork server has ended, or no longer forks: another one can."""


class Line:
    """A line between a pool and a fork server: requests workers, and receives how they ended.

    A message is noted before it is removed from the socket: an exception in between makes the note
    be written twice, and loses nothing.
    """

    def __init__(self, fork_server: ForkServer) -> None:
        self.fork_server = fork_server
        self.used = False  # a worker was forked for it
        self._owner = os.getpid()
        self._numbers = itertools.count()
        self._answers: dict[int, tuple[Any, ...]] = {}  # by the number of their request
        self._ended: dict[int, int] = {}  # status, by pid
        self._socket, theirs = children.socket_pair(socket.SOCK_SEQPACKET)
        self._identity = children.identity(self._socket)
        with contextlib.closing(theirs):
            fork_server.add_line(theirs)

    def fork(self, index: int) -> children.Child:
        """Return a new worker with this index. The server ends an earlier one that still lives."""
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
        """Return the exit code of a worker that has ended, or minus the signal; None if unknown."""
        deadline = time.monotonic() + _STATUS_SECONDS
        with contextlib.suppress(PysamplerError, OSError):
            while pid not in self._ended:
                if not children.is_readable(self._socket, deadline - time.monotonic()):
                    break
                self._receive()
        return self._ended.get(pid)

    def close(self, wait: float = 0) -> None:
        """Make the fork server end the workers of this line. Takes no lock, and may be repeated.

        The server closes its end once it has reaped them. Waits for that up to ``wait`` seconds.
        """
        if os.getpid() == self._owner and children.is_own(self._socket, self._identity):
            wait = 0 if self.fork_server.busy() else wait
            with contextlib.suppress(OSError):  # a fork may have a copy: shut it down
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
        """Note the next message of the fork server, then remove it from the socket."""
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
        """Return the error for a line that has broken; note that the fork server is lost."""
        if self._socket.fileno() < 0:
            return ClosedError("cannot start worker: the pool is closed")
        self.fork_server.lost = True
        return NoForkServerError(f"cannot start worker: {self.fork_server.how_it_ended()}")


class ForkServer:
    """A fork server as this process sees it. Requests at its door have no answers."""

    def __init__(self) -> None:
        self.preloaded: set[str] = set()
        self.lost = False  # a line to it has broken
        self.retired = False  # it no longer forks
        # Imports that it is not known to have finished, by number, and how many there were.
        self._loads: dict[int, list[str]] = {}
        self._load_count = 0
        self._owner = os.getpid()
        self._used = False
        children.open_standard_files()
        self._door, theirs = children.socket_pair(socket.SOCK_SEQPACKET)
        self._identity = children.identity(self._door)
        with contextlib.closing(theirs):
            start = children.interpreter("pysampler._workers.fork_server_process", theirs)
            self._process = children.start_own(start)

    @property
    def alive(self) -> bool:
        """Whether it can fork workers."""
        return not (self.lost or self.retired or os.getpid() != self._owner or self.ended)

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._process.ended()

    def add_line(self, line: _socket.socket) -> None:
        """Send it the other end of a line."""
        self._used = True
        self._send(("line",), [line.fileno()])

    def load(self, modules: Iterable[str]) -> bool:
        """Make it import modules, so that later workers have them, and return whether any is new.

        Does not wait for that.
        """
        new = [name for name in modules if name not in self.preloaded]
        if new:
            self.preloaded.update(new)
            self._load_count += 1
            self._loads[self._load_count] = new
            self._send(("import", self._load_count, new), [])
        return bool(new)

    def loading(self) -> list[str]:
        """Return the modules that it may be importing now, or was when it ended."""
        if self._door.fileno() >= 0:
            with contextlib.suppress(OSError):
                while self._loads and (done := self._door.recv(64, socket.MSG_DONTWAIT)):
                    # A finalizer may come here too, at any allocation.
                    for number in list(self._loads):
                        if number <= int(done):
                            self._loads.pop(number, None)
        return [name for names in list(self._loads.values()) for name in names]

    def busy(self) -> bool:
        """Return whether it may not answer for long: it imports modules, or is stopped."""
        return bool(self.loading()) or self._process.stopped()

    def await_answer(self, line: _socket.socket) -> None:
        """Wait until there is something to read on a line, or raise if the server is stopped."""
        children.await_answer(line, self._process, "the fork server")

    def how_it_ended(self) -> str:
        """Return how it ended, as errors say it."""
        if not self._process.ended(_STATUS_SECONDS):
            return "the fork server is lost"
        status = self._process.status()
        return "the fork server ended" + ("" if status is None else f" with exit code {status}")

    def retire(self) -> None:
        """Make it exit when its last line is closed."""
        self.retired = True
        self._shut()

    def leave(self) -> None:
        """End it, its workers and what they had started. May be repeated."""
        if os.getpid() != self._owner:
            return
        if self.busy():  # it would finish its imports first
            self._end_workers()
            self._process.kill()
        elif self._door.fileno() >= 0:
            with contextlib.suppress(PysamplerError):
                self._send(("leave",), [])
        self._shut()
        if not self._process.ended(_LEAVE_SECONDS):
            self._process.kill()
            self._process.ended(_LEAVE_SECONDS)
        self._process.release()

    def _end_workers(self) -> None:
        """End its workers and their groups, while it is busy and reaps none of them."""
        pid = self._process.pid
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            for child in map(int, listed.split()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if os.getpgid(child) == child:
                        os.killpg(child, signal.SIGKILL)

    def close_inherited(self) -> None:
        """Close what a fork of its owner has inherited."""
        children.close_own(self._door, self._identity)

    def __del__(self) -> None:
        if not hasattr(self, "_process") or os.getpid() != self._owner:
            return
        if not self._used:  # interrupted before it was of any use
            self._process.kill()
            self._process.ended(_LEAVE_SECONDS)
        if self._process.ended():
            self._process.release()
        self._shut()

    def _shut(self) -> None:
        """Close the door."""
        if children.is_own(self._door, self._identity):
            with contextlib.suppress(OSError):  # forks of this process may have a copy
                self._door.shutdown(socket.SHUT_RDWR)
        children.close_own(self._door, self._identity)

    def _send(self, request: tuple[Any, ...], fds: Iterable[int]) -> None:
        """Send a request through the door, or raise NoForkServerError."""
        try:
            socket.send_fds(self._door, [pickle.dumps(request)], list(fds))  # type: ignore[arg-type]
        except OSError as error:
            self.lost = True
            raise NoForkServerError(f"cannot start worker: {self.how_it_ended()}") from error


# -- the fork servers of this process --------------------------------------------------------------

# The last is in use; those before it have retired, or are lost.
_fork_servers: list[ForkServer] = []
# Taken to make a fork server, by threads and not by finalizers. A signal handler in the thread that
# holds it may make another one: the last in the list is used.
_lock = threading.RLock()
_preload_allowed = True  # until an import started threads in a fork server
# Modules that a fork server was importing when it died.
_deadly: set[str] = set()


def current() -> ForkServer:
    """Return the fork server that is in use, a new one if need be."""
    with _lock:
        for fork_server in list(_fork_servers):
            if fork_server.ended:
                _deadly.update(fork_server.loading())
                fork_server.leave()
                with contextlib.suppress(ValueError):  # a signal handler has done so
                    _fork_servers.remove(fork_server)
        if not _fork_servers or not _fork_servers[-1].alive:
            _fork_servers.append(ForkServer())
        return _fork_servers[-1]


def _retire(fork_server: ForkServer) -> None:
    """Use another fork server from now on, and preload nothing: this one has got threads."""
    global _preload_allowed
    _preload_allowed = False
    fork_server.retire()


def preload(modules: Iterable[str]) -> bool:
    """Import modules in the fork server, so that later workers start with them. Does not wait.

    Returns whether any of them is new to it.
    """
    names = [name for name in modules if name not in _deadly]
    return bool(names) and _preload_allowed and current().load(names)


def _leave() -> None:
    """End all fork servers when this process exits."""
    for fork_server in _fork_servers:
        fork_server.leave()


def _after_fork() -> None:
    """Forget all fork servers, in a fork of this process: they belong to the parent."""
    global _lock
    _lock = threading.RLock()
    for fork_server in _fork_servers:
        fork_server.close_inherited()
    _fork_servers.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_after_fork)
