"""Rollouts: a policy and envs walk the ring of frames, T steps at a time.

A rollout is T + 1 frames in a row. In frame t lies what the envs returned at last, and beside it
what the policy said to that; its actions lie in frame t + 1, where the step they are for writes its
results. The last observations of a rollout are written to the first frame of the next.

Who walks is where the policy is (places.py): in this process, for all envs or whoever is ready, or
in the workers, each for its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from gymnasium.vector.vector_env import AutoresetMode

from pysampler.acting import Progress
from pysampler.closing import Closing
from pysampler.errors import BusyError, ClosedError, EnvError, LostError, PysamplerError
from pysampler.make import make_vec
from pysampler.places import Centre, Way, Workers, copied
from pysampler.policies import Acting, Actor, is_module, no_odd, weights_of
from pysampler.processes import GRACE
from pysampler.rollout import Rollout
from pysampler.spec import build
from pysampler.sync import now
from pysampler.tally import InfoColumns, Tally
from pysampler.vector_env import VectorEnv

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from pysampler.local import LocalPool
    from pysampler.pool import Pool

__all__ = ["Rollouts", "rollouts", "whole_number"]

Where = Literal["centre", "workers"]


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


class Rollouts(Closing):
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
        self._where = where
        self._way = Way(
            envs,
            policy,
            self._actor_of,
            horizon,
            overlap=bool(overlap),
            partial=partial,
            min_envs=envs.num_envs if min_envs is None else min_envs,
            timeout=None if timeout is None else int(min(timeout, 1e9) * 1e9),
            whole=whole,
            fresh=fresh,
            threads=threads if threads is None else whole_number("threads", threads, 1),
        )
        self._infos = list(infos)
        self._seed = seed
        self._owned = owned
        self._slots = keep + bool(overlap)
        self._slot = 0
        self._place: Centre | Workers | None = None
        self._tally: Tally | None = None
        self._laid_out = False  # the envs work on frames of these rollouts
        self._under_way = False  # a rollout has been started and not been finished
        self._version = 0
        self._handed_out_at: int | None = None
        self._learner_ns = 0
        self._busy = 0.0  # seconds of all envs together, up to the last rollout
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
            if self._way.overlap:
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
        if self._way.fresh:
            tally.begin_episodes()
        marks = tally.count(base // (self.horizon + 1), frames, steps, place.lengths)
        rest, place.rest = place.rest, []
        columns = InfoColumns(envs._results, frames, self._infos, rest, steps, marks)
        said = place.acting.said
        count = len(said.extras)
        spec = self._spec
        before, self._busy = self._busy, envs._pool.busy_seconds()
        at_work = (self._busy - before) / max(1, envs.num_workers)
        seconds = {**place.seconds, "envs": at_work, "learner": self._learner_ns / 1e9}
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
            actor = self._actor_of(copied(self._way.policy))
        everyone = slice(0, envs.num_envs)
        own = [array.copy() for array in seen]  # which the policy may do with what it likes
        initial = actor.initial_state(envs.num_envs)
        asked = actor(own, initial, everyone)
        said = actor.describe(*asked)
        weights = weights_of(self._way.policy) if is_module(self._way.policy) else None
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
        self._busy = envs._pool.busy_seconds()
        self._tally = Tally(self._slots, self.horizon, envs.num_envs)
        if self._where == "workers":
            self._place = Workers(self._way, acting, frames, segment, weights, policy_seed)
        else:
            self._place = Centre(self._way, acting, frames, asked)

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


def _tree(tree: Any, arrays: Sequence[npt.NDArray[Any]], steps: slice) -> Any:
    return build(tree, lambda leaf: arrays[leaf][steps], no_odd)


def _refuse(what: str, got: Any, expected: str) -> ValueError:
    return ValueError(f"cannot sample rollouts: {what} {got!r}, expected {expected}")


def whole_number(what: str, got: Any, least: int) -> int:
    if isinstance(got, bool) or not isinstance(got, (int, np.integer)) or got < least:
        raise _refuse(what, got, f"a whole number of at least {least}")
    return int(got)
