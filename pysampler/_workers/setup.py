"""Starting a worker: the messages that set it up, how the parent sends and the worker reads them.

First comes a ``Setup`` with the env server, then an ``Attachment`` and a ``Layout``, each with the
segment that it describes. Further layouts may follow while the worker serves. Large arrays of env
servers are not pickled: all workers map one copy-on-write segment, so n workers need one copy.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import socket
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from pysampler import _core
from pysampler._workers.header import LINE
from pysampler._workers.remote import collected, dumps_by_value
from pysampler.sync import Segment, WaitPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    import numpy.typing as npt

    from pysampler._workers.jobs import Attach
    from pysampler._workers.shared_arrays import SealedMemory

    # A function that makes an env server, and its arguments.
    MakeServer = tuple[Callable[..., Any], tuple[Any, ...]]

__all__ = [
    "ArraySpan",
    "Attachment",
    "Layout",
    "LoggingSetup",
    "PackedMessages",
    "PackedServers",
    "Setup",
    "UnpicklableError",
    "receive_descriptor",
    "receive_message",
    "unpack_server",
    "wait_policy",
]

# Arrays of an env server of at least this many bytes are shared by all workers, copy-on-write.
_LARGE = 1 << 16


@dataclass(frozen=True)
class ArraySpan:
    """The place in a segment of one array of an env server."""

    begin: int
    size: int
    readonly: bool


@dataclass(frozen=True)
class Setup:
    """The process state and the pickled function from which a worker makes its env server."""

    index: int
    workers: int
    environment: dict[str, str]
    directory: str | None  # working directory; None if it was removed
    path: list[str]  # sys.path, with absolute entries
    arguments: list[str]  # sys.argv
    server: bytes | None  # pickled function and arguments; None if they are inherited
    arrays: tuple[ArraySpan, ...]  # of the env server; if not empty, their segment's fd follows
    shared: int  # the number of sealed memories whose descriptors follow then
    open_files: int  # soft limit
    logging: LoggingSetup | None  # None: leave it as it is
    is_replacement: bool  # of another worker: then it does not describe its env server


@dataclass(frozen=True)
class LoggingSetup:
    """The settings of the parent's root logger that a worker can copy."""

    level: int
    format: tuple[str | None, str | None, str] | None  # format, datefmt, style; None: no handler
    captures_warnings: bool

    @classmethod
    def here(cls) -> LoggingSetup:
        """Return the settings of this process's root logger."""
        root = logging.getLogger()
        format_: tuple[str | None, str | None, str] | None = None
        for handler in root.handlers[:1]:
            formatter = handler.formatter or logging.Formatter()
            style = getattr(formatter, "_style", None)
            styles: dict[Any, str] = {kind: name for name, (kind, _) in logging._STYLES.items()}
            # Instances of custom formatter classes are not copied.
            if type(formatter) is logging.Formatter and type(style) in styles:
                format_ = formatter._fmt, formatter.datefmt, styles[type(style)]
        captures = getattr(logging, "_showwarning", None) is warnings.showwarning
        return cls(root.level, format_, captures)

    def apply(self) -> None:
        """Apply these settings to this process's root logger, which writes to stderr."""
        root = logging.getLogger()
        root.setLevel(self.level)
        logging.captureWarnings(self.captures_warnings)
        if self.format is not None:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(*self.format))  # type: ignore[arg-type]
            root.handlers[:] = [handler]


@dataclass(frozen=True)
class Attachment:
    """Where the worker finds its shared objects, in the segment that comes with this."""

    pool: int  # this and the next five: offsets in the segment
    inbox: int
    outbox: int
    counters: int
    gauges: int
    trace: int
    groups: list[int]  # number of groups of each worker
    inline_groups: int  # number of groups that the parent runs itself
    counted: tuple[
        int, int
    ]  # numbers of envs and workers with counters; the last may be the parent
    capacity: int  # of the inbox, and of the outbox
    policy: tuple[int, int] | None  # see wait_policy()
    first: int  # number of the worker's first env
    sizes: tuple[int, ...]  # of its groups


@dataclass(frozen=True)
class Layout:
    """Attaches an env server to the segment that comes with this, such as one with frames."""

    number: int  # counts the layouts of the pool, from 1
    attach: Attach


def wait_policy(fixed: tuple[int, int] | None) -> WaitPolicy | None:
    """Return the wait policy for fixed ``(spin, yield)`` times in ns; None stands for adaptive."""
    return None if fixed is None else WaitPolicy.fixed(spin_ns=fixed[0], yield_ns=fixed[1])


class PackedMessages:
    """Pickled objects of any size for workers, in one segment: a segment takes a millisecond.

    Args:
        messages: The objects.
    """

    def __init__(self, messages: Sequence[Any]) -> None:
        pickles = [np.frombuffer(pickle.dumps(message), np.uint8) for message in messages]
        self._spans: list[bytes] = []
        self._segment = Segment(sum(len(pickled) + LINE for pickled in pickles))
        for pickled in pickles:
            begin, memory = self._segment.array(pickled.shape, pickled.dtype, None)
            memory[:] = pickled
            span = begin.to_bytes(8, "little") + len(pickled).to_bytes(8, "little")
            self._spans.append(span)

    def send(self, number: int, connection: Connection, fd: int) -> None:
        """Send one of the objects and the descriptor of a segment, in one message."""
        fds = [self._segment.fd, fd]
        _core.send_descriptors(connection.fileno(), self._spans[number], fds)


