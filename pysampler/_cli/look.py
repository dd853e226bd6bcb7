"""What the workers of a pool do, between two looks at their counters."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pysampler._workers.counters import quantile, slow_envs, with_unit
from pysampler._workers.gauges import NO_VERSION
from pysampler.sync import now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._cli.programs import Pool
    from pysampler._workers.manifest import SegmentManifest

__all__ = ["Look", "PoolLooks", "WorkerLook"]

_IDLE = -1  # the env of a worker that is at none
_STUCK = 10.0  # seconds in one env after which that is the verdict
_SLOW = 3.0  # times the usual from which an env is named as slow
_ENOUGH = 20  # steps of each env before one is called slow
_STARVED = 0.25  # the share of the time without a CPU from which that is said
_WAITING = 0.3  # the share of an env's time on a CPU below which it waits for something else


@dataclass(frozen=True)
class WorkerLook:
    """What one worker did since the last look.

    Attributes:
        main: Whether it is no worker, but the program itself.
        pid: Its pid; None if it has ended.
        cpu: The CPU that it ran on last; None if it has ended.
        env: The env that is at work now; None if it waits.
        since: For how many seconds it has been at that env, or waited.
        steps: Env steps a second.
        step_p50: Seconds.
        step_p99: Seconds.
        reset_p50: Seconds; 0 if there was none.
        reset_p99: Seconds; 0 if there was none.
        busy: The share of the time that its envs were at work.
        on_cpu: The share of the time that it ran; None if the kernel does not count that.
        starved: The share of the time that it could have run, and had no CPU; None likewise.
        blocked: The share of the time that a full ring blocked it; None if it pushes to none.
        acts: Whether it has the policy too.
        lag: How many versions behind the newest its weights are; None if it loads none.
        restarts: How often it was lost and replaced.
    """

    main: bool
    pid: int | None
    cpu: int | None
    env: int | None
    since: float
    steps: float
    step_p50: float
    step_p99: float
    reset_p50: float
    reset_p99: float
    busy: float
    on_cpu: float | None
    starved: float | None
    blocked: float | None
    acts: bool
    lag: int | None
    restarts: int


@dataclass(frozen=True)
class Look:
    """What a pool did since the last look.

    Attributes:
        seconds: How long ago that was.
        steps: Env steps a second, of all workers.
        busy: The share of the time that the workers' envs were at work: what it makes of what these
            workers could, if they never waited.
        program: The share of the time that the program did not wait for workers.
        verdict: What limits it, in one line.
        records: How many records of actors wait in their ring; None if there is no ring.
        most_records: With how many the actors block; None if there is no ring.
        workers: Each worker, and last the program itself if it steps envs too.
    """

    seconds: float
    steps: float
    busy: float
    program: float
    verdict: str
    records: int | None
    most_records: int | None
    workers: list[WorkerLook]


class PoolLooks:
    """Looks at one pool again and again.

    Args:
        pool: The pool.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._at = time.monotonic()
        self._rows = pool.counters.envs.copy()
        self._blocked_ns = pool.gauges.blocked_ns.copy()
        self._waited_ns = int(pool.gauges.waited_ns[0])
        self._ran = _schedules_of(pool)

    def follow(self, pool: Pool) -> None:
        """Take over the pids of the workers from a newer look at the same pool."""
        self._pool.workers = pool.workers

    def look(self) -> Look:
        """Return what happened since the last look, or since this was made."""
        pool, gauges = self._pool, self._pool.gauges
        rows, at = pool.counters.envs.copy(), time.monotonic()
        seconds = max(1e-9, at - self._at)
        working, began = pool.counters.at_work()
        looked = now()
        steps, resets = (_Since(self._rows[what], rows[what]) for what in ("steps", "resets"))
        self._rows, self._at = rows, at
        newest, versions = gauges.newest, gauges.versions.tolist()
        records, most_records = gauges.records, gauges.most_records
        blocked_ns, blocked_before = gauges.blocked_ns.copy(), self._blocked_ns
        self._blocked_ns = blocked_ns
        blocked = np.clip((blocked_ns - blocked_before) / 1e9 / seconds, 0, 1).tolist()
        waited_before, self._waited_ns = self._waited_ns, int(gauges.waited_ns[0])
        program = 1 - min(1.0, (self._waited_ns - waited_before) / 1e9 / seconds)
        before, self._ran = self._ran, _schedules_of(pool)
        workers = []
        for index, (first, end) in enumerate(pool.about.members):
            own = slice(first, end)
            pid = pool.workers.get(index)
            on_cpu, starved = _shares(before.get(pid), self._ran.get(pid), seconds)
            env = int(working[index])
            since = (looked - int(began[index])) / 1e9
            # One step that is not over yet counts as far as it has come.
            busy = (steps.ns[own].sum() + resets.ns[own].sum()) / 1e9
            busy += min(since, seconds) if env != _IDLE else 0.0
            workers.append(
                WorkerLook(
                    main=pool.about.main and index == len(versions) - 1,
                    pid=pid,
                    cpu=None if pid is None else _cpu_of(pid),
                    env=None if env == _IDLE else env,
                    since=max(0.0, since),
                    steps=float(steps.count[own].sum()) / seconds,
                    step_p50=steps.quantile(own, 0.5),
                    step_p99=steps.quantile(own, 0.99),
                    reset_p50=resets.quantile(own, 0.5),
                    reset_p99=resets.quantile(own, 0.99),
                    busy=min(1.0, float(busy) / seconds),
                    on_cpu=on_cpu,
                    starved=starved,
                    blocked=blocked[index] if most_records else None,
                    acts=versions[index] != NO_VERSION,
                    lag=None if newest == NO_VERSION else max(0, newest - versions[index]),
                    restarts=int(gauges.restarts[index]),
                )
            )
        busy = float(np.mean([worker.busy for worker in workers]))
        return Look(
            seconds=seconds,
            steps=sum(worker.steps for worker in workers),
            busy=busy,
            program=program,
            verdict=_verdict(workers, busy, program, steps, resets, seconds, pool.about),
            records=records if most_records else None,
            most_records=most_records or None,
            workers=workers,
        )


