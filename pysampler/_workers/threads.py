"""Threads: the workers of a pool that are threads of this process.

They run the same loop over the same commands and completions as worker processes. Messages travel
in their mail as numbers of objects, so nothing is pickled: the env server of a thread gets the
objects of the program, and the program those of the envs.

A thread cannot be killed. Once its pool ends, it leaves after the step that it is in.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._workers.children import await_ends, has_left
from pysampler._workers.command_loop import CommandLoop
from pysampler._workers.jobs import Failure, Note, failure_of
from pysampler._workers.processes import Workers
from pysampler.errors import LostError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler._workers.processes import WorkerAssignment
    from pysampler._workers.setup import Attachment, Layout, MakeServer
    from pysampler.errors import EnvError
    from pysampler.sync import Segment

__all__ = ["ThreadLane", "Threads", "WorkerThread"]

# Seconds for which a program that ends waits for steps under way.
_AT_EXIT = 1.0


class _Desk:
    """What a thread and its parent pass to each other: objects, by numbers that travel as mail."""

    def __init__(self) -> None:
        # The attachment and layouts, each with its segment; None: the thread ends.
        self.layouts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.begun: queue.SimpleQueue[Any] = queue.SimpleQueue()  # to the parent
        # By group: the number of its command, and the answer.
        self.answers: dict[int, tuple[int, Any]] = {}
        self.part: _core.Part | None = None  # to be marked lost, should the thread fail
        self.failure: Failure | None = None  # what ended it
        self.ended = False  # True once the thread must leave
        self._objects: dict[int, list[Any]] = {}  # by their ids, each in a list of its own

    def pack(self, message: Any) -> bytes:
        """Keep a job or note for the thread; return the message that names it."""
        kept = [message.snapshot() if isinstance(message, Note) else message]
        self._objects[id(kept)] = kept
        return id(kept).to_bytes(8, "little")

    def unpacked(self, number: bytes) -> Any:
        """Return the job or note that a number names."""
        [message] = self._objects.pop(int.from_bytes(number, "little"))
        return message


class _ThreadLink:
    """The link of a thread to its parent."""

    def __init__(self, attachment: Attachment, segment: Segment, desk: _Desk) -> None:
        self._desk = desk
        inbox = _core.ByteRing(segment, attachment.capacity, offset=attachment.inbox)
        self.receive = inbox.recv
        self.unpacked = desk.unpacked

    def receive_layout(self) -> tuple[Layout, Segment]:
        """Return the next layout and its segment."""
        return self._desk.layouts.get()

    def post(self, group: int, number: int, answer: Any, doing: str) -> bool:  # noqa: ARG002
        """Leave an answer for the parent."""
        self._desk.answers[group] = number, answer
        return False

    def flush(self) -> bool:
        """Return that nothing is unsent."""
        return False


class ThreadLane:
    """The lane of a thread."""

    def __init__(self, index: int, threads: Threads, native: _core.Pool) -> None:
        self._index = index
        self._threads = threads
        self._native = native
        self._desk = threads.children[index].desk
        self.pack = self._desk.pack

    def answer(self, group: int, doing: str, deadline: int | None) -> Any:  # noqa: ARG002
        """Return the answer, which the thread has left before its completion."""
        number, answer = self._desk.answers[group]
        assert number == self._native.number_of(group)
        return answer

    def drop(self, group: int) -> None:
        """Free the answer of a group."""
        self._desk.answers.pop(group, None)

    def error_of(self, failure: Failure, doing: str) -> EnvError:
        """Return the error, which names the thread."""
        return self._threads.error_of(self._index, failure, doing)


class WorkerThread:
    """A worker that is a thread, as a pool sees it."""

    def __init__(self, index: int, make: MakeServer) -> None:
        self.desk = _Desk()
        self.loops: list[CommandLoop] = []  # once it is attached
        arguments, name = (index, make, self.desk, self.loops), f"pysampler-{index}"
        self._thread = threading.Thread(target=_run, args=arguments, name=name, daemon=True)
        self.start = self._thread.start

    @property
    def pid(self) -> int:
        """The number that the kernel gave the thread."""
        return self._thread.native_id or 0

    def ended(self, timeout: float = 0) -> bool:
        """Return whether the thread ends within ``timeout`` seconds, or has ended."""
        return has_left(self._thread, timeout) or self.desk.failure is not None

    def stopped(self) -> bool:
        """Return False: a stopped program does not ask."""
        return False


class Threads(Workers):
    """The workers of a pool that are threads.

    Args:
        assignments: The envs and groups of each.
        servers: The function that makes the env server of each, and its arguments.
    """

    can_die = False
    mail = 1 << 12  # bytes of an inbox, which carries numbers

    def __init__(
        self, assignments: Sequence[WorkerAssignment], servers: Sequence[MakeServer]
    ) -> None:
        self.assignments = list(assignments)
        self.children: list[WorkerThread] = []
        self._owner = os.getpid()
        weakref.finalize(self, _end, self.children, self._owner).atexit = False
        _unended.add(self)
        try:
            for index, make in enumerate(servers):
                self.children.append(WorkerThread(index, make))  # first, to be told to end
                self.children[index].start()
            self.descriptions = [self._begun(index, "being made") for index in range(len(servers))]
        except BaseException:
            self.end()
            raise
        self._number_envs()

    def _begun(self, index: int, doing: str) -> Any:
        answer = self.children[index].desk.begun.get()
        if isinstance(answer, Failure):
            raise self.error_of(index, answer, doing)
        return answer

    def lane(self, index: int, native: _core.Pool) -> ThreadLane:
        """Return the lane of a thread."""
        return ThreadLane(index, self, native)

    def attach(
        self,
        attachments: Sequence[Attachment],
        segment: Segment,
        layout: tuple[Layout, Segment],
        parts: Sequence[_core.Part],
    ) -> None:
        """Attach all threads to a segment and a first layout, and wait until they are attached.

        A thread that fails later marks its part as lost.
        """
        for child, attachment, part in zip(self.children, attachments, parts, strict=True):
            child.desk.part = part
            child.desk.layouts.put((attachment, segment))
            child.desk.layouts.put(layout)
        for index in range(len(self.children)):
            self._begun(index, "starting")

    def lay_out(self, index: int, layout: tuple[Layout, Segment]) -> None:
        """Give a thread another layout and its segment."""
        self.children[index].desk.layouts.put(layout)

    def end(self, wait: float = 0) -> None:
        """Let the threads leave, and wait for up to ``wait`` seconds. May be repeated."""
        _end(self.children, self._owner, wait)

    def name_of(self, index: int) -> str:
        """Return the name of a worker in errors."""
        return f"thread {index}"

    def lost(self, index: int, doing: str, why: str = "") -> WorkerLostError:  # noqa: ARG002
        """Return the error for a thread that ended while ``doing`` something."""
        failure = self.children[index].desk.failure
        assert failure is not None
        error = WorkerLostError(
            f"{self.name_of(index)} ended while {doing} {self.assignments[index]}: "
            f"{failure.report.kind}: {failure.report.text}"
        )
        error.__cause__ = failure.report.error
        error.worker, error.envs = index, self.assignments[index].envs
        return error


def _run(index: int, make: MakeServer, desk: _Desk, loops: list[CommandLoop]) -> None:
    """Run a thread, which does not know its pool, so that the pool can be collected."""
    doing = "being made"
    with contextlib.suppress(Exception), contextlib.ExitStack() as ending:
        try:
            function, arguments = make
            server = function(*arguments)
            ending.callback(server.close)  # of whose exceptions no caller could learn
            desk.begun.put(server.describe())
            doing = "starting"
            if (first := desk.layouts.get()) is None:
                return
            attachment, segment = first
            link = _ThreadLink(attachment, segment, desk)
            ending.callback(loops.clear)
            loops.append(CommandLoop(index, attachment, segment, server, link))
            desk.begun.put(None)
            doing = "serving"
            if desk.ended:  # before the pool could see the loop
                return
            loops[0].run()
        except BaseException as error:
            if doing != "serving":
                desk.begun.put(failure_of(error, doing))
            elif not isinstance(error, LostError):  # which says that the pool has ended
                desk.failure = failure_of(error, doing)
                assert desk.part is not None
                desk.part.mark_lost()


def _end(children: list[WorkerThread], owner: int, wait: float = 0) -> None:
    if os.getpid() != owner:  # a fork has no threads
        return
    for child in children:
        child.desk.ended = True
        child.desk.layouts.put(None)
        for loop in child.loops:
            loop.core.end_commands()
            loop.server.stop()
    deadline = time.monotonic() + wait
    await_ends(children, lambda: deadline - time.monotonic())


_unended: weakref.WeakSet[Threads] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End all threads, which must not return to Python from C++ once the interpreter is ending."""
    for threads in [*_unended]:
        threads.end()
    deadline = time.monotonic() + _AT_EXIT
    for threads in [*_unended]:
        threads.end(deadline - time.monotonic())