def receive_message(connection: Connection) -> tuple[Any, Segment]:
    """Return an object and the segment that came with it, or raise EOFError."""
    span, fds = _receive_descriptors(connection, 2)
    if not span:
        raise EOFError
    try:
        begin, size = (int.from_bytes(part, "little") for part in (span[:8], span[8:]))
        pickled = os.pread(fds[0], size, begin)
        segment = Segment.from_fd(fds[1])
    finally:
        for fd in fds:
            os.close(fd)
    return pickle.loads(pickled), segment


def receive_descriptor(connection: Connection) -> tuple[bytes, int]:
    """Return the next message, and the descriptor that comes with it; raise EOFError at the end."""
    message, fds = _receive_descriptors(connection, 1)
    if not fds:
        raise EOFError
    return message, fds[0]


def _receive_descriptors(connection: Connection, count: int) -> tuple[bytes, list[int]]:
    """Return the next message's bytes and descriptors; no bytes once the other end has closed."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        message, fds, _, _ = socket.recv_fds(end, 16, count, socket.MSG_CMSG_CLOEXEC)
    return message, fds


class UnpicklableError(TypeError):
    """Functions that make envs cannot be pickled, for the reason in ``__cause__``."""


class PackedServers:
    """Pickled env servers, and a segment that holds each of their large arrays once."""

    def __init__(self, servers: Sequence[MakeServer]) -> None:
        self.pickled: list[bytes] = []
        self.arrays: list[tuple[ArraySpan, ...]] = []  # of each env server
        self.shared: list[list[SealedMemory]] = []  # likewise
        self.segment: Segment | None = None
        memories: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}  # by address and size
        # For each env server, its arrays: the key in ``memories``, and whether it is read-only.
        keys: list[list[tuple[tuple[int, int], bool]]] = []
        for server in servers:
            large: list[memoryview] = []
            with collected() as shared:
                self.pickled.append(_pickle_server(server, large))
            self.shared.append([*shared.values()])
            keys.append([])
            for memory in large:
                array = np.frombuffer(memory, np.uint8)
                key = array.ctypes.data, array.nbytes
                memories[key] = array
                keys[-1].append((key, memory.readonly))
        begins: dict[tuple[int, int], int] = {}
        if memories:
            self.segment = Segment(sum(size + LINE for _, size in memories))
        for key, array in memories.items():
            assert self.segment is not None
            begins[key], copied = self.segment.array(array.shape, array.dtype, None)
            copied[:] = array
        for of_server in keys:
            spans = (ArraySpan(begins[key], key[1], readonly) for key, readonly in of_server)
            self.arrays.append(tuple(spans))

    def send_arrays(self, connection: Connection, index: int) -> None:
        """Send the segment with the arrays of an env server, and the memory that it shares."""
        if self.arrays[index] and self.segment is not None:
            _core.send_descriptors(connection.fileno(), b"arrays", [self.segment.fd])
        for memory in self.shared[index]:
            _core.send_descriptors(connection.fileno(), memory.token, [memory.fd])


def _pickle_server(server: MakeServer, large: list[memoryview]) -> bytes:
    """Return the pickled env server; append its large arrays to ``large`` instead."""

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes >= _LARGE:
            large.append(memory)
        return memory.nbytes < _LARGE

    try:
        return dumps_by_value(server, keep_in_band)
    except Exception as error:
        raise UnpicklableError(
            f"cannot send env_fns to workers: {type(error).__name__}: {error}; create "
            'such objects inside of env_fns, or pass context="fork" or context="threads"'
        ) from error


def unpack_server(setup: Setup, connection: Connection) -> MakeServer:
    """Return the function that makes the env server, and its arguments.

    Their arrays are copy-on-write: no other worker sees a worker's writes.
    """
    assert setup.server is not None
    arrays: list[memoryview] = []
    if setup.arrays:
        _, fd = receive_descriptor(connection)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        memory = memoryview(mmap.mmap(fd, 0, mmap.MAP_PRIVATE, protection))
        os.close(fd)
        for span in setup.arrays:
            array = memory[span.begin : span.begin + span.size]
            arrays.append(array.toreadonly() if span.readonly else array)
    # Referred to here until the arrays are.
    shared = [_receive_shared(connection) for _ in range(setup.shared)]
    made: MakeServer = cloudpickle.loads(setup.server, buffers=arrays)
    del shared
    return made


def _receive_shared(connection: Connection) -> SealedMemory:
    from pysampler._workers.shared_arrays import SealedMemory  # noqa: PLC0415 - rare

    return SealedMemory.received(*receive_descriptor(connection))