class _Since:
    """The durations that came between two copies of counters."""

    def __init__(self, before: npt.NDArray[np.void], after: npt.NDArray[np.void]) -> None:
        self.count = after["count"] - before["count"]
        self.ns = after["total_ns"].astype(np.int64) - before["total_ns"].astype(np.int64)
        self._buckets = after["buckets"] - before["buckets"]

    def quantile(self, envs: slice, share: float) -> float:
        """Return a quantile of the durations of some envs, in seconds; 0 if there were none."""
        return quantile(self._buckets[envs].sum(axis=0), share)


def _verdict(
    workers: list[WorkerLook],
    busy: float,
    program: float,
    steps: _Since,
    resets: _Since,
    seconds: float,
    about: SegmentManifest,
) -> str:
    """Return what limits the pool."""
    noun = about.noun
    ended = [index for index, worker in enumerate(workers) if worker.cpu is None]
    if len(ended) == len(workers):
        return "the program has ended"
    if ended:
        return f"worker {ended[0]} has ended"
    at_work = [worker for worker in workers if worker.env is not None]
    longest = max(at_work, key=lambda worker: worker.since, default=None)
    if longest is not None and longest.since > _STUCK:
        return f"{noun} {longest.env} has been at work for {longest.since:.0f} s in one call"
    blocked = float(np.mean([worker.blocked or 0.0 for worker in workers]))
    if blocked > 0.5:
        return f"the learner is the limit: records that it has not taken block actors {blocked:.0%}"
    if not (steps.count.any() or resets.count.any()):
        if longest is not None:
            return f"all wait for {noun} {longest.env}, at work for {with_unit(longest.since)}"
        waits = min(worker.since for worker in workers)
        return f"nothing was asked of the workers in the last {waits:.1f} s"
    most = max(worker.busy for worker in workers)
    if most < 0.5 and any(worker.acts for worker in workers):
        limits = "policy" if workers[0].blocked is not None else "policy or the program"
        return f"the {limits} is the limit: workers are at {noun}s {busy:.0%} of the time"
    starved = float(np.mean([worker.starved or 0.0 for worker in workers]))
    remark = ""
    if starved > _STARVED:
        remark = f"workers wait for a CPU {starved:.0%} of the time: too much else runs"
    if most < 0.5 and program > 0.5:
        said = f"the program is the limit: it does something else {program:.0%} of the time"
    elif most < 0.5 and remark:
        return remark
    elif most < 0.5:
        round_seconds = seconds * len(steps.count) / max(1, int(steps.count.sum()))
        said = (
            f"waking workers is the limit: steps of all {noun}s take {with_unit(round_seconds)}; "
            'try num_workers="auto"'
        )
    else:
        said = _limit_of_envs(workers, busy, steps, resets, about)
    return f"{said}; {remark}" if remark else said


def _limit_of_envs(
    workers: list[WorkerLook], busy: float, steps: _Since, resets: _Since, about: SegmentManifest
) -> str:
    """Return why envs take most of the time."""
    noun = about.noun
    in_resets = resets.ns.sum() / max(1, steps.ns.sum() + resets.ns.sum())
    if in_resets > 0.5:
        return f"resets are the limit: they take {in_resets:.0%} of the {noun}s' time"
    mean = steps.ns / np.maximum(steps.count, 1) / 1e9
    sizes = itertools.chain(*about.groups)
    if slow := slow_envs(steps.count, mean, sizes, _SLOW, _ENOUGH):
        env, times = slow[0]
        return f"one {noun} slow: {env}, {times:.1f} times the usual"
    most, least = (f(worker.busy for worker in workers) for f in (max, min))
    if most > 0.9 and least < 0.6 * most:
        return f"work is uneven: the busiest worker is at work {most:.0%}, the idlest {least:.0%}"
    wanted = [
        worker.on_cpu + worker.starved
        for worker in workers
        if worker.on_cpu is not None and worker.starved is not None
    ]
    if wanted and float(np.mean(wanted)) < _WAITING * busy:
        return f"{noun}s wait for something else than a CPU: try more workers, pysampler tune"
    return f"{noun}s are the limit: workers are at work {busy:.0%} of the time"


def _cpu_of(pid: int) -> int | None:
    """Return the CPU that a process ran on last; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[36])


def _schedules_of(pool: Pool) -> dict[int | None, tuple[int, int] | None]:
    """Return for how many ns each worker has run, and waited for a CPU, by its pid."""
    return {pid: _schedule_of(pid) for pid in pool.workers.values()}


def _schedule_of(pid: int) -> tuple[int, int] | None:
    """Return for how many ns a process has run, and waited for a CPU; None if it is not known."""
    try:
        ran, waited = Path(f"/proc/{pid}/schedstat").read_text().split()[:2]
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None


def _shares(
    before: tuple[int, int] | None, after: tuple[int, int] | None, seconds: float
) -> tuple[float | None, float | None]:
    """Return which shares of some seconds passed between two pairs of ns."""
    if before is None or after is None:
        return None, None
    ran, waited = ((b - a) / 1e9 / seconds for a, b in zip(before, after, strict=True))
    return min(1.0, ran), min(1.0, waited)
