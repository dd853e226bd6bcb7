"""The parent's side: starts workers, lays out the segment, sends commands, waits for completions.

A pool knows nothing of envs: what its workers host comes as functions to make it, and what is asked
of that as names and arguments.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
import weakref
from dataclasses import dataclass
from multiprocessing import connection, reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core, nursery, worker
from pysampler.block import Failure
from pysampler.errors import EnvError, LostError, PysamplerError, WorkerLostError
from pysampler.frames import Frames
from pysampler.mail import Inbox
from pysampler.nursery import Child
from pysampler.remote import dumps, dumps_by_value, error_from, report
from pysampler.sync import Segment, Watch, wait_costs
from pysampler.worker import Attachment, Setup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pysampler.spec import Spec

__all__ = ["Pool", "Share"]

_STEP: int = _core.Command.STEP
# Bytes of a side channel. What is larger goes in parts.
SIDE_CHANNEL = 1 << 16
# How long a worker may take to close its envs before it is killed, in seconds.
GRACE = 10.0
# How often to look whether a worker that closes has died, in seconds.
_LOOK = 0.05


@dataclass(frozen=True)
class Share:
    """The envs of one worker: the first, and how many there are in each of its groups."""

    first: int
    sizes: tuple[int, ...]

    @property
    def envs(self) -> range:
        """Their indices."""
        return range(self.first, self.first + sum(self.sizes))


class Pool:
    """Workers that host what ``make(share)`` says: a function and its arguments."""

    def __init__(
        self,
        shares: Sequence[Share],
        make: Callable[[Share], tuple[Callable[..., Any], tuple[Any, ...]]],
        *,
        context: str = "nursery",
        preload: Sequence[str] | None = None,
        policy: tuple[int, int] | None = None,
    ) -> None:
        self.shares = list(shares)
        self.closed = False  # or its workers have been ended
        self.groups = [len(share.sizes) for share in shares]
        self._worker_of = [w for w, count in enumerate(self.groups) for _ in range(count)]
        self._policy = policy
        self._context = context
        self._learn_modules = preload is None and context == "nursery"
        self._doing = "being made"
        self._children: list[Child] = []
        self._finalizer = weakref.finalize(self, _end, self._children, os.getpid())
        hosts = [make(share) for share in shares]
        if context == "nursery" and preload:
            nursery.preload(preload)
        try:
            self._start(hosts)
            self.descriptions = self._all_described()
        except BaseException:
            self._finalizer()
            raise

    # -- starting --------------------------------------------------------------------------------

    def _start(self, hosts: Sequence[Any]) -> None:
        pickled: list[bytes | None] = [None] * len(hosts)
        if self._context == "fork":
            worker.inherited = hosts
        else:
            pickled = [self._pickle(host) for host in hosts]
        try:
            for _ in self.shares:
                self._children.append(nursery.start_worker(self._context))
        finally:
            worker.inherited = []
        for index, child in enumerate(self._children):
            setup = Setup(
                index=index,
                workers=len(self.shares),
                parent=os.getpid(),
                environment=nursery.environment(),
                directory=os.getcwd(),  # noqa: PTH109
                path=[p for p in sys.path if isinstance(p, str)],
                arguments=list(sys.argv),
                host=pickled[index],
            )
            with self._telling_of_loss(index):
                child.connection.send(setup)

    def _pickle(self, host: Any) -> bytes:
        try:
            return dumps_by_value(host)
        except Exception as error:
            raise TypeError(
                f"cannot send env_fns to workers: {type(error).__name__}: {error}; make what they "
                'need inside of them, or pass context="fork"'
            ) from error

    def _all_described(self) -> list[Any]:
        """In the order in which they are done: who fails is told of at once."""
        waiting = {child.connection: index for index, child in enumerate(self._children)}
        descriptions: dict[int, Any] = {}
        while waiting:
            for ready in connection.wait(list(waiting)):
                index = waiting.pop(ready)  # type: ignore[call-overload]
                descriptions[index] = self._described(index)
        return [descriptions[index] for index in range(len(self._children))]

    def _described(self, index: int) -> Any:
        with self._telling_of_loss(index):
            answer = pickle.loads(self._children[index].connection.recv_bytes())
        if isinstance(answer, Failure):
            raise self.error_of(answer, index)
        description, modules = answer
        if index == 0:
            self._modules = modules
        return description

    @contextlib.contextmanager
    def _telling_of_loss(self, index: int) -> Any:
        try:
            yield
        except (EOFError, ConnectionError):
            child = self._children[index]
            child.ended(GRACE)
            raise self._lost_error(index) from None

    def attach(self, spec: Spec, count: int, *, final: bool, host: tuple[Any, ...]) -> Frames:
        """Lay out frames and everything else, and attach the workers to it."""
        envs = self.shares[-1].envs.stop
        frames_size = Frames.size_of(spec, envs, count, final=final)
        rings = 2 * len(self.shares) * _core.ByteRing.size_of(SIDE_CHANNEL)
        segment = Segment(frames_size + _core.Pool.size_of(self.groups) + rings + 4096)
        at, memory = segment.array((frames_size,), np.dtype(np.uint8), None)
        self._core = _core.Pool(segment, self.groups, worker.wait_policy(self._policy))
        inboxes = [_core.ByteRing(segment, SIDE_CHANNEL) for _ in self.shares]
        outboxes = [_core.ByteRing(segment, SIDE_CHANNEL) for _ in self.shares]
        self._inboxes, self._mail = inboxes, [Inbox(ring) for ring in outboxes]
        costs = wait_costs()
        self._watch = Watch()
        for index, child in enumerate(self._children):
            attachment = Attachment(
                pool=self._core.offset,
                groups=self.groups,
                inbox=inboxes[index].offset,
                outbox=outboxes[index].offset,
                capacity=SIDE_CHANNEL,
                frames=at,
                frames_size=frames_size,
                spec=spec,
                envs=envs,
                count=count,
                final=final,
                host=host,
                policy=self._policy,
                costs=(costs.park_ns, costs.yield_ns),
            )
            with self._telling_of_loss(index):
                child.connection.send(attachment)
                reduction.send_handle(child.connection, segment.fd, child.pid)
        for index, child in enumerate(self._children):
            with self._telling_of_loss(index):
                child.connection.recv_bytes()
            parts = [self._core.member(group) for group in self._groups_of(index)]
            self._watch.add(
                child.pid, *parts, inboxes[index].consumer(), outboxes[index].producer()
            )
            child.connection.close()
        # For the next pool, or a worker that takes the place of one of these.
        if self._learn_modules:
            with contextlib.suppress(PysamplerError, OSError):
                nursery.preload(self._modules)
        self._frames = Frames(spec, envs, count, final=final, memory=memory)
        return self._frames

    def _groups_of(self, index: int) -> range:
        first = sum(self.groups[:index])
        return range(first, first + self.groups[index])

    # -- commands and completions ----------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of the workers."""
        return [child.pid for child in self._children]

    def envs_of(self, group: int) -> range:
        """The envs of a group."""
        index = self._worker_of[group]
        share = self.shares[index]
        at = group - self._groups_of(index).start
        first = share.first + sum(share.sizes[:at])
        return range(first, first + share.sizes[at])

    def step(self, frame: int) -> None:
        """Let every group step, reading actions from the frame and writing results to it."""
        self._doing = "stepping"
        self._core.send(_STEP, frame)

    def wait(self, timeout: float | None = None) -> list[tuple[int, Any]] | None:
        """What groups had to say beside what is in the frame: (group, message) each.

        A message may be a ``Failure``. None if not all that is in flight came back in time.
        """
        try:
            if not self._core.wait(timeout):
                return None
            if not self._core.has_messages():
                return []
            return [(group, self._receive(group)) for group in self._core.messages]
        except LostError as error:
            raise self._loss(error) from None

    def request(
        self, frame: int, requests: Mapping[int, tuple[str, tuple[Any, ...]]], doing: str
    ) -> Request:
        """Ask groups for other things than a step: the name of a method of the host, arguments."""
        self._doing = doing
        return Request(self, frame, requests)

    def _send_request(self, group: int, frame: int, message: bytes) -> None:
        try:
            self._core.send_to(group, _core.Command.REQUEST, frame)
            self._inboxes[self._worker_of[group]].send(message)
        except LostError as error:
            raise self._loss(error, group) from None

    def _receive(self, group: int) -> Any:
        index = self._worker_of[group]
        message = self._mail[index].take(group)
        try:
            return pickle.loads(message)
        except Exception as error:  # what the worker has and this process has not
            return Failure(None, f"when {self._doing}, in its answer", report(error))

    # -- what goes wrong -------------------------------------------------------------------------

    def error_of(self, failure: Failure, index: int | None = None) -> EnvError:
        """The exception an env raised, or the worker for it."""
        if index is None and failure.env is not None:
            index = next(w for w, s in enumerate(self.shares) if failure.env in s.envs)
        where = "" if index is None else f" in worker {index} (pid {self._children[index].pid})"
        error = error_from(failure.report, failure.told(where, self._doing))
        error.env, error.worker = failure.env, index
        return error

    def _loss(self, error: LostError, group: int | None = None) -> PysamplerError:
        """The pool is at an end: what is told of it."""
        groups = list(error.members) or ([] if group is None else [group])
        lost = {self._worker_of[g] for g in groups}
        lost |= {i for i, child in enumerate(self._children) if child.ended()}
        told = self._lost_error(min(lost)) if lost else LostError(str(error))
        self.kill()
        return told

    def _lost_error(self, index: int) -> WorkerLostError:
        child, envs = self._children[index], self.shares[index].envs
        child.ended(GRACE)
        status = child.status()
        if status is None:
            how = "ended"
        elif status < 0:
            how = f"signal {-status}"
        else:
            how = f"exit code {status}"
        one = f"env {envs.start}" if len(envs) == 1 else f"envs {envs.start}-{envs.stop - 1}"
        doing = f"{one} {self._doing}" if self._doing == "being made" else f"{self._doing} {one}"
        error = WorkerLostError(f"worker {index} (pid {child.pid}) lost: {how} while {doing}")
        error.worker, error.pid, error.exit_code, error.envs = index, child.pid, status, envs
        return error

    # -- ending ----------------------------------------------------------------------------------

    def close(self, grace: float = GRACE) -> None:
        """Let the workers close their envs and end. EnvError if an env raised in close()."""
        if self.closed:
            return
        failed: EnvError | None = None
        try:
            if self._core.pending == 0:
                failed = self._close_workers(grace)
        finally:
            self.kill()
        if failed is not None:
            raise failed

    def _close_workers(self, grace: float) -> EnvError | None:
        self._doing = "closing"
        deadline = time.monotonic() + grace
        close = dumps(("close", ()))
        # From here on their end is no loss: nobody is to be told of it.
        first = {self._groups_of(i).start: child for i, child in enumerate(self._children)}
        for group, child in first.items():
            self._watch.forget(child.pid)
            self._send_request(group, 0, close)
        while not self._core.wait(min(_LOOK, max(0.0, deadline - time.monotonic()))):
            for group, child in first.items():
                if child.ended() and not self._core.is_ready(group):
                    self._core.drop(group)
            if time.monotonic() >= deadline:
                return None
        failures = [
            (answer, self._worker_of[group])
            for group in self._core.messages
            if isinstance(answer := self._receive(group), Failure)
        ]
        nursery.ended_by(self._children, deadline)
        return self.error_of(*failures[0]) if failures else None

    def kill(self) -> None:
        """End the workers, whatever they are doing, and give everything back."""
        if self.closed:
            return
        self.closed = True
        self._finalizer()
        if hasattr(self, "_watch"):
            self._watch.close()
            self._core.close()
            for ring in (*self._inboxes, *self._mail):
                ring.close()

    def __repr__(self) -> str:
        return f"<pysampler.pool.Pool {len(self.shares)} workers{', closed' * self.closed}>"


