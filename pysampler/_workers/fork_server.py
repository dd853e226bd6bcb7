"""Fork servers: the client side; fork_server_process.py is the server's process.

A fork server is a clean interpreter that imports the workers' modules once and forks the workers.
The user's process is not forked, so workers do not inherit its threads, locks and CUDA contexts.
One fork server serves all pools of a process, through one socket, its door. Requests have numbers,
so whichever thread or signal handler reads an answer leaves it for the one who asked; an answer to
a request that was given up is dropped.

    import these modules         imported
    fork, with three files       forked (a pid), cannot fork, full, has threads
    have these workers ended     the exit codes of those that have
    leave

A pool ends its workers by their pidfds; the fork server reaps them and ends their descendants. A
fork server that has started threads no longer forks; its door is closed with the last pool that has
workers from it, and it exits with the last worker.

There is no lock for requests: a signal handler may raise while one is held, or ask too. A finalizer
asks nothing, and may close the door.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pickle
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._workers import children
from pysampler._workers.surroundings import import_path
from pysampler.errors import PysamplerError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ForkServer", "NoForkServerError", "current", "preload"]

# Seconds that a fork server may take to end its remaining workers.
_LEAVE_SECONDS = 5.0
# Modules in one request: the system limits the size of a message to about 200 KB.
_LOADS_AT_ONCE = 200
# Seconds to wait for a fork server to report a worker's exit code.
_STATUS_SECONDS = 1.0
_MOMENT = 0.05  # seconds of one wait for an answer
_SOONER = 0.9  # the share of our patience after which the server answers in any case


class _ForkedProcess(children.Process):
    """A worker forked by a fork server, which reports its exit code."""

    def __init__(self, pid: int, server: ForkServer, connection: children.OwnedConnection) -> None:
        handle = _core.Pidfd(pid)
        # The worker may have died and been reaped, and another process may have its pid. The pid is
        # the worker's if the other end of the connection is open: only the worker has that.
        super().__init__(pid, None if children.is_at_end(connection) else handle)
        self._server = server

    def status(self) -> int | None:
        """Return the exit code, or minus the signal, that the fork server reports."""
        return self._server.codes_of([self.pid], _STATUS_SECONDS).get(self.pid)


class NoForkServerError(PysamplerError):
    """The fork server has ended or no longer forks; a new one can take over."""


class ForkServer:
    """The client of a fork server."""

    def __init__(self) -> None:
        self.lost = False  # the door has broken
        self.retired = False  # it no longer forks
        self._numbers = itertools.count(1)
        self._asked: set[tuple[int, int]] = set()  # requests that threads or handlers wait for
        # Requests for imports that it may not have made yet.
        self._imports: set[tuple[int, int]] = set()
        self._answers: dict[tuple[int, int], list[Any]] = {}  # by the number of the request
        self._unread: list[bytes] = []  # messages
        self._owner = os.getpid()
        self._pools: set[int] = set()  # the launchers of pools that have workers from it
        children.open_standard_files()
        self._surroundings = _surroundings()
        self._door, theirs = children.socket_pair(socket.SOCK_SEQPACKET)
        self._identity = children.identity(self._door)
        with contextlib.closing(theirs):
            start = children.interpreter("pysampler._workers.fork_server_process", theirs)
            self._process = children.OwnProcess(start)

    @property
    def alive(self) -> bool:
        """Whether the server can fork workers for this process."""
        return not (self.lost or self.retired or os.getpid() != self._owner or self.ended)

    @property
    def ended(self) -> bool:
        """Whether the server's process has ended."""
        return self._process.ended()

    @property
    def stopped(self) -> bool:
        """Whether the server's process is stopped, for example by SIGSTOP."""
        return self._process.stopped()

    def has_surroundings(self) -> bool:
        """Return whether this process's environment variables and path still are the server's."""
        return self._surroundings == _surroundings()

    def load(self, modules: Sequence[str]) -> None:
        """Request imports of modules for later workers, without waiting."""
        for begin in range(0, len(modules), _LOADS_AT_ONCE):
            number = self._number()
            try:
                self._imports.add(number)
                request = "import", number, modules[begin : begin + _LOADS_AT_ONCE]
                self._send(request, flags=socket.MSG_DONTWAIT)
            except BaseException as error:
                self._imports.discard(number)
                if isinstance(error, BlockingIOError):  # it is busy: workers import the rest
                    break
                raise

    def busy(self) -> bool:
        """Return whether answers may take long: the server imports modules, or is stopped."""
        with contextlib.suppress(PysamplerError):
            while self._imports and self._receive():
                pass
        return bool(self._imports) or self.stopped

    def fork(self) -> children.Child:
        """Return a new worker."""
        ours, theirs = children.socket_pair()
        connection = children.OwnedConnection(ours)
        with contextlib.closing(theirs):
            kind, *content = self._ask("fork", fds=(theirs.fileno(), 1, 2))
        if kind == "error":
            raise OSError(*content)
        if kind != "forked":
            self.retire(for_threads=kind == "threads")
            raise NoForkServerError(f"cannot start worker: the fork server has {content[0]}")
        return children.Child(_ForkedProcess(content[0], self, connection), connection)

    def codes_of(self, pids: Sequence[int], seconds: float) -> dict[int, int]:
        """Wait until it has reaped these workers and ended their descendants.

        Returns the exit codes, or minus the signals, of those that it knows to have ended.
        """
        if os.getpid() == self._owner:
            with contextlib.suppress(PysamplerError, OSError):
                codes: dict[int, int]
                deadline = time.monotonic() + seconds
                [codes] = self._ask("ended", pids, _SOONER * seconds, deadline=deadline)
                return codes
        return {}

    def join(self, pool: int) -> None:
        """Note that a pool has workers from it."""
        self._pools.add(pool)

    def part(self, pool: int) -> None:
        """Note that a pool has none any more. May be repeated; finalizers call it."""
        self._pools.discard(pool)
        if self.retired and not self._pools and os.getpid() == self._owner:
            self._shut()

    def how_it_ended(self) -> str:
        """Return the server's end as text for errors."""
        if not self._process.ended(_STATUS_SECONDS):
            return "the fork server is lost"
        status = self._process.status()
        return "the fork server ended" + ("" if status is None else f" with exit code {status}")

    def retire(self, *, for_threads: bool = False) -> None:
        """Fork no more workers here; if it has threads, preload nothing again."""
        global _preload_allowed
        _preload_allowed = _preload_allowed and not for_threads
        self.retired = True
        self.part(0)

    def leave(self) -> None:
        """End the server, its workers and their descendants. May be repeated."""
        if os.getpid() != self._owner:
            return
        if self.busy():  # it would first finish its imports
            self._end_workers()
            self._process.kill()
        elif self._door.fileno() >= 0:
            with contextlib.suppress(PysamplerError):
                self._send(("leave", self._number()))
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
        if hasattr(self, "_process") and os.getpid() == self._owner:
            self._shut()

    # -- messages --------------------------------------------------------------------------------

    def _ask(
        self, kind: str, *content: Any, fds: Sequence[int] = (), deadline: float | None = None
    ) -> list[Any]:
        """Return the answer to a request; raise TimeoutError at the deadline."""
        number = self._number()
        try:
            self._asked.add(number)
            self._send((kind, number, *content), *fds)
            stopped_at: float | None = None
            while number not in self._answers:
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise TimeoutError
                # For a moment: another thread or a signal handler may read our answer.
                if not self._is_readable() and deadline is None:
                    stopped_at = (stopped_at or now) if self.stopped else None
                    if stopped_at is not None and now - stopped_at > children.STOPPED:
                        raise children.stopped_error(self._process, "the fork server")
                self._receive()
            return self._answers[number]
        finally:
            self._asked.discard(number)
            self._answers.pop(number, None)

    def _number(self) -> tuple[int, int]:
        """Return a number for a request; those of two threads differ without a lock."""
        return threading.get_ident(), next(self._numbers)

    def _is_readable(self) -> bool:
        try:
            return children.is_readable(self._door, _MOMENT)
        except ValueError:  # another thread has closed the door
            raise self._loss() from None

    def _receive(self) -> bool:
        """Take the next message of the server, if there is one; return whether there was."""
        read = functools.partial(self._door.recv, 1 << 16, socket.MSG_DONTWAIT)
        try:
            # Within one call into C: no signal handler runs between the read and the append.
            self._unread.extend(itertools.islice(iter(read, None), 1))
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._loss() from error
        messages = list(self._unread)  # one, or more after an exception
        for message in messages:
            if not message:
                raise self._loss()
            number, *content = pickle.loads(message)
            for earlier in [one for one in list(self._imports) if one[1] <= number[1]]:
                self._imports.discard(earlier)  # it answers in order
            if number in self._asked:
                self._answers[number] = content
            with contextlib.suppress(ValueError):  # a signal handler has removed it
                self._unread.remove(message)
        return bool(messages)

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
            raise self._loss() from error

    def _loss(self) -> NoForkServerError:
        """Mark the server as lost, and return the error for it."""
        self.lost = True
        return NoForkServerError(f"cannot start worker: {self.how_it_ended()}")

    def _shut(self) -> None:
        if children.is_own(self._door, self._identity):
            with contextlib.suppress(OSError):  # shut down, since forks may hold a copy
                self._door.shutdown(socket.SHUT_RDWR)
        children.close_own(self._door, self._identity)


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


def current() -> ForkServer:
    """Return the fork server in use, starting one if necessary."""
    with _lock:
        for fork_server in list(_fork_servers):
            if fork_server.ended:
                fork_server.leave()
                with contextlib.suppress(ValueError):  # a signal handler has removed it
                    _fork_servers.remove(fork_server)
        if not _fork_servers or not _fork_servers[-1].alive:
            _fork_servers.append(ForkServer())
        return _fork_servers[-1]


def preload(modules: Sequence[str]) -> None:
    """Request imports of modules in the fork server for later workers, without waiting."""
    if _preload_allowed:
        current().load(modules)


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
