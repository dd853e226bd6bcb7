"""The process of a fork server: it imports modules, forks workers, and reaps them.

Each worker leads a session, by which the fork server finds the worker's descendants and ends them
with it. A process that has moved to another session, like a daemon, counts as independent and is
left alone.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import sys
import time
import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pysampler import _core
from pysampler._workers.limits import naming_process_limit
from pysampler._workers.worker import become_worker

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["main"]

# Seconds that an exiting fork server spends on ending its workers and their descendants.
_LEAVE_SECONDS = 5.0


def main(fd: int) -> None:
    """Serve the parent until it has closed the door and all lines."""
    _core.outlive_signals()
    os.set_inheritable(fd, False)  # noqa: FBT003
    _ForkServer(socket.socket(fileno=fd)).serve()


@dataclass(frozen=True)
class _Worker:
    """A worker: the line on which it was requested, and its index there."""

    line: socket.socket
    index: int


class _ForkServer:
    """The sockets and the children of this process."""

    def __init__(self, door: socket.socket) -> None:
        self._door: socket.socket | None = door  # None once closed
        self._parent_pid = os.getppid()
        self._parent = os.pidfd_open(self._parent_pid)
        # With each line, the messages that its socket had no room for.
        self._lines: dict[socket.socket, deque[bytes]] = {}
        self._ending: set[socket.socket] = set()  # closed at the other end, with workers to reap
        self._workers: dict[int, _Worker] = {}  # by pid
        self._ended: set[int] = set()  # sessions of ended workers
        self._threads = _thread_count()  # before any import could start threads
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waker)
        _core.adopt_orphans()
        self._selector = selectors.DefaultSelector()
        for source in (door, self._parent, self._wake):
            self._selector.register(source, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        """Handle requests from the door and the lines, and reap workers."""
        while self._door is not None or self._lines or self._ending:
            ready = {key.fileobj: events for key, events in self._selector.select()}
            if self._parent in ready:
                break
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            self._reap()
            if self._door in ready and not self._answer_door():
                break
            for line in self._lines.keys() & ready.keys():
                if ready[line] & selectors.EVENT_WRITE:
                    self._flush(line)
                if line in self._lines and ready[line] & selectors.EVENT_READ:
                    self._answer_line(line)
        self._leave()

    def _answer_door(self) -> bool:
        """Handle a request of the parent; return False if it is to leave."""
        door = self._door
        assert door is not None
        message, fds = _receive(door, 1)
        if not message:
            self._selector.unregister(door)
            self._door = None
            return True
        request, *content = pickle.loads(message)
        if (
            request == "line" and fds
        ):  # without fds: too many open files; the pool sees its line end
            line = socket.socket(fileno=fds[0])
            self._lines[line] = deque()
            self._selector.register(line, selectors.EVENT_READ)
        elif request == "import":
            number, modules = content
            _import(modules)
            with contextlib.suppress(OSError):
                door.send(str(number).encode(), socket.MSG_DONTWAIT)
        return bool(request != "leave")

    # -- lines -----------------------------------------------------------------------------------

    def _answer_line(self, line: socket.socket) -> None:
        """Fork the requested worker and answer; if the line is closed, end its workers."""
        message, fds = _receive(line, 3)
        if not message:
            self._drop(line)
            return
        _, number, index = pickle.loads(message)
        self._send(line, self._fork(line, number, index, fds))
        for fd in fds:
            os.close(fd)

    def _fork(
        self, line: socket.socket, number: int, index: int, fds: list[int]
    ) -> tuple[Any, ...]:
        """Fork a worker, and return the answer to the request of this number."""
        if len(fds) < 3:  # three were sent, but this process has too many open files
            return "error", number, errno.EMFILE, "cannot start worker: too many open files"
        if _thread_count() > self._threads:  # forks would lack these threads
            return "retired", number
        worker = _Worker(line, index)
        for pid, other in self._workers.items():
            if other == worker:  # the pool gave up waiting for the answer about it
                _kill(pid)
        gc.freeze()
        try:
            with naming_process_limit():  # of this process, which may differ from the parent's
                pid = os.fork()
        except BlockingIOError as error:
            return "error", number, error.errno, error.strerror
        except OSError as error:
            return "error", number, error.errno, f"cannot fork worker: {error.strerror}"
        if pid == 0:
            self._close_all()
            become_worker(fds[0], fds[1:], self._parent_pid)
        self._workers[pid] = worker
        self._ended.discard(pid)
        return "forked", number, pid

    def _send(self, line: socket.socket, message: tuple[Any, ...]) -> None:
        """Send a message to a pool without blocking, after earlier ones."""
        self._lines[line].append(pickle.dumps(message))
        self._flush(line)

    def _flush(self, line: socket.socket) -> None:
        """Send the messages for which there is room; send the others once the pool reads."""
        unsent = self._lines[line]
        try:
            while unsent:
                line.send(unsent[0], socket.MSG_DONTWAIT)
                unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop(line)
            return
        writes = selectors.EVENT_WRITE if unsent else 0
        self._selector.modify(line, selectors.EVENT_READ | writes)

    def _drop(self, line: socket.socket) -> None:
        """Stop serving a line, and end its workers."""
        if line in self._lines:
            del self._lines[line]
            self._selector.unregister(line)
            self._ending.add(line)
        for pid, worker in self._workers.items():
            if worker.line is line:
                _kill(pid)
        self._close_ended()

    def _close_ended(self) -> None:
        """Close ending lines whose workers are all reaped: their pools may wait for this."""
        for line in self._ending - {worker.line for worker in self._workers.values()}:
            self._ending.discard(line)
            line.close()

    # -- children --------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap ended workers, and end their descendants."""
        reaped = False
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                reaped = True
                pid, status = child
                if (worker := self._workers.pop(pid, None)) is not None:
                    self._ended.add(pid)
                    _kill_group(pid)
                    if worker.line in self._lines:
                        code = os.waitstatus_to_exitcode(status)
                        self._send(worker.line, ("ended", pid, code))
        if reaped:
            self._sweep()
            self._close_ended()

    def _sweep(self) -> None:
        """Kill orphaned processes in the sessions of ended workers."""
        left = set()
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
                listed = file.read()
            for pid in map(int, listed.split()):
                with contextlib.suppress(ProcessLookupError):
                    session = os.getsid(pid)
                    if session in self._ended:
                        left.add(session)
                        _kill(pid)
        # When such a process dies, its children become orphans, adopted by this process.
        self._ended &= left

    def _leave(self) -> NoReturn:
        """End all workers, their descendants, and this process."""
        signal.set_wakeup_fd(-1)
        for pid in self._workers:
            _kill(pid)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while (self._workers or self._ended) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            self._reap()
        os._exit(0)

    def _close_all(self) -> None:
        """Close all descriptors of the server in a newly forked worker."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for fd in (self._wake, self._waker, self._parent):
            os.close(fd)
        for one in (self._door, *self._lines, *self._ending):
            if one is not None:
                one.close()


def _receive(connection: socket.socket, count: int) -> tuple[bytes, list[int]]:
    """Return a message and the descriptors sent with it; an empty message at the end."""
    try:
        message, fds, _, _ = socket.recv_fds(connection, 1 << 20, count, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:  # the other end closed with unread messages
        return b"", []
    return message, fds


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _import(modules: Iterable[str]) -> None:
    """Import modules, ignoring failures and suppressing their output."""
    with open(os.devnull, "w") as null:  # noqa: PTH123
        outputs = [os.dup(1), os.dup(2)]
        thresholds = gc.get_threshold()
        gc.set_threshold(0)  # no search for garbage, 5 % of the time: what imports make stays
        try:
            for number in (1, 2):
                os.dup2(null.fileno(), number)
            for name in modules:
                if name not in sys.modules:
                    with contextlib.suppress(BaseException), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        importlib.import_module(name)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
        finally:
            for number, fd in enumerate(outputs, start=1):
                os.dup2(fd, number)
                os.close(fd)
            gc.freeze()
            if gc.get_threshold()[0] == 0:  # no module has set others
                gc.set_threshold(*thresholds)
