"""Jobs for workers that act for their own envs, until an episode ends."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pysampler import _core
from pysampler._policies.worker_policy import PolicySetup, TakePolicy, WorkerPolicy
from pysampler._rollouts.episode_rows import EpisodeRows, Finished
from pysampler._workers.jobs import Failure, Repeated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler._frames.frames import Frames
    from pysampler._policies.normalize import Normalization
    from pysampler._rollouts.episodes import Start
    from pysampler._vector.env_server import EnvServer, Overflow

__all__ = ["EpisodeSetup", "EpisodesJob", "EpisodesReport", "TakeEpisodePolicy", "infos_in"]


@dataclass
class EpisodesReport:
    """A group's report.

    Attributes:
        steps: How many steps it made.
        finished: The episodes that ended.
        begun: By env, the spare of the job that it is in.
        failures: Errors of envs.
        lost: Envs whose episodes must begin again, as vector envs in the block have lost workers.
        replaced: Whether the envs replace lost ones, so that all their episodes must begin again.
    """

    steps: int = 0
    finished: list[Finished] = field(default_factory=list)
    begun: dict[int, Start] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    replaced: bool = False


def infos_in(overflow: Overflow) -> dict[int, dict[int, Any]]:
    """Return the infos in a block's overflow, by step of a chunk (otherwise 0) and env.

    If a step also began the next episode of an env, these are the infos of the one that it ended.
    """
    found: dict[int, dict[int, Any]] = {}
    for kind, env, info, *step in overflow:
        if kind == _core.EnvBlock.INFO:
            of_step = found.setdefault(sum(step), {})
            if isinstance(final := info.get("final_info"), dict):
                of_step[env] = final
            else:
                of_step.setdefault(env, info)
    return found


@dataclass(frozen=True)
class EpisodeSetup(PolicySetup):
    """The data that a worker needs to play episodes."""

    max_steps: int = 0
    begins_late: bool = False  # whether steps may only reset an env
    described_by: bytes = b""  # the pickled statistics of episodes


class EpisodePolicy(WorkerPolicy):
    """A worker's policy, which acts for each env only during its episodes."""

    def __init__(self, setup: EpisodeSetup, frames: Frames, *args: Any, **options: Any) -> None:
        super().__init__(setup, frames, *args, **options)
        self.reported: set[int] = set()  # blocks whose loss was reported
        statistics = pickle.loads(setup.described_by)
        self.rows = EpisodeRows(
            *(self._policy, frames, setup.max_steps, statistics), begins_late=setup.begins_late
        )

    def play(self, server: EnvServer, block: int, frame: int, job: EpisodesJob) -> EpisodesReport:
        """Begin the job's episodes, and act until one ends without a next or no frame is left."""
        policy, chunk, places = self._policy, self._policy.caller.chunk, server.rows(block)
        envs = range(server.first + places.start, server.first + places.stop)
        rows = slice(envs.start, envs.stop)
        policy.normalization = job.normalization
        report = EpisodesReport()

        def took(overflow: Overflow) -> dict[int, dict[int, Any]]:
            report.failures += [value for _, _, value, *_ in overflow if isinstance(value, Failure)]
            return infos_in(overflow)

        def begin(at: int, starts: dict[int, Start], *, resets: bool) -> None:
            if resets:
                chosen = [starts.get(env) for env in envs]
                calls = [None if start is None else (start.seed, start.options) for start in chosen]
                server.blocks[block].reset(at, calls)  # another block, once a batch has left it
                took(server.take_overflow(block))
                policy.after_step(at, rows)
            self.rows.forget(starts)
            self.rows.begin(at, starts)

        if job.starts:
            begin(job.last, job.starts, resets=job.resets or server.blocks[block].fresh)
        policy.carry(job.last, frame, rows)
        for env in job.rests:
            server.blocks[block].rest(env - envs.start)
        act, at, steps = policy.act, frame, chunk or 1
        spares = list(job.spares)
        runs = self.rows.runs(envs)
        follows = policy.needs_after_step and chunk is None
        while not report.failures and report.steps < job.steps and not self.progress.stopped:
            act([(at, first, count) for first, count in runs])
            which = server.blocks[block]
            more = which.step_chunk(at + 1, chunk, job.reads_last) if chunk else which.step(at + 1)
            infos = took(server.take_overflow(block)) if more else {}
            if follows:
                policy.after_step(at + 1, rows)
            ended = []
            for k in range(steps):
                at += 1
                ended += self.rows.after_step(at, envs, infos.get(k, {}))
            report.steps += steps
            report.lost += self.rows.lost
            self.rows.lost.clear()
            if ended or report.lost:
                report.finished += ended
                for one in ended:
                    report.begun.pop(one.env, None)
                if report.lost or len(ended) > len(spares):
                    break
                starts = {one.env: spares.pop(0) for one in ended}
                report.begun.update(starts)
                begin(at, starts, resets=job.resets_spares)
                runs = self.rows.runs(envs)
        return report


@dataclass(frozen=True)
class TakeEpisodePolicy(TakePolicy):
    """Sets the policy that plays episodes for a worker's envs."""

    policy_class: ClassVar[type[WorkerPolicy]] = EpisodePolicy


@dataclass(frozen=True)
class EpisodesJob(Repeated):
    """Acts and steps a group from the frame of the command on, until it needs another episode.

    If the envs replace lost ones, the first job reports only that; the next begins anew.

    Attributes:
        last: The frame with the envs' newest results.
        steps: The largest number of steps.
        starts: By env, the episodes that begin.
        resets: Whether the envs must be reset for these.
        rests: Envs to leave alone, because no episode is left for them.
        spares: The next episodes. Envs whose episodes end begin these without asking.
        resets_spares: Whether the envs must be reset for these.
        normalization: The normalization of observations.
        reads_last: Whether only the last results of an env's chunk are read, and all rewards.
    """

    last: int
    steps: int
    starts: dict[int, Start]
    resets: bool
    rests: Sequence[int]
    spares: Sequence[Start]
    resets_spares: bool
    normalization: Normalization | None
    reads_last: bool = False
    steps_envs = True
    doing = "acting and stepping"
    culprit = ("the policy", "acting")

    def run(self, server: EnvServer, block: int, frame: int) -> EpisodesReport:
        """Act and step in the worker."""
        policy: EpisodePolicy | None = server.acting
        assert policy is not None
        if server.blocks[block].fresh and block not in policy.reported:
            policy.reported.add(block)
            return EpisodesReport(replaced=True)
        return policy.play(server, block, frame, self)
