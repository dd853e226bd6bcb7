"""Where workers come from: a clean interpreter that imports what they need once and forks them.

The user's process is not forked: its threads, locks and CUDA contexts are not the workers'. One
nursery a process serves all its pools; it is started with the first and leaves with the process.
``context="fork"`` and ``"spawn"`` do without.

    parent ── socket, a request at a time ──▶ nursery ── fork ──▶ worker
       ╰────────────── a socket of its own, for the time until it is attached ──────╯
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pysampler import _core, worker
from pysampler.errors import PysamplerError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONTEXTS", "Child", "preload", "start_worker"]

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
# Room for the name that ps shows, which is written over the arguments of the process.
_PADDING = "pysampler ".ljust(160, "-")


class Child:
    """A worker process, as its starter sees it."""

    def __init__(self, pid: int, pidfd: int, connection: Connection, parent: Any) -> None:
        self.pid = pid
        self.connection = connection
        self._pidfd = pidfd
        self._parent = parent  # who can tell how it ended
        self._status: int | None = None

    def ended(self, timeout: float = 0) -> bool:
        """Whether it has ended, or does so in time."""
        if self._pidfd < 0:
            return True
        return _readable(self._pidfd, timeout)

    def kill(self) -> None:
        """End it, whatever it is doing."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def status(self) -> int | None:
        """Exit code, or minus the signal, of a child that has ended; None if nobody knows."""
        if self._status is None:
            self._status = self._parent.status_of(self.pid)
        return self._status

    def release(self) -> None:
        """Forget it, once it has ended."""
        if self._pidfd >= 0:
            self.status()
            os.close(self._pidfd)
            self._pidfd = -1
        self.connection.close()


class _Here:
    """This process as a parent: children of fork and spawn are its own."""

    def status_of(self, pid: int) -> int | None:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            return None
        return os.waitstatus_to_exitcode(status) if ended else None


class _Spawned:
    """A parent that started an interpreter."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def status_of(self, pid: int) -> int | None:  # noqa: ARG002
        return self._process.poll()


class Nursery:
    """The parent's handle to its nursery."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _interpreter("pysampler.nursery", theirs)
        self._socket = ours
        self._lock = threading.Lock()
        self.owner = os.getpid()
        self.tainted = False
        self._loading = False
        self._out_of_step = False  # an answer was not waited for: the next one would be that

    @property
    def alive(self) -> bool:
        if self._out_of_step or self.tainted or self.owner != os.getpid():
            return False
        return self._process.poll() is None

    def fork(self) -> Child:
        """A worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                (pid,), fds = self._ask(("fork",), [theirs.fileno(), 1, 2])
                if not fds:  # it was sent, and found no room here
                    raise OSError(errno.EMFILE, "cannot start worker: too many open files")
            except BaseException:
                ours.close()
                raise
        return Child(pid, fds[0], Connection(ours.detach()), self)

    def status_of(self, pid: int) -> int | None:
        try:
            (status,), _ = self._ask(("status", pid))
        except (OSError, PysamplerError):
            return None
        return status  # type: ignore[no-any-return]

    def load(self, modules: Iterable[str]) -> None:
        """Import these, so that later workers have them. Nobody waits for it yet."""
        with self._lock:
            self._settle()
            self._send(("import", list(modules)), [])
            self._loading = True

    def settle(self) -> None:
        """Until it has imported what it was told to."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        if self._loading:
            (threads,), _ = self._receive()
            self._loading = False
            # Whatever started threads there, forks of it would be missing them.
            self.tainted = threads > 1

    def close(self) -> None:
        busy = self._loading and not _readable(self._socket)
        self._loading = False  # nobody will read what has come of it
        self._socket.close()  # which tells it to leave
        if self.owner == os.getpid():
            if busy:  # it would go on with its imports first
                self._process.kill()
            try:
                self._process.wait(_LEAVING)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _ask(self, request: tuple[Any, ...], fds: Iterable[int] = ()) -> tuple[Any, list[int]]:
        with self._lock:
            self._settle()
            self._out_of_step = True
            self._send(request, fds)
            answer = self._receive()
            self._out_of_step = False
            return answer

    def _send(self, request: tuple[Any, ...], fds: Iterable[int]) -> None:
        try:
            socket.send_fds(self._socket, [pickle.dumps(request)], list(fds))
        except OSError as error:
            raise PysamplerError(f"cannot start worker: the nursery is lost, {error}") from None

    def _receive(self) -> tuple[Any, list[int]]:
        try:
            answer, received, _, _ = socket.recv_fds(self._socket, 1 << 16, 1)
        except OSError as error:
            raise PysamplerError(f"cannot start worker: the nursery is lost, {error}") from None
        if not answer:
            code = self._process.wait()
            raise PysamplerError(f"cannot start worker: the nursery ended with exit code {code}")
        kind, *content = pickle.loads(answer)
        if kind == "error":
            self._out_of_step = False
            raise OSError(*content)
        return content, received


def _readable(file: Any, timeout: float = 0) -> bool:
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return bool(poller.poll(timeout * 1000))


_nursery: Nursery | None = None
_preloaded: set[str] = set()
_preload_allowed = True  # until that gave a nursery threads
_nursery_lock = threading.Lock()


def _the_nursery() -> Nursery:
    global _nursery, _preload_allowed
    with _nursery_lock:
        if _nursery is not None and _nursery.alive:
            with contextlib.suppress(PysamplerError):
                _nursery.settle()
        if _nursery is None or not _nursery.alive:
            if _nursery is not None:
                _preload_allowed &= not _nursery.tainted
                _nursery.close()
                atexit.unregister(_nursery.close)
            _nursery = Nursery()
            atexit.register(_nursery.close)
        return _nursery


