"""Rollouts: a policy and envs walk the ring of frames, T steps at a time.

A rollout is T + 1 frames in a row. In frame t lies what the envs returned at last, and beside it
what the policy said to that; its actions lie in frame t + 1, where the step they are for writes its
results. The last observations of a rollout are written to the first frame of the next.

Who walks is where the policy is: ``Centre`` acts in this process, for whoever is ready;
``_Workers`` sends one command and each worker acts for its own envs.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from gymnasium.vector.vector_env import AutoresetMode

from pysampler import _core
from pysampler.acting import LOST, Progress, Role, mark_lost
from pysampler.block import Failure, Restored
from pysampler.errors import BusyError, ClosedError, EnvError, LostError, PysamplerError
from pysampler.make import make_vec
from pysampler.policies import (
    Acting,
    Actor,
    copy_weights,
    is_module,
    no_odd,
    portable,
    torch_threads,
    weights_of,
)
from pysampler.processes import GRACE
from pysampler.remote import dumps_by_value
from pysampler.results import first
from pysampler.rollout import Ended, Rollout
from pysampler.spec import build
from pysampler.sync import Board, now
from pysampler.vector_env import VectorEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    import numpy.typing as npt

    from pysampler.frames import Frames
    from pysampler.infos import Column
    from pysampler.local import LocalPool
    from pysampler.pool import Pool
    from pysampler.results import Message
    from pysampler.sync import Segment

__all__ = ["Centre", "Rollouts", "rollouts", "whole_number"]

Where = Literal["centre", "workers"]
_BLOCK = _core.EnvBlock


class _Stopped(Exception):  # noqa: N818 - not an error: close() came
    """The rollout under way is not wanted any more."""


def rollouts(
    envs: Any,
    policy: Any,
    horizon: int,
    *,
    num_envs: int | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Rollouts:
    """Rollouts of a policy in envs, one after the other, for ever: an iterator.

    ``envs`` is a :class:`pysampler.VectorEnv`, or what :func:`pysampler.make_vec` makes one of:
    then ``num_envs`` and ``vector_kwargs`` are its, and it is closed with the rollouts. ``options``
    are those of :class:`Rollouts`.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> with rollouts("CartPole-v1", policy, horizon=32, num_envs=4, seed=1) as some:
    ...     rollout = next(some)
    ...     rollout.observations.shape, rollout.rewards.shape
    ((33, 4, 4), (32, 4))
    """
    if isinstance(envs, VectorEnv):
        if num_envs is not None or vector_kwargs is not None:
            raise ValueError("cannot sample rollouts: num_envs and vector_kwargs are of other envs")
        return Rollouts(envs, policy, horizon, **options)
    made = make_vec(envs, 1 if num_envs is None else num_envs, vector_kwargs=vector_kwargs)
    try:
        if not isinstance(made, VectorEnv):
            raise TypeError(f"cannot sample rollouts: of {type(made).__name__}")
        return Rollouts(made, policy, horizon, owned=True, **options)
    except BaseException:
        made.close()
        raise


class Rollouts:
    """An iterator over rollouts of ``horizon`` steps of all envs. It begins with a reset.

    - ``policy``: see :mod:`pysampler.policies`.
    - ``where``: the policy is in the "centre", asked in this process for all envs together, or in
      the "workers", each of which acts for its own envs: one command a rollout instead of one a
      step. Weights of a torch module reach them on a board, other policies are pickled whenever
      they have changed. If the vector env has ``groups=2``, the policy in the centre acts for one
      half of each worker's envs while the other half steps.
    - ``overlap``: the next rollout is sampled while you use the last one, with the policy as it was
      when you got that: ``rollout.lag`` is 1. A module is copied for it, other policies too where
      they can be.
    - ``keep``: how many of the newest rollouts stay as they are.
    - ``min_envs``, ``timeout``: the policy (in the centre) acts as soon as so many envs are ready,
      or so many seconds later for those that are; envs drift apart, and each step lands in its
      place all the same. With ``whole=False`` a rollout is over when the first envs have all their
      steps; ``valid`` and ``lengths`` say what the others have. What is under way then is their
      first step in the next rollout: nothing is lost.
    - ``threads``: of torch, while a policy in the centre acts on the CPU. More than one wait for
      work by spinning, which takes the CPUs from the workers; it pays for wide networks only. None
      leaves torch as it is, and so does ``overlap``.
    - ``fresh``: each rollout begins with a reset of all envs, without waiting for one another.
    - ``infos``: keys of infos that are numbers or arrays, to be in ``rollout.infos``.
    - ``seed``: of the first reset, and of the policy's random numbers in workers.

    Meanwhile the vector env resets envs in the step that ends their episode, whatever its own
    ``autoreset_mode``, and cannot be stepped by others; ``close()`` gives it back. A failed env is
    an ``EnvError``: the rollout under way is dropped, and the next begins with a reset. Where
    workers are replaced (``on_worker_loss="restart"``) the rollout goes on: the step is not
    ``valid``, ``lost`` tells why, and the episode is truncated.
    """

    def __init__(
        self,
        envs: VectorEnv,
        policy: Any,
        horizon: int,
        *,
        where: Where = "centre",
        overlap: bool = False,
        keep: int = 1,
        min_envs: int | None = None,
        timeout: float | None = None,
        whole: bool = True,
        fresh: bool = False,
        infos: Iterable[str] = (),
        threads: int | None = 1,
        seed: int | list[int | None] | None = None,
        owned: bool = False,
    ) -> None:
        self._closed = True  # until it is open
        horizon = whole_number("horizon", horizon, 1)
        keep = whole_number("keep", keep, 1)
        if where not in get_args(Where):
            raise _refuse("where", where, 'one of "centre", "workers"')
        partial = min_envs is not None or timeout is not None or not whole or fresh
        if where == "workers" and partial:
            raise ValueError(
                "cannot sample rollouts: min_envs, timeout, fresh and whole=False are for a policy "
                "in the centre; workers do not wait for one another"
            )
        if fresh and not whole:
            raise ValueError(
                "cannot sample rollouts: with fresh, what is under way at the end of a rollout "
                "would be lost; expected whole=True"
            )
        if min_envs is not None:
            min_envs = min(whole_number("min_envs", min_envs, 1), envs.num_envs)
        if timeout is not None and not timeout >= 0:
            raise _refuse("timeout", timeout, "seconds >= 0 or None")
        if isinstance(infos, str):
            raise _refuse("infos", infos, f"a list of keys: [{infos!r}]")
        if envs.worker is not None:
            raise ValueError(
                "cannot sample rollouts: what a `worker` function runs resets its env by itself; "
                "expected a vector env without one"
            )
        self._spec = envs._spec
        if self._spec.odd_observations or self._spec.odd_actions:
            raise ValueError(
                f"cannot sample rollouts: {envs.single_observation_space} and "
                f"{envs.single_action_space} have parts without a fixed shape, which lie in no "
                "array"
            )
        self.envs = envs
        self.horizon = horizon
        self._actor = self._actor_of(policy)
        self._policy = policy
        self._where = where
        self._overlap = overlap
        self._partial = partial
        self._min_envs = envs.num_envs if min_envs is None else min_envs
        self._timeout = None if timeout is None else int(min(timeout, 1e9) * 1e9)
        self._whole = whole
        self._fresh = fresh
        self._infos = list(infos)
        self._threads = threads if threads is None else whole_number("threads", threads, 1)
        self._seed = seed
        self._owned = owned
        self._slots = keep + overlap
        self._slot = 0
        self._place: Centre | _Workers | None = None
        self._tally: _Tally | None = None
        self._laid_out = False  # the envs work on frames of these rollouts
        self._under_way = False  # a rollout has been started and not been finished
        self._version = 0
        self._handed_out_at: int | None = None
        self._learner_ns = 0
        self._turn = threading.Lock()  # of next()
        self._failed: Exception | None = None  # what the next rollout could not be started for
        with envs._entered("rollouts"):
            envs._expect_idle("rollouts")
            envs._state = "rollouts"
            envs._borrower = weakref.ref(self)
        self._closed = False

    def _actor_of(self, policy: Any) -> Actor:
        return Actor(policy, self._spec)

    def __iter__(self) -> Iterator[Rollout]:
        return self

    def __next__(self) -> Rollout:
        """The next rollout."""
        self._expect_open()
        if not self._turn.acquire(blocking=False):
            raise BusyError("cannot sample rollouts: another thread does")
        try:
            return self._next()
        finally:
            self._turn.release()

    def _next(self) -> Rollout:
        self._learner_ns = 0 if self._handed_out_at is None else now() - self._handed_out_at
        try:
            if self._failed is not None:
                error, self._failed = self._failed, None
                raise error
            if self._place is None:
                self._begin()
            assert self._place is not None
            if not self._under_way:
                self._start(0)
            self._place.finish()
            self._under_way = False
            rollout = self._made()
            if self._overlap:
                try:
                    self._start(1)
                except Exception as error:  # this rollout is there all the same
                    self._failed = error
        except BaseException:
            self._drop()
            raise
        self._handed_out_at = now()
        return rollout

    def _expect_open(self) -> None:
        if self._closed:
            raise ClosedError("cannot sample rollouts: they are closed")
        if not self._mine:
            raise ClosedError(
                f"cannot sample rollouts: made by process {self.envs._owner}, this is "
                f"{os.getpid()}, a fork"
            )

    @property
    def _mine(self) -> bool:
        return os.getpid() == self.envs._owner

    # -- a rollout -------------------------------------------------------------------------------

    def _start(self, lag: int) -> None:
        """Take over the policy as it is now, and let the next slot be filled."""
        assert self._place is not None
        self.envs._tell_columns()
        self._lag = lag
        self._version += 1
        self._under_way = True
        self._place.acting.actor.settle()
        self._place.start(self._slot * (self.horizon + 1))

    def _made(self) -> Rollout:
        """The rollout that has been finished."""
        place, tally, envs = self._place, self._tally, self.envs
        assert place is not None
        assert tally is not None
        base = self._slot * (self.horizon + 1)
        self._slot = (self._slot + 1) % self._slots
        frames = place.frames
        steps = slice(base + 1, base + 1 + self.horizon)
        seen = slice(base, base + 1 + self.horizon)
        acted = slice(base, base + self.horizon)
        if self._fresh:
            tally.begin_episodes()
        marks = tally.count(base // (self.horizon + 1), frames, steps, place.lengths)
        rest, place.rest = place.rest, []
        columns = _InfoColumns(envs, frames, self._infos, rest, steps, marks)
        said = place.acting.said
        count = len(said.extras)
        spec = self._spec
        seconds = {**place.seconds, **tally.env_seconds(envs), "learner": self._learner_ns / 1e9}
        place.seconds = dict.fromkeys(place.seconds, 0.0)
        return Rollout(
            observations=_tree(spec.observation_tree, frames.observations, seen),
            actions=_tree(spec.action_tree, place.acting.actions, steps),
            rewards=frames.rewards[steps],
            terminated=frames.terminated[steps],
            truncated=frames.truncated[steps],
            final_observations=_tree(spec.observation_tree, frames.final_observations, steps),
            extras={
                name: array[acted]
                for (name, _), array in zip(said.extras, frames.extras[:count], strict=True)
            },
            state=place.acting.recorded_state(acted),
            infos=columns.values,
            info_masks=columns.masks,
            options=frames.options_versions[seen],
            version=self._version,
            lag=self._lag,
            seconds=seconds,
            memory=frames.memory,
            **marks,
        )

    # -- beginning and ending --------------------------------------------------------------------

    def _begin(self) -> None:
        """Reset the envs, ask the policy for the first time, lay out frames for what it says."""
        envs = self.envs
        with self.between():
            envs.reset(seed=self._seed)
        policy_seed = self._seed if isinstance(self._seed, (int, np.integer)) else None
        self._seed = None
        results = envs._results
        seen = [leaf[results.frame].copy() for leaf in results.frames.observations]
        versions = results.frames.options_versions[results.frame].copy()
        actor = self._actor
        if self._where == "workers":
            actor = self._actor_of(_copied(self._policy))
        everyone = slice(0, envs.num_envs)
        own = [array.copy() for array in seen]  # which the policy may do with what it likes
        initial = actor.initial_state(envs.num_envs)
        asked = actor(own, initial, everyone)
        said = actor.describe(*asked)
        weights = weights_of(self._policy) if is_module(self._policy) else None
        board_bytes = sum(w.nbytes + 8 for w in (weights or {}).values()) * 3
        room = board_bytes + Progress.size_of(len(envs._groups)) + (1 << 16)
        count = self._slots * (self.horizon + 1)
        self._laid_out = True
        keep: Literal["all", "none"] = "all" if self._infos else "none"
        frames, segment = envs._lay_out(count, AutoresetMode.SAME_STEP, keep, said.fields, room)
        for leaf, rows in zip(frames.observations, seen, strict=True):
            leaf[0] = rows
        frames.options_versions[0] = versions
        acting = Acting(actor, said, frames)
        acting.forget(0, everyone, initial)
        self._slot = 0
        self._under_way = False
        self._tally = _Tally(self._slots, self.horizon, envs)
        if self._where == "workers":
            self._place = _Workers(self, acting, frames, segment, weights, policy_seed)
        else:
            self._place = Centre(self, acting, frames, asked)

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        """Let the vector env be used for something that leaves the envs' steps alone.

        Between rollouts, with nothing under way.
        """
        self.envs._state = None
        try:
            yield
        finally:
            self.envs._state = "rollouts"

    def _drop(self) -> None:
        """What is under way is not wanted: wait for it, and begin anew with the next rollout."""
        if not self._mine:
            return
        place, self._place = self._place, None
        self._handed_out_at = None
        self._under_way = False
        pool = self.envs._pool
        ended = place is None or place.end()
        if pool.closed:
            return
        pool.note("act_with", lambda _: None)
        if not ended or not _drained(pool):
            left = pool.pending - pool.ready
            pool.kill()
            warnings.warn(
                f"the vector env was closed with a rollout under way: {left} envs did not return",
                stacklevel=3,
            )

    def pause(self) -> None:
        """Give the vector env back for a while; the next rollout begins with a reset."""
        self._expect_open()
        self._give_back()

    def resume(self) -> None:
        """After ``pause``. Nothing may be pending."""
        if self._closed or self.envs.closed:
            return
        with self.envs._entered("rollouts"):
            self.envs._expect_idle("rollouts")
            self.envs._state = "rollouts"
            self.envs._borrower = weakref.ref(self)

    def _give_back(self) -> None:
        self._drop()
        envs = self.envs
        if envs._borrower is None or envs._borrower() is not self:
            return  # it has been given back
        envs._borrower = None
        if not envs.closed:
            if self._laid_out:
                envs._lay_out(*envs._usual_layout)
            envs._state = None
        self._laid_out = False

    def let_go(self) -> None:
        """Close, but for the vector env."""
        if self._closed or not self._mine:
            return
        self._closed = True
        with contextlib.suppress(LostError, EnvError):
            self._give_back()

    def close(self) -> None:
        """End what is under way, and give the vector env back, or close it if it was made here."""
        self.let_go()
        if self._mine and self._owned and not self.envs.closed:
            self.envs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if not self._closed:
                self.close()

    def __repr__(self) -> str:
        return (
            f"<pysampler.Rollouts of {self.envs!r}, horizon {self.horizon}, policy in the "
            f"{self._where}{', closed' * self._closed}>"
        )


def _drained(pool: Pool | LocalPool) -> bool:
    """Whether all that was in flight has come back, well or not."""
    deadline = now() + int(GRACE * 1e9)
    while not pool.closed and pool.pending:
        try:
            if pool.wait((deadline - now()) / 1e9) is None:
                return False
        except (EnvError, LostError):
            continue
        except PysamplerError:  # an env is late
            return False
    return True


class Centre:
    """The policy in this process."""

    def __init__(self, owner: Rollouts, acting: Acting, frames: Frames, asked: Any) -> None:
        envs = owner.envs
        self.acting = acting
        self.frames = frames
        self.rest: list[tuple[int, int, dict[str, Any]]] = []  # infos: frame, env
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._envs = envs
        self._pool = envs._pool
        self._groups = envs._groups
        self._sizes = np.array([len(group) for group in self._groups])
        self._horizon = owner.horizon
        self._partial = owner._partial
        self._whole = owner._whole
        self._least = owner._min_envs
        self._timeout = owner._timeout
        self._asked = asked  # the policy, about the observations of the first frame
        self._everyone = slice(0, frames.envs)
        self._parts = _parts(envs)
        self._ids = [np.arange(group.start, group.stop) for group in self._groups]
        self._carried: set[int] = set()  # groups whose step under way is of an earlier rollout
        self._opened = 0
        self._fresh = owner._fresh
        self._first = True  # which begins with the reset there has just been
        self._stop = False
        # Where each group is: the frame of what it returned at last, and how many steps it made.
        self._frame = np.zeros(len(self._groups), np.int64)
        self._done = np.zeros(len(self._groups), np.int64)
        self._policy = owner._policy
        self._copied_from: bytes | None = None
        self._thread = _Thread() if owner._overlap else None
        # With another thread beside this one, they would be the other's too.
        self._threads = None if owner._overlap else owner._threads
        if self._thread is not None and is_module(self._policy):
            acting.actor = owner._actor_of(copy.deepcopy(self._policy))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Steps of each env."""
        return np.repeat(self._done, self._sizes)

    def start(self, base: int) -> None:
        if self._thread is None:
            self._base = base
            return
        if is_module(self._policy):
            copy_weights(self.acting.actor.policy, self._policy)
        elif (now_is := _fingerprint(self._policy)) is None or now_is != self._copied_from:
            # Not where it has not changed: its own random numbers go on.
            self._copied_from = now_is
            self.acting.actor.policy = _copied(self._policy)
        self._thread.do(lambda: self._fill(base))

    def finish(self) -> None:
        if self._thread is None:
            self._fill(self._base)
        else:
            self._thread.wait()

    def end(self) -> bool:
        """Stop; whether it has, so that nobody works on the pool any more."""
        self._stop = True
        return self._thread is None or self._thread.end()

    def _fill(self, base: int) -> None:
        # The thread leaves the turn to others: what could harm it is refused for the state, and
        # options and counters may be asked for.
        turn = self._envs._entered("rollouts") if self._thread is None else contextlib.nullcontext()
        with turn, torch_threads(self._threads):
            if self._partial:
                self._fill_as_they_come(base)
            else:
                self._fill_in_turn(base)

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
            raise _Stopped
        began = now()
        if self._asked is not None:
            self._answer_first(at, envs)
        else:
            self.acting.act(at, envs)
        self.seconds["policy"] += (now() - began) / 1e9
        if len(self._parts) == 1:
            self._pool.step(at + 1)
        else:
            self._pool.step_some([(group, at + 1) for group in groups])

    def _answer_first(self, at: int, envs: Any) -> None:
        """With what the policy said when it was asked what it says."""
        asked, self._asked = self._asked, None
        if len(self._parts) > 1 or self._partial:
            self.acting.act(at, envs)
        else:
            self.acting.write(at, envs, *asked)

    def _receive_part(self, groups: list[int], envs: Any, at: int) -> None:
        began = now()
        if len(self._parts) == 1:
            messages = self._pool.wait() or []
        else:
            messages = self._pool.wait_for(groups)
            self._pool.take(groups)
        self.seconds["waiting"] += (now() - began) / 1e9
        if messages:
            self._settle(messages, dict.fromkeys(groups, at))
        self.acting.after(at, envs)

    # -- whoever is ready --------------------------------------------------------------------------

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
        requests = {
            group: ("reset", ([None] * len(envs), None, None))
            for group, envs in enumerate(self._groups)
        }
        self._frame[:] = base - 1
        self._done[:] = -1
        self._pool.request([(group, base) for group in requests], requests, "resetting")

    def act_for(self, groups: list[int]) -> None:
        """Ask the policy for some groups, and let them step."""
        if self._stop:
            raise _Stopped
        if not groups:
            return
        began = now()
        at, envs = self.rows_of(groups)
        if self._asked is not None:
            self._answer_first(at, envs)
        else:
            self.acting.act(at, envs)
        self.seconds["policy"] += (now() - began) / 1e9
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
        groups, messages = self._pool.wait_some(self._least, everyone, deadline)
        if not groups:  # none by then: the first that is
            groups, messages = self._pool.wait_some(1, everyone, None)
        self._pool.take(groups)
        self.seconds["waiting"] += (now() - began) / 1e9
        if messages:
            self._settle(messages, {g: int(self._frame[g]) + 1 for g in groups})
        for group in groups:
            if group in self._carried:
                self._carried.discard(group)
                self._carry(group, self._opened)
            self._frame[group] += 1
            self._done[group] += 1
            if self._done[group] == 0:
                self.acting.forget(int(self._frame[group]), self._rows(group))
            else:
                self.acting.after(int(self._frame[group]), self._rows(group))
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
            for column in self._envs._results.columns:
                for array in column.views(frames):
                    array[base + 1, rows] = array[at + 1, rows]
            self.rest = [
                (base + 1 if frame == at + 1 and env in self._groups[group] else frame, env, info)
                for frame, env, info in self.rest
            ]
        self._frame[group] = base

    # -- what they share ---------------------------------------------------------------------------

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

    def _settle(self, messages: Sequence[Message], at: Mapping[int, int]) -> None:
        """What groups had to say beside what lies in the frames that their steps ended at."""
        if failures := self._envs._results.failed(messages):
            raise self._pool.error_of(*first(failures))
        for group, message in messages:
            said = message
            if isinstance(message, Restored):
                said = message.said
                if message.stepping:
                    mark_lost(self.frames, at[group] - 1, self._rows(group))
            self.rest += [(at[group], env, info) for kind, env, info in said if kind == _BLOCK.INFO]


