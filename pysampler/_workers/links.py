"""The shared memory of a pool and its workers: one segment.

It holds the commands and completions (``_core.Pool``), a ring for each worker's mail, counters and
gauges. A watch marks a worker's parts as lost when its process dies.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._common.closing import Released
from pysampler._workers.counters import Counters
from pysampler._workers.gauges import Gauges
from pysampler._workers.lanes import ProcessLane
from pysampler._workers.limits import naming_process_limit
from pysampler._workers.manifest import SegmentManifest
from pysampler._workers.processes import Processes
from pysampler._workers.setup import Attachment, wait_policy
from pysampler.errors import ClosedError
from pysampler.sync import Segment, Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from pysampler._workers.processes import WorkerAssignment
    from pysampler._workers.threads import ThreadLane, Threads

__all__ = ["Links"]


class Links:
    """The links to the workers of a pool.

    Args:
        assignments: The envs and groups of each worker.
        policy: Spin and yield times, see ``wait_policy``.
        processes: The workers, whose sockets carry large messages.
        inline: The envs and groups that this process runs itself, as the last worker.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        policy: tuple[int, int] | None,
        processes: Processes | Threads,
        inline: WorkerAssignment | None,
    ) -> None:
        workers = len(assignments)
        counted = [*assignments] if inline is None else [*assignments, inline]
        counts = counted[-1].envs.stop, len(counted)
        groups = [len(assignment.sizes) for assignment in assignments]
        inline_groups = 0 if inline is None else len(inline.sizes)
        first = list(itertools.accumulate(groups, initial=0))
        self.groups_of = [range(*ends) for ends in itertools.pairwise(first)]
        self._processes = processes
        sizes = Counters.size_of(*counts), Gauges.size_of(len(counted))
        rings = 2 * workers * _core.ByteRing.size_of(processes.mail)
        room = SegmentManifest.room_for(
            len(counted), sum(len(assignment.sizes) for assignment in counted)
        )
        size = room + sum(sizes) + _core.Pool.size_of(groups, inline_groups) + rings + 4096
        # Takes no memory until a recorder asks for slices. The last track is of this process.
        trace_size = _core.Track.size_of(workers + 1)
        segment = Segment(size, trace_size)
        trace_at = segment.size - trace_size
        _, manifest = segment.array((room,), np.dtype(np.uint8), None)
        (counters_at, counters), (gauges_at, gauges) = (
            segment.array((size,), np.dtype(np.uint8), None) for size in sizes
        )
        SegmentManifest.made_here(
            noun=counted[0].noun,
            envs=[(assignment.envs.start, assignment.envs.stop) for assignment in counted],
            groups=[list(assignment.sizes) for assignment in counted],
            main=inline is not None,
            counters=counters_at,
            gauges=gauges_at,
            trace=trace_at,
        ).write(manifest)
        self.segment = segment
        self.counters = Counters(*counts, counters)
        self.counters.workers["env"] = -1
        self.gauges = Gauges(len(counted), gauges)
        self.gauges.clear()
        weights = [size for assignment in counted for size in assignment.sizes]
        self.native = _core.Pool(
            segment, groups, weights, processes.mail, wait_policy(policy), inline_groups
        )
        self.track = _core.Track(segment, trace_at, workers)  # of this process
        self.native.trace_to(self.track)
        self.native.count_waits_in(self.gauges.waited_ns)
        self._outboxes = [_core.ByteRing(segment, processes.mail) for _ in assignments]
        self.lanes: list[ProcessLane] | list[ThreadLane]
        if isinstance(processes, Processes):
            mail = zip(self._outboxes, self.groups_of, strict=True)
            self.lanes = [
                ProcessLane(index, processes, self.native, *of_lane)
                for index, of_lane in enumerate(mail)
            ]
        else:
            self.lanes = [processes.lane(index, self.native) for index in range(workers)]
        self.attachments = [
            Attachment(
                pool=self.native.offset,
                groups=groups,
                inline_groups=inline_groups,
                inbox=self.native.inbox(index),
                outbox=self._outboxes[index].offset,
                capacity=processes.mail,
                counted=counts,
                counters=counters_at,
                gauges=gauges_at,
                trace=trace_at,
                policy=policy,
                first=assignment.first,
                sizes=assignment.sizes,
            )
            for index, assignment in enumerate(assignments)
        ]
        # Created only for workers, because a watch costs a thread and file descriptors.
        with naming_process_limit():
            self.watch: Watch = Watch() if assignments else None  # type: ignore[assignment]
        self._parts: list[_core.Part] = []  # marked as lost with any worker

    def at_work(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the env at work in each worker, and since when; see ``Counters.at_work``."""
        envs, since = self.counters.at_work()
        workers = len(self.groups_of)
        return envs[:workers], since[:workers]

    def watch_worker(self, index: int, pid: int) -> None:
        """Mark all parts of a worker as lost when its process dies."""
        if not self._processes.can_die:
            return
        own = self.native.worker(index), self._outboxes[index].producer()
        self.watch.add(pid, *self._parts, *own, alone=True)

    def watch_also(self, part: _core.Part, pids: Iterable[int]) -> None:
        """Mark this part as lost too when any worker dies."""
        self._parts.append(part)
        for pid in pids if self._processes.can_die else ():
            self.watch.add(pid, part)

    def forget_worker(self, pid: int) -> None:
        """Do not take the end of a worker for a loss from now on."""
        if self._processes.can_die:
            self.watch.forget(pid)

    def watch_no_more(self, pids: Sequence[int]) -> None:
        """Forget the parts of ``watch_also``; ``pids`` are the workers'."""
        parts, self._parts = self._parts, []
        for index, pid in enumerate(pids if parts else ()):
            self.watch_worker(index, pid)

    def renew(self, index: int, dead: int) -> None:
        """Reset all links to a worker whose process is known to be dead. May be repeated."""
        self.watch.settle(dead)  # marks must not hit the next process
        self.native.renew(index)
        self._outboxes[index].renew()
        lane = self.lanes[index]
        assert isinstance(lane, ProcessLane)
        lane.renew_mail()

    def close(self) -> None:
        """Release the memory. May be repeated."""
        if self.watch is not None:
            self.watch.close()
        self.native.close()
        for ring in self._outboxes:
            ring.close()
        self.segment.close()
        released: Any = Released(functools.partial(ClosedError, "cannot go on: closed meanwhile"))
        self.counters = self.gauges = released
        self.track = None  # type: ignore[assignment]
