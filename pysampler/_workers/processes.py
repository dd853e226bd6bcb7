"""The processes of a pool: workers are started, say what they host, are attached, and replaced."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
import weakref
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._workers import nursery
from pysampler._workers.jobs import Failure
from pysampler._workers.remote import dumps_by_value, error_from
from pysampler._workers.worker import ArrayPlace, Attachment, Layout, Logging, Setup
from pysampler.errors import EnvError, PysamplerError, WorkerLostError
from pysampler.sync import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._workers.nursery import Child, Launcher

    # A function that makes a host, and its arguments.
    Host = tuple[Callable[..., Any], tuple[Any, ...]]
    # What lies in a segment, and the fd of that.
    Placed = tuple[Layout, int]

__all__ = ["GRACE", "Processes", "Share"]

# How long a process may take to end, in seconds.
GRACE = 10.0
# Bytes of an array from which it lies in memory that workers share, until they write to it.
_LARGE = 1 << 16
_LINE = 128  # bytes; csrc/layout.h


@dataclass(frozen=True)
class Share:
    """The members of one worker: the first, and how many there are in each of its groups.

    ``noun``: what they are.
    """

    first: int
    sizes: tuple[int, ...]
    noun: str = "env"

    @property
    def members(self) -> range:
        """Their indices."""
        return range(self.first, self.first + sum(self.sizes))

    @property
    def parts(self) -> list[range]:
        """Those of each group."""
        ends = list(itertools.accumulate(self.sizes, initial=self.first))
        return [range(first, end) for first, end in itertools.pairwise(ends)]

    def __str__(self) -> str:
        """As errors speak of it."""
        if len(self.members) == 1:
            return f"{self.noun} {self.first}"
        return f"{self.noun}s {self.first}-{self.members.stop - 1}"

    def told(self, failure: Failure, where: str, doing: str) -> str:
        """Return what went wrong in a sentence: what raised, ``where`` it is, in what."""
        kind = failure.report.kind
        if failure.culprit:
            return f"{failure.culprit}{where} raised {kind} {failure.doing}"
        host = f"the host of {self.noun}s"
        who = host if failure.member is None else f"{self.noun} {failure.member}"
        doing = f"in {failure.doing}" if "(" in failure.doing else failure.doing or doing
        return f"{who}{where} raised {kind} {doing}"


class Processes:
    """One for each share; they end with this object, or with this process."""

    def __init__(
        self, shares: Sequence[Share], hosts: Sequence[Host], context: str, *, replaced: bool
    ) -> None:
        """``replaced``: workers may be, so what they host is kept."""
        self.children: list[Child] = []
        self._shares = shares
        self._context = context
        self._launcher = nursery.Launcher(context)
        self._owner = os.getpid()
        # For one that is dropped, and at exit; not the way in which end() is called, so that one
        # that is interrupted is gone through again.
        weakref.finalize(self, _end, self.children, self._launcher, self._owner)
        self._hosts = hosts
        nursery.allow_workers(len(shares))
        self._packed = None if context == "fork" else _Packed(hosts)
        try:
            for index in range(len(shares)):
                self.children.append(self._start(index))
            for index in range(len(shares)):
                with self._telling_of_loss(index):
                    self._set_up(index, again=False)
            self.descriptions, self.modules = self._described()
            if not replaced:
                self._packed = None
        except BaseException:
            self.end()
            raise

    def end(self, wait: float = 0) -> None:
        """End the workers, whatever they are doing; may be repeated.

        Waits up to ``wait`` seconds until they are reaped and what they had started has ended.
        """
        _end(self.children, self._launcher, self._owner, wait)

    def _start(self, index: int) -> Child:
        return self._launcher.start(index, self._hosts[index])

    def _set_up(self, index: int, *, again: bool) -> None:
        setup = Setup(
            index=index,
            workers=len(self._shares),
            environment=nursery.environment(),
            directory=_directory(),
            path=[p for p in sys.path if isinstance(p, str)],
            arguments=list(sys.argv),
            open_files=nursery.open_files(),
            logging=None if self._context == "fork" else Logging.here(),
            host=None if self._packed is None else self._packed.pickled[index],
            arrays=() if self._packed is None else self._packed.places[index],
            again=again,
        )
        line = self.children[index].connection
        line.send(setup)
        if setup.arrays and self._packed is not None and self._packed.segment is not None:
            _core.send_descriptors(line.fileno(), b"arrays", [self._packed.segment.fd])

    def _described(self) -> tuple[list[Any], list[str]]:
        """What each hosts, and what modules that took. Who fails first is told of at once."""
        waiting = {child.connection: index for index, child in enumerate(self.children)}
        answers: dict[int, tuple[Any, list[str]]] = {}
        while waiting:
            for ready in connection.wait(list(waiting)):
                index = waiting.pop(ready)  # type: ignore[call-overload]
                with self._telling_of_loss(index):
                    answer = pickle.loads(self.children[index].connection.recv_bytes())
                if isinstance(answer, Failure):
                    raise self.error_of(index, answer, "being made")
                answers[index] = answer
        return [answers[index][0] for index in range(len(answers))], answers[0][1]

    def socket_of(self, index: int) -> int:
        """Return the descriptor of the socket to a worker, the one that is there now."""
        return self.children[index].connection.fileno()

    def attach(self, attachments: Sequence[Attachment], fd: int, frames: Placed) -> None:
        """Attach them to a segment, and to that of the frames, and wait until they are."""
        for index, attachment in enumerate(attachments):
            with self._telling_of_loss(index):
                self._tell(index, attachment, fd)
                self._tell(index, *frames)
        for index, child in enumerate(self.children):
            with self._telling_of_loss(index):
                answer = child.connection.recv_bytes()
            if answer != b"attached":
                raise self.error_of(index, pickle.loads(answer), "starting")

    def lay_out(self, index: int, frames: Placed) -> None:
        """Tell one of other frames, which it was asked to go on with."""
        with contextlib.suppress(ConnectionError):  # the watch tells of its loss
            self._tell(index, *frames)

    def _tell(self, index: int, what: Any, fd: int) -> None:
        """Send what lies in a segment, and the segment: one message, however large."""
        message = np.frombuffer(pickle.dumps(what), np.uint8)
        with Segment(len(message)) as segment:
            at, there = segment.array(message.shape, message.dtype, None)
            there[:] = message
            _core.send_descriptors(
                self.children[index].connection.fileno(),
                at.to_bytes(8, "little") + len(message).to_bytes(8, "little"),
                [segment.fd, fd],
            )

    def replace(self, index: int, attachment: Attachment, fd: int, frames: Placed) -> None:
        """Start another worker in the place of one, which ends if it lives. Does not wait for it.

        One that was interrupted is repeated.
        """
        before = self.children[index]
        before.kill()
        before.ended(GRACE)
        self.children[index] = self._start(index)
        before.release()
        # If it is lost as soon as that, the watch tells of it.
        with contextlib.suppress(ConnectionError):
            self._set_up(index, again=True)
            self._tell(index, attachment, fd)
            self._tell(index, *frames)

    # -- what goes wrong -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _telling_of_loss(self, index: int) -> Any:
        try:
            yield
        except (EOFError, ConnectionError):
            raise self.lost(index, "being made") from None

    def lost(self, index: int, doing: str, why: str = "") -> WorkerLostError:
        """What is told of one that has ended."""
        child, share = self.children[index], self._shares[index]
        child.ended(GRACE)
        status = child.status()
        if status is None:
            how = "ended"
        elif status < 0:
            how = f"signal {-status}"
        else:
            how = f"exit code {status}"
        doing = f"{share} {doing}" if doing == "being made" else f"{doing} {share}"
        text = f"worker {index} (pid {child.pid}) lost: {why or how} while {doing}"
        failure = self._last_words(child)
        if failure is not None:
            what = "it could not start" if failure.doing != "serving" else "it failed"
            text += f"; {what}: {failure.report.kind}: {failure.report.text}"
        error = WorkerLostError(text)
        if failure is not None:
            error.__cause__ = self.error_of(index, failure, "being made")
        error.worker, error.pid, error.exit_code, error.envs = (
            index,
            child.pid,
            status,
            share.members,
        )
        return error

    def _last_words(self, child: Child) -> Failure | None:
        """What a worker said that ended by an exception of its own."""
        with contextlib.suppress(OSError, EOFError):
            while child.connection.poll():
                words = child.connection.recv_bytes()
                with contextlib.suppress(Exception):
                    if isinstance(failure := pickle.loads(words), Failure):
                        return failure
        return None

    def error_of(self, index: int, failure: Failure, doing: str) -> EnvError:
        """The exception an env of a worker raised, or the worker for it."""
        where = f" in worker {index} (pid {self.children[index].pid})"
        error = error_from(failure.report, self._shares[index].told(failure, where, doing))
        error.env, error.worker = failure.member, index
        return error

    def preload(self) -> None:
        """Let the nursery import what the workers had to: for the next pool, or a replacement."""
        with contextlib.suppress(PysamplerError, OSError):
            nursery.preload(self.modules)


def _directory() -> str | None:
    """The current one; None if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return None