def start_worker(context: str) -> Child:
    """A process in which ``pysampler.worker.main`` runs, at the other end of a connection."""
    if context == "nursery":
        try:
            return _the_nursery().fork()
        except PysamplerError:  # it was killed: another one can do it
            return _the_nursery().fork()
    ours, theirs = socket.socketpair()
    with theirs:
        parent: _Here | _Spawned = _Here()
        if context == "spawn":
            process = _interpreter("pysampler.worker", theirs)
            pid, parent = process.pid, _Spawned(process)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forking threads: asked for
                pid = os.fork()
            if pid == 0:
                ours.close()
                _become_worker(theirs.detach(), [1, 2])
    return Child(pid, os.pidfd_open(pid), Connection(ours.detach()), parent)


def await_ends(children: Iterable[Child], deadline: float) -> None:
    """Until the children have ended, or that time of time.monotonic()."""
    for child in children:
        child.ended(max(0.0, deadline - time.monotonic()))


def preload(modules: Iterable[str]) -> None:
    """Import installed modules in the nursery, so that later workers start with them."""
    new = [name for name in modules if name not in _preloaded]
    if new and _preload_allowed:
        _preloaded.update(new)
        _the_nursery().load(new)


def environment() -> dict[str, str]:
    """The environment of a worker."""
    return {**dict.fromkeys(THREADS, "1"), **os.environ}


def _interpreter(module: str, connection: socket.socket) -> subprocess.Popen[bytes]:
    """A clean interpreter with this one's flags and path, calling main(fd) of that module."""
    fd = connection.fileno()
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        f"from {module} import main; main({fd})"
    )
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    path = json.dumps([p for p in sys.path if isinstance(p, str)])
    return subprocess.Popen(
        [sys.executable, *flags, "-c", code, path, _PADDING],
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        env=environment(),
    )


# -- in the nursery -----------------------------------------------------------------------------


def main(fd: int) -> None:
    """Serve fork requests until the parent is gone."""
    parent = os.pidfd_open(os.getppid())
    connection = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    _core.adopt_orphans()
    family = _Family()
    while True:
        sources: list[Any] = [connection, wake, parent]
        ready, _, _ = select.select(sources, [], [])
        if parent in ready:
            family.end()
        if wake in ready:
            os.read(wake, 4096)
        family.reap()
        if connection not in ready:
            continue
        try:
            message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        except ConnectionResetError:  # the parent left an answer unread, and is gone
            family.end()
        if not message:
            family.end()
        request, *content = pickle.loads(message)
        answer: tuple[Any, ...]
        out: list[int] = []
        if request == "fork":
            gc.freeze()
            try:
                pid = os.fork()
            except OSError as error:
                answer = ("error", error.errno, f"cannot fork worker: {error.strerror}")
            else:
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for inherited in (wake, waker, parent):
                        os.close(inherited)
                    connection.close()
                    _become_worker(fds[0], fds[1:])
                family.workers.add(pid)
                answer, out = ("forked", pid), [os.pidfd_open(pid)]
            for received in fds:
                os.close(received)
        elif request == "status":
            family.reap()
            answer = ("status", family.ended.pop(content[0], None))
        else:
            answer = ("loaded", _import(content[0]))
        try:
            socket.send_fds(connection, [pickle.dumps(answer)], out)
        except ConnectionError:
            family.end()
        for sent in out:
            os.close(sent)


class _Family:
    """The nursery's children: workers, and what workers had started and left behind."""

    def __init__(self) -> None:
        self.workers: set[int] = set()
        self.ended: dict[int, int] = {}  # workers that nobody has asked about: how

    def reap(self) -> None:
        """Bury the dead. What an env had started ends with its worker."""
        worker_ended = False
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = child
                if pid in self.workers:
                    self.workers.discard(pid)
                    self.ended[pid] = os.waitstatus_to_exitcode(status)
                worker_ended = True
        if worker_ended:
            self._kill(set(self._children()) - self.workers)

    def end(self) -> NoReturn:
        """Leave, and leave nobody."""
        signal.set_wakeup_fd(-1)
        deadline = time.monotonic() + 5
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                self._kill({*self.workers, *self._children()})
                pid = os.waitpid(-1, 0)[0]
                self.workers.discard(pid)
        os._exit(0)

    def _children(self) -> list[int]:
        """Those that have not made themselves independent, as daemons do."""
        children = []
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
            for pid in map(int, listed.split()):
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(pid) == os.getsid(0):
                        children.append(pid)
        return children

    def _kill(self, pids: set[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _import(modules: Iterable[str]) -> int:
    """Import what can be, without a word; how many threads there are then."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    kept = [os.dup(1), os.dup(2)]
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        for name in modules:
            if name not in sys.modules:
                with contextlib.suppress(BaseException), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    importlib.import_module(name)
        sys.stdout.flush()
    finally:
        for number, fd in enumerate(kept, start=1):
            os.dup2(fd, number)
            os.close(fd)
        os.close(quiet)
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def _become_worker(fd: int, outputs: list[int]) -> None:
    """In a forked child: run the worker and end, whatever happens."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, output in enumerate([nothing, *outputs]):
            if output != number:
                os.dup2(output, number)
                os.close(output)
        worker.main(fd)
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
