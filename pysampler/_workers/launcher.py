"""Start a pool's workers: forked from a fork server or this process, or spawned.

"forkserver" is the default: it starts faster than "spawn" (modules are imported once) and is safe
with threads and CUDA, unlike "fork", which in turn needs no pickling of env functions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._common.torch import set_torch_threads
from pysampler._workers import children, fork_server
from pysampler._workers.worker import become_worker
from pysampler.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

__all__ = ["CONTEXTS", "Launcher", "allow_workers", "files_for", "open_files"]

CONTEXTS = ("forkserver", "fork", "spawn")

# Descriptors of this process per worker: both ends of its connection (one of them only at first),
# and two that report the worker's end; and some for the rest of a pool.
_FILES_PER_WORKER, _FILES_PER_POOL = 4, 32

# This process's ends of the connections to its own children, and between them.
_own_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
_files_before: int | None = None  # the limit on open files before it was raised here


class Launcher:
    """Starts the workers of one pool."""

    def __init__(self, context: str) -> None:
        self._servers: dict[int, fork_server.ForkServer] = {}  # by pid; first, for __del__
        self._context = context
        self._closed = False

    def start(self, server: Any) -> children.Child:
        """Return a new process that runs ``main`` of ``worker.py`` with its connection.

        A fork of this process inherits ``server``: a function that makes an env server, and its
        arguments.
        """
        if self._closed:
            raise ClosedError("cannot start worker: the pool is closed")
        children.open_standard_files()
        if self._context != "forkserver":
            return _start_here(self._context, server)
        for _ in range(3):
            with contextlib.suppress(fork_server.NoForkServerError):
                return self._fork()
        return self._fork()

    def close(self, pids: Sequence[int] = (), wait: float = 0) -> None:
        """Start no more workers. Without ``wait`` it asks nothing, and may be repeated.

        Waits up to ``wait`` seconds until fork servers have reaped those of these workers that were
        killed, and have ended their descendants.
        """
        self._closed = True
        for server in {*self._servers.values()}:
            if wait > 0 and not server.stopped:
                server.codes_of([pid for pid in pids if self._servers.get(pid) is server], wait)
            server.part(id(self))

    def __del__(self) -> None:
        self.close()

    def _fork(self) -> children.Child:
        server = fork_server.current()
        child = server.fork()
        self._servers[child.pid] = server
        server.join(id(self))
        return child


def _start_here(context: str, server: Any) -> children.Child:
    """Start a worker as a child of this process."""
    parent = os.getpid()
    try:
        ours, theirs = children.socket_pair()
        connection = children.OwnedConnection(ours)
        _own_ends.add(connection)
        with contextlib.closing(theirs):
            if context == "spawn":
                spawn = children.interpreter("pysampler._workers.worker", theirs, parent)
                return children.Child(children.OwnProcess(spawn), connection)
            with warnings.catch_warnings():  # about forking with threads, which the user asked for
                warnings.simplefilter("ignore", DeprecationWarning)
                # Signals stay blocked until the fork outlives them: it must not run our handlers.
                process = children.OwnProcess(_core.fork_with_signals_blocked)
            if process.pid == 0:
                for end in _own_ends:  # an open copy would hide the closing from another worker
                    end.close()
                set_torch_threads(1)  # torch would wait for our threads, which a fork lacks
                become_worker(theirs.detach(), [1, 2], parent, server)
        return children.Child(process, connection)
    finally:
        if os.getpid() != parent:  # a signal handler raised in the fork, which must not continue
            os._exit(1)


def allow_workers(count: int) -> None:
    """Raise this process's limit on open files as far as ``count`` more workers need.

    Raises OSError if the hard limit is lower. Workers keep the old limit: code in envs may rely on
    small descriptor numbers, as ``select`` does.
    """
    global _files_before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_for(count)
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


def files_for(count: int) -> int:
    """Return the number of files this process will have open with ``count`` more workers."""
    already = len(children.open_descriptors())
    return already + _FILES_PER_WORKER * count + _FILES_PER_POOL


def open_files() -> int:
    """Return the limit on open files of a worker: this process's limit before it was raised."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if _files_before is None else min(soft, _files_before)
