"""A policy in a worker: it acts for the worker's envs, with one command per rollout.

This saves a round trip to the parent per step. In return the policy must travel to the workers, and
a rollout pauses when infos have new keys, until the parent has made columns for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pysampler import _core
from pysampler._common.torch import generator_from, is_module
from pysampler._policies.calling import PolicyCaller
from pysampler._policies.fixed_batch import FixedBatchCaller
from pysampler._policies.frame_policy import BETWEEN, FramePolicy, end_lost_episodes
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.seeds import seed_policy
from pysampler._policies.shared_statistics import WorkerStatistics
from pysampler._policies.weights import SharedWeights, load_weights
from pysampler._vector.blocks import copied_info
from pysampler._workers.jobs import Note, Repeated
from pysampler._workers.seeds import number_from, seed_globals
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pysampler._frames.frames import Frames
    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.copying import PolicySource
    from pysampler._policies.normalize import Moments, Normalization
    from pysampler._policies.shared_statistics import StatisticsPlace
    from pysampler._vector.blocks import Overflow
    from pysampler._vector.env_server import EnvServer
    from pysampler._workers.gauges import WorkerGauges
    from pysampler._workers.pool import Pool
    from pysampler.sync import Segment

__all__ = ["PolicySetup", "RolloutJob", "RolloutReport", "TakePolicy", "WorkerPolicy"]

# The maximum number of keys and types of infos that a group reports immediately.
_MAX_REPORTED = 512


@dataclass(frozen=True)
class PolicySetup:
    """The data that a worker needs to act for its envs."""

    policy: PolicySource
    outputs: PolicyOutputs
    progress: tuple[int, int]  # place of WorkerProgress in the segment
    entropy: int | list[int]  # of random numbers
    board: Any = None  # place of the weights' board; None: the policy has its weights
    policies_before: int = 0  # how many policies have been sent before
    statistics: StatisticsPlace | None = None  # for actors; rollouts send them with each job
    # By name, the offset in the segment of the values for all envs, and their dtype.
    settings: dict[str, tuple[int, np.dtype[Any]]] = field(default_factory=dict)
    # Set when it is sent: the worker's first env, and whether it is a process, whose global
    # generators it seeds.
    first_env: int = 0
    own_process: bool = True
    chunk: int | None = None  # how many steps the policy acts for at once; None: one
    batch: int | None = None  # rows of each call of the policy; None: one for each env


@dataclass
class RolloutReport:
    """A worker's report on a rollout, in addition to the frames."""

    # (frame, kind, env, infos or failure): results that do not fit into a frame.
    overflow: list[tuple[int, int, int, Any]] = field(default_factory=list)
    # Infos had keys without columns. The rollout continues once the parent has read this and made
    # the columns. Reporting at once saves infos: frames survive this worker, its reports do not.
    unfinished: bool = False
    policy_ns: int = 0
    seen: dict[str, Moments] | None = None  # moments of the normalization

    def add_overflow(self, frames: Frames, frame: int, overflow: Overflow) -> bool:
        """Add infos and failures of a step, and mark lost envs; return whether an env raised."""
        end_lost_episodes(frames, frame - 1, overflow)
        wanted = _core.EnvBlock.INFO, _core.EnvBlock.ERROR
        self.overflow += [
            (
                frame + sum(step),
                kind,
                env,
                copied_info(left) if kind == _core.EnvBlock.INFO else left,
            )
            for kind, env, left, *step in overflow
            if kind in wanted
        ]
        return any(kind == _core.EnvBlock.ERROR for kind, *_ in overflow)


def _keys_and_types(infos: dict[Any, Any], path: tuple[Any, ...] = ()) -> Iterator[Any]:
    for key, value in infos.items():
        if isinstance(value, dict):
            yield from _keys_and_types(value, (*path, key))
        else:
            yield (*path, key), type(value)


