"""Where a policy walks the ring of frames: in this process, or in the workers.

Each place fills the slot of a rollout, from a base frame on, when it is told to ``start``, and has
done so when ``finish`` returns. ``end`` gives it up.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import queue
import threading
import time
import weakref
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._policies.frame_policy import mark_lost
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.seeds import seed_policy
from pysampler._policies.weights import copy_weights, portable, weights_of
from pysampler._policies.worker_policy import (
    PolicySetup,
    RolloutJob,
    TakePolicy,
    copied_infos,
)
from pysampler._torch import get_torch_threads, is_module, set_torch_threads
from pysampler._vector.jobs import Reset
from pysampler._vector.results import first
from pysampler._workers.jobs import Failure
from pysampler._workers.processes import GRACE
from pysampler._workers.remote import dumps_by_value
from pysampler.errors import ClosedError
from pysampler.sync import Board, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.calling import PolicyCaller
    from pysampler._policies.frame_policy import FramePolicy
    from pysampler._vector.core import VectorCore
    from pysampler._workers.jobs import Answer
    from pysampler.sync import Segment

__all__ = ["Centre", "Way", "Workers", "copied", "pickled", "tell"]

_BLOCK = _core.EnvBlock


def _closed() -> ClosedError:
    return ClosedError("cannot sample rollouts: they were closed meanwhile")


@dataclass(frozen=True)
class Way:
    """How rollouts are sampled: see ``Rollouts``."""

    core: VectorCore
    num_workers: int
    policy: Any
    actor_of: weakref.WeakMethod[Callable[[Any], PolicyCaller]]
    horizon: int
    overlap: bool
    partial: bool  # act for the envs that are ready, and not for all in turn
    min_envs: int
    timeout: int | None  # ns
    whole: bool
    fresh: bool
    threads: int | None


class Centre:
    """The policy in this process."""

    def __init__(
        self,
        way: Way,
        acting: FramePolicy,
        frames: Frames,
        asked: Any,
        entropy: int | list[int],
    ) -> None:
        self.acting = acting
        self.frames = frames
        self.rest: list[tuple[int, int, dict[str, Any]]] = []  # infos: frame, env
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._core = way.core
        self._pool = way.core.pool
        self._groups = way.core.groups
        self._sizes = np.array([len(group) for group in self._groups])
        self._horizon = way.horizon
        self._partial = way.partial
        self._whole = way.whole
        self._least = way.min_envs
        self._timeout = way.timeout
        self._asked = asked  # the policy, about the observations of the first frame
        self._everyone = slice(0, frames.envs)
        self._parts = _parts(way.core)
        self._ids = [np.arange(group.start, group.stop) for group in self._groups]
        self._carried: set[int] = set()  # groups whose step under way is of an earlier rollout
        self._opened = 0
        self._fresh = way.fresh
        self._first = True  # which begins with the reset there has just been
        self._stop = False
        # Where each group is: the frame of what it returned at last, and how many steps it made.
        self._frame = np.zeros(len(self._groups), np.int64)
        self._done = np.zeros(len(self._groups), np.int64)
        self._policy = way.policy
        self._copied_from: bytes | None = None
        self._thread = _Thread() if way.overlap else None
        # With another thread beside this one, they would be the other's too.
        self._threads = None if way.overlap else way.threads
        if self._thread is not None and is_module(self._policy):
            make = way.actor_of()
            assert make is not None
            acting.caller = make(copy.deepcopy(self._policy))
        self._seeds = np.random.SeedSequence(entropy)  # of copies
        if self._thread is not None and is_module(self._policy):
            seed_policy(acting.caller.policy, self._seeds.spawn(1)[0], own_process=False)
        acting.caller.seed_generators(entropy, frames.envs)
        if acting.caller.uses_generators:  # what has been said was of other numbers
            self._asked = None

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Steps of each env."""
        return np.repeat(self._done, self._sizes)

    def start(self, base: int) -> None:
        if self._thread is None:
            self._base = base
            return
        if is_module(self._policy):
            copy_weights(self.acting.caller.policy, self._policy)
        else:
            self._copy()
        self._thread.do(lambda: self._fill(base))

    def _copy(self) -> None:
        """Act with the policy as it is now, unless it is what it was: its own numbers go on."""
        now_is = _fingerprint(self._policy)
        if now_is is None or now_is != self._copied_from:
            self._copied_from = now_is
            policy = copied(self._policy)
            seed_policy(policy, self._seeds.spawn(1)[0], own_process=False)
            self.acting.caller.policy = policy

    def finish(self) -> None:
        if self._thread is None:
            self._fill(self._base)
        else:
            self._thread.wait()

    def stop(self) -> None:
        """Begin no further step."""
        self._stop = True

    def end(self) -> bool:
        """Stop, and return whether nothing works on the pool any more."""
        self.stop()
        return self._thread is None or self._thread.end()

    def _fill(self, base: int) -> None:
        # The thread leaves the turn to others: what could harm it is refused for the state, and
        # options and counters may be asked for.
        turn = self._core.enter("rollouts") if self._thread is None else contextlib.nullcontext()
        before = get_torch_threads()
        try:
            set_torch_threads(self._threads)
            with turn:
                if self._partial:
                    self._fill_as_they_come(base)
                else:
                    self._fill_in_turn(base)
        finally:
            if self._threads is not None:
                set_torch_threads(before)

    # -- all envs together, or one part of each worker's after the other ---------------------------

    def _fill_in_turn(self, base: int) -> None:
        self._bring(base, range(len(self._groups)))
        for at in range(base, base + self._horizon):
            for groups, envs in self._parts:
                if at > base:
                    self._receive_part(groups, envs, at)
                self._act_for_part(groups, envs, at)
        for groups, envs in self._parts:
            self._receive_part(groups, envs, base + self._horizon)
        self._frame[:] = base + self._horizon
        self._done[:] = self._horizon

    def _act_for_part(self, groups: list[int], envs: Any, at: int) -> None:
        if self._stop:
            raise _closed()
        self._ask(at, envs)
        if len(self._parts) == 1:
            self._pool.step(at + 1)
        else:
            self._pool.step_some([(group, at + 1) for group in groups])

    def _receive_part(self, groups: list[int], envs: Any, at: int) -> None:
        began = now()
        if len(self._parts) == 1:
            answers = self._pool.wait() or []
            self._pool.take_all()
        else:
            answers = self._pool.wait_for(groups)
            self._pool.take(groups)
        self.seconds["waiting"] += (now() - began) / 1e9
        if answers:
            self._settle(answers, dict.fromkeys(groups, at))
        self.acting.after_step(at, envs)

    # -- the envs that are ready -------------------------------------------------------------------

    def _fill_as_they_come(self, base: int) -> None:
        ready = self.open(base)
        while True:
            self.act_for(self.unfinished(ready))
            if self.over:
                return
            ready = self.receive_some(None if self._timeout is None else now() + self._timeout)

    def open_by_hand(self) -> list[int]:
        """Begin a rollout whose actions come from elsewhere."""
        self._asked = None
        return self.open(self._base)

    def unfinished(self, groups: list[int]) -> list[int]:
        """Those of some groups that have steps to make."""
        return [group for group in groups if self._done[group] < self._horizon]

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do in this rollout."""
        full = self._done == self._horizon
        return bool(full.all() if self._whole else full.any())

    def open(self, base: int) -> list[int]:
        """Begin a rollout; groups that the policy may act for."""
        self._opened = base
        everyone = range(len(self._groups))
        self._done[:] = 0
        if self._fresh and not self._first:
            self._reset_all(base)
            return []
        self._first = False
        # What was under way at the end of the last rollout is the first step of this one.
        self._carried = {group for group in everyone if self._pool.is_pending(group)}
        for group in self._carried:
            self._bring_rows(group, base)
        ready = [group for group in everyone if group not in self._carried]
        self._bring(base, ready)
        return ready

    def _reset_all(self, base: int) -> None:
        jobs = {group: Reset([None] * len(envs)) for group, envs in enumerate(self._groups)}
        self._frame[:] = base - 1
        self._done[:] = -1
        self._pool.request([(group, base) for group in jobs], jobs)

    def act_for(self, groups: list[int]) -> None:
        """Ask the policy for some groups, and let them step."""
        if self._stop:
            raise _closed()
        if not groups:
            return
        self._ask(*self.rows_of(groups))
        self.step(groups)

    def step(self, groups: list[int]) -> None:
        """Let some groups step, whose actions are written."""
        self._pool.step_some([(group, int(self._frame[group]) + 1) for group in groups])

    def rows_of(self, groups: list[int]) -> tuple[Any, Any]:
        """At which frames some groups are, and their envs."""
        frames = self._frame[groups]
        same = bool((frames == frames[0]).all())
        if same and len(groups) == len(self._groups):
            return int(frames[0]), self._everyone
        envs = np.concatenate([self._ids[group] for group in groups])
        return int(frames[0]) if same else np.repeat(frames, self._sizes[groups]), envs

    def receive_some(self, deadline: int | None) -> list[int]:
        """Groups that have made a step, as soon as there are enough, or at a deadline."""
        began = now()
        everyone = self.frames.envs
        groups, answers = self._pool.wait_some(self._least, everyone, deadline)
        if not groups:  # none by then: the first that is
            groups, answers = self._pool.wait_some(1, everyone, None)
        self._pool.take(groups)
        self.seconds["waiting"] += (now() - began) / 1e9
        if answers:
            self._settle(answers, {g: int(self._frame[g]) + 1 for g in groups})
        for group in groups:
            if group in self._carried:
                self._carried.discard(group)
                self._carry(group, self._opened)
            self._frame[group] += 1
            self._done[group] += 1
            if self._done[group] == 0:
                self.acting.begin_episodes(int(self._frame[group]), self._rows(group))
            else:
                self.acting.after_step(int(self._frame[group]), self._rows(group))
        return groups

    def _rows(self, group: int) -> slice:
        return slice(self._groups[group].start, self._groups[group].stop)

    def _carry(self, group: int, base: int) -> None:
        """A step that lies in the frames of an earlier rollout is the first of this one."""
        frames, rows, at = self.frames, self._rows(group), int(self._frame[group])
        if at != base:
            for leaf in (*self.acting.carried, *self.acting.extras.values()):
                leaf[base, rows] = leaf[at, rows]
            for field in (
                *(*self.acting.carried, *frames.final_observations, *self.acting.actions),
                *(frames.rewards, frames.terminated, frames.truncated, frames.has_final),
            ):
                field[base + 1, rows] = field[at + 1, rows]
            for column in self._core.results.columns:
                for array in column.views(frames):
                    array[base + 1, rows] = array[at + 1, rows]
            self.rest = [
                (base + 1 if frame == at + 1 and env in self._groups[group] else frame, env, info)
                for frame, env, info in self.rest
            ]
        self._frame[group] = base

    # -- what they share ---------------------------------------------------------------------------

    def _ask(self, at: Any, envs: Any) -> None:
        """The policy for these envs, or what it said when it was asked what it says, about all."""
        began = now()
        asked, self._asked = self._asked, None
        if asked is None or len(self._parts) > 1 or self._partial:
            self.acting.act(at, envs)
        else:
            self.acting.write(at, envs, *asked)
        self.seconds["policy"] += (now() - began) / 1e9

    def _bring(self, base: int, groups: Iterable[int]) -> None:
        """The last observations of some groups to the first frame of the rollout."""
        groups = list(groups)
        frames = self._frame[groups]
        if len(groups) == len(self._groups) and (frames == frames[0]).all():
            if frames[0] != base:
                for leaf in self.acting.carried:
                    leaf[base] = leaf[frames[0]]
        else:
            for group in groups:
                self._bring_rows(group, base)
        self._frame[groups] = base

    def _bring_rows(self, group: int, base: int) -> None:
        rows, at = self._rows(group), self._frame[group]
        for leaf in self.acting.carried if at != base else ():
            leaf[base, rows] = leaf[at, rows]

    def _settle(self, answers: Sequence[Answer], at: Mapping[int, int]) -> None:
        """Take in what groups answered beside what is in the frames that their steps ended at."""
        if failures := self._core.results.failed(answers):
            raise self._pool.error_of(*first(failures))
        for group, said, replaced in answers:
            if replaced == "step":
                mark_lost(self.frames, at[group] - 1, self._rows(group))
            infos = [(env, info) for kind, env, info in said if kind == _BLOCK.INFO]
            self.rest += [(at[group], env, copied_infos(info)) for env, info in infos]


class Workers:
    """The policy in the workers."""

    def __init__(
        self,
        way: Way,
        acting: FramePolicy,
        frames: Frames,
        segment: Segment,
        weights: dict[str, npt.NDArray[Any]] | None,
        entropy: int | list[int],
    ) -> None:
        self.acting = acting
        self.frames = frames
        self.rest: list[tuple[int, int, dict[str, Any]]] = []
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._core = way.core
        self._pool = way.core.pool
        self._groups = way.core.groups
        self._apart = way.num_workers > 0
        self._horizon = way.horizon
        self._policy = way.policy
        self._board = None if not weights else Board(weights, segment)
        self._progress = WorkerProgress(len(self._groups), segment)
        self._last = 0
        self._pickled = b""
        self._entropy = entropy
        self._told = 0
        self.lengths = np.full(frames.envs, way.horizon)
        if is_module(self._policy):
            self._tell(pickled(portable(self._policy)))

    def _tell(self, policy: bytes) -> None:
        """Give the workers the policy."""
        self._pickled = policy
        setup = PolicySetup(
            policy,
            self.acting.outputs,
            None if self._board is None else self._board.place(),
            self._progress.offset,
            groups=len(self._groups),
            entropy=self._entropy,
            policies_before=self._told,
            own_process=self._apart,
        )
        tell(self._pool, TakePolicy, setup)
        self._told += 1

    def start(self, base: int) -> None:
        if self._board is not None:
            self._board.publish(weights_of(self._policy))
        elif not is_module(self._policy) and (now_is := pickled(self._policy)) != self._pickled:
            self._tell(now_is)
        self._progress.steps[:] = -1
        parts = [(group, base) for group in range(len(self._groups))]
        jobs = {group: RolloutJob(self._horizon, group, self._last) for group, _ in parts}
        self._last = base + self._horizon
        with self._core.enter("rollouts"):
            self._pool.request(parts, jobs)

    def finish(self) -> None:
        began = now()
        with self._core.enter("rollouts"):
            answers = self._pool.wait() or []
            self._pool.take_all()
        if self._progress.stopped:  # a signal handler has closed the rollouts meanwhile
            raise _closed()
        self.seconds["waiting"] += (now() - began) / 1e9
        failures = [(group, said) for group, said, _ in answers if isinstance(said, Failure)]
        for group, said, _ in answers:
            if isinstance(said, Failure):
                continue
            for at, kind, env, thing in said.leftovers:
                if kind == _BLOCK.ERROR:
                    failures.append((group, thing))
                elif kind == _BLOCK.INFO:
                    self.rest.append((at, env, thing))
            self.seconds["policy"] += said.policy_ns / 1e9 / max(1, len(self._pool.groups))
        if failures:
            raise self._pool.error_of(*first(failures))

    def stop(self) -> None:
        """Let the workers end the rollout where it is."""
        self._progress.stop()

    def end(self) -> bool:
        """Stop, and return True: nothing but the pool is at work."""
        self.stop()
        return True


def tell(pool: Any, note: type[TakePolicy], setup: PolicySetup) -> None:
    """Give workers a policy, and those that replace lost ones."""
    pool.note(lambda envs: note(replace(setup, first_env=envs.start)), standing=True)


class _Thread:
    """A thread that does one thing after the other, each of which is waited for."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._over: list[bool] = []
        self._thread = threading.Thread(
            target=_work,
            args=(self._asked, self._done, self._over),
            name="pysampler rollouts",
            daemon=True,
        )
        self._thread.start()

    def do(self, what: Callable[[], None]) -> None:
        self._asked.put(what)

    def wait(self) -> None:
        error = self._done.get()
        if error is not None:
            raise error

    def end(self) -> bool:
        """After what it is at, which has been told to stop; whether that was in time."""
        self._asked.put(None)
        if threading.current_thread() is self._thread:  # where the garbage collector came by
            return False
        # Not with join(): one that an exception of a signal handler interrupts takes the thread for
        # ended though it is not.
        deadline = now() + int(GRACE * 1e9)
        while not self._over and now() < deadline:
            time.sleep(0.0005)
        return bool(self._over)

    def __del__(self) -> None:
        if hasattr(self, "_asked"):
            self._asked.put(None)  # which may be done anywhere