class _Workers:
    """The policy in the workers."""

    def __init__(
        self,
        owner: Rollouts,
        acting: Acting,
        frames: Frames,
        segment: Segment,
        weights: dict[str, npt.NDArray[Any]] | None,
        seed: int | None,
    ) -> None:
        self.acting = acting
        self.frames = frames
        self.rest: list[tuple[int, int, dict[str, Any]]] = []
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._envs = owner.envs
        self._pool = owner.envs._pool
        self._groups = owner.envs._groups
        self._horizon = owner.horizon
        self._policy = owner._policy
        self._board = None if not weights else Board(weights, segment)
        self._progress = Progress(len(self._groups), segment)
        self._last = 0
        self._pickled = b""
        # In this process the random numbers are the user's.
        self._seed = seed if owner.envs.num_workers > 0 else None
        self.lengths = np.full(frames.envs, owner.horizon)
        if is_module(self._policy):
            self._tell(_pickled(portable(self._policy)))

    def _tell(self, policy: bytes) -> None:
        """Give the workers the policy."""
        self._pickled = policy
        seed, self._seed = self._seed, None

        def role(envs: range) -> tuple[Role]:
            own = None
            if seed is not None:  # each worker draws its own numbers, the same every time
                sequence = np.random.SeedSequence(seed, spawn_key=(envs.start,))
                own = int(sequence.generate_state(1)[0])
            board = None if self._board is None else self._board.place()
            return (
                Role(
                    policy,
                    self.acting.said,
                    board,
                    self._progress.offset,
                    len(self._groups),
                    own,
                ),
            )

        self._pool.note("act_with", role, standing=True)

    def start(self, base: int) -> None:
        if self._board is not None:
            self._board.publish(weights_of(self._policy))
        elif not is_module(self._policy) and (pickled := _pickled(self._policy)) != self._pickled:
            self._tell(pickled)
        self._progress.steps[:] = 0
        parts = [(group, base) for group in range(len(self._groups))]
        requests = {group: ("rollout", (self._horizon, group, self._last)) for group, _ in parts}
        self._last = base + self._horizon
        with self._envs._entered("rollouts"):
            self._pool.request(parts, requests, "acting and stepping")

    def finish(self) -> None:
        began = now()
        with self._envs._entered("rollouts"):
            messages = self._pool.wait() or []
        self.seconds["waiting"] += (now() - began) / 1e9
        failures = [(group, said) for group, said in messages if isinstance(said, Failure)]
        for group, message in messages:
            said = message.said if isinstance(message, Restored) else message
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

    def end(self) -> bool:
        """Stop; nobody but the pool is at work."""
        self._progress.stop()
        return True