class WorkerPolicy:
    """The policy of a worker, for the envs of its blocks.

    Args:
        setup: The setup from the parent.
        frames: The frames that the envs work on.
        segment: The memory of the frames and of all offsets in ``setup``.
        before: The worker's previous policy; None for the first one.
        gauges: Where to report the version of the weights.
        replacement_seeds: Seeds of the envs, if they replace others.
        track: The track to trace the policy's calls to; None for no tracing.
    """

    def __init__(
        self,
        setup: PolicySetup,
        frames: Frames,
        segment: Segment,
        before: WorkerPolicy | None,
        gauges: WorkerGauges,
        *,
        replacement_seeds: Sequence[int],
        track: _core.Track | None,
    ) -> None:
        policy = setup.policy.get()
        settings = {
            name: segment.array((frames.envs,), dtype, at)[1]
            for name, (at, dtype) in setup.settings.items()
        }
        caller = PolicyCaller(policy, frames.spec.shaped, settings, chunk=setup.chunk)
        if setup.batch is not None:
            caller = FixedBatchCaller(
                policy, frames.spec.shaped, chunk=setup.chunk, batch=setup.batch
            )
        entropy = setup.entropy
        if replacement_seeds:  # the same numbers might kill it at the same point again
            own = entropy if isinstance(entropy, list) else [entropy]
            entropy = [*own, *replacement_seeds]
        seeds = np.random.SeedSequence(entropy, spawn_key=(setup.first_env, setup.policies_before))
        if setup.policy.copies:
            seed_policy(policy, seeds, own_process=setup.own_process)
        if before is not None:
            caller.generators = before._policy.caller.generators
            caller.torch_generator = before._policy.caller.torch_generator
        else:
            caller.seed_generators(entropy, frames.envs)
            if setup.own_process:
                seed_globals(seeds)
            else:  # as if torch's global generator, which belongs to the program, were seeded
                caller.torch_generator = generator_from(number_from(seeds))
        self._policy: FramePolicy = FramePolicy(caller, setup.outputs, frames)
        self._frames = frames
        self._segment = segment
        self.progress = WorkerProgress(segment, *setup.progress)
        self._board = None if setup.board is None else setup.board.attach(segment)
        self._statistics: WorkerStatistics | None = None
        if setup.statistics is not None:
            self._statistics = WorkerStatistics(setup.statistics, segment, setup.first_env)
            self._policy.normalization = self._statistics.normalization
        # The normalization of each group's rollout: while one pauses for infos, another may act.
        self._normalizations: dict[int, Normalization | None] = {}
        self._weights: Any = None
        self._version = 0
        # Keys and types of infos that each group has reported so far.
        self._reported: dict[int, set[Any]] = {} if before is None else before._reported
        self._track = track
        self._gauges = gauges
        gauges.version(0)

    def refresh(self) -> None:
        """Load the newest weights."""
        if self._board is None or self._board.version == self._version:
            return
        policy, first = self._policy.caller.policy, self._weights is None
        version, weights = self._board.read(self._weights)
        shared = isinstance(self._board, SharedWeights)
        # Later reads of a board write to arrays that a module already uses.
        if first or shared or not is_module(policy):
            load_weights(policy, weights, shared=shared)
        # Last: after an interrupt in a worker of this process, the next call loads them again.
        self._version, self._weights = version, weights
        self._gauges.version(version)

    def refresh_statistics(self) -> None:
        """Load the newest statistics of the normalizer."""
        if self._statistics is not None:
            self._statistics.refresh()

    def hand_statistics_over(self) -> None:
        """Publish this worker's own statistics of the normalizer."""
        if self._statistics is not None:
            self._statistics.hand_over()

    def roll_out(
        self, server: EnvServer, number: int, frame: int, job: RolloutJob
    ) -> RolloutReport:
        """Act for the envs of a block for some steps, from a frame on.

        If the last report of this rollout was unfinished, or the envs replace lost ones, they
        continue from their last step.
        """
        block, rows, group = server.blocks[number], server.rows(number), job.group
        first, count = server.first + rows.start, rows.stop - rows.start
        envs = slice(first, first + count)
        self.refresh()
        policy, progress = self._policy, self.progress
        if not job.resumes or group not in self._normalizations:
            self._normalizations[group] = job.normalization
        policy.normalization = self._normalizations[group]
        report = RolloutReport()
        if progress.steps[group] < 0:
            policy.carry(BETWEEN, frame, envs)
            progress.steps[group] = 0
        at = frame + (int(progress.steps[group]) if block.fresh or job.resumes else 0)
        end = frame + job.steps
        chunk = policy.caller.chunk

        def act(at: int) -> None:
            policy.act([(at, first, count)])

        def add_overflow(at: int) -> bool:
            """Return whether to stop here, because an env raised or there are infos to report."""
            overflow = server.take_overflow(number)
            if report.add_overflow(self._frames, at, overflow):
                return True
            if at == end or not self._are_new(group, overflow):
                return False
            report.unfinished = True
            policy.after_step(at, envs)
            return True

        if chunk is None:
            report.policy_ns += _core.take_turns(
                act,
                block,
                add_overflow,
                (lambda at: policy.after_step(at, envs)) if policy.needs_after_step else None,
                *(at, end, *progress.cells(group), self._track),
            )
        while chunk is not None and at < end and not progress.stopped:
            report.policy_ns += self._timed(act, at)
            left = block.step_chunk(at + 1, chunk, last=False)
            overflow = server.take_overflow(number) if left else []
            if report.add_overflow(self._frames, at + 1, overflow):
                break
            policy.after_chunk(at + 1, envs)
            at += chunk
            if at < end and self._are_new(group, overflow):
                report.unfinished = True
                break
            progress.steps[group] += chunk
        if not report.unfinished:
            policy.carry(end, BETWEEN, envs)
            if policy.normalization is not None:
                report.seen = policy.normalization.seen
        return report

    def _are_new(self, group: int, overflow: Overflow) -> bool:
        """Return whether infos have keys or types that their group has not reported before."""
        reported = self._reported.setdefault(group, set())
        if len(reported) >= _MAX_REPORTED:
            return False
        before = len(reported)
        for kind, _, left, *_ in overflow:
            if kind == _core.EnvBlock.INFO:
                reported.update(_keys_and_types(left))
        return len(reported) > before

    def _timed(self, act: Callable[..., None], *arguments: Any) -> int:
        began = now()
        act(*arguments)
        if self._track is not None:
            self._track.end(_core.Track.POLICY, 0, began)
        return now() - began


