"""The process of a nursery: it imports modules, forks workers, and buries them.

Each worker leads a session of its own, by which the nursery knows what it had started: that ends
with its worker, and with no other. What an env starts in another session has made itself
independent, as daemons do, and is left alone.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pysampler import _core
from pysampler._workers import worker

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["become_worker", "main"]

# How long to go on ending what workers had started, in seconds.
_PATIENCE = 5.0


def main(fd: int) -> None:
    """Serve the process that started this one until it has no more use for it."""
    _core.outlive_signals()
    os.set_inheritable(fd, False)  # noqa: FBT003
    _Nursery(socket.socket(fileno=fd)).serve()


@dataclass(frozen=True)
class _Worker:
    line: socket.socket
    index: int


class _Nursery:
    """Its sockets and its children."""

    def __init__(self, door: socket.socket) -> None:
        self._door: socket.socket | None = door  # None: it forks no more
        self._parent_pid = os.getppid()
        self._parent = os.pidfd_open(self._parent_pid)
        self._lines: set[socket.socket] = set()
        self._ending: set[socket.socket] = set()  # closed at the other end, with workers to reap
        self._workers: dict[int, _Worker] = {}  # by pid
        self._ended: set[int] = set()  # sessions of workers that have ended
        self._threads = _threads()  # what it began with: not the fault of an import
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waker)
        _core.adopt_orphans()
        self._selector = selectors.DefaultSelector()
        for source in (door, self._parent, self._wake):
            self._selector.register(source, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        while self._door is not None or self._lines or self._ending:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._parent in ready:
                break
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            self._reap()
            if self._door in ready and not self._at_the_door():
                break
            for line in ready & self._lines:
                assert isinstance(line, socket.socket)
                self._answer(line)
        self._leave()

    def _at_the_door(self) -> bool:
        """Do what the parent asks; False if that is to leave."""
        door = self._door
        assert door is not None
        message, fds = _received(door, 1)
        if not message:
            self._selector.unregister(door)
            self._door = None
            return True
        request, *content = pickle.loads(message)
        if request == "line":
            line = socket.socket(fileno=fds[0])
            self._lines.add(line)
            self._selector.register(line, selectors.EVENT_READ)
        elif request == "import":
            number, modules = content
            _import(modules)
            with contextlib.suppress(OSError):
                door.send(str(number).encode(), socket.MSG_DONTWAIT)
        return bool(request != "leave")

    # -- lines -----------------------------------------------------------------------------------

    def _answer(self, line: socket.socket) -> None:
        message, fds = _received(line, 3)
        if not message:
            self._drop(line)
            return
        _, number, index = pickle.loads(message)
        self._tell(line, self._forked(line, number, index, fds))
        for fd in fds:
            os.close(fd)

    def _forked(
        self, line: socket.socket, number: int, index: int, fds: list[int]
    ) -> tuple[Any, ...]:
        """Fork a worker, and what is said about it."""
        if len(fds) < 3:  # they were sent, and found no room here
            return "error", number, errno.EMFILE, "cannot start worker: too many open files"
        if _threads() > self._threads:  # forks of this one would be missing them
            return "retired", number
        for pid, other in self._workers.items():
            if other == _Worker(line, index):  # whose answer was lost on its way
                _kill(pid)
        gc.freeze()
        try:
            pid = os.fork()
        except OSError as error:
            return "error", number, error.errno, f"cannot fork worker: {error.strerror}"
        if pid == 0:
            self._close_all()
            become_worker(fds[0], fds[1:], self._parent_pid)
        self._workers[pid] = _Worker(line, index)
        self._ended.discard(pid)
        return "forked", number, pid

    def _tell(self, line: socket.socket, message: tuple[Any, ...]) -> None:
        try:
            line.send(pickle.dumps(message), socket.MSG_DONTWAIT)
        except BlockingIOError:
            if message[0] != "ended":  # the pool has not read its line for long
                self._drop(line)
        except OSError:
            self._drop(line)

    def _drop(self, line: socket.socket) -> None:
        """The pool at the other end is gone: so are its workers."""
        if line in self._lines:
            self._lines.discard(line)
            self._selector.unregister(line)
            self._ending.add(line)
        for pid, one in self._workers.items():
            if one.line is line:
                _kill(pid)
        self._close_ended()

    def _close_ended(self) -> None:
        """Close lines whose last worker has been reaped: the pool may be waiting for that."""
        for line in self._ending - {one.line for one in self._workers.values()}:
            self._ending.discard(line)
            line.close()

    # -- children --------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Bury the dead. What they had started ends with them."""
        anyone = False
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                anyone = True
                pid, status = child
                if (one := self._workers.pop(pid, None)) is not None:
                    self._ended.add(pid)
                    _kill_group(pid)
                    if one.line in self._lines:
                        code = os.waitstatus_to_exitcode(status)
                        self._tell(one.line, ("ended", pid, code))
        if anyone:
            self._sweep()
            self._close_ended()

    def _sweep(self) -> None:
        """End orphans of the sessions of workers that have ended."""
        left = set()
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
            for pid in map(int, listed.split()):
                with contextlib.suppress(ProcessLookupError):
                    session = os.getsid(pid)
                    if session in self._ended:
                        left.add(session)
                        _kill(pid)
        # The orphans of an orphan that has been ended come here when it is gone.
        self._ended &= left

    def _leave(self) -> NoReturn:
        """End all workers, what they had started, and this process."""
        signal.set_wakeup_fd(-1)
        for pid in self._workers:
            _kill(pid)
        deadline = time.monotonic() + _PATIENCE
        while (self._workers or self._ended) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            self._reap()
        os._exit(0)

    def _close_all(self) -> None:
        """In a worker: nothing of this is its business."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for fd in (self._wake, self._waker, self._parent):
            os.close(fd)
        for one in (self._door, *self._lines, *self._ending):
            if one is not None:
                one.close()


def _received(connection: socket.socket, count: int) -> tuple[bytes, list[int]]:
    """A message and the descriptors that came with it; an empty one at the end."""
    try:
        message, fds, _, _ = socket.recv_fds(connection, 1 << 20, count, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:  # it has left something unread, and is gone
        return b"", []
    return message, fds


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _import(modules: Iterable[str]) -> None:
    """Import what can be imported, without a word."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        kept = [os.dup(1), os.dup(2)]
        try:
            for number in (1, 2):
                os.dup2(nowhere.fileno(), number)
            for name in modules:
                if name not in sys.modules:
                    with contextlib.suppress(BaseException), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        importlib.import_module(name)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
        finally:
            for number, fd in enumerate(kept, start=1):
                os.dup2(fd, number)
                os.close(fd)


def become_worker(fd: int, outputs: list[int], parent: int, host: Any = None) -> NoReturn:
    """In a forked child: run the worker and end, whatever happens.

    ``parent``: the process that wants it. ``host``: a function and its arguments, where it was the
    parent that was forked.
    """
    code = 1
    try:
        # A worker has no stdin. 0 to 2 are open here, to whatever file.
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, output in enumerate([nothing, *outputs]):
            if output != number:
                os.dup2(output, number)
                os.close(output)
            os.set_inheritable(number, True)  # noqa: FBT003
        worker.main(fd, parent, host)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
