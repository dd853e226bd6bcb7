"""ActorPolicy: acts in a worker until it is stopped, and pushes records to the learner's ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._actors.central import Requests
from pysampler._actors.free_running_policy import CHECK_SECONDS, FreeRunningPolicy, envs_of
from pysampler._actors.packer import Packer
from pysampler._policies.worker_policy import RolloutReport, TakePolicy
from pysampler.errors import StopActors
from pysampler.sync import now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._actors.central import RequestsPlace
    from pysampler._actors.records import RecordLayout
    from pysampler._policies.warm_up import EpisodesSoFar
    from pysampler._vector.env_server import EnvServer

__all__ = ["ActorSetup", "TakeActorPolicy"]

# The longest time in ns that a record waits for others to be pushed together with it.
_MAX_DELAY = 5_000_000


@dataclass(frozen=True)
class ActorSetup:
    """The data that an actor needs in addition to its policy.

    Attributes:
        ring: The place of the ring that records are pushed to.
        layout: The layout of a record.
        record_counts: Offset in the segment of the number of records that each env has begun.
        max_steps: Steps after which the job ends; None to continue until it is stopped.
        refresh_share: The largest share of its time that the actor spends loading weights.
        so_far: Initial return and length of the current episode of each env.
        requests: The place of the requests for actions if the main process acts; otherwise None.
        max_lag: An actor that is more versions behind than this loads weights at once, despite
            ``refresh_share``.
        resumes: The place of the board whose version tells paused actors to continue.
    """

    ring: Any
    layout: RecordLayout
    record_counts: int
    max_steps: int | None
    refresh_share: float
    max_lag: int | None
    resumes: Any
    so_far: EpisodesSoFar
    requests: RequestsPlace | None = None


class ActorPolicy(FreeRunningPolicy):
    """Acts for all envs of a worker, and pushes records of their steps."""

    _refresh_at = 0  # in ns: no refresh before this time
    _ring: Any = None
    _resumes: Any = None
    _packer: Packer | None = None
    _at = 0  # the envs' current frame
    _packed = 0  # the frame up to which records were pushed
    _requests: Requests | None = None  # if the main process acts
    _has_asked = False  # for the actions of the next step

    def _prepared_packer(self, setup: ActorSetup, envs: slice) -> Packer:
        if self._packer is None:
            self._ring = setup.ring.attach(self._segment)
            self._resumes = setup.resumes.attach(self._segment)
            shape, dtype = (self._frames.envs,), np.dtype(np.int64)
            _, counts = self._segment.array(shape, dtype, setup.record_counts)
            if setup.requests is not None:
                self._requests = Requests(len(self.progress.steps), self._segment, setup.requests)
            places = self._policy, self._frames, envs, counts
            # Last: after an interrupt in a worker of this process, the next call repeats the rest.
            self._packer = Packer(setup.layout, *places, setup.so_far)
        return self._packer

    def run(
        self, server: EnvServer, group: int, setup: ActorSetup, *, is_replacement: bool
    ) -> RolloutReport:
        """Act and push records until stopped, or for ``max_steps``."""
        envs = envs_of(server)
        packer, progress = self._prepared_packer(setup, envs), self.progress
        single_steps = setup.layout.steps is None
        report = RolloutReport()
        if is_replacement:
            if not self._restore(server, report):
                return report
            packer.begin_episodes()
            self._at = self._packed = 0
        self._has_asked = False
        steps_made = 0
        end = self._frames.count - 1
        pushed_at = now()
        while not progress.stopped and (setup.max_steps is None or steps_made < setup.max_steps):
            at = self._at
            if (single_steps or at == 0) and not self._wait_for_room(setup, group):
                break
            step = self._act_and_step if self._requests is None else self._step_as_acted
            if not step(server, at, group, report, packer.versions[at]):
                break
            self._at = at = at + 1
            steps_made += 1
            packer.count(at)
            if at == end or (single_steps and now() - pushed_at > _MAX_DELAY):
                if not self._hand_over(packer, group):
                    return report
                pushed_at = now()
            if at == end:
                self._begin_first_frame(at, envs)
        if not single_steps:
            self.hand_statistics_over()
        elif self._hand_over(packer, group):
            self._begin_first_frame(self._at, envs)
        return report

    def _hand_over(self, packer: Packer, group: int) -> bool:
        """Push the records of all steps so far; return False if they must be dropped."""
        first, self._packed = self._packed, self._at
        self.hand_statistics_over()  # first, so that the statistics cover all records taken
        return first == self._at or self._push(packer.pack(first, self._at), group)

    def _act_and_step(
        self,
        server: EnvServer,
        at: int,
        group: int,
        report: RolloutReport,
        versions: npt.NDArray[np.int64],
    ) -> bool:
        """Act for all envs at a frame, and step them; return whether to continue."""
        envs, progress = envs_of(server), self.progress
        versions[:] = self._version
        try:
            took = self._timed(self._policy.act, [(at, server.first, len(versions))])
        except StopActors:
            progress.stop()
            return False
        report.policy_ns += took
        progress.acting_ns[group] += took
        if not self._step(server, at + 1, report):
            return False
        self._policy.after_step(at + 1, envs)
        return True

    def _step_as_acted(
        self,
        server: EnvServer,
        at: int,
        group: int,
        report: RolloutReport,
        versions: npt.NDArray[np.int64],
    ) -> bool:
        """Step each group once the main process has acted for it; return whether to continue.

        While one group steps, the main process acts for the others.
        """
        requests, progress = self._requests, self.progress
        assert requests is not None
        if not self._has_asked:
            for index in range(len(server.blocks)):
                requests.ask(group + index, at)
        self._has_asked = at + 2 < self._frames.count and self._has_room
        for index, block in enumerate(server.blocks):
            began, number = now(), group + index
            while not requests.wait(number):
                if progress.stopped:
                    return False
            progress.acting_ns[group] += now() - began
            rows = server.rows(index)
            versions[rows] = version = int(requests.versions[number])
            if block.step(at + 1) and report.add_overflow(
                self._frames, at + 1, server.take_overflow(index)
            ):
                self._stop_if_requested(report)
                return False
            self._policy.after_step(
                at + 1, slice(server.first + rows.start, server.first + rows.stop)
            )
            if self._has_asked:
                requests.ask(number, at + 1)
        self._gauges.version(version)
        return True

    @property
    def _has_room(self) -> bool:
        """Whether a record may begin now."""
        return not self.progress.paused and len(self._ring) < self._ring.high

    def _begin_first_frame(self, at: int, envs: slice) -> None:
        """Continue in the first frame, with the data of frame ``at``."""
        self._policy.carry(at, 0, envs)
        self._at = self._packed = 0

    def _wait_for_room(self, setup: ActorSetup, group: int) -> bool:
        """Wait until a record may begin, and load new weights; return False if it is stopped.

        A record begun while the ring is full would be old by the time it is read.
        """
        progress, resumes = self.progress, self._resumes
        # In a loop, since another actor may have filled the ring again, or all may be paused.
        while setup.max_steps is None and not progress.stopped:
            if self._has_room:
                break
            began = now()
            progress.blocked[group] = True
            version = resumes.version  # first: actors that are resumed after it do not wait
            if progress.paused:
                resumes.wait(version, timeout=CHECK_SECONDS)
            else:
                self._ring.wait_drained(timeout=CHECK_SECONDS)
            self._count_block(began, group)
            progress.blocked[group] = False
            self._refresh_at = 0  # probably published during the block
        self._refresh_if_due(setup, group)
        self.refresh_statistics()
        return not progress.stopped

    def _count_block(self, began: int, group: int) -> int:
        """Add the time since a block began to the counter; return the current time."""
        blocked_ns, until = self.progress.blocked_ns, now()
        blocked_ns[group] += until - began
        if self._track is not None:
            self._track.end(_core.Track.ROOM, group, began)
        self._gauges.blocked_ns(blocked_ns[group])
        self._gauges.records(len(self._ring))
        return until

    def _refresh_if_due(self, setup: ActorSetup, group: int) -> None:
        """Load new weights, unless that would exceed ``refresh_share``."""
        if self._board is None or (behind := self._board.version - self._version) == 0:
            return
        began = now()
        if began < self._refresh_at and (setup.max_lag is None or behind <= setup.max_lag):
            return
        self.refresh()
        took = now() - began
        self._refresh_at = began + int(took / setup.refresh_share)
        self.progress.refreshing_ns[group] += took

    def _push(self, records: npt.NDArray[Any], group: int) -> bool:
        """Push records, waiting for room if necessary; return False if they must be dropped."""
        began = now()
        pushed = self._ring.push_many(records, timeout=0)
        self._gauges.records(len(self._ring))
        if pushed == len(records):
            return True
        self.progress.blocked[group] = True
        while pushed < len(records):
            if self.progress.dropped:
                return False
            pushed += self._ring.push_many(records[pushed:], timeout=CHECK_SECONDS)
            began = self._count_block(began, group)
        self.progress.blocked[group] = False
        self._refresh_at = 0
        return True


class TakeActorPolicy(TakePolicy):
    """Sets the policy of an actor."""

    policy_class = ActorPolicy
