"""A worker process: makes its envs, attaches to the frames, steps blocks until told to close.

``main`` is where every worker begins, whatever process it came from. What it is to host comes as a
pickled function and its arguments; the loop that steps the blocks is in C++ (``_core.Worker``).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import sys
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from pysampler import _core
from pysampler.block import EnvHost, Failure, failure_of, plain
from pysampler.frames import Frames
from pysampler.mail import Outbox
from pysampler.remote import dumps
from pysampler.stats import Counters
from pysampler.sync import Segment, WaitPolicy, Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler.frames import Plan

__all__ = ["Attachment", "Layout", "Setup", "main", "wait_policy"]


# With context="fork", what the workers are to host, each at its index.
inherited: Sequence[Any] = []
# Whether this process takes the place of a lost worker. Its host may ask when it is made.
again = False


@dataclass(frozen=True)
class Setup:
    """What a worker needs to make its envs."""

    index: int
    workers: int
    parent: int  # pid
    environment: dict[str, str]
    directory: str
    path: list[str]
    arguments: list[str]
    host: bytes | None  # pickled (function, arguments), or inherited
    again: bool  # in the place of another one: nobody asks what it hosts


@dataclass(frozen=True)
class Layout:
    """Where frames lie, in a segment of their own whose fd comes with it."""

    frames: int
    plan: Plan
    host: tuple[Any, ...]  # further arguments of host.attach


@dataclass(frozen=True)
class Attachment:
    """Where everything else lies, in the segment whose fd comes with it; then comes a layout."""

    pool: int
    groups: list[int]
    inbox: int
    outbox: int
    capacity: int  # of either
    envs: int
    counters: int
    counters_size: int
    policy: tuple[int, int] | None
    costs: tuple[int, int]


def main(fd: int) -> None:
    """Run a worker at the other end of this socket."""
    global again
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection = Connection(fd)
    try:
        setup: Setup = connection.recv()
        again = setup.again
        Watch().leave_with(setup.parent)
        _settle(setup)
        before = set(sys.modules)
        host = _make_host(setup, connection)
        if host is None:
            return
        description = host.describe()
        _core.set_process_title(
            f"pysampler: worker {setup.index}/{setup.workers} {description.name}"
        )
        if not setup.again:
            connection.send_bytes(dumps((description, _installed(set(sys.modules) - before))))
        attachment, segment = _received(connection)
        server = _Server(setup, attachment, segment, host, connection)
        connection.send_bytes(b"attached")
    except (EOFError, ConnectionError):  # the parent gave up
        return
    server.run()


def _received(connection: Connection) -> tuple[Any, Segment]:
    """What the parent says lies in a segment, and that."""
    what = connection.recv()
    fd = reduction.recv_handle(connection)
    try:
        return what, Segment.from_fd(fd)
    finally:
        os.close(fd)


def _settle(setup: Setup) -> None:
    """Look like the process the user wrote the envs in."""
    os.environ.clear()
    os.environ.update(setup.environment)
    with contextlib.suppress(OSError):
        os.chdir(setup.directory)
    sys.path[:] = setup.path
    sys.argv[:] = setup.arguments
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            # Whole lines, so that those of workers do not mix; also where Python runs unbuffered.
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    # Forks of one process must not draw the same numbers.
    random.seed()
    np.random.seed(None)
    _core.set_process_title(f"pysampler: worker {setup.index}/{setup.workers}")


def _make_host(setup: Setup, connection: Connection) -> EnvHost | None:
    try:
        if setup.host is None:
            function, arguments = inherited[setup.index]
        else:
            function, arguments = cloudpickle.loads(setup.host)
        host: EnvHost = function(*arguments)
    except BaseException as error:
        connection.send_bytes(dumps(failure_of(error, "starting")))
        return None
    return host


def _installed(modules: set[str]) -> list[str]:
    """Those that are not the user's own, which may change before they are wanted again."""
    library, packages = Path(os.__file__).parent, Path(np.__file__).parents[1]
    return [
        name
        for name in modules
        if (file := getattr(sys.modules.get(name), "__file__", None))
        and {library, packages} & set(Path(file).parents)
    ]


def wait_policy(fixed: tuple[int, int] | None) -> WaitPolicy | None:
    """That spins and yields for so many ns before it parks; None is the one that learns."""
    return None if fixed is None else WaitPolicy.fixed(spin_ns=fixed[0], yield_ns=fixed[1])


class _Server:
    """The worker from when it is attached."""

    def __init__(
        self,
        setup: Setup,
        attachment: Attachment,
        segment: Segment,
        host: EnvHost,
        connection: Connection,
    ) -> None:
        at = attachment
        _core.adopt_wait_costs(*at.costs)
        counted = segment.array((at.counters_size,), np.dtype(np.uint8), at.counters)[1]
        meter = Counters(at.envs, len(at.groups), counted).meter(setup.index)
        host.count_with(meter)
        self.host = host
        self.connection = connection
        self.lay_out()
        meter.idle()
        self.trouble: Failure | None = None
        self.first_group = sum(at.groups[: setup.index])
        policy = wait_policy(at.policy)
        self.core = _core.Worker(segment, at.pool, at.groups, setup.index, meter, policy)
        self.inbox = _core.ByteRing(segment, at.capacity, offset=at.inbox)
        self.outbox = Outbox(_core.ByteRing(segment, at.capacity, offset=at.outbox))

    def lay_out(self) -> None:
        """Go on with the frames that the parent tells of."""
        layout, segment = _received(self.connection)
        memory = segment.array((layout.plan.size,), np.dtype(np.uint8), layout.frames)[1]
        self.host.attach(Frames(layout.plan, memory), segment, *layout.host)

    def run(self) -> None:
        while True:
            kind, group, frame = self.core.serve(self.host.blocks, self.report, self.outbox.flush)
            message = self.inbox.recv()
            block = group - self.first_group
            name = "asked for something"
            answer: Any = None
            try:
                name, arguments = pickle.loads(message)
                if name == "close":
                    self.host.close()
                elif name == "lay_out":
                    if arguments[0]:
                        self.lay_out()
                else:
                    answer = self.host.answer(name, block, frame, arguments)
            except BaseException as error:
                answer = failure_of(error, name)
            if kind == _core.Command.NOTE:
                # Nobody waits for an answer: if it failed, whatever comes next did.
                self.trouble = self.trouble or answer
                self.core.set_left_over(self.trouble is not None)
                continue
            answer, self.trouble = self.trouble or answer, None
            self.core.complete(group, message=True)
            unsent = self.outbox.post(group, self.pickled(answer, name))
            if name == "close":
                while unsent:
                    unsent = self.outbox.flush()
                return

    def report(self, group: int) -> bool:
        leftovers: Any = plain(self.host.blocks[group - self.first_group].take_leftovers())
        if self.trouble is not None:
            leftovers, self.trouble = self.trouble, None
        return self.outbox.post(group, self.pickled(leftovers, "step"))

    def pickled(self, answer: Any, doing: str) -> bytes:
        try:
            return dumps(answer)
        except Exception as error:
            return dumps(failure_of(error, f"sending what {doing} returned"))