class _Tally:
    """What is counted across rollouts: episodes, and which of their steps were made."""

    def __init__(self, slots: int, horizon: int, envs: VectorEnv) -> None:
        count = envs.num_envs
        self._starts = np.zeros((slots, horizon + 1, count), np.bool_)
        self._valid = np.zeros((slots, horizon, count), np.bool_)
        self._lost = np.zeros((slots, horizon, count), np.bool_)
        self._begins = np.ones(count, np.bool_)  # what comes next, with an episode
        self._return = np.zeros(count)  # of the episode so far
        self._length = np.zeros(count, np.int64)
        self._time = np.arange(horizon)[:, None]
        self._busy = self._busy_seconds(envs)

    def begin_episodes(self) -> None:
        """All envs were reset."""
        self._begins[:] = True
        self._return[:] = 0
        self._length[:] = 0

    def count(
        self, slot: int, frames: Frames, steps: slice, lengths: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        """The fields of a rollout that say what its steps are."""
        starts, valid, lost = self._starts[slot], self._valid[slot], self._lost[slot]
        rewards, over = frames.rewards[steps], starts[1:]
        np.less(self._time, lengths, out=valid)
        np.logical_or(frames.terminated[steps], frames.truncated[steps], out=over)
        np.logical_and(over, valid, out=over)
        starts[0] = self._begins
        np.equal(frames.has_final[steps], LOST, out=lost)
        np.logical_and(lost, valid, out=lost)
        ended: list[tuple[int, int, float, int]] = []
        # Step by step, so that an episode's return is of nothing but its own rewards.
        for t, some in enumerate(over.any(axis=1)):
            np.add(self._return, rewards[t], out=self._return, where=valid[t])
            np.add(self._length, 1, out=self._length, where=valid[t])
            if some:
                envs = np.flatnonzero(over[t])
                ended += [
                    (int(env), t, float(self._return[env]), int(self._length[env]))
                    for env in envs[~lost[t, envs]]
                ]
                self._return[envs] = 0
                self._length[envs] = 0
        ended.sort()
        columns = list(zip(*ended, strict=True)) or [()] * 4
        self._begins = starts[lengths, np.arange(len(lengths))].copy()
        np.greater(valid, lost, out=valid)  # made, and not lost
        return {
            "starts": starts,
            "valid": valid,
            "lost": lost,
            "lengths": lengths.copy(),
            "ended": Ended(
                np.array(columns[0], np.int64),
                np.array(columns[1], np.int64),
                np.array(columns[2], np.float64),
                np.array(columns[3], np.int64),
            ),
        }

    def env_seconds(self, envs: VectorEnv) -> dict[str, float]:
        """How long envs were at work since it was asked last, on average over workers."""
        before, self._busy = self._busy, self._busy_seconds(envs)
        return {"envs": (self._busy - before) / max(1, envs.num_workers)}

    @staticmethod
    def _busy_seconds(envs: VectorEnv) -> float:
        return envs._pool.busy_seconds()


class _InfoColumns:
    """The infos that were asked for, as arrays over a rollout's steps.

    Where an episode ended, that is what came with its last step, not with the reset after it.
    """

    def __init__(
        self,
        envs: VectorEnv,
        frames: Frames,
        names: Sequence[str],
        rest: Sequence[tuple[int, int, dict[str, Any]]],
        steps: slice,
        marks: dict[str, Any],
    ) -> None:
        self.values: dict[str, Any] = {}
        self.masks: dict[str, Any] = {}
        if not names:
            return
        columns = envs._results.learn([(env, info) for _, env, info in rest])
        over, valid = marks["starts"][1:], marks["valid"]
        # A reset before the first step is none of the steps.
        said = [(at - steps.start, env, info) for at, env, info in rest if at >= steps.start]
        for name in names:
            during = [c for c in columns if c.path == (name,) and c.dtype is not None]
            final = [c for c in columns if c.path == ("final_info", name) and c.dtype is not None]
            if during or final:
                values, mask = _joined(frames, steps, during, final, over)
            else:
                warnings.warn(f"no env has given an info {name!r} that is a number", stacklevel=4)
                values, mask = np.zeros(over.shape), np.zeros(over.shape, np.bool_)
            for t, env, info in said:
                one = info.get("final_info", {}) if over[t, env] else info
                if name in one and _fits(one[name], values):
                    values[t, env] = one[name]
                    mask[t, env] = True
            if not valid.all():  # a step under way may yet be writing to its row
                mask = mask & valid
            self.values[name], self.masks[name] = values, mask


def _joined(
    frames: Frames,
    steps: slice,
    during: Sequence[Column],
    final: Sequence[Column],
    over: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """One array of all columns of a key, in the memory of the first."""
    first, *others = [*during, *final]
    values, mask = (array[steps] for array in first.views(frames))
    others = [column for column in others if column.shape == first.shape]
    dtype = np.result_type(*(c.dtype for c in (first, *others) if c.dtype is not None))
    if dtype != values.dtype:  # types of values mix: the one array that is not the workers' own
        values = values.astype(dtype)
    if during:
        mask[over] = False
    for column in others:
        more, there = (array[steps] for array in column.views(frames))
        there = there & over if column in final else there & ~over
        values[there] = more[there]
        mask[there] = True
    return values, mask


def _fits(value: Any, values: npt.NDArray[Any]) -> bool:
    try:
        array = np.asarray(value)
    except Exception:
        return False
    return array.dtype.kind in "biufc" and array.shape == values.shape[2:]


class _Thread:
    """One that does one thing after the other, for somebody who waits for each."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(
            target=_work, args=(self._asked, self._done), name="pysampler rollouts", daemon=True
        )
        self._thread.start()

    def do(self, what: Callable[[], None]) -> None:
        self._busy = True
        self._asked.put(what)

    def wait(self) -> None:
        error = self._done.get()
        self._busy = False
        if error is not None:
            raise error

    def end(self) -> bool:
        """After what it is at, which has been told to stop; whether that was in time."""
        self._asked.put(None)
        if threading.current_thread() is self._thread:  # where the garbage collector came by
            return False
        self._thread.join(GRACE)
        return not self._thread.is_alive()


def _work(asked: Any, done: Any) -> None:
    while (what := asked.get()) is not None:
        try:
            what()
        except BaseException as error:
            done.put(error)
        else:
            done.put(None)
        del what


def _parts(envs: VectorEnv) -> list[tuple[list[int], Any]]:
    """Groups that the policy acts for together, and their envs: the n-th of each worker."""
    parts: dict[int, list[int]] = {}
    nth: dict[int, int] = {}
    for group, worker in enumerate(envs._pool.worker_of):
        nth[worker] = nth.get(worker, -1) + 1
        parts.setdefault(nth[worker], []).append(group)
    if len(parts) == 1:
        return [(parts[0], slice(0, envs.num_envs))]
    return [
        (
            groups,
            np.concatenate(
                [np.arange(g.start, g.stop) for g in map(envs._groups.__getitem__, groups)]
            ),
        )
        for groups in parts.values()
    ]


def _tree(tree: Any, arrays: Sequence[npt.NDArray[Any]], steps: slice) -> Any:
    return build(tree, lambda leaf: arrays[leaf][steps], no_odd)


def _copied(policy: Any) -> Any:
    """One of its own for somebody else, where it can be copied."""
    try:
        return copy.deepcopy(policy)
    except Exception:
        return policy


def _fingerprint(policy: Any) -> bytes | None:
    """What tells whether it has changed; None if nothing does."""
    try:
        return dumps_by_value(policy)
    except Exception:
        return None


def _pickled(policy: Any) -> bytes:
    try:
        return dumps_by_value(policy)
    except Exception as error:
        raise TypeError(
            f"cannot send the policy to workers: {type(error).__name__}: {error}; make what it "
            "needs inside of it, or leave it in the centre"
        ) from error


def _refuse(what: str, got: Any, expected: str) -> ValueError:
    return ValueError(f"cannot sample rollouts: {what} {got!r}, expected {expected}")


def whole_number(what: str, got: Any, least: int) -> int:
    if isinstance(got, bool) or not isinstance(got, (int, np.integer)) or got < least:
        raise _refuse(what, got, f"a whole number of at least {least}")
    return int(got)
