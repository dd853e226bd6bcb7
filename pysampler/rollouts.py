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
import queue
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from gymnasium.vector.vector_env import AutoresetMode

from pysampler import _core
from pysampler.acting import Progress, Role, mark_lost
from pysampler.block import Failure, Restored
from pysampler.errors import ClosedError, EnvError, LostError, PysamplerError
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
        if self._closed:
            raise ClosedError("cannot sample rollouts: they are closed")
        self._learner_ns = 0 if self._handed_out_at is None else now() - self._handed_out_at
        try:
            if self._place is None:
                self._begin()
            assert self._place is not None
            if not self._under_way:
                self._start(0)
            self._place.finish()
            self._under_way = False
            rollout = self._made()
            if self._overlap:
                self._start(1)
        except BaseException:
            self._drop()
            raise
        self._handed_out_at = now()
        return rollout

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
        columns = _InfoColumns(envs, frames, self._infos, place.rest, steps)
        place.rest = []
        marks = tally.count(base // (self.horizon + 1), frames, steps, place.lengths, place.lost)
        place.lost = []
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
        asked = actor(seen, actor.initial_state(envs.num_envs), everyone)
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
        acting.forget(0, everyone)
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
        place, self._place = self._place, None
        self._handed_out_at = None
        if place is not None:
            place.end()
        if not _drained(self.envs._pool):
            left = self.envs._pool.pending
            self.envs._pool.kill()
            warnings.warn(
                f"the vector env was closed with a rollout under way: {left} envs did not return",
                stacklevel=3,
            )

    def pause(self) -> None:
        """Give the vector env back for a while; the next rollout begins with a reset."""
        self._drop()
        if not self.envs.closed:
            if self._laid_out:
                self.envs._pool.note("act_with", lambda _: None)
                self.envs._lay_out(*self.envs._usual_layout)
                self._laid_out = False
            self.envs._state = None

    def resume(self) -> None:
        """After ``pause``. Nothing may be pending."""
        with self.envs._entered("rollouts"):
            self.envs._expect_idle("rollouts")
            self.envs._state = "rollouts"

    def close(self) -> None:
        """End what is under way, and give the vector env back, or close it if it was made here."""
        if self._closed:
            return
        self._closed = True
        self.envs._borrower = None
        with contextlib.suppress(LostError, EnvError):
            self.pause()
        if self._owned and not self.envs.closed:
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
        self.lost: list[tuple[int, slice]] = []  # frame whose step they were lost in, envs
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
        else:
            self.acting.actor.policy = _copied(self._policy)
        self._thread.do(lambda: self._fill(base))

    def finish(self) -> None:
        if self._thread is None:
            self._fill(self._base)
        else:
            self._thread.wait()

    def end(self) -> None:
        self._stop = True
        if self._thread is not None:
            self._thread.end()

    def _fill(self, base: int) -> None:
        with self._envs._entered("rollouts"), torch_threads(self._threads):
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
                *(frames.rewards, frames.terminated, frames.truncated),
            ):
                field[base + 1, rows] = field[at + 1, rows]
            moved = rows.start
            self.rest = [
                (base + 1 if frame == at + 1 and env in self._groups[group] else frame, env, info)
                for frame, env, info in self.rest
            ]
            self.lost = [
                (base + 1 if frame == at + 1 and envs.start == moved else frame, envs)
                for frame, envs in self.lost
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
                rows = self._rows(group)
                at = self._frame[group]
                for leaf in self.acting.carried if at != base else ():
                    leaf[base, rows] = leaf[at, rows]
        self._frame[groups] = base

    def _settle(self, messages: Sequence[Message], at: Mapping[int, int]) -> None:
        """What groups had to say beside what lies in the frames that their steps ended at."""
        if failures := self._envs._results.failed(messages):
            raise self._pool.error_of(*first(failures))
        for group, message in messages:
            said = message
            if isinstance(message, Restored):
                said = message.said
                if message.stepping:
                    rows = self._rows(group)
                    mark_lost(self.frames, at[group] - 1, rows)
                    self.lost.append((at[group], rows))
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
        self.lost: list[tuple[int, slice]] = []
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
        self._seed = seed
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
        self._base = base
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
            rows = slice(self._groups[group].start, self._groups[group].stop)
            for at, kind, env, thing in said.leftovers:
                if kind == _BLOCK.ERROR:
                    failures.append((group, thing))
                elif kind == _BLOCK.INFO:
                    self.rest.append((at, env, thing))
            if said.lost is not None:
                self.lost.append((self._base + said.lost + 1, rows))
            self.seconds["policy"] += said.policy_ns / 1e9 / max(1, len(self._pool.groups))
        if failures:
            raise self._pool.error_of(*first(failures))

    def end(self) -> None:
        self._progress.stop()


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
        self._sums = np.zeros((horizon + 1, count))
        self._time = np.arange(horizon)[:, None]
        self._busy = self._busy_seconds(envs)

    def begin_episodes(self) -> None:
        """All envs were reset."""
        self._begins[:] = True
        self._return[:] = 0
        self._length[:] = 0

    def count(
        self,
        slot: int,
        frames: Frames,
        steps: slice,
        lengths: npt.NDArray[np.int64],
        lost_in: list[tuple[int, slice]],
    ) -> dict[str, Any]:
        """The fields of a rollout that say what its steps are."""
        starts, valid, lost = self._starts[slot], self._valid[slot], self._lost[slot]
        rewards = frames.rewards[steps]
        np.less(self._time, lengths, out=valid)
        np.logical_or(frames.terminated[steps], frames.truncated[steps], out=starts[1:])
        np.logical_and(starts[1:], valid, out=starts[1:])
        starts[0] = self._begins
        lost[:] = False
        for at, rows in lost_in:
            lost[at - steps.start, rows] = True
        sums = self._sums
        sums[1:] = 0
        np.copyto(sums[1:], rewards, where=valid)
        np.cumsum(sums[1:], axis=0, out=sums[1:])
        env, step = np.nonzero(starts[1:].T)
        returns, counts = sums[step + 1, env], step + 1
        opens = np.ones(len(env), np.bool_)  # the first to end, of its env
        opens[1:] = env[1:] != env[:-1]
        before = np.where(opens, -self._return[env], np.roll(returns, 1))
        counted = np.where(opens, -self._length[env], np.roll(counts, 1))
        whole = ~lost[step, env]
        ended = Ended(env[whole], step[whole], (returns - before)[whole], (counts - counted)[whole])
        self._return += sums[-1]
        self._length += lengths
        closes = np.ones(len(env), np.bool_)
        closes[:-1] = opens[1:]
        last = env[closes]
        self._return[last] = sums[-1, last] - returns[closes]
        self._length[last] = lengths[last] - counts[closes]
        self._begins = starts[lengths, np.arange(len(lengths))].copy()
        np.logical_and(valid, ~lost, out=valid) if lost_in else None
        return {
            "starts": starts,
            "valid": valid,
            "lost": lost,
            "lengths": lengths.copy(),
            "ended": ended,
        }

    def env_seconds(self, envs: VectorEnv) -> dict[str, float]:
        """How long envs were at work since it was asked last, on average over workers."""
        before, self._busy = self._busy, self._busy_seconds(envs)
        return {"envs": (self._busy - before) / max(1, envs.num_workers)}

    @staticmethod
    def _busy_seconds(envs: VectorEnv) -> float:
        return envs._pool.busy_seconds()


class _InfoColumns:
    """The infos that were asked for, as arrays over a rollout's steps."""

    def __init__(
        self,
        envs: VectorEnv,
        frames: Frames,
        names: Sequence[str],
        rest: Sequence[tuple[int, int, dict[str, Any]]],
        steps: slice,
    ) -> None:
        self.values: dict[str, Any] = {}
        self.masks: dict[str, Any] = {}
        if not names:
            return
        results = envs._results
        learned = results.learn([(env, info) for _, env, info in rest])
        ended = frames.terminated[steps] | frames.truncated[steps]
        for name in names:
            self._add(name, learned, frames, rest, steps, ended)

    def _add(
        self,
        name: str,
        columns: Sequence[Column],
        frames: Frames,
        rest: Sequence[tuple[int, int, dict[str, Any]]],
        steps: slice,
        ended: npt.NDArray[np.bool_],
    ) -> None:
        found = [c for c in columns if c.path == (name,) and c.dtype is not None]
        final = [c for c in columns if c.path == ("final_info", name) and c.dtype is not None]
        every = [*found, *final]
        if not every:
            raise KeyError(f"no env gave an info {name!r} that is a number or an array")
        shapes = {c.shape for c in every}
        if len(shapes) > 1:
            raise ValueError(f"infos {name!r} have different shapes: {sorted(shapes)}")
        dtype = np.result_type(*(c.dtype for c in every if c.dtype is not None))
        values, mask = every[0].view(frames, steps)
        if dtype != values.dtype:  # types of values mix: the one array that is not the workers' own
            values = values.astype(dtype)
        for column in found[1:] if found else ():
            others, there = column.view(frames, steps)
            _put(values, mask, there, others)
        if final:  # where an episode ended, the other infos are those of the reset
            mask[ended] = False
            for column in final:
                others, there = column.view(frames, steps)
                _put(values, mask, there & ended, others)
        for at, env, info in rest:
            t = at - steps.start
            if ended[t, env]:
                info = info.get("final_info", {})
            if name in info:
                values[t, env] = info[name]
                mask[t, env] = True
        self.values[name], self.masks[name] = values, mask


def _put(values: Any, mask: Any, there: Any, others: Any) -> None:
    values[there] = others[there]
    mask[there] = True


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

    def end(self) -> None:
        """After what it is at, which has been told to stop."""
        self._asked.put(None)
        self._thread.join(GRACE)


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
