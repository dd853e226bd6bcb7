"""Actors: workers act by themselves, on and on; a learner takes what they did, in batches.

Each worker acts for its envs with the newest weights from a board, and hands its records over
through one ring to the learner. Neither waits for the other, but that a full ring blocks the
actors, and an empty one the learner.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.alone import ActOn, Errand
from pysampler._actors.detached import Detached
from pysampler._actors.phases import Phases
from pysampler._actors.records import Described, Records
from pysampler._numbers import is_real, true_or_false, whole_number
from pysampler._policies.sampler import vector_env_of
from pysampler._vector import arguments
from pysampler.errors import LostError, WaitTimeoutError
from pysampler.sync import SharedRing, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.sampler import PreparedFrames
    from pysampler._vector.vector_env import VectorEnv
    from pysampler._workers.jobs import Job

__all__ = ["ActorStats", "Actors"]

# How often the learner, while it waits, looks whether the actors are well, in ns.
_LOOK = 20_000_000
# Steps that are handed over together, at most.
_CHUNK = 16


@dataclass(frozen=True)
class ActorStats:
    """What actors and their learner did so far."""

    taken: int  # records
    dropped: int  # records that were too old
    ready: int  # records that wait to be taken
    version: int  # of the newest weights
    lag: float  # versions, of the records in the last batch: the mean
    waiting: float  # seconds the learner waited for records
    taking: float  # seconds it took them in, without waiting
    publishing: float  # seconds it published weights
    acting: npt.NDArray[np.float64]  # seconds by worker: in the policy
    blocked: npt.NDArray[np.float64]  # ... waiting for room
    refreshing: npt.NDArray[np.float64]  # ... taking over weights


class Actors(Detached):
    """Workers that act by themselves, from the first ``take`` to ``stop``.

    Each worker acts for its envs with the newest weights, and hands its records to the learner
    through one ring. The envs are reset in the step that ends their episode. What a lost worker had
    handed over stays; if it is replaced (``on_worker_loss="restart"``), the new envs begin new
    episodes: ``lengths`` is 1 in their first records. An env or policy that raises is an
    ``EnvError`` in ``take``, which ends all. One that raises :class:`pysampler.errors.StopActors`
    stops all, as ``stop()`` does.

    With ``num_workers=0`` the envs step in ``take``, for debugging.

    Args:
        envs: A :class:`pysampler.VectorEnv`, or an env id, an ``EnvSpec`` or a function that makes
            an env: then a vector env is made of it, which is closed with the actors.
        policy: A function of observations, or a torch module: see
            :class:`pysampler.Rollouts`. Each worker has a copy. Weights of a torch module
            (or of anything with ``state_dict()`` and ``load_state_dict()``) reach it with
            ``publish``; other policies stay as they are.
        num_envs: How many envs to make.
        vector_kwargs: Further arguments of :class:`pysampler.VectorEnv`, for the envs to make.
        steps: Steps of a record: None for single transitions, a number for trajectories.
        high: Actors that find this many records waiting block. No record waits behind more.
        low: Blocked actors go on when there are only this many, or 50 ms later if there is room.
        max_lag: Records made with weights more than this many versions old are dropped by ``take``,
            and counted.
        settings: What the policy is called with by name, a number for each env: ``{"epsilon":
            [0.4, 0.1, 0.02]}``, or one for all; float64. ``actors.settings["epsilon"] = ...``
            changes it at once.
        refresh_share: Share of its time in which an actor takes over weights, at most: large ones
            then reach it less often than they are published. After it was blocked it always does.
        seed: Seed of the first reset, and in workers of the policies' random numbers.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> with Actors("CartPole-v1", policy, num_envs=4, seed=1) as actors:
    ...     records = actors.take(100, min_records=100)
    ...     records.observations.shape, records.next_observations.shape, records.actions.shape
    ((100, 4), (100, 4), (100,))
    """

    _purpose = "act"
    _name = "actors"
    _work_name = "actors"

    def __init__(
        self,
        envs: Any,
        policy: Any,
        *,
        num_envs: int | None = None,
        vector_kwargs: dict[str, Any] | None = None,
        steps: int | None = None,
        high: int | None = None,
        low: int | None = None,
        max_lag: int | None = None,
        settings: Mapping[str, npt.ArrayLike] | None = None,
        refresh_share: float = 0.01,
        seed: int | list[int | None] | None = None,
    ) -> None:
        with vector_env_of(envs, num_envs, vector_kwargs, "act", policy_in_workers=policy) as given:
            given.expect_no_wrappers("act", "actors act in the workers")
            self._set_up(given.envs, steps, high, low, max_lag, refresh_share)
            super().__init__(given.envs, policy, settings, seed, owned=given.owned)

    def _set_up(
        self,
        envs: VectorEnv,
        steps: int | None,
        high: int | None,
        low: int | None,
        max_lag: int | None,
        share: float,
    ) -> None:
        self._steps = None if steps is None else whole_number("act", "steps", steps, 1)
        self._frames = 1 + (_CHUNK if self._steps is None else self._steps)
        count = envs.num_envs
        usual = 64 * count if steps is None else 4 * count
        self._high = max(usual, 16) if high is None else whole_number("act", "high", high, 1)
        self._low = self._high // 2 if low is None else whole_number("act", "low", low, 0)
        if self._low >= self._high:
            raise self._refuse("low", low, f"less than high, {self._high}")
        self._max_lag = None if max_lag is None else whole_number("act", "max_lag", max_lag, 0)
        if not is_real(share, 0) or not 0 < share <= 1:
            raise self._refuse("refresh_share", share, "a part of 1")
        self._share = share
        self._followers: list[Callable[[Any, int], None]] = []
        self._look_at = 0
        self._phase_end: int | None = None  # how many will have been passed at the end of a phase
        self._held = 0  # records of the last batch
        self._kept: list[npt.NDArray[Any]] = []  # of one that is not complete, given up already
        self._handed: Records | None = None  # on their way to the caller
        self._taken = self._dropped = 0
        self._lag = 0.0
        self._waiting_ns = self._taking_ns = self._publishing_ns = 0

    # -- the learner -----------------------------------------------------------------------------

    def take(
        self, count: int, timeout: float | None = None, *, min_records: int = 1
    ) -> Records | None:
        """Take records that the actors have made. The first call starts the actors.

        They are views, and those of the last batch are given back. They are copies where
        ``min_records`` do not lie one behind the other, are more than ``low`` + 1, or some were too
        old.

        Args:
            count: How many records to take at most.
            timeout: Seconds to wait; then those are returned that there are, perhaps none.
            min_records: Wait until there are this many.

        Returns:
            The records; None once all actors have stopped, and nothing is left.
        """
        count = whole_number("take records", "count", count, 1)
        min_records = whole_number("take records", "min_records", min_records, 1)
        if min_records > count:
            raise ValueError(
                f"cannot take records: min_records {min_records}, expected at most count, {count}"
            )
        deadline = arguments.deadline(timeout, "take records")
        with self._enter("take records"):
            self._take_back()
            records = self._handed = self._take(count, min_records, deadline)
        self._handed = None  # from here to the caller no signal handler runs
        return records

    def _take_back(self) -> None:
        """Records of a call that an exception came through are taken once more."""
        if (lost := self._handed) is not None:
            rows = lost.rows.copy()
            kept, taken = [rows, *self._kept], self._taken - len(rows)
            self._kept, self._taken, self._handed = kept, taken, None

    def _take(self, count: int, min_records: int, deadline: int | None) -> Records | None:
        began, waited = now(), self._waiting_ns
        self.begin()
        self._give_up()
        rows, held, kept = self._fresh(count, min_records, deadline)
        if rows is None:
            return None
        records = Records(rows, self._described)
        if len(rows) > 0:
            self._lag = self.version - int(np.add.reduce(rows["version"])) / len(rows)
        self._taking_ns += now() - began - (self._waiting_ns - waited)
        return self._hand_out(records, held, kept)

    def _hand_out(self, records: Records, held: int, kept: list[npt.NDArray[Any]]) -> Records:
        """Last of all, and at once: who is interrupted before finds them again."""
        self._held, self._kept, self._taken = held, kept, self._taken + len(records)
        return records

    def batches(self, count: int, *, min_records: int | None = None) -> Iterator[Records]:
        """What ``take`` returns, until all have stopped: by default just so many each."""
        min_records = count if min_records is None else min_records
        while (records := self.take(count, min_records=min_records)) is not None:
            yield records

    def publish(self, weights: Any = None) -> int:
        """Give the actors new weights: a module, a dict of arrays, or by default the policy's as
        they are now. Returns their version.

        They are taken over as a whole, before a record is begun.
        """
        began = now()
        version = super().publish(weights)
        for follow in list(self._followers):  # one of them may leave
            follow(weights, self._taken)
        self._publishing_ns += now() - began
        return version

    def followed_by(self, follow: Callable[[Any, int], None]) -> None:
        """Call a function with all that is published, and how many records had been taken."""
        self._followers.append(follow)

    def unfollowed_by(self, follow: Callable[[Any, int], None]) -> None:
        """Call it no more."""
        with contextlib.suppress(ValueError):
            self._followers.remove(follow)

    def __len__(self) -> int:
        """How many records wait to be taken."""
        return len(self._ring) - self._held if self._begun else 0

    @property
    def like(self) -> dict[str, npt.NDArray[Any]]:
        """What :class:`pysampler.ReplayBuffer` needs to keep such records, or the steps of such."""
        self.begin()
        return self._described.like

    def stop(self) -> None:
        """Let the actors end, and hand over what they have; ``take`` has the rest, then None.

        Any thread may call it, and a handler of signals.
        """
        super().stop()

    def stats(self) -> ActorStats:
        """What they and the learner did so far."""
        if not self._begun:
            self.begin()
        ns = self._progress
        heads = self._heads
        return ActorStats(
            *(self._taken, self._dropped, len(self), self.version, self._lag),
            *(self._waiting_ns / 1e9, self._taking_ns / 1e9, self._publishing_ns / 1e9),
            *(ns.acting_ns[heads] / 1e9, ns.blocked_ns[heads] / 1e9),
            ns.refreshing_ns[heads] / 1e9,
        )

    # -- phases (phases.py) ----------------------------------------------------------------------

    def phases(self, high: int, low: int = 0, *, drop: bool = False) -> Phases:
        """Let the actors act and the learner learn by turns: iterate over the phases.

        The actors, which must not have begun, record until there are ``high`` records. Then they
        block, and the learner takes records until there are ``low``, when the actors go on with the
        weights that it published meanwhile. So it learns from what almost one policy did: an actor
        that finds the ring full begins no record, and what it has under way then, up to a
        trajectory of each of its envs or a few steps, is in the next phase. ``high`` should be
        several times that.

        The iterator ends when the actors have stopped, with what there is, or as soon as the
        learner takes nothing of a phase that began after that. An exception that comes while a
        phase is awaited, Ctrl-C say, ends nothing: the next ``next()`` goes on.

        Args:
            high: How many records the actors make in a phase.
            low: How many records may be left when they go on.
            drop: Drop, and count, what the learner leaves. Otherwise it finds that in the next
                phase, and the actors stay blocked.

        >>> def policy(observations):
        ...     return (observations[:, 2] > 0).astype(int)
        >>> with Actors("CartPole-v1", policy, num_envs=4) as actors:
        ...     for phase in actors.phases(high=128):
        ...         sizes = [len(records) for records in phase.batches(32)]
        ...         print(phase.number, sum(sizes))
        ...         if phase.number == 2:
        ...             actors.stop()
        ...             break
        1 128
        2 128
        """
        self._expect_open()
        if self._begun:
            raise ValueError("cannot act in phases: the actors have begun already")
        if self._max_lag is not None:
            raise ValueError(
                "cannot act in phases: with max_lag, what is dropped would end a phase before its "
                "time"
            )
        high, low = whole_number("act", "high", high, 1), whole_number("act", "low", low, 0)
        if low >= high:
            raise self._refuse("low", low, f"less than high, {high}")
        drop = true_or_false("act in phases", "drop", drop)
        self._high, self._low = high, low
        return Phases(self, drop=drop)

    def wait_full(self) -> int:
        """Until there are ``high`` records; how many of them are to be taken.

        Fewer once all have stopped, and none at last. The actors begin nothing until so many have
        been given back.
        """
        with self._enter("wait for records"):
            self._take_back()
            self.begin()
            self._give_up()
            if self._next(self._high, self._high, None) is None:
                return 0
            count = len(self._ring)
            count = count - self._low if count > self._low and not self.stopped else max(1, count)
            self._phase_end = self.passed + count
            self._progress.paused = True
            return count

    def give_back(self, end: int) -> None:
        """Give back the records of the last batch, and drop others until so many have passed."""
        with self._enter("give records back"):
            self._take_back()
            self._give_up()
            if self.passed < end:
                kept = sum(map(len, self._kept))
                self._kept, self._dropped = [], self._dropped + kept
            while (drop := end - self.passed) > 0:
                if (rows := self._next(drop, 1, None)) is None:
                    break
                self._held, self._dropped = len(rows), self._dropped + len(rows)
                self._give_up()

    @property
    def passed(self) -> int:
        """How many records have been taken or dropped."""
        return self._taken + self._dropped

    def _resume(self) -> None:
        """Let actors go on that wait for the end of a phase."""
        if self._phase_end is not None:
            self._progress.paused = False
            self._phase_end = None

    # -- taking ----------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """The records of the last batch. At the end of a phase the actors may go on."""
        if self._phase_end is not None and self.passed >= self._phase_end:
            self._resume()  # before those who wait are woken
        if self._held > 0:
            held, self._held = self._held, 0
            self._ring.release(held)

    def _fresh(
        self, count: int, least: int, deadline: int | None
    ) -> tuple[npt.NDArray[Any] | None, int, list[npt.NDArray[Any]]]:
        """Records that are not too old; how many in the ring they are, and what is kept back."""
        while True:
            have = sum(map(len, self._kept))
            rows = None
            if have < least:
                # Blocked actors bring no more before only ``low`` are left.
                needed = min(least - have, self._low + 1)
                rows = self._next(max(1, count - have), needed, deadline)
                if rows is None and have == 0:
                    return None, 0, []
            if rows is None or len(rows) == 0:  # enough, or all there is
                if have == 0:
                    return rows, 0, []
                joined = np.concatenate(self._kept)
                return joined[:count], 0, [joined[count:]] if have > count else []
            chosen = rows
            if self._max_lag is not None:
                fresh = rows["version"] >= self.version - self._max_lag
                chosen = rows if fresh.all() else rows[fresh]
            stale = len(rows) - len(chosen)
            if have == 0 and len(chosen) >= least:
                self._dropped += stale
                return chosen, len(rows), []
            copies = [*self._kept, chosen.copy()] if len(chosen) > 0 else self._kept
            # Together: who is interrupted after it goes on from here.
            self._kept, self._held, self._dropped = copies, len(rows), self._dropped + stale
            self._give_up()

    def _next(self, count: int, least: int, deadline: int | None) -> npt.NDArray[Any] | None:
        """Records as they lie: fewer than ``least`` at the deadline, or where the ring comes round;
        None if nothing more comes."""
        began = now()
        try:
            while True:
                ended = self._over(least)
                at = now()
                late = deadline is not None and at >= deadline
                over = ended or late
                until = (
                    at if over else at + _LOOK if deadline is None else min(at + _LOOK, deadline)
                )
                try:
                    return np.asarray(self._ring.peek(count, 1 if over else least, deadline=until))
                except WaitTimeoutError:
                    self._resume()  # who waits does not learn; what the dead had begun is missing
                    if late and not ended:
                        return np.empty(0, self._described.dtype)
                except LostError:  # of all who hand over; the pool knows more, or soon will
                    if not ended:
                        self._core.pool.wait_some(1, self.envs.num_envs, now() + _LOOK)
                if ended:
                    return None
        finally:
            self._waiting_ns += now() - began

    def _over(self, least: int) -> bool:
        """Whether all have ended. In this process: only when told to, and there is enough."""
        if self._in_workers or self.stopped:
            if (at := now()) < self._look_at and not self.stopped:
                return False
            self._look_at = at + _LOOK
            return self._look()
        if not self.closed and len(self._ring) < least:
            self._send()
            self._look()
        return self.closed or self.stopped

    # -- beginning and ending --------------------------------------------------------------------

    def _room(self, said: PolicyOutputs) -> int:
        self._described = Described(self._core.spec, said, self._steps)
        slots, high, low = self._shape
        producers = self.envs.num_workers + 1
        return SharedRing.size_of(slots, self._described.dtype, (), producers, high, low)

    @property
    def _shape(self) -> tuple[int, int, int]:
        high, low = self._high, self._low
        if not self._in_workers:  # all of a chunk has room: it cannot be taken meanwhile
            high += _CHUNK * self.envs.num_envs
        return 1 << (high - 1).bit_length(), high, low

    def _placed(self, begun: PreparedFrames) -> tuple[SharedRing, Callable[[int], Job]]:
        segment, described = begun.segment, self._described
        slots, high, low = self._shape
        producers = self.envs.num_workers + 1
        ring = SharedRing(
            slots, described.dtype, (), segment, producers=producers, high=high, low=low
        )
        counted, _ = segment.array((self.envs.num_envs,), np.dtype(np.int64), None)
        most = None if self._in_workers else self._frames - 1
        errand = Errand(ring.place(), described, counted, most, self._share, self._max_lag)
        return ring, functools.partial(ActOn, errand=errand)

    def _at_work(self) -> bool:
        return self._guard.inside or super()._at_work()

    def _end(self) -> bool:
        return super()._end() and self._left(self._guard)

    def __repr__(self) -> str:
        return f"<pysampler.Actors of {self.envs!r}{', closed' * self.closed}>"
