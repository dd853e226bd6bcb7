"""Partial batches: which groups ``send`` and ``recv`` take, and how that is recorded and replayed.

``Batches`` waits for groups (for a fixed number, as a tuner chooses, or as a recording says) and
keeps their results in ``core.call``, so that an interrupt loses no batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymnasium.error import AlreadyPendingCallError

from pysampler._vector.results import first
from pysampler.errors import EnvError, RecordingError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from pysampler._vector.core import VectorCore
    from pysampler._vector.recording import BatchRecorder, BatchReplayer
    from pysampler._vector.results import Stepped
    from pysampler._vector.tuner import BatchTuner
    from pysampler._workers.counters import BatchChoice
    from pysampler._workers.jobs import Answer

__all__ = ["Batches"]


class Batches:
    """The batches that ``recv`` returns.

    Args:
        core: The envs.
        record_to: A file to write the groups of each batch to.
        replay_from: A file to read them from.
    """

    def __init__(
        self,
        core: VectorCore,
        record_to: str | os.PathLike[str] | None,
        replay_from: str | os.PathLike[str] | None,
    ) -> None:
        self._core = core
        self.returned = 0  # batches so far
        self._tuners: dict[tuple[int | None, int, bool], BatchTuner] = {}
        self._tuner: BatchTuner | None = None  # the one used last
        self._replayer: BatchReplayer | None = None
        self._recorder: BatchRecorder | None = None
        if replay_from is not None or record_to is not None:
            from pysampler._vector import recording  # noqa: PLC0415 - most do without

            if replay_from is not None:
                self._replayer = recording.BatchReplayer(replay_from, core.groups)
            if record_to is not None:
                self._recorder = recording.BatchRecorder(record_to, core.groups)

    @property
    def replayed(self) -> bool:
        """Whether batches come from a recording."""
        return self._replayer is not None

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
                kept = call.kept is not None and group in call.kept[0]
                if kept or core.pool.is_pending(group):
                    raise AlreadyPendingCallError(
                        f"Calling `{what}` for env {core.groups[group][0]} while waiting for a "
                        "pending call to `send` to complete",
                        "send",
                    )
        return groups

    @property
    def choice(self) -> BatchChoice | None:
        """The choice for the last ``recv`` with "auto"; None if there was none."""
        return None if self._tuner is None else self._tuner.choice

    def tuner(self, min_envs: int | None, max_envs: int, *, timeouts: bool) -> BatchTuner:
        """Return the tuner for calls of ``recv`` with these arguments.

        Args:
            min_envs: The least number of envs to receive; None: the tuner chooses it.
            max_envs: The largest number.
            timeouts: Whether the tuner chooses a time-out.
        """
        key = min_envs, max_envs, timeouts
        if key not in self._tuners:
            from pysampler._vector.tuner import BatchTuner, WaitRule, wait_rules  # noqa: PLC0415 - likewise

            sizes = [len(envs) for envs in self._core.groups]
            rules = wait_rules(sizes, max_envs) if min_envs is None else [WaitRule(min_envs)]
            self._tuners[key] = BatchTuner(rules, self._core.num_envs, timeouts=timeouts)
        self._tuner = self._tuners[key]
        return self._tuner

    def receive(
        self,
        min_envs: int,
        max_envs: int,
        deadline: int | None,
        tuner: BatchTuner | None = None,
    ) -> Stepped | None:
        """Return the next batch, or None if no env was ready at the deadline.

        A tuner overrides ``min_envs``, and may set a time-out; such a batch has at least one env.

        Right after its ``with`` block the caller increments ``returned`` and sets
        ``call.returned``, so an interrupt before that loses nothing.
        """
        core = self._core
        if core.call.kept is None:
            self._collect(min_envs, max_envs, deadline, tuner)
        if core.call.kept is None:
            self._note(())
            self.returned += 1  # an empty batch cannot be lost
            if tuner is not None:
                tuner.received(0)
            return None
        self._note(core.call.kept[0])
        try:
            results: Stepped = core.hand_over()
        except EnvError:
            self.returned += 1
            raise
        if tuner is not None:
            tuner.received(len(results[1]))
        return results

    def _collect(
        self, min_envs: int, max_envs: int, deadline: int | None, tuner: BatchTuner | None
    ) -> None:
        """Wait for a batch and keep it; keep nothing if no env was ready at the deadline."""
        core = self._core
        if self._replayer is not None:
            groups, answers = self._next_replayed(self._replayer)
        elif tuner is None:
            groups, answers = core.pool.wait_some(min_envs, max_envs, deadline)
        else:
            begun = tuner.called()
            min_envs, timeout = tuner.rule
            if timeout is None:
                groups, answers = core.pool.wait_some(min_envs, max_envs, deadline)
            else:
                deadline = begun + int(timeout * 1e9)
                groups, answers = core.pool.wait_some(min_envs, max_envs, deadline)
                if not groups:
                    groups, answers = core.pool.wait_some(1, max_envs, None)
        if answers and (failures := core.results.failed(answers)):
            failed = sorted({group for group, _ in failures})
            core.call.keep(failed, None, core.pool.error_of(*first(failures)))
        elif groups:
            try:
                core.call.keep(groups, core.results.read_some(groups, answers), None)
            except EnvError as error:
                core.call.keep(groups, None, error)

    def _next_replayed(self, replayer: BatchReplayer) -> tuple[list[int], list[Answer]]:
        groups = replayer.read()
        if idle := [group for group in groups if not self._core.pool.is_pending(group)]:
            raise RecordingError(
                f"cannot replay batch {replayer.batch + 1}: env {self._core.groups[idle[0]][0]} is "
                "in it, and has nothing pending; this program differs from the recorded one"
            )
        return groups, self._core.pool.wait_for(groups)

    def _note(self, groups: Sequence[int]) -> None:
        """Record or replay the groups of a batch; repeated calls do so only once."""
        if self._recorder is not None:
            self._recorder.write(self.returned, groups)
        if self._replayer is not None:
            self._replayer.done(self.returned)

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
