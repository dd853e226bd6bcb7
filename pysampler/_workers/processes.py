"""Processes: starts the workers of a pool, sets them up, replaces and ends them."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import sys
import threading
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._workers.children import STOPPED, await_answer, environment, stopped_error
from pysampler._workers.exceptions import error_from
from pysampler._workers.jobs import Failure
from pysampler._workers.launcher import Launcher, allow_workers, open_files
from pysampler._workers.remote import loads
from pysampler._workers.setup import LoggingSetup, PackedMessages, PackedServers, Setup
from pysampler._workers.surroundings import current_directory, import_path
from pysampler.errors import ClosedError, EnvError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pysampler._workers.children import Child
    from pysampler._workers.setup import Attachment, Layout, MakeServer
    from pysampler.sync import Segment

__all__ = ["SHUTDOWN_TIMEOUT_S", "Processes", "WorkerAssignment", "Workers"]

# Seconds to wait for a process to end.
SHUTDOWN_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class WorkerAssignment:
    """The share of one worker: its envs, and their groups."""

    first: int  # index of its first env in the pool
    sizes: tuple[int, ...]  # of its groups
    noun: str = "env"  # the word for an env in errors

    def with_sizes(self, first: int, sizes: Sequence[int]) -> WorkerAssignment:
        """Return the share with groups of these sizes, beginning with env ``first``."""
        return replace(self, first=first, sizes=tuple(sizes))

    @property
    def envs(self) -> range:
        """The indices of all envs."""
        return range(self.first, self.first + sum(self.sizes))

    @property
    def group_envs(self) -> list[range]:
        """The indices of the envs of each group."""
        ends = list(itertools.accumulate(self.sizes, initial=self.first))
        return [range(first, end) for first, end in itertools.pairwise(ends)]

    def __str__(self) -> str:
        """Return the name of the envs in errors."""
        if len(self.envs) == 1:
            return f"{self.noun} {self.first}"
        return f"{self.noun}s {self.first}-{self.envs.stop - 1}"

    def describe(self, failure: Failure, where: str, doing: str) -> str:
        """Return the text of a failure for errors, e.g. "env 3 in worker 1 raised X stepping"."""
        kind = failure.report.kind
        if kind == WorkerLostError.__name__:  # the replacement of the lost worker says so
            return f"{self} did not answer"
        if failure.culprit:
            return f"{failure.culprit}{where} raised {kind} {failure.doing}"
        server = f"the {self.noun} server"
        raiser = server if failure.env is None else f"{self.noun} {failure.env}"
        doing = f"in {failure.doing}" if "(" in failure.doing else failure.doing or doing
        return f"{raiser}{where} raised {kind} {doing}"


class Workers:
    """What worker processes and threads have in common.

    Attributes:
        assignments: The envs and groups of each.
        children: Each worker.
        descriptions: The description of each env server.
    """

    assignments: list[WorkerAssignment]
    children: list[Any]
    descriptions: list[Any]

    def _number_envs(self) -> None:
        """Count the envs of the workers on: a function may have made several."""
        first = 0
        for index, description in enumerate(self.descriptions):
            self.assignments[index] = self.assignments[index].with_sizes(first, description.sizes)
            first = self.assignments[index].envs.stop

    def ended(self) -> list[int]:
        """Return the workers that have ended."""
        return [index for index, child in enumerate(self.children) if child.ended()]

    def name_of(self, index: int) -> str:
        """Return the name of a worker in errors."""
        raise NotImplementedError

    def error_of(self, index: int, failure: Failure, doing: str) -> EnvError:
        """Return the error for a failure of an env, or of something else in its worker."""
        where = f" in {self.name_of(index)}"
        error = error_from(failure.report, self.assignments[index].describe(failure, where, doing))
        error.env, error.worker = failure.env, index
        return error


class Processes(Workers):
    """The worker processes of a pool, one for each share.

    They end with this object, or with this process.

    Args:
        assignments: The envs and groups of each worker.
        servers: The function that makes the env server of each worker, and its arguments.
        context: How to start processes: "forkserver", "fork" or "spawn".
        replaceable: Whether to keep the pickled ``servers`` for replacements.
    """

    can_die = True
    mail = 1 << 16  # bytes of an inbox, and of an outbox; larger messages go in parts

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        servers: Sequence[MakeServer],
        context: str,
        *,
        replaceable: bool,
    ) -> None:
        self.children: list[Child] = []
        self.assignments = list(assignments)
        self._context = context
        self._launcher = Launcher(context)
        self._owner = os.getpid()
        # Runs when this object is dropped, and at exit. end() does not call the finalizer, which
        # runs only once: an interrupted end() must be repeatable.
        weakref.finalize(self, _end, self.children, self._launcher, self._owner)
        self._servers = servers
        if assignments:
            allow_workers(len(assignments))
        self._packed = None if context == "fork" else PackedServers(servers)
        # Taken once: a replacement must make its envs as the lost worker did, even if this process
        # has changed its directory or its environment since.
        self._setup = self._setup_here()
        try:
            for index in range(len(assignments)):
                self.children.append(self._start(index))
                with self._noticing_loss(index):
                    self._set_up(index, self._setup)
            self.descriptions = self._receive_descriptions()
            self._number_envs()
            if not replaceable:
                self._packed = None
        except BaseException:
            self.end()
            raise

    def end(self, wait: float = 0) -> None:
        """End the workers, whatever they are doing. May be repeated.

        Waits up to ``wait`` seconds until they are reaped and their child processes have ended.
        """
        _end(self.children, self._launcher, self._owner, wait)

    def _start(self, index: int) -> Child:
        return self._launcher.start(self._servers[index])

    def _setup_here(self) -> Setup:
        """Return the part of the setup that is the same for all workers."""
        return Setup(
            index=0,
            workers=len(self.assignments),
            environment=environment(),
            directory=current_directory(),
            path=import_path(),
            arguments=list(sys.argv),
            open_files=open_files(),
            logging=None if self._context == "fork" else LoggingSetup.here(),
            server=None,
            arrays=(),
            shared=0,
            is_replacement=False,
        )

    def _set_up(self, index: int, setup: Setup) -> None:
        """Send a worker its setup, from which it makes its env server."""
        setup = replace(setup, index=index)
        child, packed = self.children[index], self._packed
        if packed is None:
            child.connection.send(setup)
        else:
            server, arrays = packed.pickled[index], packed.arrays[index]
            shared = len(packed.shared[index])
            child.connection.send(replace(setup, server=server, arrays=arrays, shared=shared))
            packed.send_arrays(child.connection, index)

    def _receive_descriptions(self) -> list[Any]:
        """Receive the description of each env server; raise as soon as one worker fails."""
        described: dict[int, Any] = {}
        stopped: set[int] = set()
        with selectors.DefaultSelector() as waiting:
            for index, child in enumerate(self.children):
                waiting.register(child.connection, selectors.EVENT_READ, index)
            while waiting.get_map():
                ready = waiting.select(STOPPED)
                before, stopped = stopped, set() if ready else self._stopped(waiting)
                for index in before & stopped:
                    raise stopped_error(self.children[index], f"worker {index}")
                for key, _ in ready:
                    index = key.data
                    waiting.unregister(key.fileobj)
                    with self._noticing_loss(index):
                        answer = loads(self.children[index].connection.recv_bytes())
                    if isinstance(answer, Failure):
                        raise self.error_of(index, answer, "being made")
                    described[index] = answer
        return [described[index] for index in range(len(self.children))]

    def _stopped(self, waiting: selectors.BaseSelector) -> set[int]:
        """Return the workers in ``waiting`` that are stopped, e.g. by SIGSTOP."""
        return {key.data for key in waiting.get_map().values() if self.children[key.data].stopped()}

    def socket_of(self, index: int) -> int:
        """Return the descriptor of the socket to the worker that now has this index."""
        return self.children[index].connection.fileno()

    def attach(
        self,
        attachments: Sequence[Attachment],
        segment: Segment,
        layout: tuple[Layout, Segment],
        parts: Sequence[_core.Part],  # noqa: ARG002 - a watch marks them
    ) -> None:
        """Attach all workers to a segment and a first layout, and wait until they are attached."""
        first, frames = layout
        messages = PackedMessages([first, *attachments])
        for index, child in enumerate(self.children):
            with self._noticing_loss(index):
                messages.send(1 + index, child.connection, segment.fd)
                messages.send(0, child.connection, frames.fd)
        for index, child in enumerate(self.children):
            await_answer(child.connection, child, f"worker {index}")
            with self._noticing_loss(index):
                answer = child.connection.recv_bytes()
            if answer != b"attached":
                raise self.error_of(index, loads(answer), "starting")

    def lay_out(self, index: int, layout: tuple[Layout, Segment]) -> None:
        """Send a worker another layout and the descriptor of its segment."""
        with contextlib.suppress(ConnectionError):  # the watch notices the loss
            self._send(index, *layout)

    def _send(self, index: int, message: Any, segment: Segment) -> None:
        connection = self.children[index].connection
        try:
            PackedMessages([message]).send(0, connection, segment.fd)
        except OSError:
            if connection.closed:
                raise ClosedError("cannot go on: the pool was closed meanwhile") from None
            raise

    def replace(
        self, index: int, attachment: Attachment, segment: Segment, layout: tuple[Layout, Segment]
    ) -> None:
        """End a worker and start another in its place, without waiting for it. May be repeated."""
        before = self.children[index]
        before.kill()
        before.ended(SHUTDOWN_TIMEOUT_S)
        self.children[index] = self._start(index)
        before.release()
        # If the new worker is lost already, the watch notices.
        with contextlib.suppress(ConnectionError):
            self._set_up(index, replace(self._setup, is_replacement=True))
            self._send(index, attachment, segment)
            self._send(index, *layout)

    # -- losses and failures ---------------------------------------------------------------------

    @contextlib.contextmanager
    def _noticing_loss(self, index: int) -> Iterator[None]:
        """Raise WorkerLostError if the connection to a worker that is starting breaks."""
        try:
            yield
        except (EOFError, ConnectionError):
            raise self.lost(index, "being made") from None

    def lost(self, index: int, doing: str, why: str = "") -> WorkerLostError:
        """Return the error for a worker that ended while ``doing`` something.

        ``why`` replaces its signal or exit code in the message.
        """
        _block_daemon_thread_at_exit()
        child, assignment = self.children[index], self.assignments[index]
        child.ended(SHUTDOWN_TIMEOUT_S)
        status = child.status()
        how = "ended"
        if status is not None:
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
        doing = f"{assignment} {doing}" if doing == "being made" else f"{doing} {assignment}"
        text = f"worker {index} (pid {child.pid}) lost: {why or how} while {doing}"
        failure = self._failure_of(child)
        if failure is not None:
            stage = "it could not start" if failure.doing != "serving" else "it failed"
            text += f"; {stage}: {failure.report.kind}: {failure.report.text}"
        error = WorkerLostError(text)
        if failure is not None:
            error.__cause__ = self.error_of(index, failure, "being made")
        error.worker, error.pid = index, child.pid
        error.exit_code, error.envs = status, assignment.envs
        return error

    def _failure_of(self, child: Child) -> Failure | None:
        """Return the failure that a worker reported before it ended, if any."""
        with contextlib.suppress(OSError, EOFError):
            while child.connection.poll():
                message = child.connection.recv_bytes()
                with contextlib.suppress(Exception):
                    if isinstance(failure := loads(message), Failure):
                        return failure
        return None

    def name_of(self, index: int) -> str:
        """Return the name of a worker in errors."""
        return f"worker {index} (pid {self.children[index].pid})"


def _block_daemon_thread_at_exit() -> None:
    """Never return in a daemon thread while the program exits: the exit has ended the workers."""
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        threading.Event().wait()


def _end(children: list[Child], launcher: Launcher, owner: int, wait: float = 0) -> None:
    """End workers. Without ``wait`` it asks nothing, because finalizers call this at any time."""
    if os.getpid() != owner:  # this is a fork of their parent
        return
    for child in children:
        child.kill()
    for child in children:
        child.ended(SHUTDOWN_TIMEOUT_S)
        child.release()
    launcher.close([child.pid for child in children], wait)