class Request:
    """A request to some groups, those of one worker one after the other."""

    def __init__(
        self, pool: Pool, frame: int, requests: Mapping[int, tuple[str, tuple[Any, ...]]]
    ) -> None:
        self._pool = pool
        self._frame = frame
        self._answers: dict[int, Any] = {}
        # Pickled before the first is sent: what cannot be leaves nobody waiting.
        self._left = {group: dumps_by_value(request) for group, request in requests.items()}
        self._send_next()

    def wait(self, timeout: float | None = None) -> dict[int, Any] | None:
        """The answers by group, or None if not all came in time: wait again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            messages = self._pool.wait(left)
            if messages is None:
                return None
            self._answers.update(messages)
            failures = {g: m for g, m in messages if isinstance(m, Failure)}
            if failures:
                group, failure = min(failures.items())
                raise self._pool.error_of(failure, self._pool._worker_of[group])
            if not self._left:
                return self._answers
            self._send_next()

    def _send_next(self) -> None:
        busy = set()
        for group in list(self._left):
            index = self._pool._worker_of[group]
            if index not in busy:
                busy.add(index)
                self._pool._send_request(group, self._frame, self._left.pop(group))


def _end(children: list[Child], owner: int) -> None:
    if os.getpid() != owner:  # a forked child: they are not its own
        return
    for child in children:
        child.kill()
    for child in children:
        child.ended(GRACE)
        child.release()
