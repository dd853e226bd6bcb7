"""The parent's side: lays out the segment, sends commands, waits for completions.

A pool knows nothing of envs: what its workers host comes as functions to make it, and what is asked
of that as names and arguments.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler import _core, nursery, worker
from pysampler.block import Failure, Restored
from pysampler.errors import (
    EnvError,
    EnvTimeoutError,
    LayoutError,
    LostError,
    PysamplerError,
    WaitTimeoutError,
    WorkerLostError,
)
from pysampler.frames import Frames
from pysampler.mail import Inbox
from pysampler.processes import GRACE, Processes, Share
from pysampler.remote import dumps, dumps_by_value, report
from pysampler.stats import Counters, Stats
from pysampler.sync import Segment, Watch, now, wait_costs
from pysampler.worker import Attachment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pysampler.frames import Plan

__all__ = ["Faults", "Pool"]

_STEP: int = _core.Command.STEP
_REQUEST: int = _core.Command.REQUEST
_NOTE: int = _core.Command.NOTE
# Bytes of a side channel. What is larger goes in parts.
SIDE_CHANNEL = 1 << 16
# How long a worker may take until it reads what finds no room otherwise, in seconds.
_PATIENCE = 60.0
# How long before a deadline to come back once, in ns.
_WARM = 100_000
# How often to look whether a worker that closes has died, in seconds.
_LOOK = 0.05


@dataclass(frozen=True)
class Faults:
    """What to do about workers that are lost, and envs that do not answer."""

    on_worker_loss: Literal["raise", "restart"] = "raise"
    # Of one worker, so many within so many seconds end the pool all the same.
    most_losses: tuple[int, float] = (3, 10.0)
    step_timeout: float | None = None
    on_hang: Literal["raise", "wait", "restart"] = "raise"
    # Of envs that take the place of lost ones.
    seeds: Callable[[int], Sequence[int]] = lambda count: [0] * count


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
        faults: Faults | None = None,
    ) -> None:
        self.shares = list(shares)
        self.closed = False  # or its workers have been ended
        self.groups = [len(share.sizes) for share in shares]
        self.envs = [part for share in self.shares for part in share.parts]  # of each group
        self.worker_of = [w for w, count in enumerate(self.groups) for _ in range(count)]
        self._policy = policy
        self._faults = faults or Faults()
        self._learn_modules = preload is None and context == "nursery"
        self._requests: dict[int, tuple[str, tuple[Any, ...]]] = {}  # that groups are at
        self._asked: dict[int, str] = {}  # what groups are doing, where it is not a step
        # Options may be set by one thread while another samples.
        self._notes_lock = threading.Lock()
        self._notes: dict[int, list[bytes]] = {}  # by worker
        self._standing: dict[str, dict[int, bytes]] = {}  # by method and worker
        self._options: dict[int, tuple[Any, int]] = {}  # by env
        self._lost_envs: set[int] = set()  # groups of new envs, whose next step ends an episode
        self._restored: dict[int, bool] = {}  # groups that will say so; whether stepping
        self._losses: list[list[tuple[float, WorkerLostError]]] = [[] for _ in shares]
        self._known_losses: set[int] = set()  # indices into watch.losses
        self._parts: list[_core.Part] = []  # that every worker is beside its own
        self._told_late: set[tuple[int, int]] = set()
        if context == "nursery" and preload:
            nursery.preload(preload)
        self._processes = Processes(self.shares, [make(share) for share in shares], context)
        self.descriptions = self._processes.descriptions

    def lay_out(self, plan: Plan, room: int, host: tuple[Any, ...]) -> tuple[Frames, Segment]:
        """Lay out frames, in a segment of their own with some room beside them.

        The first time, attach the workers to everything else too. Nothing may be in flight.
        """
        segment = Segment(plan.size + room)
        frames_at, memory = segment.array((plan.size,), np.dtype(np.uint8), None)
        self._layout = worker.Layout(frames_at, plan, host)
        self._frames_segment = segment
        if not hasattr(self, "_core"):
            self._attach(plan.envs)
            return Frames(plan, memory), segment
        for index, child in enumerate(list(self._processes.children)):
            group = self._groups_of(index).start
            self._send_notes(group)
            self._send_request(group, 0, ("lay_out", (True,)), "laying out frames")
            # Who took its place meanwhile has been told already.
            if self._processes.children[index] is child:
                self._processes.lay_out(index, (self._layout, segment.fd))
        for group, said in self.wait() or []:
            if isinstance(said, Failure):
                raise self.error_of(group, said)
        if self._parts:  # of what lay beside the last frames
            self._parts = []
            for index, child in enumerate(self._processes.children):
                self._watch.forget(child.pid)
                self._watch_worker(index)
        return Frames(plan, memory), segment

    def _attach(self, envs: int) -> None:
        workers = len(self.shares)
        counters_size = Counters.size_of(envs, workers)
        rings = 2 * workers * _core.ByteRing.size_of(SIDE_CHANNEL)
        pool_size = _core.Pool.size_of(self.groups)
        segment = self._segment = Segment(counters_size + pool_size + rings + 4096)
        counters_at, counted = segment.array((counters_size,), np.dtype(np.uint8), None)
        self._counters = Counters(envs, workers, counted)
        self._counters.workers["env"] = -1
        weights = [size for share in self.shares for size in share.sizes]
        policy = worker.wait_policy(self._policy)
        self._core = _core.Pool(segment, self.groups, weights, policy)
        self._inboxes = [_core.ByteRing(segment, SIDE_CHANNEL) for _ in self.shares]
        self._outboxes = [_core.ByteRing(segment, SIDE_CHANNEL) for _ in self.shares]
        self._mail = [
            Inbox(ring, self._groups_of(index)) for index, ring in enumerate(self._outboxes)
        ]
        costs = wait_costs()
        self._attachments = [
            Attachment(
                pool=self._core.offset,
                groups=self.groups,
                inbox=self._inboxes[index].offset,
                outbox=self._outboxes[index].offset,
                capacity=SIDE_CHANNEL,
                envs=envs,
                counters=counters_at,
                counters_size=counters_size,
                policy=self._policy,
                costs=(costs.park_ns, costs.yield_ns),
            )
            for index in range(workers)
        ]
        self._watch = Watch()
        self._processes.attach(
            self._attachments, segment.fd, (self._layout, self._frames_segment.fd)
        )
        for index in range(workers):
            self._watch_worker(index)
        if self._learn_modules:
            self._processes.preload()

    def _watch_worker(self, index: int) -> None:
        self._watch.add(
            self._processes.children[index].pid,
            *self._parts,
            *(self._core.member(group) for group in self._groups_of(index)),
            self._inboxes[index].consumer(),
            self._outboxes[index].producer(),
        )

    def watch_also(self, part: _core.Part) -> None:
        """Marked lost when a worker dies, until frames are laid out anew."""
        self._parts.append(part)
        for child in self._processes.children:
            self._watch.add(child.pid, part)

    def look_for_late(self) -> None:
        """Do about late envs what is to be done."""
        if self._faults.step_timeout is not None:
            self._look_for_late(int(self._faults.step_timeout * 1e9))

    def _groups_of(self, index: int) -> range:
        first = sum(self.groups[:index])
        return range(first, first + self.groups[index])

    # -- what there is to know -------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of the workers."""
        return [child.pid for child in self._processes.children]

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

    def busy_seconds(self) -> float:
        """How long all envs together have been at work."""
        return self._counters.busy_seconds()

    def stats(self) -> Stats:
        """What envs and workers have done."""
        losses = [len(some) for some in self._losses]
        return Stats.of(self._counters, [share.envs for share in self.shares], losses)

    # -- commands --------------------------------------------------------------------------------

    def step(self, frame: int) -> None:
        """Let every group step, reading actions from the frame and writing results to it."""
        if self._notes or self._requests or self._lost_envs:
            self.step_some([(group, frame) for group in range(len(self.envs))])
        else:
            self._core.send(_STEP, frame)

    def step_some(self, parts: Iterable[tuple[int, int]]) -> None:
        """Let some groups step, each with its frame."""
        for group, frame in parts:
            if self._notes:
                self._send_notes(group)
            if group in self._lost_envs:
                self._restore(group, frame)
            else:
                self._requests.pop(group, None)
                self._asked.pop(group, None)
                self._core.send_to(group, _STEP, frame)

    def request(
        self,
        parts: Iterable[tuple[int, int]],
        requests: Mapping[int, tuple[str, tuple[Any, ...]]],
        doing: str,
    ) -> None:
        """Ask groups for other things than a step: the name of a method of the host, arguments."""
        frames = dict(parts)
        # Pickled before the first is sent: what cannot be leaves nobody waiting.
        messages = {group: dumps_by_value(request) for group, request in requests.items()}
        for group, request in requests.items():
            frame = frames[group]
            self._send_notes(group)
            if group in self._lost_envs and request[0] == "step":
                self._restore(group, frame)
                continue
            if group in self._lost_envs and request[0] == "reset":
                self._reset_new(group, frame, request, doing)
                continue
            if request[0] == "rollout":
                self._lost_envs.discard(group)
            elif request[0] in ("act", "show"):
                self._lost_envs -= set(self._groups_of(self.worker_of[group]))
            self._send_request(group, frame, request, doing, messages[group])

    def note(
        self,
        name: str,
        arguments_for: Callable[[range], tuple[Any, ...] | None],
        *,
        standing: bool = False,
    ) -> None:
        """Tell hosts something, before their next command: a method, arguments by their envs.

        If it is standing, also those that take the place of lost ones, until there is another note
        to this method.
        """
        messages = {
            index: dumps_by_value((name, arguments))
            for index, share in enumerate(self.shares)
            if (arguments := arguments_for(share.envs)) is not None
        }
        with self._notes_lock:
            self._standing.pop(name, None)
            if standing:
                self._standing[name] = messages
            for index, message in messages.items():
                self._notes.setdefault(index, []).append(message)

    def set_options(self, options: dict[int, tuple[Any, int]]) -> None:
        """What envs are reset with from now on, and its version."""

        def some(envs: range) -> tuple[Any, ...] | None:
            chosen = {env: options[env] for env in envs if env in options}
            return (chosen,) if chosen else None

        self.note("set_options", some)
        self._options.update(options)

    def _send_notes(self, group: int) -> None:
        # Again if it is lost meanwhile: who takes its place has to be told too.
        while True:
            with self._notes_lock:
                notes = self._notes.pop(self.worker_of[group], [])
            if not notes:
                return
            for message in notes:
                self._send_message(group, _NOTE, 0, message)

    def _send_request(
        self,
        group: int,
        frame: int,
        request: tuple[str, tuple[Any, ...]],
        doing: str,
        message: bytes | None = None,
    ) -> None:
        self._requests[group] = request
        self._asked[group] = doing
        message = dumps_by_value(request) if message is None else message
        self._send_message(group, _REQUEST, frame, message)

    def _send_message(self, group: int, kind: int, frame: int, message: bytes) -> None:
        try:
            self._core.send_to(group, kind, frame)
            self._inboxes[self.worker_of[group]].send(message, _PATIENCE)
        except LostError as error:
            self._lost(error, group)
        except WaitTimeoutError:
            self.kill()
            index = self.worker_of[group]
            raise PysamplerError(
                f"cannot send to worker {index}: it has not read {len(message):,} bytes for "
                f"{_PATIENCE:.0f} s, while {self._doing(group)}"
            ) from None
        except BaseException:  # Ctrl-C: a command without its message would be given another's
            self.kill()
            raise

    # -- completions -----------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[tuple[int, Any]] | None:
        """What groups had to say beside what is in the frame: (group, message) each.

        A message may be a ``Failure``. None if not all that is in flight came back in time.
        """
        deadline = None if timeout is None else now() + int(timeout * 1e9)
        while True:
            try:
                if not self._until(self._core.wait, deadline):
                    return None
                if not self._core.has_messages():
                    return []
                messages = self._received(self._core.messages, deadline)
            except LostError as error:
                self._lost(error)
                continue
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
        # The way back from a long wait is cold, and takes its time: gone once before, it is not.
        if deadline is not None and deadline - now() > 2 * _WARM:
            back = self._wait_some(least, most, deadline - _WARM)
            if self._core.satisfied:
                return back
        return self._wait_some(least, most, deadline)

    def _wait_some(
        self, least: int, most: int, deadline: int | None
    ) -> tuple[list[int], list[tuple[int, Any]]]:
        groups: list[int] = []

        def wait(*, deadline: int | None) -> bool:
            groups[:] = self._core.wait_some(least, most, deadline=deadline)
            return self._core.satisfied

        while True:
            try:
                self._until(wait, deadline)
                if not self._core.has_messages():
                    return groups, []
                messages = self._received(self._core.messages, deadline)
            except LostError as error:
                self._lost(error)
                continue
            unsaid = set(self._core.messages) - {group for group, _ in messages}
            return [group for group in groups if group not in unsaid], messages

    def wait_for(self, groups: Sequence[int]) -> list[tuple[int, Any]]:
        """Until just these groups are back; what they had to say. Take them."""
        everyone = self.shares[-1].envs.stop
        while True:
            back, messages = self._wait_some(0, everyone, 0)
            if set(groups) <= set(back):
                said = dict(messages)
                return [(group, said[group]) for group in groups if group in said]
            self._wait_some(self.ready + 1, everyone, None)

    def take(self, groups: Iterable[int]) -> None:
        """These have come back, and what they had to say was received."""
        for group in groups:
            self._core.take(group)
            self._mail[self.worker_of[group]].drop(group)
            self._restored.pop(group, None)

    def _until(self, wait: Callable[..., bool], deadline: int | None) -> bool:
        """Whether ``wait`` was over in time, looking for late envs meanwhile."""
        if self._faults.step_timeout is None:
            return wait(deadline=deadline)
        patience = int(self._faults.step_timeout * 1e9)
        look = now() + patience
        while True:
            until = look if deadline is None else min(look, deadline)
            over = wait(deadline=until)
            if over or until == deadline:
                return over
            since = self._look_for_late(patience)
            look = min(since, now()) + patience

    def _received(self, groups: Iterable[int], deadline: int | None) -> list[tuple[int, Any]]:
        """The messages of groups, as far as they have come by then."""
        messages: list[tuple[int, Any]] = []
        with contextlib.suppress(WaitTimeoutError):
            for group in groups:
                message = self._mail[self.worker_of[group]].read(group, deadline)
                try:
                    said = pickle.loads(message)
                except Exception as error:  # what the worker has and this process has not
                    doing = f"when {self._doing(group)}, in its answer"
                    said = Failure(None, doing, report(error))
                if group in self._restored and not isinstance(said, Failure):
                    said = Restored(said, self._restored[group])
                messages.append((group, said))
        return messages

    def _doing(self, group: int) -> str:
        return self._asked.get(group, "stepping")

    # -- what goes wrong -------------------------------------------------------------------------

    def error_of(self, group: int, failure: Failure) -> EnvError:
        """The exception an env of a group raised, or its worker for it."""
        return self._processes.error_of(self.worker_of[group], failure, self._doing(group))

    def late(self, patience: int) -> list[tuple[int, int, int]]:
        """(worker, env, since) of envs that have been at work for so many ns."""
        envs, since = self._counters.at_work()
        begun = now() - patience
        return [
            (index, int(env), int(since[index]))
            for index, env in enumerate(envs)
            if env in self.shares[index].envs and since[index] <= begun
        ]

    def _look_for_late(self, patience: int) -> int:
        """Do about late envs what is to be done; since when the next to be late is at work."""
        for index, env, since in self.late(patience):
            seconds = (now() - since) / 1e9
            what = (
                f"env {env} in worker {index} (pid {self.pids[index]}) has not answered for "
                f"{seconds:.3g} s, step_timeout is {self._faults.step_timeout:.3g} s"
            )
            if self._faults.on_hang == "restart":
                self._processes.children[index].kill()
                self._replace(index, f"killed, since {what},")
            elif self._faults.on_hang == "raise":
                error = EnvTimeoutError(what)
                error.env, error.worker = env, index
                raise error
            elif (index, since) not in self._told_late:
                self._told_late.add((index, since))
                warnings.warn(what, stacklevel=2)
        envs, begun = self._counters.at_work()
        soon = now() - patience
        at_work = [int(s) for e, s in zip(envs, begun, strict=True) if e >= 0 and s > soon]
        return min(at_work, default=now())

    def _lost(self, error: LostError, group: int | None = None) -> None:
        """Replace who was lost, or end the pool and tell of it."""
        if self.closed:  # and that is what it tells
            raise error
        groups = list(error.members) or ([] if group is None else [group])
        lost = {i for i, child in enumerate(self._processes.children) if child.ended()}
        if not lost:
            said = sorted({self.worker_of[group] for group in groups})
            self.kill()
            raise LayoutError(
                f"cannot go on: workers {said} are said to be lost, and live; somebody writes to "
                "the segment who should not"
            ) from None
        for index in sorted(lost):
            if self._faults.on_worker_loss == "raise":
                told = self._told(index)
                self.kill()
                raise told from None
            self._replace(index)

    def _told(self, index: int, why: str = "") -> WorkerLostError:
        at = self._counters.workers["env"][index]
        doing = self._doing(self._groups_of(index).start)
        error = self._processes.lost(index, doing, why)
        if at in self.shares[index].envs and len(error.envs) > 1:
            error.args = (f"{error.args[0]}, at env {at}",)
        return error

    def _replace(self, index: int, why: str = "") -> None:
        """Another process takes a worker's place, with new envs."""
        self._await_marks(index)
        error = self._told(index, why)
        at = time.monotonic()
        most, window = self._faults.most_losses
        self._losses[index].append((at, error))
        recent = [(t, e) for t, e in self._losses[index] if at - t <= window]
        if len(recent) >= most or error.__cause__ is not None:  # it could not even start
            self.kill()
            if story := "; ".join(f"{at - t:.1f} s ago {e}" for t, e in recent[:-1]):
                error.args = (f"{error.args[0]}; it was replaced before: {story}",)
            raise error
        groups = self._groups_of(index)
        under_way = {g: self._core.frame_of(g) for g in groups if self._core.in_flight(g)}
        self._core.renew(index)
        self._inboxes[index].renew()
        self._outboxes[index].renew()
        self._mail[index] = Inbox(self._outboxes[index], groups)
        # Making envs counts as work of the first, which may take longer than a step.
        start = now() + int(GRACE * 1e9)
        self._counters.begin(index, self.shares[index].envs.start, start)
        try:
            frames = self._layout, self._frames_segment.fd
            self._processes.replace(index, self._attachments[index], self._segment.fd, frames)
        except (OSError, PysamplerError) as cause:
            self.kill()
            raise error from cause
        self._watch_worker(index)
        envs = self.shares[index].envs
        notes: list[tuple[str, tuple[Any, ...]]] = [("replace", (self._faults.seeds(len(envs)),))]
        if options := {env: self._options[env] for env in envs if env in self._options}:
            notes.append(("set_options", (options,)))
        pickled = [dumps_by_value(note) for note in notes]
        with self._notes_lock:
            pickled += [by[index] for by in self._standing.values() if index in by]
            self._notes[index] = pickled
        self._lost_envs.update(groups)
        for group, frame in under_way.items():
            self._ask_again(group, frame, error)

    def _ask_again(self, group: int, frame: int, error: WorkerLostError) -> None:
        """What a group was at when it was lost, or what takes the place of that."""
        self._send_notes(group)
        name, arguments = self._requests.get(group, ("step", ()))
        if name in ("step", "restore"):
            self._restore(group, frame)
        elif name == "reset":
            self._reset_new(group, frame, (name, arguments), self._asked[group])
        elif name == "rollout":  # who hosts new envs knows where the lost ones had got to
            self._lost_envs.discard(group)
            self._send_request(group, frame, (name, arguments), self._asked[group])
        elif name in ("act", "show"):  # the same, for all of that worker's
            self._lost_envs -= set(self._groups_of(self.worker_of[group]))
            self._send_request(group, frame, (name, arguments), self._asked[group])
        elif name == "lay_out":  # it was attached to the new frames
            self._send_request(group, frame, (name, (False,)), self._asked[group])
        else:
            self._send_request(group, frame, ("fail", (str(error),)), self._asked[group])

    def _restore(self, group: int, frame: int) -> None:
        self._lost_envs.discard(group)
        self._restored[group] = True
        self._send_request(group, frame, ("restore", ()), "being restored")

    def _reset_new(
        self, group: int, frame: int, request: tuple[str, tuple[Any, ...]], doing: str
    ) -> None:
        """Where all envs are new, a reset of some of them is one of all."""
        name, (seeds, options, _) = request
        self._lost_envs.discard(group)
        self._restored[group] = False
        self._send_request(group, frame, (name, (seeds, options, None)), doing)

    def _await_marks(self, index: int) -> None:
        """Until the loss has been marked everywhere: marks must not hit who comes next."""
        child = self._processes.children[index]
        if child.ended(GRACE):
            deadline = time.monotonic() + GRACE
            while time.monotonic() < deadline:
                losses = self._watch.losses
                for at, loss in enumerate(losses):
                    if loss.pid == child.pid and at not in self._known_losses:
                        self._known_losses.add(at)
                        return
                self._watch.wait(known=len(losses), timeout=_LOOK)
        self.kill()
        raise PysamplerError(f"cannot replace worker {index}: pid {child.pid} does not end")

    # -- ending ----------------------------------------------------------------------------------

    def close(self, grace: float = GRACE) -> None:
        """Let the workers close their envs and end. EnvError if an env raised in close()."""
        if self.closed:
            return
        failed: EnvError | None = None
        self._faults = Faults()
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
        children = self._processes.children
        first = {self._groups_of(i).start: child for i, child in enumerate(children)}
        for group, child in first.items():
            self._watch.forget(child.pid)
            self._asked[group] = "closing"
            self._send_message(group, _REQUEST, 0, close)
        while not self._closed_by(min(time.monotonic() + _LOOK, deadline)):
            for group, child in first.items():
                if child.ended() and not self._core.is_ready(group):
                    self._core.take(group)
            if time.monotonic() >= deadline:
                return None
        failures = [
            (group, answer)
            for group, answer in self._received(self._core.messages, _ns(deadline))
            if isinstance(answer, Failure)
        ]
        nursery.await_ends(children, deadline)
        return self.error_of(*failures[0]) if failures else None

    def _closed_by(self, deadline: float) -> bool:
        """Whether all that is in flight is back; somebody lost before is no news."""
        with contextlib.suppress(LostError):
            return self._core.wait(deadline=_ns(deadline))
        return False

    def kill(self) -> None:
        """End the workers, whatever they are doing, and give everything back."""
        if self.closed:
            return
        self.closed = True
        self._processes.end()
        if hasattr(self, "_watch"):
            self._watch.close()
            self._core.close()
            for ring in (*self._inboxes, *self._outboxes):
                ring.close()
            self._segment.close()
            self._frames_segment.close()
            del self._counters, self._segment, self._frames_segment

    def __repr__(self) -> str:
        return f"<pysampler.pool.Pool {len(self.shares)} workers{', closed' * self.closed}>"


def _ns(at: float) -> int:
    """Of time.monotonic(), as of now()."""
    return int(at * 1e9)
