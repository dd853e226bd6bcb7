"""A runner whose policy acts for the envs that are ready, without waiting for all of them.

Each group has its own frame and step count, so that slow envs do not hold up fast ones. In return
the policy is called more often, for fewer envs, and a step that spans two rollouts is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pysampler._policies.frame_policy import BETWEEN
from pysampler._rollouts.main_runner import MainRunner
from pysampler._vector.jobs import Reset
from pysampler._vector.partial import BatchWait
from pysampler.sync import now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._policies.frame_policy import Span
    from pysampler._rollouts.runner import RunnerSetup
    from pysampler._vector.tuner import BatchTuner

__all__ = ["ReadyRunner"]


class ReadyRunner(MainRunner):
    """Acts for the envs that are ready, so that groups may be at different frames.

    ``finish`` runs a whole rollout. Or a caller runs it step by step: ``open`` and ``receive``
    return the groups that are ready, and the caller writes their actions and calls ``step``, until
    the runner is ``finished``.
    """

    def __init__(self, setup: RunnerSetup, tuner: BatchTuner | None = None) -> None:
        super().__init__(setup)
        self._all_groups = range(len(self._groups))
        self.rows = [slice(group.start, group.stop) for group in self._groups]
        self._sizes = np.array([len(group) for group in self._groups])
        # For each group, the frame with its newest results, and the number of steps it has made.
        self._frame_of = np.zeros(len(self._groups), np.int64)
        self._steps = np.zeros(len(self._groups), np.int64)
        self._carried: set[int] = set()  # groups that still make a step of the last rollout
        self._has_reset = True  # whether the envs were reset when the frames were laid out
        self.tuner = self._core.tuner = self._make_tuner() if tuner is None else tuner
        self._counted = 0  # the progress last reported to the tuner

    def _make_tuner(self) -> BatchTuner | None:
        """Return a tuner for the options that are "auto"."""
        options, envs = self._options, self.frames.envs
        if not (isinstance(options.min_envs, str) or isinstance(options.timeout, str)):
            return None
        from pysampler._vector.tuner import tuner_of  # noqa: PLC0415 - most do without

        given = options.min_envs
        least = None if isinstance(given, str) else min(given or envs, envs)
        return tuner_of(self._groups, least, envs, timeouts=isinstance(options.timeout, str))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of steps of each env in the rollout."""
        return np.repeat(self._steps, self._sizes)

    @property
    def finished(self) -> bool:
        """Whether the rollout is complete."""
        full = self._steps == self._horizon
        return bool(full.any() if self._options.allow_partial else full.all())

    def _fill_frames(self) -> None:
        ready = self.open()
        while True:
            self._expect_running()
            if groups := self.unfinished(ready):
                self._timed(self.policy.act, self._spans(groups))
                self.step(groups)
            if self.finished:
                break
            ready = self.receive()
        # Steps under way are of this rollout and the next: their frames stay.
        for group in self._all_groups:
            if not self._pool.is_pending(group):
                self.policy.carry(int(self._frame_of[group]), BETWEEN, self.rows[group])
                self._frame_of[group] = BETWEEN

    def open(self) -> list[int]:
        """Begin the rollout; return the groups that wait for actions."""
        self._steps[:] = self._counted = 0
        if self.tuner is not None:
            self.tuner.resumed()
        if self._options.reset_each and not self._has_reset:
            self._reset_all()
            return []
        self._has_reset = False
        # Steps in progress at the end of the last rollout are the first steps of this one.
        self._carried = {group for group in self._all_groups if self._pool.is_pending(group)}
        for group in self._all_groups:
            self.policy.carry(int(self._frame_of[group]), self._base, self.rows[group])
        ready = [group for group in self._all_groups if group not in self._carried]
        self._frame_of[ready] = self._base
        return ready

    def _reset_all(self) -> None:
        jobs = {group: Reset([None] * len(envs)) for group, envs in enumerate(self._groups)}
        self._frame_of[:] = self._base - 1
        self._steps[:] = -1
        self._pool.request([(group, self._base) for group in jobs], jobs)

    def unfinished(self, groups: list[int]) -> list[int]:
        """Return the groups among ``groups`` that have steps left in this rollout."""
        return [group for group in groups if self._steps[group] < self._horizon]

    def step(self, groups: list[int]) -> None:
        """Step some groups. Their actions must be in the frames."""
        self._pool.step_some([(group, int(self._frame_of[group]) + 1) for group in groups])

    @property
    def at_work(self) -> bool:
        """Whether any group is stepping or resetting."""
        return any(map(self._pool.is_pending, self._all_groups))

    def frames_of(self, envs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the current frame of each of some envs."""
        return np.repeat(self._frame_of, self._sizes)[envs]

    def _spans(self, groups: list[int]) -> list[Span]:
        return [
            (int(self._frame_of[group]), self._groups[group].start, len(self._groups[group]))
            for group in sorted(groups)
        ]

    def receive(self, timeout: int | None = None, waiting: int = 0) -> list[int]:
        """Wait until ``min_envs`` envs have made a step; return their groups.

        After the time-out, return the groups that are ready, or wait for the first group.

        Args:
            timeout: The time-out in ns; None: the one of the options.
            waiting: How many envs already wait for actions. If any do, the result may be empty
                after the time-out.
        """
        began = now()
        groups, answers = self._batch_wait(began, timeout, waiting).wait(self._pool)
        self._pool.take(groups)
        self.seconds["waiting"] += (now() - began) / 1e9
        if answers:
            self._handle(answers, {group: int(self._frame_of[group]) + 1 for group in groups})
        for group in groups:
            if group in self._carried:
                self._carried.discard(group)
                self._carry(group)
            self._frame_of[group] += 1
            self._steps[group] += 1
            at, rows = int(self._frame_of[group]), self.rows[group]
            if self._steps[group] == 0:
                self.policy.after_reset(at, rows)
            else:
                self.policy.after_step(at, rows)
        if groups:
            self._core.batch_sizes[int(self._sizes[groups].sum())] += 1
        if self.tuner is not None:
            progress = self._progress
            self.tuner.received(progress - self._counted)
            self._counted = progress
        return groups

    def _batch_wait(self, began: int, timeout: int | None, waiting: int) -> BatchWait:
        options, envs, tuner = self._options, self.frames.envs, self.tuner
        least = options.min_envs if isinstance(options.min_envs, int) else envs
        limit = options.timeout_ns if timeout is None else timeout
        deadline = after_first = None
        if limit is not None and options.timeout_from == "first" and not waiting:
            after_first = limit
        elif limit is not None:
            deadline = began + limit
        if tuner is not None:
            tuner.called()
            least = tuner.rule.min_envs
            if timeout is None and tuner.rule.timeout is not None:
                deadline = began + int(tuner.rule.timeout * 1e9)
        missing = min(least, envs) - waiting
        if missing <= 0:
            return BatchWait(1, envs, began)
        return BatchWait(missing, envs, deadline, after_first, or_first=not waiting)

    @property
    def _progress(self) -> int:
        """The number of steps so far that bring the end of this rollout nearer.

        A rollout ends with its slowest env, whose steps count; with ``allow_partial`` all count.
        """
        if self._options.allow_partial:
            return int(self._steps @ self._sizes)
        return max(0, int(self._steps.min())) * self.frames.envs

    def _carry(self, group: int) -> None:
        """Copy a step from the last rollout's frames to the first frames of this one."""
        base, at = self._base, int(self._frame_of[group])
        frames, rows = self.frames, self.rows[group]
        if at != base:
            self.policy.carry(at, base, rows)
            self.policy.carry(at + 1, base + 1, rows)
            for leaf in self.policy.extras.values():
                leaf[base, rows] = leaf[at, rows]
            results = [
                *(*frames.final_observations, *self.policy.actions),
                *(frames.rewards, frames.terminated, frames.truncated, frames.has_final),
            ]
            for column in self._core.results.columns:
                results += column.views(frames)
            for array in results:
                array[base + 1, rows] = array[at + 1, rows]
            self.mailed_infos = [
                (base + 1 if frame == at + 1 and env in self._groups[group] else frame, env, info)
                for frame, env, info in self.mailed_infos
            ]
        self._frame_of[group] = base
