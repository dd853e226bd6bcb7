"""A worker process: makes its host, attaches to its memory, does jobs until told to close.

``main`` is where every worker begins, whatever process it came from. What it is to host comes as a
pickled function and its arguments; the loop that steps the blocks is in C++ (``_core.Worker``).
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import resource
import signal
import socket
import sys
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from pysampler import _core
from pysampler._workers.counters import Counters
from pysampler._workers.jobs import Close, Failure, LayOut, Note, failure_of
from pysampler._workers.mail import Outbox
from pysampler._workers.remote import dumps
from pysampler._workers.seeds import seed_globals
from pysampler.sync import Segment, WaitPolicy, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pysampler._workers.jobs import Attach, Host

__all__ = ["ArrayPlace", "Attachment", "Layout", "Setup", "main", "wait_policy"]


# Whether this process takes the place of a lost worker. Its host may ask when it is made.
again = False


@dataclass(frozen=True)
class ArrayPlace:
    """Where the memory of an array of the host lies, in a segment."""

    at: int
    size: int
    readonly: bool


@dataclass(frozen=True)
class Setup:
    """What a worker needs to make its host."""

    index: int
    workers: int
    environment: dict[str, str]
    directory: str | None  # that it works in; None if it was deleted
    path: list[str]
    arguments: list[str]
    host: bytes | None  # pickled (function, arguments), or inherited
    arrays: tuple[ArrayPlace, ...]  # of the host; if there are any, their segment's fd follows
    open_files: int  # how many there may be
    logging: Logging | None  # None: as it is
    again: bool  # it replaces a lost worker, and need not describe its host


@dataclass(frozen=True)
class Logging:
    """How the root logger of the parent is set up, as far as a worker can be like it."""

    level: int
    format: tuple[str | None, str | None, str] | None  # format, datefmt, style; None: no handler
    captures_warnings: bool

    @classmethod
    def here(cls) -> Logging:
        """Return how this process has it."""
        root = logging.getLogger()
        format_: tuple[str | None, str | None, str] | None = None
        for handler in root.handlers[:1]:
            formatter = handler.formatter or logging.Formatter()
            style = getattr(formatter, "_style", None)
            styles: dict[Any, str] = {kind: name for name, (kind, _) in logging._STYLES.items()}
            # A formatter of the user's own kind stays behind.
            if type(formatter) is logging.Formatter and type(style) in styles:
                format_ = formatter._fmt, formatter.datefmt, styles[type(style)]
        captures = getattr(logging, "_showwarning", None) is warnings.showwarning
        return cls(root.level, format_, captures)

    def set_up(self) -> None:
        """Set up this process's root logger like it, writing to stderr."""
        root = logging.getLogger()
        root.setLevel(self.level)
        logging.captureWarnings(self.captures_warnings)
        if self.format is not None:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(*self.format))  # type: ignore[arg-type]
            root.handlers[:] = [handler]


@dataclass(frozen=True)
class Layout:
    """What lies in a segment of its own, whose fd comes with it."""

    number: int  # of the layouts of this pool
    attach: Attach


@dataclass(frozen=True)
class Attachment:
    """Where everything else lies, in the segment whose fd comes with it; then comes a layout."""

    pool: int
    groups: list[int]
    inbox: int
    outbox: int
    capacity: int  # of either
    members: int
    counters: int
    counters_size: int
    policy: tuple[int, int] | None
    costs: tuple[int, int]


def main(fd: int, parent: int, inherited: Any = None) -> None:
    """Run a worker at the other end of this socket.

    ``parent``: the process that wants it, and that it ends with. ``inherited``: the function that
    makes its host and the arguments, in a fork of the parent.
    """
    global again
    _core.outlive_signals()  # the parent decides, and this one follows it
    os.set_inheritable(fd, False)  # noqa: FBT003
    os.register_at_fork(after_in_child=_default_signals)
    with contextlib.suppress(PermissionError):  # an interpreter of its own has one already
        os.setsid()
    Watch().leave_with(parent)
    connection = Connection(fd)
    try:
        setup: Setup = connection.recv()
        again = setup.again
    except (EOFError, ConnectionError):  # the parent gave up
        return
    with _saying_what_failed(connection, "starting"):
        _settle(setup)
        before = set(sys.modules)
        host = _made_host(setup, connection, inherited)
        description = host.describe()
        _core.set_process_title(
            f"pysampler: worker {setup.index}/{setup.workers} {description.name}"
        )
        hosted = dumps((description, _installed(set(sys.modules) - before)))
        try:
            if not setup.again:
                connection.send_bytes(hosted)
            attachment, segment = _received(connection)
        except (EOFError, ConnectionError):
            return
        server = _Server(setup, attachment, segment, host, connection)
        with contextlib.suppress(ConnectionError):
            connection.send_bytes(b"attached")
    with _saying_what_failed(connection, "serving"):
        server.run()


