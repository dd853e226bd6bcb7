"""A runner whose policy acts in the workers."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pysampler import _core
from pysampler._common.torch import is_module
from pysampler._policies.copying import source_of
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.weights import SharedWeights, weights_of
from pysampler._policies.worker_policy import PolicySetup, RolloutJob, RolloutReport, TakePolicy
from pysampler._rollouts.runner import RolloutRunner, closed_error
from pysampler._vector.results import first
from pysampler._workers.jobs import Failure
from pysampler.sync import Board, now

if TYPE_CHECKING:
    from pysampler._policies.copying import PolicySource
    from pysampler._policies.normalize import Moments, Normalization
    from pysampler._rollouts.runner import RunnerSetup
    from pysampler._workers.jobs import Answer

__all__ = ["WorkerRunner"]


class WorkerRunner(RolloutRunner):
    """Sends each worker one command for a whole rollout, in which it acts for its own envs."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        segment = setup.prepared.segment
        self._num_workers = setup.num_workers
        self._in_processes = self._pool.in_processes
        self._board: Board | SharedWeights | None = None
        if setup.weights and self._in_processes:
            self._board = Board(setup.weights, segment)
        elif setup.weights:
            self._board = SharedWeights(setup.weights, copies=self._options.overlap)
        self._progress = WorkerProgress(segment, len(self._groups))
        self._gauges = self._pool.gauges
        self._sent: PolicySource | None = None
        self._entropy = setup.entropy
        self._policies_sent = 0
        if is_module(self._given_policy):
            self._send(source_of(self._given_policy, in_processes=self._in_processes))

    def _send(self, policy: PolicySource) -> None:
        self._sent = policy
        setup = PolicySetup(
            *(policy, self.policy.outputs, self._progress.place, self._entropy),
            board=None if self._board is None else self._board.place(),
            policies_before=self._policies_sent,
            chunk=self._options.chunk,
        )
        TakePolicy.send(self._pool, setup)
        self._policies_sent += 1

    def start(self, base: int) -> None:
        """Begin a rollout at frame ``base``, with the current policy."""
        policy, self.begun = self._given_policy, False
        if self._board is not None:
            self._gauges.newest = self._board.publish(weights_of(policy))
        elif not is_module(policy):
            current = source_of(policy, in_processes=self._in_processes)
            if current != self._sent:
                self._send(current)
        self._progress.steps[:] = -1
        self._jobs = {
            group: RolloutJob(self._horizon, group, self._own_normalization())
            for group in range(len(self._groups))
        }
        self._base = base
        with self._core.enter("rollouts"):
            self.begun = True
            self._pool.request([(group, base) for group in self._jobs], self._jobs)

    def _own_normalization(self) -> Normalization | None:
        """Return a normalization for one group, which begins with the common statistics."""
        common = self.policy.normalization
        return common and common.copy(update=common.statistics.update, keep_seen=True)

    def finish(self) -> None:
        """Wait until the workers have filled the frames."""
        began = now()
        with self._core.enter("rollouts"):
            answers = self._answers()
        if self._progress.stopped:  # a signal handler closed the rollouts
            raise closed_error()
        self.seconds["waiting"] += (now() - began) / 1e9
        failures: list[tuple[int, Failure]] = []
        seen: list[tuple[int, dict[str, Moments]]] = []
        for group, report in answers:
            if isinstance(report, Failure):
                failures.append((group, report))
                continue
            for at, kind, env, content in report.overflow:
                if kind == _core.EnvBlock.ERROR:
                    failures.append((group, content))
                elif kind == _core.EnvBlock.INFO:
                    self.mailed_infos.append((at, env, content))
            if report.seen is not None:
                seen.append((group, report.seen))
            self.seconds["policy"] += report.policy_ns / 1e9 / max(1, self._num_workers)
        if failures:
            raise self._pool.error_of(*first(failures))
        if (common := self.policy.normalization) is not None:
            for _, of_group in sorted(seen, key=itemgetter(0)):  # another order may round otherwise
                common.add(of_group)

    def _answers(self) -> list[Answer]:
        """Wait for all groups' reports; add columns for new infos and resume those groups."""
        answers: list[Answer] = []
        while True:
            newest = self._pool.wait() or []
            self._pool.take_all()
            answers += newest
            infos: list[tuple[int, dict[str, Any]]] = []
            unfinished: dict[int, RolloutJob] = {}
            for group, report in newest:
                if isinstance(report, RolloutReport) and report.unfinished:
                    unfinished[group] = replace(self._jobs[group], resumes=True)
                    infos += [(env, left) for _, _, env, left in report.overflow]
            if not unfinished or self._progress.stopped:
                return answers
            self._core.results.learn(infos)
            self._core.announce_columns()
            # The step, or chunk of steps, that was reported.
            self._progress.steps[list(unfinished)] += self._options.chunk or 1
            self._pool.request([(group, self._base) for group in unfinished], unfinished)

    def stop(self) -> None:
        """Make the workers end the rollout at its current step."""
        self._progress.stop()