class _Packed:
    """Pickled hosts, and a segment with the arrays in them, each once however many have it."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.pickled: list[bytes] = []
        self.places: list[tuple[ArrayPlace, ...]] = []
        arrays: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}  # by address and size
        parts: list[list[tuple[tuple[int, int], bool]]] = []
        for host in hosts:
            apart: list[memoryview] = []
            self.pickled.append(_pickle(host, apart))
            parts.append([])
            for memory in apart:
                array = np.frombuffer(memory, np.uint8)
                key = array.ctypes.data, array.nbytes
                arrays[key] = array
                parts[-1].append((key, memory.readonly))
        self.segment: Segment | None = None
        at: dict[tuple[int, int], int] = {}
        if arrays:
            self.segment = Segment(sum(size + _LINE for _, size in arrays))
        for key, array in arrays.items():
            assert self.segment is not None
            at[key], there = self.segment.array(array.shape, array.dtype, None)
            there[:] = array
        for some in parts:
            self.places.append(
                tuple(ArrayPlace(at[key], key[1], readonly) for key, readonly in some)
            )


def _pickle(host: Host, apart: list[memoryview]) -> bytes:
    """Pickle a host; what is large of its arrays is added to ``apart`` instead."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes >= _LARGE:
            apart.append(memory)
        return memory.nbytes < _LARGE

    try:
        return dumps_by_value(host, keep)
    except Exception as error:
        raise TypeError(
            f"cannot send env_fns to workers: {type(error).__name__}: {error}; make what they "
            'need inside of them, or pass context="fork"'
        ) from error


def _end(children: list[Child], launcher: Launcher, owner: int, wait: float = 0) -> None:
    """End workers. Asks nothing and takes no lock: a finalizer may come at any time."""
    if os.getpid() != owner:  # a forked child: they are not its own
        return
    for child in children:
        child.kill()
    for child in children:
        child.ended(GRACE)
        child.release()
    launcher.close(wait)