def _default_signals() -> None:
    """In what an env forks: as if this process had never outlived any signals."""
    _core.default_signals()
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _saying_what_failed(connection: Connection, doing: str) -> Iterator[None]:
    """Tell the parent in words what this process ends with."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and doing == "serving":  # of an env: its exit code says it
            raise
        with contextlib.suppress(OSError):
            connection.send_bytes(dumps(failure_of(error, doing)))
        raise SystemExit(1) from None


def _received(connection: Connection) -> tuple[Any, Segment]:
    """What the parent says lies in a segment, and that."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        where, fds, _, _ = socket.recv_fds(end, 16, 2, socket.MSG_CMSG_CLOEXEC)
    if not where:
        raise EOFError
    try:
        at, size = (int.from_bytes(part, "little") for part in (where[:8], where[8:]))
        told = os.pread(fds[0], size, at)
        segment = Segment.from_fd(fds[1])
    finally:
        for fd in fds:
            os.close(fd)
    return pickle.loads(told), segment


def _settle(setup: Setup) -> None:
    """Look like the process the user wrote the envs in."""
    os.environ.clear()
    os.environ.update(setup.environment)
    if setup.directory is not None:
        with contextlib.suppress(OSError):
            os.chdir(setup.directory)
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (setup.open_files, hard))
    sys.path[:] = setup.path
    sys.argv[:] = setup.arguments
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            # Whole lines, so that those of workers do not mix; also where Python runs unbuffered.
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    if setup.logging is not None:
        setup.logging.set_up()
    # Forks of one process must not draw the same numbers.
    seed_globals(np.random.SeedSequence())
    _core.set_process_title(f"pysampler: worker {setup.index}/{setup.workers}")


def _made_host(setup: Setup, connection: Connection, inherited: Any) -> Host:
    if setup.host is None:
        function, arguments = inherited
    else:
        arrays = _arrays(setup, connection) if setup.arrays else []
        function, arguments = cloudpickle.loads(setup.host, buffers=arrays)
    host: Host = function(*arguments)
    return host


def _arrays(setup: Setup, connection: Connection) -> list[memoryview]:
    """Return the memory of the host's arrays. What an env writes there, no other worker sees."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        _, [fd], _, _ = socket.recv_fds(end, 16, 1, socket.MSG_CMSG_CLOEXEC)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    memory = memoryview(mmap.mmap(fd, 0, mmap.MAP_PRIVATE, protection))
    os.close(fd)
    parts = [memory[one.at : one.at + one.size] for one in setup.arrays]
    return [
        part.toreadonly() if one.readonly else part
        for part, one in zip(parts, setup.arrays, strict=True)
    ]


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
        host: Host,
        connection: Connection,
    ) -> None:
        at = attachment
        _core.adopt_wait_costs(*at.costs)
        counted = segment.array((at.counters_size,), np.dtype(np.uint8), at.counters)[1]
        meter = Counters(at.members, len(at.groups), counted).meter(setup.index)
        host.count_with(meter)
        self.host = host
        self.connection = connection
        self.layout = self.laid_out = 0
        self.lay_out(1)
        meter.idle()
        self.trouble: Failure | None = None
        self.first_group = sum(at.groups[: setup.index])
        policy = wait_policy(at.policy)
        self.core = _core.Worker(segment, at.pool, at.groups, setup.index, meter, policy)
        self.inbox = _core.ByteRing(segment, at.capacity, offset=at.inbox)
        ring = _core.ByteRing(segment, at.capacity, offset=at.outbox)
        self.outbox = Outbox(ring, connection.fileno())

    def lay_out(self, number: int) -> None:
        """Go on with the frames of that number, which the parent has told of, or will."""
        while self.layout < number:  # those before were given up
            layout, segment = _received(self.connection)
            self.layout = layout.number
        if self.layout == self.laid_out:  # this worker began with them
            return
        self.laid_out = self.layout
        layout.attach.attach(self.host, segment)

    def run(self) -> None:
        while True:
            kind, group, frame, number = self.core.serve(
                self.host.blocks, self.report, self.outbox.flush
            )
            message = self.inbox.recv()
            block = group - self.first_group
            asked: Any = "reading what it is asked"
            answer: Any = None
            try:
                asked = pickle.loads(message)
                match asked:
                    case Note():
                        asked.apply(self.host)
                    case Close():
                        self.host.close()
                    case LayOut():
                        self.lay_out(asked.number)
                    case _:
                        answer = asked.run(self.host, block, frame)
            except BaseException as error:
                answer = failure_of(error, asked)
            if kind == _core.Command.NOTE:
                # There is no answer: if it failed, the next answer says so.
                self.trouble = self.trouble or answer
                self.core.set_left_over(self.trouble is not None)
                continue
            answer, self.trouble = self.trouble or answer, None
            self.core.complete(group, message=True)
            doing = asked if isinstance(asked, str) else asked.doing
            unsent = self.outbox.post(group, number, self.pickled(answer, doing))
            if isinstance(asked, Close):
                while unsent:
                    unsent = self.outbox.flush()
                return

    def report(self, group: int, number: int) -> bool:
        leftovers: Any = self.host.left_over(group - self.first_group)
        if self.trouble is not None:
            leftovers, self.trouble = self.trouble, None
        return self.outbox.post(group, number, self.pickled(leftovers, "stepping"))

    def pickled(self, answer: Any, doing: str) -> bytes:
        try:
            return dumps(answer)
        except Exception as error:
            return dumps(failure_of(error, f"sending what came of {doing}"))
