"""FreeRunningPolicy: the policy of a worker that acts without further commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pysampler._policies.worker_policy import RolloutReport, WorkerPolicy
from pysampler._workers.jobs import Repeated
from pysampler.errors import StopActors

if TYPE_CHECKING:
    from pysampler._vector.env_server import EnvServer

__all__ = ["CHECK_SECONDS", "FreeRunningJob", "FreeRunningPolicy", "envs_of"]

# Seconds between a waiting worker's checks for a stop.
CHECK_SECONDS = 0.05


class FreeRunningPolicy(WorkerPolicy):
    """Base class for policies that act for all envs of a worker until they are stopped."""

    def run(
        self, server: EnvServer, group: int, setup: Any, *, is_replacement: bool
    ) -> RolloutReport:
        """Act until stopped.

        Args:
            server: The envs.
            group: The first group of the worker, whose counters report the worker's progress.
            setup: The setup that the parent sent with the job.
            is_replacement: Whether the envs replace lost ones and have not been reset yet.
        """
        raise NotImplementedError

    def _restore(self, server: EnvServer, report: RolloutReport) -> bool:
        """Reset all envs in frame 0, after a loss or an interrupt; return whether none raised."""
        failed = False
        for index, block in enumerate(server.blocks):
            block.reset(1, [(None, None)] * len(server.rows(index)))
            failed = report.add_overflow(self._frames, 1, server.take_overflow(index)) or failed
        envs = envs_of(server)
        self._policy.carry(1, 0, envs)
        self._policy.after_reset(0, envs)
        if failed:
            self._stop_if_requested(report)
        return not failed

    def _step(self, server: EnvServer, at: int, report: RolloutReport) -> bool:
        """Step all envs, with frame ``at`` for the results; return whether none raised."""
        failed = False
        for index, block in enumerate(server.blocks):
            if block.step(at):
                overflow = server.take_overflow(index)
                failed = report.add_overflow(self._frames, at, overflow) or failed
        if failed:
            self._stop_if_requested(report)
        return not failed

    def _stop_if_requested(self, report: RolloutReport) -> None:
        """Stop all workers if an env raised StopActors, which does not count as an error."""
        errors = [
            left for left in report.overflow if not isinstance(left[3].report.error, StopActors)
        ]
        if len(errors) < len(report.overflow):
            self.progress.stop()
            report.overflow = errors


@dataclass(frozen=True)
class FreeRunningJob(Repeated):
    """The job of a whole worker, sent to its first group: its policy acts until stopped."""

    group: int
    setup: Any
    renews = steps_envs = endless = True
    doing = "acting"
    culprit = ("the policy", "acting")

    def run(self, server: EnvServer, block: int, frame: int) -> RolloutReport:  # noqa: ARG002
        """Act in the worker."""
        policy: FreeRunningPolicy | None = server.acting
        assert policy is not None
        return policy.run(server, self.group, self.setup, is_replacement=server.fresh)


def envs_of(server: EnvServer) -> slice:
    """Return the indices of a worker's envs as a slice."""
    return slice(server.first, server.first + server.count)
