"""What a parent sends to a worker before that serves: both ends of it.

First a ``Setup`` with the env server, then an ``Attachment`` and a ``Layout``, each with the
segment that it describes. Further layouts follow while the worker serves.
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
from pysampler._workers.remote import dumps_by_value
from pysampler.sync import Segment, WaitPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    import numpy.typing as npt

    from pysampler._workers.jobs import Attach

    # A function that makes an env server, and its arguments.
    MakeServer = tuple[Callable[..., Any], tuple[Any, ...]]

__all__ = [
    "ArraySpan",
    "Attachment",
    "Layout",
    "LoggingSetup",
    "PackedServers",
    "Setup",
    "receive_message",
    "send_message",
    "unpack_server",
    "wait_policy",
]

# Arrays of an env server that have at least this many bytes lie in memory that all workers share,
# until they write to it.
_LARGE = 1 << 16


@dataclass(frozen=True)
class ArraySpan:
    """Where the memory of an array of an env server lies in a segment."""

    begin: int
    size: int
    readonly: bool


@dataclass(frozen=True)
class Setup:
    """What a worker needs to make its env server."""

    index: int
    workers: int
    environment: dict[str, str]
    directory: str | None  # in which it works; None if it was deleted
    path: list[str]  # sys.path
    arguments: list[str]  # sys.argv
    server: bytes | None  # pickled function and arguments; None if they are inherited
    arrays: tuple[ArraySpan, ...]  # of the env server; if there are any, their segment's fd follows
    open_files: int  # the limit
    logging: LoggingSetup | None  # None: leave it as it is
    is_replacement: bool  # of a lost worker; it does not describe its env server


@dataclass(frozen=True)
class LoggingSetup:
    """How the root logger of the parent is set up, as far as a worker can copy it."""

    level: int
    format: tuple[str | None, str | None, str] | None  # format, datefmt, style; None: no handler
    captures_warnings: bool

    @classmethod
    def here(cls) -> LoggingSetup:
        """Return how the root logger of this process is set up."""
        root = logging.getLogger()
        format_: tuple[str | None, str | None, str] | None = None
        for handler in root.handlers[:1]:
            formatter = handler.formatter or logging.Formatter()
            style = getattr(formatter, "_style", None)
            styles: dict[Any, str] = {kind: name for name, (kind, _) in logging._STYLES.items()}
            # Formatters of the user's own classes are not copied.
            if type(formatter) is logging.Formatter and type(style) in styles:
                format_ = formatter._fmt, formatter.datefmt, styles[type(style)]
        captures = getattr(logging, "_showwarning", None) is warnings.showwarning
        return cls(root.level, format_, captures)

    def apply(self) -> None:
        """Set up the root logger of this process likewise; it writes to stderr."""
        root = logging.getLogger()
        root.setLevel(self.level)
        logging.captureWarnings(self.captures_warnings)
        if self.format is not None:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(*self.format))  # type: ignore[arg-type]
            root.handlers[:] = [handler]


@dataclass(frozen=True)
class Attachment:
    """Where a worker finds what it shares with its parent, in the segment that comes with this."""

    pool: int  # offsets
    inbox: int
    outbox: int
    counters: int
    gauges: int
    trace: int
    groups: list[int]  # how many each worker has
    own_groups: int  # how many the parent runs itself
    counted: tuple[int, int]  # how many envs and workers are, the parent perhaps as the last
    capacity: int  # of the inbox, and of the outbox
    policy: tuple[int, int] | None  # see wait_policy()


@dataclass(frozen=True)
class Layout:
    """How an env server attaches to the segment that comes with this, such as one with frames."""

    number: int  # of the layouts of this pool, from 1
    attach: Attach


def wait_policy(fixed: tuple[int, int] | None) -> WaitPolicy | None:
    """Return the wait policy for ``(spin, yield)`` times in ns, or the adaptive one for None."""
    return None if fixed is None else WaitPolicy.fixed(spin_ns=fixed[0], yield_ns=fixed[1])


def send_message(connection: Connection, message: Any, fd: int) -> None:
    """Send an object and the descriptor of a segment, as one message however large it is."""
    pickled = np.frombuffer(pickle.dumps(message), np.uint8)
    with Segment(len(pickled)) as segment:
        begin, memory = segment.array(pickled.shape, pickled.dtype, None)
        memory[:] = pickled
        span = begin.to_bytes(8, "little") + len(pickled).to_bytes(8, "little")
        _core.send_descriptors(connection.fileno(), span, [segment.fd, fd])


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


def _receive_descriptors(connection: Connection, count: int) -> tuple[bytes, list[int]]:
    """Return the bytes and the descriptors of the next message; no bytes at the end."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        message, fds, _, _ = socket.recv_fds(end, 16, count, socket.MSG_CMSG_CLOEXEC)
    return message, fds


class PackedServers:
    """Pickled env servers, and a segment with their large arrays, each once."""

    def __init__(self, servers: Sequence[MakeServer]) -> None:
        self.pickled: list[bytes] = []
        self.arrays: list[tuple[ArraySpan, ...]] = []  # of each env server
        self.segment: Segment | None = None
        memories: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}  # by address and size
        keys: list[
            list[tuple[tuple[int, int], bool]]
        ] = []  # of each env server; whether it is read-only
        for server in servers:
            large: list[memoryview] = []
            self.pickled.append(_pickle_server(server, large))
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
        for of_host in keys:
            spans = (ArraySpan(begins[key], key[1], readonly) for key, readonly in of_host)
            self.arrays.append(tuple(spans))

    def send_arrays(self, connection: Connection, index: int) -> None:
        """Send the segment with the arrays of an env server, if it has any."""
        if self.arrays[index] and self.segment is not None:
            _core.send_descriptors(connection.fileno(), b"arrays", [self.segment.fd])


def _pickle_server(server: MakeServer, large: list[memoryview]) -> bytes:
    """Return a pickled env server without its large arrays, whose memory is added to ``large``."""

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes >= _LARGE:
            large.append(memory)
        return memory.nbytes < _LARGE

    try:
        return dumps_by_value(server, keep_in_band)
    except Exception as error:
        raise TypeError(
            f"cannot send env_fns to workers: {type(error).__name__}: {error}; make what they "
            'need inside of them, or pass context="fork"'
        ) from error


def unpack_server(setup: Setup, connection: Connection) -> MakeServer:
    """Return what makes an env server. No other worker sees what it writes to arrays."""
    assert setup.server is not None
    arrays: list[memoryview] = []
    if setup.arrays:
        _, [fd] = _receive_descriptors(connection, 1)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        memory = memoryview(mmap.mmap(fd, 0, mmap.MAP_PRIVATE, protection))
        os.close(fd)
        for span in setup.arrays:
            array = memory[span.begin : span.begin + span.size]
            arrays.append(array.toreadonly() if span.readonly else array)
    made: MakeServer = cloudpickle.loads(setup.server, buffers=arrays)
    return made
