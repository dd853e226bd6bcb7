"""The policy of a worker that acts on and on, without further commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pysampler._policies.worker_policy import RolloutReport, WorkerPolicy
from pysampler._workers.jobs import Repeated
from pysampler.errors import StopActors

if TYPE_CHECKING:
    from pysampler._vector.host import EnvHost

__all__ = ["CHECK_SECONDS", "FreeRunningJob", "FreeRunningPolicy", "envs_of"]

# How often a worker that waits checks whether it is to stop.
CHECK_SECONDS = 0.05


class FreeRunningPolicy(WorkerPolicy):
    """Base class for policies that act for all envs of a worker until they are told to stop."""

    def run(self, host: EnvHost, group: int, setup: Any, *, is_replacement: bool) -> RolloutReport:
        """Act until told to stop.

        Args:
            host: The envs.
            group: The first group of the worker, whose counters report what it does.
            setup: What the parent sent with the job.
            is_replacement: Whether the envs replace lost ones and have not acted yet.
        """
        raise NotImplementedError

    def _restore(self, host: EnvHost, report: RolloutReport) -> bool:
        """Reset envs that replace lost ones, in the first frame; return whether none raised."""
        failed = False
        for index, block in enumerate(host.blocks):
            block.restore(1)
            failed = report.add_leftovers(1, host.left_over(index)) or failed
        envs = envs_of(host)
        self.carry(1, 0, envs)
        self._policy.after_reset(0, envs)
        if failed:
            self._stop_if_requested(report)
        return not failed

    def _step(self, host: EnvHost, at: int, report: RolloutReport) -> bool:
        """Step all envs, with frame ``at`` for the results; return whether none raised."""
        failed = False
        for index, block in enumerate(host.blocks):
            if block.step(at):
                failed = report.add_leftovers(at, host.left_over(index)) or failed
        if failed:
            self._stop_if_requested(report)
        return not failed

    def _stop_if_requested(self, report: RolloutReport) -> None:
        """Stop all workers if an env raised StopActors, which is no error."""
        errors = [
            left for left in report.leftovers if not isinstance(left[3].report.error, StopActors)
        ]
        if len(errors) < len(report.leftovers):
            self._progress.stop()
            report.leftovers = errors


@dataclass(frozen=True)
class FreeRunningJob(Repeated):
    """The job of a whole worker, given to its first group: its policy acts until told to stop."""

    group: int
    setup: Any
    doing = "acting"
    culprit = ("the policy", "acting")
    settles = "worker"

    def run(self, host: EnvHost, block: int, frame: int) -> RolloutReport:  # noqa: ARG002
        """Act in the worker."""
        policy: FreeRunningPolicy | None = host.acting
        assert policy is not None
        is_replacement, host.replaced = bool(host.replaced), set()
        return policy.run(host, self.group, self.setup, is_replacement=is_replacement)


def envs_of(host: EnvHost) -> slice:
    """Return the envs of a worker as a slice of all envs."""
    return slice(host.first, host.first + host.count)
