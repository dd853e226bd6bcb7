"""Actors: workers act without commands, and a learner takes their records in batches.

Each worker acts for its envs with the newest weights from a board, and pushes its records to one
ring that the learner reads. Actors wait only while the ring is full, the learner only while it is
empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.actor_policy import ActorSetup, TakeActorPolicy
from pysampler._actors.actor_stats import ActorStats
from pysampler._actors.free_running import FreeRunningSampler
from pysampler._actors.options import counts_to_take, default_high, share_of_time, watermarks
from pysampler._actors.phases import Phases
from pysampler._actors.record_reader import CHECK_NS, RecordReader
from pysampler._actors.records import RecordLayout
from pysampler._common.numbers import true_or_false, whole_number
from pysampler._policies.sampler import vector_env_of
from pysampler._vector import arguments
from pysampler._vector.make import vector_options
from pysampler.sync import Board, SharedRing, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    import numpy.typing as npt

    from pysampler._actors.records import Records
    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.normalize import Normalizer
    from pysampler._policies.sampler import PreparedFrames
    from pysampler._vector.options import VectorOptions

__all__ = ["Actors"]

# The maximum number of steps of an env that are handed over together.
_CHUNK = 16


class Actors(FreeRunningSampler):
    """Workers that act and record without waiting for a learner, from the first ``take`` on.

    Each worker acts for its envs with the newest weights and pushes its records to one ring, from
    which you ``take`` them. Envs are reset in the step that ends their episode.

    If a worker is lost, you still get the records that it had pushed; then ``take`` raises a
    ``WorkerLostError``. With ``on_worker_loss="restart"`` it is replaced instead: the new envs
    begin new episodes, with ``lengths`` 1 in their first records. If an env or a policy raises,
    ``take`` raises an ``EnvError`` and all actors end. If one raises
    :class:`pysampler.errors.StopActors`, all actors stop, as after ``stop()``.

    With ``num_workers=0`` the envs step in ``take``, for debugging. If an exception such as Ctrl-C
    interrupts them, steps that were not recorded yet are lost, and all envs begin new episodes.

    Args:
        envs: A :class:`pysampler.VectorEnv`; or an env id, an ``EnvSpec``, a function that makes an
            env, or a list of such functions: then a vector env is made, and closed with the actors.
        policy: A function of observations, or a torch module: see :class:`pysampler.Rollouts`. Each
            worker has a copy. ``publish`` sends it the weights of a torch module, or of any object
            with ``state_dict()`` and ``load_state_dict()``; other policies never change.
        num_envs: How many envs to make, if ``envs`` is an id, a spec or one function.
        vector_kwargs: Options of the vector env in a dict, as ``gymnasium.make_vec`` takes them.
        steps: Record trajectories of this many steps, which may continue after the end of an
            episode. None records single transitions.
        high: Block the actors while this many records wait to be taken. By default, 64 transitions
            or 4 trajectories per env. Raise it if the learner takes records in large batches; lower
            it for newer records.
        low: Let blocked actors resume when only this many records are left; by default half of
            ``high``. They also resume after 50 ms if there is room.
        max_lag: Drop records if their weights are more than this many versions old, and count them
            in ``stats().dropped``. None drops none.
        settings: Keyword arguments for the policy, with a number for each env: ``{"epsilon": [0.4,
            0.1, 0.02]}``, or one number for all. ``actors.settings["epsilon"] = ...`` changes them
            while the actors act. The policy gets arrays of float64.
        leave_out: Names of the parts of observations without a fixed shape (``Text``, ``Sequence``,
            ``Graph``), as in :class:`pysampler.Rollouts`. Neither the policy nor the records get
            them.
        refresh_share: The largest share of its time that an actor spends loading weights: with
            large weights it skips versions. An actor that was blocked always loads the newest.
            Raise it to 1 if weights must be as new as possible.
        normalize: A :class:`pysampler.Normalizer` of observations and rewards. Each ``publish``
            merges its statistics and sends them to the workers; closing the actors merges them once
            more. ``records.returns`` are sums of the envs' own rewards.
        device: Act in this process on this torch device ("cuda", "cpu"), instead of in the workers:
            a thread calls the policy once for all envs that wait, with tensors. Choose it if a GPU
            acts faster than a CPU in each worker. With ``groups=2`` the policy acts for one half of
            each worker's envs while the other half steps. A module must be on the device. New
            weights act from the next call on, so a trajectory may contain two versions.
        warm_up: Each env begins with a random number of random steps, up to this many, so that
            envs with the same time limit do not end together: see :class:`pysampler.Rollouts`.
        seed: Seed of the first reset, and of the policies' random numbers in the workers; with
            ``device``, of the policy's own generators. None: a random one.
        options: Options of :class:`pysampler.VectorEnv`, such as ``num_workers``, for the
            envs to make.

    Attributes:
        envs: The vector env.
        policy: The policy.
        settings: The current settings: assign to an entry to change it.
        normalizer: The ``normalize`` argument.

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
    _note = TakeActorPolicy
    _raises_loss_last = True  # after the records that the worker had pushed

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
        leave_out: Sequence[str] = (),
        refresh_share: float = 0.01,
        normalize: Normalizer | None = None,
        device: Any = None,
        warm_up: int = 0,
        seed: int | list[int | None] | None = None,
        **options: Unpack[VectorOptions],
    ) -> None:
        vector_kwargs = vector_options("act", vector_kwargs, options, Actors)
        self._steps = None if steps is None else whole_number("act", "steps", steps, 1)
        self._frame_count = 1 + (_CHUNK if self._steps is None else self._steps)
        self._warm_up = whole_number("act", "warm_up", warm_up, 0)
        self._max_lag = None if max_lag is None else whole_number("act", "max_lag", max_lag, 0)
        self._refresh_share = share_of_time(refresh_share)
        self._device = device
        self._followers: list[Callable[[Any, int], None]] = []
        self._check_at = 0  # when to check the workers again, in ns
        self._publishing_ns = 0
        with vector_env_of(
            envs, num_envs, vector_kwargs, "act", policy=policy, in_workers=True
        ) as leasable:
            leasable.expect_no_wrappers("act", "actors act in the workers")
            if high is None:
                high = default_high(leasable.envs.num_envs, steps)
            self._high, self._low = watermarks(high, low)
            self._ring_low = self._low
            super().__init__(
                *(leasable.envs, policy, settings, seed),
                owned=leasable.owned,
                normalize=normalize,
                leave_out=leave_out,
            )

    # -- the learner -----------------------------------------------------------------------------

    def take(
        self, count: int, timeout: float | None = None, *, min_records: int = 1
    ) -> Records | None:
        """Wait for records and take them. The first call starts the actors.

        Records are copies: they do not block the actors, and later calls do not overwrite records
        that you hold.

        Args:
            count: The largest number of records to take.
            timeout: Return the records that exist, perhaps none, after this many seconds. None
                waits forever.
            min_records: Wait until there are this many records.

        Returns:
            The records; None once all actors have stopped and no records are left.
        """
        count, min_records = counts_to_take(count, min_records)
        deadline = arguments.deadline(timeout, "take records")
        with self._enter("take records"):
            self.begin()
            records = self._reader.take(count, min_records, deadline, self._have_ended)
            if records is None:
                self._raise_loss()
                self._merge_statistics()
        self._reader.returning = None  # no signal handler runs between here and the caller
        return records

    def batches(self, count: int, *, min_records: int | None = None) -> Iterator[Records]:
        """Yield batches of records until all actors have stopped.

        Args:
            count: The largest number of records of a batch.
            min_records: The smallest number of records of a batch, except the last; None:
                ``count``.
        """
        min_records = count if min_records is None else min_records
        while (records := self.take(count, min_records=min_records)) is not None:
            yield records

    def publish(self, weights: Any = None) -> int:
        """Publish new weights, which each actor loads as a whole before it begins a record.

        With ``device``, the policy acts with them from its next call on. This also merges and
        publishes the statistics of a normalizer, even if the policy has no weights.

        Args:
            weights: A module or another object with ``state_dict()``, or a dict of arrays or
                tensors. None: the current weights of the policy.

        Returns:
            The version of the weights.

        Raises:
            TypeError: The policy has no weights, or ``weights`` has another type.
        """
        began = now()
        version = super().publish(weights)
        for follow in list(self._followers):  # a copy, since a follower may leave
            follow(weights, self._reader.taken)
        self._publishing_ns += now() - began
        return version

    def followed_by(self, follow: Callable[[Any, int], None]) -> None:
        """Call a function at each ``publish``, with the weights and the number of records taken."""
        self._followers.append(follow)

    def unfollowed_by(self, follow: Callable[[Any, int], None]) -> None:
        """Stop calling a function that you passed to ``followed_by``."""
        with contextlib.suppress(ValueError):
            self._followers.remove(follow)

    def __len__(self) -> int:
        """Return the number of records that wait to be taken."""
        return len(self._reader) if self._has_begun else 0

    @property
    def like(self) -> dict[str, npt.NDArray[Any]]:
        """Pass this as ``like`` to a :class:`pysampler.ReplayBuffer` for these records."""
        return self.layout.like

    @property
    def layout(self) -> RecordLayout:
        """The fields of a record. Starts the actors, since these depend on the policy's outputs."""
        self.begin()
        return self._layout

    def stop(self) -> None:
        """Ask the actors to stop and push their last records; ``take`` returns these, then None.

        Any thread or signal handler may call it.
        """
        super().stop()

    def stats(self) -> ActorStats:
        """Return counts and times of the actors and the learner so far. Starts the actors."""
        if not self._has_begun:
            self.begin()
        reader, progress, groups = self._reader, self._progress, self._first_groups
        return ActorStats(
            *(reader.taken, reader.dropped, len(reader), self.version, reader.lag),
            *(reader.waiting_ns / 1e9, reader.taking_ns / 1e9, self._publishing_ns / 1e9),
            *(progress.acting_ns[groups] / 1e9, progress.blocked_ns[groups] / 1e9),
            progress.refreshing_ns[groups] / 1e9,
        )

    # -- phases (phases.py) ----------------------------------------------------------------------

    def phases(self, high: int, low: int = 0, *, drop: bool = False) -> Phases:
        """Return an iterator over phases, in which actors and learner take turns.

        Call it instead of ``take``, before the actors have begun. The actors record until there are
        ``high`` records. Then they block, and you take records until only ``low`` are left. The
        actors resume with the weights that you published meanwhile.

        So nearly all records of a phase come from one policy. The exceptions are records that an
        actor had begun when the ring became full: up to a trajectory of each env, or a few steps.
        They belong to the next phase, so ``high`` should be several times their number.

        Once the actors have stopped, the iterator returns a last phase with the remaining records,
        and ends. It also ends if you take nothing from a phase that began after the stop. If a
        worker was lost, it raises the error of the loss instead of ending. If an exception such as
        Ctrl-C interrupts the wait for a phase, no records are lost: ``next()`` continues.

        Args:
            high: The number of records that the actors make in a phase.
            low: The number of records that may be left when the actors resume.
            drop: Drop the records of a phase that you do not take, and count them. With False you
                get them in the next phase, and the actors stay blocked until then.

        Returns:
            An iterator over :class:`pysampler.Phase`.

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
        if self._has_begun:
            raise ValueError("cannot act in phases: the actors have begun already")
        if self._max_lag is not None:
            raise ValueError(
                "cannot act in phases: max_lag drops records, which would end a phase early; "
                "expected max_lag=None"
            )
        drop = true_or_false("act in phases", "drop", drop)
        self._high, self._low = watermarks(high, low)
        # Paused actors wait for the learner, not for the ring to drain: it may already contain
        # records of the next phase.
        self._ring_low = self._high - 1
        return Phases(self, drop=drop)

    def wait_full(self) -> int:
        """Wait until there are ``high`` records, and return how many you may take.

        Once all actors have stopped it returns fewer, and 0 at the end. Actors do not begin a
        record until that many were taken, or ``give_back`` has dropped them.
        """
        with self._enter("wait for records"):
            self.begin()
            if (count := self._reader.wait_full(self._high, self._have_ended)) == 0:
                self._raise_loss()
            return count

    def give_back(self, end: int) -> None:
        """Give back the records of the last batch, and drop more until ``passed`` is ``end``."""
        with self._enter("give records back"):
            self._reader.drop_until(end, self._have_ended)

    @property
    def passed(self) -> int:
        """The number of records that have been taken or dropped."""
        return self._reader.passed if self._has_begun else 0

    # -- the workers -----------------------------------------------------------------------------

    def _have_ended(self, min_records: int) -> bool:
        """Return whether all actors have ended; without workers, let the actors act first."""
        stopped = self._progress.stopped
        if self._has_workers or stopped:
            if (at := now()) < self._check_at and not stopped:
                return False
            self._check_at = at + CHECK_NS
            return self._check_workers()
        if not self.closed and len(self._ring) < min_records:
            if self._core.pool.pending == 0:  # otherwise resume the interrupted last call
                self._start_workers()
            self._check_workers()
        return self.closed or self.stopped

    def _raise_loss(self) -> None:
        """Raise the loss of a worker, now that the caller wants no more of its records."""
        if (loss := self._loss) is not None:
            self._let_go_after(loss)
            raise loss

    def _ring_bytes(self, outputs: PolicyOutputs) -> int:
        self._layout = RecordLayout(self._spec, outputs, self._steps)
        (slots, *others), dtype = self._ring_shape, self._layout.dtype
        return SharedRing.size_of(slots, dtype, (), *others) + Board.size_of(1, 2)

    @property
    def _ring_shape(self) -> tuple[int, int, int, int]:
        """The numbers of slots and of producers, and the watermarks ``high`` and ``low``."""
        high = self._high
        if not self._has_workers:  # the caller takes no records meanwhile: a chunk must fit
            high += _CHUNK * self.envs.num_envs
        return 1 << (high - 1).bit_length(), self.envs.num_workers + 1, high, self._ring_low

    def _make_ring(self, prepared: PreparedFrames) -> tuple[SharedRing, ActorSetup]:
        segment, dtype = prepared.segment, self._layout.dtype
        slots, producers, high, low = self._ring_shape
        ring = SharedRing(slots, dtype, (), segment, producers=producers, high=high, low=low)
        self._gauges.most_records = high
        counts, _ = segment.array((self.envs.num_envs,), np.dtype(np.int64), None)
        resumes = Board({"number": np.zeros(1, np.int64)}, segment, buffers=2)
        self._reader = RecordReader(
            *(ring, self._layout, self._board, self._progress, resumes, self._core),
            *(self._low, self._max_lag),
        )
        max_steps = None if self._has_workers else self._frame_count - 1
        return ring, ActorSetup(
            *(ring.place(), self._layout, counts, max_steps, self._refresh_share, self._max_lag),
            *(resumes.place(), prepared.so_far),
            None if self._requests is None else self._requests.place,
        )

    def _in_call(self) -> bool:
        return self._guard.inside or super()._in_call()

    def _end(self) -> bool:
        return super()._end() and self._wait_until_left(self._guard)

    def __repr__(self) -> str:
        return f"<pysampler.Actors of {self.envs!r}{', closed' * self.closed}>"
