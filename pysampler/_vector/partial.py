"""Partial batches: choosing the groups for ``send`` and ``recv``, recording and replaying them.

``BatchWait`` defines when a batch is complete, for ``recv`` and for samplers. ``PartialBatches``
waits for groups (a fixed number, a tuner's choice, or those of a recording) and hands them over to
``core.call``, so that a call after an interrupt returns the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gymnasium.error import AlreadyPendingCallError

from pysampler._vector.results import first
from pysampler.errors import EnvError, RecordingError
from pysampler.sync import now

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from pysampler._vector.chunks import Chunks
    from pysampler._vector.core import VectorCore
    from pysampler._vector.recording import BatchRecorder, BatchReplayer
    from pysampler._vector.results import Stepped
    from pysampler._vector.tuner import BatchTuner, WaitRule
    from pysampler._workers.jobs import Answer
    from pysampler._workers.pool import Pool

__all__ = ["BatchWait", "PartialBatches"]


class BatchWait(NamedTuple):
    """Defines when a batch is complete: with ``min_envs`` envs, or earlier at a deadline.

    Attributes:
        min_envs: The least number of envs.
        max_envs: The largest number.
        deadline: When to return the envs that are ready, in ns; None: never.
        after_first: The deadline in ns after the first env is ready; None: use ``deadline``.
        or_first: Whether to wait for the first env if none is ready at the deadline.
    """

    min_envs: int
    max_envs: int
    deadline: int | None = None
    after_first: int | None = None
    or_first: bool = False

    def by(self, rule: WaitRule) -> BatchWait:
        """Return this wait with a tuner's rule applied, counting its time-out from now."""
        wait = self._replace(min_envs=rule.min_envs)
        if rule.timeout is None:
            return wait
        return wait._replace(deadline=now() + int(rule.timeout * 1e9), or_first=True)

    def wait(self, pool: Pool) -> tuple[list[int], list[Answer]]:
        """Return the groups of the batch, which stay in flight, and their answers."""
        deadline = self.deadline
        if self.after_first is not None:
            pool.wait_some(1, self.max_envs, None)
            deadline = now() + self.after_first
        batch = pool.wait_some(self.min_envs, self.max_envs, deadline)
        if self.or_first and not batch[0]:
            batch = pool.wait_some(1, self.max_envs, None)
        return batch


class PartialBatches:
    """The batches that ``recv`` returns.

    Args:
        core: The envs.
        record_to: A file to write the groups of each batch to.
        replay_from: A file to read them from.

    Attributes:
        chunks: The chunks of steps that groups were sent, here or by ``step_chunk``; None if the
            last commands were others.
        timed_out: Whether the last wait ended at its deadline.
    """

    def __init__(
        self,
        core: VectorCore,
        record_to: str | os.PathLike[str] | None,
        replay_from: str | os.PathLike[str] | None,
    ) -> None:
        self._core = core
        self.returned = 0  # number of batches so far
        self.timed_out = False
        self.chunks: Chunks | None = None
        self._tuners: dict[tuple[int | None, int, bool], BatchTuner] = {}
        self._replayer: BatchReplayer | None = None
        self._recorder: BatchRecorder | None = None
        if replay_from is not None or record_to is not None:
            from pysampler._vector import recording  # noqa: PLC0415 - most do without

            if replay_from is not None:
                self._replayer = recording.BatchReplayer(replay_from, core.groups)
            if record_to is not None:
                self._recorder = recording.BatchRecorder(record_to, core.groups)

    def idle_groups(self, what: str, envs: npt.NDArray[np.int64]) -> Sequence[int]:
        """Return the groups of some envs; raise if one is incomplete or pending."""
        core = self._core
        call = core.call
        if call.name != "send" or core.lease is not None or not call.laid_out:
            core.expect_idle(what)
        try:
            groups = core.results.access.groups_of(envs)
        except (IndexError, ValueError) as error:
            raise type(error)(f"cannot choose envs: {error}") from None
        if call.name == "send":
            for group in groups:
                if core.pool.is_pending(group):
                    raise AlreadyPendingCallError(
                        f"Calling `{what}` for env {core.groups[group][0]} while waiting for a "
                        "pending call to `send` to complete",
                        "send",
                    )
        return groups

    def forget_chunks(self, groups: Sequence[int]) -> None:
        """Note that groups are sent other commands; forget the chunks if none is under way."""
        if self.chunks is not None and self.chunks.forget(groups):
            self.chunks = None

    def tuner(self, min_envs: int | None, max_envs: int, *, timeouts: bool) -> BatchTuner:
        """Return the tuner for calls of ``recv`` with these arguments, as in ``tuner_of``."""
        key = min_envs, max_envs, timeouts
        if key not in self._tuners:
            from pysampler._vector.tuner import tuner_of  # noqa: PLC0415 - likewise

            self._tuners[key] = tuner_of(self._core.groups, min_envs, max_envs, timeouts=timeouts)
        self._core.tuner = self._tuners[key]
        return self._tuners[key]

    def receive(self, wait: BatchWait, tuner: BatchTuner | None = None) -> Stepped | None:
        """Return the next batch, or None if no env was ready at the deadline.

        A tuner overrides ``min_envs``, and may set a time-out; such a batch has at least one env.

        Right after its ``with`` block the caller must increment ``returned`` and set
        ``call.returned``. An interrupt before that loses nothing.
        """
        core = self._core
        self.timed_out = False
        groups = core.call.on_their_way
        if groups is None:
            groups, answers = self._collect(wait, tuner)
        else:  # an exception kept them from the caller
            answers = core.pool.wait_for(groups)
        if not groups:
            self._note(())
            self.returned += 1  # an empty batch cannot be lost
            if tuner is not None:
                tuner.received(0)
            return None
        failures = core.results.failed(answers) if answers else ()
        if failures:
            group, failure = first(failures)
            groups = [group]
        core.call.hand_over(groups, seen=not failures)
        self._note(groups)
        try:
            if failures:
                raise core.pool.error_of(group, failure)
            read = core.results.read_some if self.chunks is None else self.chunks.read_some
            results: Stepped = read(groups, answers)
        except EnvError:
            self.returned += 1
            core.call.returned = True
            raise
        count = len(results[1])
        core.batch_sizes[count] += 1
        if tuner is not None:
            tuner.received(count)
        return results

    def _collect(self, wait: BatchWait, tuner: BatchTuner | None) -> tuple[list[int], list[Answer]]:
        """Wait for a batch; return its groups, none if no env was ready, and their answers."""
        if self._replayer is not None:
            return self._next_replayed(self._replayer)
        if tuner is not None:
            tuner.called()
            wait = wait.by(tuner.rule)
        groups, answers = wait.wait(self._core.pool)
        self.timed_out = not (groups and self._core.pool.native.satisfied)
        return groups, answers

    def _next_replayed(self, replayer: BatchReplayer) -> tuple[list[int], list[Answer]]:
        groups = replayer.read()
        if idle := [group for group in groups if not self._core.pool.is_pending(group)]:
            raise RecordingError(
                f"cannot replay batch {replayer.batch + 1}: env {self._core.groups[idle[0]][0]} is "
                "in it, and has nothing pending; this program differs from the recorded one"
            )
        return groups, self._core.pool.wait_for(groups)

    def _note(self, groups: Sequence[int]) -> None:
        """Record the groups of a batch, or mark them as replayed. May be repeated."""
        if self._recorder is not None:
            self._recorder.write(self.returned, groups)
        if self._replayer is not None:
            self._replayer.done(self.returned)

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
