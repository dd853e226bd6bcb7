"""The process of a fork server: it imports modules, forks workers, and reaps them.

Each worker leads a session, by which the fork server finds the worker's descendants and ends them
with it. A process that has moved to another session, like a daemon, counts as independent and is
left alone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from pysampler import _core
from pysampler._workers.limits import naming_process_limit
from pysampler._workers.worker import become_worker

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["main"]

# Seconds that an exiting fork server spends on ending its workers and their descendants.
_LEAVE_SECONDS = 5.0
_CODES = 1000  # exit codes that are kept


def main(fd: int) -> None:
    """Serve the parent until it leaves, or has closed the door and the last worker has ended."""
    _core.outlive_signals()
    os.set_inheritable(fd, False)  # noqa: FBT003
    _ForkServer(socket.socket(fileno=fd)).serve()


class _ForkServer:
    """The door and the children of this process."""

    def __init__(self, door: socket.socket) -> None:
        self._door: socket.socket | None = door  # None once closed
        self._parent_pid = os.getppid()
        self._parent = os.pidfd_open(self._parent_pid)
        self._workers: set[int] = set()  # pids
        self._codes: dict[int, int] = {}  # of ended workers, by pid; minus the signal
        self._sessions: set[int] = set()  # of ended workers
        # Requests for the ends of workers: the number, the pids, and when to answer in any case.
        self._waiting: list[tuple[Any, set[int], float]] = []
        self._threads = _thread_count()  # before any import could start threads
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._await_signals()
        _core.adopt_orphans()

    def _await_signals(self) -> None:
        """Have the end of a child wake this process. Modules may change that during an import."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        """Answer the parent, and reap workers."""
        while self._door is not None or self._workers:
            door = [] if self._door is None else [self._door]
            until = min((deadline for _, _, deadline in self._waiting), default=None)
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = self._wait([self._parent, *door], left)
            if self._parent in ready or (self._door in ready and not self._answer()):
                break
            self._tell_ends()
        self._leave()

    def _wait(self, files: list[Any], seconds: float | None) -> list[Any]:
        """Wait until files are readable or a child has ended, and reap it; return those files."""
        poller = select.poll()
        numbers = {one if isinstance(one, int) else one.fileno(): one for one in files}
        for fd in (*numbers, self._wake):
            poller.register(fd, select.POLLIN)
        ready = poller.poll(None if seconds is None else seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._reap()
        return [numbers[fd] for fd, _ in ready if fd in numbers]

    def _answer(self) -> bool:
        """Answer a request of the parent; return False if it is to leave."""
        door = self._door
        assert door is not None
        message, fds = _receive(door, 3)
        if not message:
            door.close()
            self._door = None
            return True
        kind, number, *content = pickle.loads(message)
        answer: tuple[Any, ...] = ()
        if kind == "import":
            _import(*content)
            self._await_signals()
            self._reap()
        elif kind == "fork":
            answer = self._fork(fds)
        for fd in fds:
            os.close(fd)
        if kind == "ended":
            pids, seconds = content
            self._waiting.append((number, {*pids}, time.monotonic() + seconds))
        else:
            # The parent reads answers to imports late, so its socket may be full.
            self._send((number, *answer), socket.MSG_DONTWAIT if kind == "import" else 0)
        return bool(kind != "leave")

    def _fork(self, fds: list[int]) -> tuple[Any, ...]:
        """Fork a worker, and return the answer."""
        if len(fds) < 3:  # three were sent, but this process has too many open files
            return "full", "too many open files"
        if _thread_count() > self._threads:  # forks would lack these threads
            return "threads", "started threads"
        gc.freeze()
        try:
            with naming_process_limit():  # of this process, which may differ from the parent's
                pid = os.fork()
        except BlockingIOError as error:
            return "error", error.errno, error.strerror
        except OSError as error:
            return "error", error.errno, f"cannot fork worker: {error.strerror}"
        if pid == 0:
            self._close_all()
            become_worker(fds[0], fds[1:], self._parent_pid)
        self._workers.add(pid)
        self._sessions.discard(pid)
        self._codes.pop(pid, None)
        return "forked", pid

    def _tell_ends(self) -> None:
        """Answer who waits until workers and their descendants have ended, or until a deadline."""
        for one in list(self._waiting):
            number, pids, deadline = one
            if pids.isdisjoint(self._workers | self._sessions) or time.monotonic() >= deadline:
                self._waiting.remove(one)
                self._send((number, {pid: self._codes[pid] for pid in pids & self._codes.keys()}))

    def _send(self, answer: tuple[Any, ...], flags: int = 0) -> None:
        if self._door is not None:
            with contextlib.suppress(OSError):
                self._door.send(pickle.dumps(answer), flags)

    # -- children --------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap ended workers, and end their descendants."""
        reaped = False
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                reaped = True
                pid, status = child
                if pid in self._workers:
                    self._workers.discard(pid)
                    self._sessions.add(pid)
                    _kill_group(pid)
                    self._codes[pid] = os.waitstatus_to_exitcode(status)
                    while len(self._codes) > _CODES:
                        del self._codes[next(iter(self._codes))]
        if reaped:
            self._sweep()

    def _sweep(self) -> None:
        """Kill orphaned processes in the sessions of ended workers."""
        left = set()
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
                listed = file.read()
            for pid in map(int, listed.split()):
                with contextlib.suppress(ProcessLookupError):
                    session = os.getsid(pid)
                    if session in self._sessions:
                        left.add(session)
                        _kill(pid)
        # When such a process dies, its children become orphans, adopted by this process.
        self._sessions &= left

    def _leave(self) -> NoReturn:
        """End all workers, their descendants, and this process."""
        signal.set_wakeup_fd(-1)
        for pid in self._workers:
            _kill(pid)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while (self._workers or self._sessions) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            self._reap()
        os._exit(0)

    def _close_all(self) -> None:
        """Close all descriptors of the server in a newly forked worker."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (self._wake, self._waker, self._parent):
            os.close(fd)
        if self._door is not None:
            self._door.close()


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
    modules = [name for name in modules if name not in sys.modules]
    if not modules:
        return
    # Without files left, the workers import them.
    with contextlib.suppress(OSError), open(os.devnull, "w") as null:  # noqa: PTH123
        outputs = [os.dup(1), os.dup(2)]
        thresholds = gc.get_threshold()
        gc.set_threshold(0)  # no search for garbage, 5 % of the time: what imports make stays
        try:
            for number in (1, 2):
                os.dup2(null.fileno(), number)
            for name in modules:
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