def _work(asked: Any, done: Any, over: list[bool]) -> None:
    while (what := asked.get()) is not None:
        try:
            what()
        except BaseException as error:
            done.put(error)
        else:
            done.put(None)
        del what
    over.append(True)


def _parts(core: VectorCore) -> list[tuple[list[int], Any]]:
    """Groups that the policy acts for together, and their envs: the n-th of each worker."""
    parts: dict[int, list[int]] = {}
    nth: dict[int, int] = {}
    for group, worker in enumerate(core.pool.worker_of):
        nth[worker] = nth.get(worker, -1) + 1
        parts.setdefault(nth[worker], []).append(group)
    if len(parts) == 1:
        return [(parts[0], slice(0, core.num_envs))]
    return [
        (
            groups,
            np.concatenate(
                [np.arange(g.start, g.stop) for g in map(core.groups.__getitem__, groups)]
            ),
        )
        for groups in parts.values()
    ]


def copied(policy: Any) -> Any:
    """Return a copy of a policy; of a function, with what it refers to."""
    try:
        return copy.deepcopy(policy) if is_module(policy) else pickle.loads(_by_value(policy))
    except Exception as error:
        with contextlib.suppress(Exception):
            if (own := copy.deepcopy(policy)) is not policy:
                return own
        raise TypeError(
            f"cannot copy the policy: {type(error).__name__}: {error}; make what it needs inside "
            "of it, or leave it in the main process, without overlap"
        ) from error


def _by_value(policy: Any) -> bytes:
    """Pickle a policy; a function with what it uses of its own module, as it is now."""
    function = policy
    while isinstance(function, (functools.partial, MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if isinstance(function, FunctionType):
        with contextlib.suppress(Exception):  # what cannot be is imported there
            return dumps_by_value(policy, home=function.__module__)
    return dumps_by_value(policy)


def _fingerprint(policy: Any) -> bytes | None:
    """Return what tells whether it has changed; None if nothing does."""
    try:
        return _by_value(policy)
    except Exception:
        return None


def pickled(policy: Any) -> bytes:
    """A policy, for workers."""
    try:
        return _by_value(policy)
    except Exception as error:
        raise TypeError(
            f"cannot send the policy to workers: {type(error).__name__}: {error}; make what it "
            'needs inside of it, or pass policy_in="main"'
        ) from error
