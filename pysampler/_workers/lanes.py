"""Lanes: each runs the commands of some groups and delivers their answers.

A pool has one lane for each worker, and one more if the caller's thread runs groups itself. All
lanes share one ``_core.Pool``, which tracks the groups that are in flight, ready or taken, and the
order in which they came back. A lane knows only how to reach its side:

==========  ==================  =======================  ===========================
            process             thread (threads.py)      inline
==========  ==================  =======================  ===========================
runs        a worker process    a thread of its own      this thread, when it waits
woken by    its command ring    its command ring         nothing
answers     by mail             objects, left for this   objects, kept here
ends        with its process    after its step           with the pool
==========  ==================  =======================  ===========================

An inline lane runs its commands when the pool is about to wait, not when they are sent, so that
the workers get theirs first and step meanwhile.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

from pysampler import _core
from pysampler._workers.exceptions import error_from, report
from pysampler._workers.jobs import Failure, failure_of, is_users
from pysampler._workers.mail import Inbox
from pysampler._workers.remote import dumps_by_value, loads
from pysampler.errors import ClosedError, EnvError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pysampler._workers.gauges import WorkerGauges
    from pysampler._workers.jobs import Attach, Job, Note, Server
    from pysampler._workers.processes import Processes, WorkerAssignment
    from pysampler._workers.setup import MakeServer
    from pysampler.sync import Segment

__all__ = ["InlineLane", "Lane", "ProcessLane"]

_NOTE: int = _core.Command.NOTE


class Lane(Protocol):
    """The interface of a lane, wherever its groups run."""

    def answer(self, group: int, doing: str, deadline: int | None) -> Any:
        """Return the answer of a group to its last command, as often as asked until ``drop``.

        Raises WaitTimeoutError if it has not arrived in full by the deadline, in ns.
        """

    def drop(self, group: int) -> None:
        """Free the answer of a group that was taken."""

    def error_of(self, failure: Failure, doing: str) -> EnvError:
        """Return the error for a failure of an env, or of the env server of the lane."""


class ProcessLane:
    """The lane of one worker process, and later of its replacements."""

    def __init__(
        self,
        index: int,
        processes: Processes,
        native: _core.Pool,
        outbox: _core.ByteRing,
        groups: range,
    ) -> None:
        self._index = index
        self._processes = processes
        self._native = native
        self._outbox = outbox  # of the worker
        self._groups = groups
        self.renew_mail()

    def renew_mail(self) -> None:
        """Read the mail of the worker's present process from now on."""
        socket = functools.partial(self._processes.socket_of, self._index)
        self._mail = Inbox(self._outbox, self._groups, socket)

    def answer(self, group: int, doing: str, deadline: int | None) -> Any:
        """Return the worker's answer, or a Failure if it cannot be unpickled here."""
        message = self._mail.read(group, self._native.number_of(group), deadline)
        try:
            return loads(message)
        except Exception as error:
            # Try again, to tell an answer that cannot be unpickled from a signal handler that
            # raised: the latter's exception goes to the caller, and the next wait reads the answer.
            try:
                loads(message)
            except Exception as repeated:
                return Failure(None, f"when {doing}, in its answer", report(repeated))
            raise error

    def pack(self, message: Job | Note) -> bytes:
        """Return a message to the worker."""
        return dumps_by_value(message)

    def drop(self, group: int) -> None:
        """Free the memory of the message with a group's answer."""
        self._mail.drop(group)

    def error_of(self, failure: Failure, doing: str) -> EnvError:
        """Return the error, which names the worker."""
        return self._processes.error_of(self._index, failure, doing)