@dataclass(frozen=True)
class TakePolicy(Note):
    """Sets the policy that acts for a worker's envs."""

    setup: PolicySetup
    doing = "taking over a policy"
    culprit = ("the policy", "when it was taken over")
    policy_class: ClassVar[type[WorkerPolicy]] = WorkerPolicy

    @classmethod
    def send(cls, pool: Pool, setup: PolicySetup) -> None:
        """Send a policy to the workers of a pool, and later to replacements of lost ones."""
        sent = replace(setup, own_process=pool.in_processes)
        pool.note(lambda envs: cls(replace(sent, first_env=envs.start)), standing=True)

    def apply(self, server: EnvServer) -> None:
        """Let the policy act for the envs of an env server."""
        before: WorkerPolicy | None = server.acting
        server.acting = self.policy_class(
            *(self.setup, server.frames, server.segment, before, server.gauges),
            replacement_seeds=server.policy_seeds if before is None else (),
            track=server.track,
        )


@dataclass(frozen=True)
class RolloutJob(Repeated):
    """Job: act for the envs of a group for some steps, from the frame of the command on."""

    steps: int
    group: int
    normalization: Normalization | None
    resumes: bool = False  # whether the last report of this job was unfinished
    renews = steps_envs = True
    doing = "acting and stepping"
    culprit = ("the policy", "acting")

    def run(self, server: EnvServer, block: int, frame: int) -> RolloutReport:
        """Act and step in the worker."""
        policy: WorkerPolicy | None = server.acting
        assert policy is not None
        return policy.roll_out(server, block, frame, self)
