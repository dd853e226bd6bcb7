"""The parent's side: starts workers, lays out the segment, sends commands, waits for completions.

A pool knows nothing of envs: what its workers host comes as functions to make it, and what is asked
of that as names and arguments.
"""

from __future__ import annotations

import contextlib
import itertools
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
from pysampler.errors import (
    EnvError,
    LostError,
    PysamplerError,
    WaitTimeoutError,
    WorkerLostError,
)
from pysampler.frames import Frames
from pysampler.mail import Inbox
from pysampler.nursery import Child
from pysampler.remote import dumps, dumps_by_value, error_from, report
from pysampler.sync import Segment, Watch, now, wait_costs
from pysampler.worker import Attachment, Setup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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

    @property
    def parts(self) -> list[range]:
        """Those of each group."""
        ends = list(itertools.accumulate(self.sizes, initial=self.first))
        return [range(first, end) for first, end in itertools.pairwise(ends)]


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
        self._notes: dict[int, list[bytes]] = {}  # by worker
        self._asked: dict[int, str] = {}  # what groups are doing, where it is not a step
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
            raise self._error(answer, index, "being made")
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
        weights = [size for share in self.shares for size in share.sizes]
        self._core = _core.Pool(segment, self.groups, weights, worker.wait_policy(self._policy))
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
            members = [self._core.member(group) for group in self._groups_of(index)]
            self._watch.add(
                child.pid, *members, inboxes[index].consumer(), outboxes[index].producer()
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

    @property
    def envs(self) -> list[range]:
        """The envs of each group."""
        return [part for share in self.shares for part in share.parts]

    # -- commands and completions ----------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of the workers."""
        return [child.pid for child in self._children]

    @property
    def pending(self) -> int:
        """How many envs are at work, or done and not received yet."""
        return self._core.pending_weight

    @property
    def ready(self) -> int:
        """How many of those are done."""
        return self._core.ready_weight

    def is_pending(self, group: int) -> bool:
        """Whether a group is."""
        return self._core.in_flight(group)

    def step(self, frame: int) -> None:
        """Let every group step, reading actions from the frame and writing results to it."""
        self._asked.clear()
        if self._notes:
            self._send_notes(range(len(self._worker_of)))
        self._core.send(_STEP, frame)

    def step_some(self, frame: int, groups: Sequence[int]) -> None:
        """Let some groups step."""
        if self._notes:
            self._send_notes(groups)
        for group in groups:
            self._asked.pop(group, None)
            self._core.send_to(group, _STEP, frame)

    def request(
        self, frame: int, requests: Mapping[int, tuple[str, tuple[Any, ...]]], doing: str
    ) -> None:
        """Ask groups for other things than a step: the name of a method of the host, arguments."""
        # Pickled before the first is sent: what cannot be leaves nobody waiting.
        messages = {group: dumps_by_value(request) for group, request in requests.items()}
        self._send_notes(messages)
        for group, message in messages.items():
            self._asked[group] = doing
            self._send_message(group, _core.Command.REQUEST, frame, message)

    def note_all(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Tell every host something, before its next command: a method and arguments."""
        message = dumps_by_value((name, arguments))
        for index in range(len(self.shares)):
            self._notes.setdefault(index, []).append(message)

    def _send_notes(self, groups: Iterable[int]) -> None:
        """What there is for the workers of these groups."""
        for group in groups:
            for message in self._notes.pop(self._worker_of[group], ()):
                self._send_message(group, _core.Command.NOTE, 0, message)

    def wait(self, timeout: float | None = None) -> list[tuple[int, Any]] | None:
        """What groups had to say beside what is in the frame: (group, message) each.

        A message may be a ``Failure``. None if not all that is in flight came back in time.
        """
        try:
            if not self._core.wait(timeout):
                return None
            if not self._core.has_messages():
                return []
            deadline = None if timeout is None else now() + int(timeout * 1e9)
            messages = self._received(self._core.messages, deadline)
        except LostError as error:
            raise self._loss(error) from None
        if len(messages) < len(self._core.messages):
            return None
        self.take([group for group, _ in messages])
        return messages

    def wait_some(
        self, least: int, most: int, deadline: int | None
    ) -> tuple[list[int], list[tuple[int, Any]]]:
        """Groups that came back, longest ready first, and what they had to say.

        As soon as they have so many envs or are all, or at the deadline in ns. Take them.
        """
        try:
            groups = self._core.wait_some(least, most, deadline=deadline)
            if not self._core.has_messages():
                return groups, []
            messages = self._received(self._core.messages, deadline)
        except LostError as error:
            raise self._loss(error) from None
        unsaid = set(self._core.messages) - {group for group, _ in messages}
        return [group for group in groups if group not in unsaid], messages

    def take(self, groups: Iterable[int]) -> None:
        """These have come back, and what they had to say was received."""
        for group in groups:
            self._core.take(group)
            self._mail[self._worker_of[group]].drop(group)

    def _received(self, groups: Iterable[int], deadline: int | None) -> list[tuple[int, Any]]:
        """The messages of groups, as far as they have come by then."""
        messages: list[tuple[int, Any]] = []
        with contextlib.suppress(WaitTimeoutError):
            for group in groups:
                message = self._mail[self._worker_of[group]].read(group, deadline)
                try:
                    messages.append((group, pickle.loads(message)))
                except Exception as error:  # what the worker has and this process has not
                    doing = f"when {self._doing(group)}, in its answer"
                    messages.append((group, Failure(None, doing, report(error))))
        return messages

    def _send_message(self, group: int, kind: int, frame: int, message: bytes) -> None:
        try:
            self._core.send_to(group, kind, frame)
            self._inboxes[self._worker_of[group]].send(message)
        except LostError as error:
            raise self._loss(error, group) from None

    def _doing(self, group: int) -> str:
        return self._asked.get(group, "stepping")

    # -- what goes wrong -------------------------------------------------------------------------

    def error_of(self, group: int, failure: Failure) -> EnvError:
        """The exception an env of a group raised, or its worker for it."""
        return self._error(failure, self._worker_of[group], self._doing(group))

    def _error(self, failure: Failure, index: int, doing: str) -> EnvError:
        where = f" in worker {index} (pid {self._children[index].pid})"
        error = error_from(failure.report, failure.told(where, doing))
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
        doing = f"{one} being made"
        if hasattr(self, "_core"):
            doing = f"{self._doing(self._groups_of(index).start)} {one}"
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
        deadline = time.monotonic() + grace
        close = dumps(("close", ()))
        # From here on their end is no loss: nobody is to be told of it.
        first = {self._groups_of(i).start: child for i, child in enumerate(self._children)}
        for group, child in first.items():
            self._watch.forget(child.pid)
            self._asked[group] = "closing"
            self._send_message(group, _core.Command.REQUEST, 0, close)
        while not self._core.wait(min(_LOOK, max(0.0, deadline - time.monotonic()))):
            for group, child in first.items():
                if child.ended() and not self._core.is_ready(group):
                    self._core.take(group)
            if time.monotonic() >= deadline:
                return None
        failures = [
            (group, answer)
            for group, answer in self._received(self._core.messages, None)
            if isinstance(answer, Failure)
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
            for end in self._inboxes:
                end.close()
            for mail in self._mail:
                mail.close()

    def __repr__(self) -> str:
        return f"<pysampler.pool.Pool {len(self.shares)} workers{', closed' * self.closed}>"


def _end(children: list[Child], owner: int) -> None:
    if os.getpid() != owner:  # a forked child: they are not its own
        return
    for child in children:
        child.kill()
    for child in children:
        child.ended(GRACE)
        child.release()