class InlineLane:
    """The lane of this process: envs that the caller's own thread serves.

    A signal handler may raise while a command runs. The command then stays in flight, and the next
    wait runs it again: a job from its beginning. If it has interrupted a step, the envs of the
    block are replaced by themselves first, as if they had been lost.

    Args:
        assignment: The envs and groups of the lane.
        make: Returns the function that makes the env server, and its arguments.
        first: The number of its first env, now that those of the workers are known.
        ended: Returns which of some envs have just ended their episodes, or None; see ``Pool``.
    """

    def __init__(
        self,
        assignment: WorkerAssignment,
        make: Callable[[WorkerAssignment], MakeServer],
        first: int,
        ended: Callable[[range], Sequence[bool] | None],
    ) -> None:
        self.assignment = assignment
        self._ended = ended
        # By group: the number of its command, and the answer besides the frame's content.
        self._answers: dict[int, tuple[int, Any]] = {}
        self._failed_note: Failure | None = None
        function, arguments = make(assignment)
        try:
            server: Server = function(*arguments)
            server.inline = True
            self.description: Any = server.describe()
            self.assignment = assignment.with_sizes(first, self.description.sizes)
        except Exception as error:
            failed = self.error_of(failure_of(error, "being made"), "being made")
            raise failed from error.__cause__
        self._server: Server | None = server
        self._closing: Server | None = None  # if an interrupt has left some of its envs open

    def attach(
        self, native: _core.Pool, first: int, meter: _core.Meter, gauges: WorkerGauges
    ) -> None:
        """Run the groups of a pool from ``first`` on; count with this meter and these gauges."""
        self._native = native
        self._first = first
        meter.idle()
        self._open_server().count_with(meter, gauges, self.assignment.first)

    def lay_out(self, segment: Segment, attach: Attach) -> None:
        """Attach the env server to a segment, such as one with frames."""
        server = self._open_server()
        attach.attach(server, segment)
        self._native.set_inline_blocks(server.blocks)

    def note(self, note: Note) -> None:
        """Apply a note to the env server before its next command. Any thread may call this."""
        self._native.note_inline(note.snapshot())

    def run(self, job_of: Callable[[int], Job | None]) -> None:
        """Run all commands that are due: C++ runs the steps, this the jobs and notes."""
        while not self._native.run_inline():
            kind, group, frame, note = self._native.due
            if kind == _NOTE:
                self._apply(note)
                continue
            job = job_of(group)
            self._prepare(group, job)
            if job is not None:
                self._run(job, group, frame)

    def _prepare(self, group: int, job: Job | None) -> None:
        """Let the envs of a group replace lost ones if an exception has interrupted their step."""
        block = self._open_server().blocks[group - self._first]
        if getattr(block, "torn", False):
            if job is None or not job.begins_all:
                envs = self.assignment.group_envs[group - self._first]
                block.replace([None] * len(envs), self._ended(envs) or [])
            block.torn = False
        if job is not None and (job.steps_envs or getattr(block, "fresh", False)):
            block.torn = True  # until it is done

    def _apply(self, note: Note) -> None:
        """Apply a note. Since notes have no answer, the next answer reports a failure."""
        try:
            note.apply(self._open_server())
        except BaseException as error:
            if is_users(error, inline=True):
                raise
            self._failed_note = self._failed_note or failure_of(error, note)
            self._native.set_overflow(overflow=True)
        self._native.complete_inline(message=False)

    def _run(self, job: Job, group: int, frame: int) -> None:
        try:
            answer = job.run(self._open_server(), group - self._first, frame)
        except BaseException as error:
            if is_users(error, inline=True) or self._server is None:
                raise
            answer = failure_of(error, job)
        self._answers[group] = self._native.number_of(group), self._failed_note or answer
        self._native.complete_inline(message=True)
        self._failed_note = None

    def answer(self, group: int, doing: str, deadline: int | None) -> Any:  # noqa: ARG002
        """Return the result of a job, or the overflow of a step."""
        number = self._native.number_of(group)
        known, answer = self._answers.get(group, (None, None))
        if known == number:
            return answer
        answer = self._failed_note or self._open_server().peek_overflow(group - self._first)
        self._answers[group] = number, answer
        self._failed_note = None
        return answer

    def drop(self, group: int) -> None:
        """Free the answer of a group."""
        self._answers.pop(group, None)

    def error_of(self, failure: Failure, doing: str) -> EnvError:
        """Return the error, which names no worker."""
        original = failure.report.error
        if isinstance(original, EnvError) and original.env == failure.env:
            return original  # of a vector env with workers: it names the env already
        error = error_from(failure.report, self.assignment.describe(failure, "", doing))
        error.env = failure.env
        return error

    def close(self) -> None:
        """Close the envs, or raise EnvError. May be repeated."""
        server = self._server or self._closing
        self._server = self._closing = None
        if server is None:
            return
        try:
            server.close()
        except Exception as error:
            raise self.error_of(failure_of(error, "close()"), "closing") from error.__cause__
        except BaseException:
            self._closing = server
            raise

    def _open_server(self) -> Server:
        """Return the env server; raise ClosedError if a signal handler has closed it meanwhile."""
        if self._server is None:
            raise ClosedError("cannot go on: the envs were closed meanwhile")
        return self._server
