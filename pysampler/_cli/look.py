"""The activity of a pool's workers between two looks at their counters, and its bottleneck."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pysampler._cli.kernel import text_of
from pysampler._workers.counters import quantile, slow_envs, with_unit
from pysampler._workers.gauges import NO_VERSION
from pysampler.sync import now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._cli.programs import Pool
    from pysampler._workers.manifest import SegmentManifest

    _Numbers = npt.NDArray[np.int64]

__all__ = ["Look", "PoolLooks", "WorkerLook", "running_ns"]

_IDLE = -1  # the env of a worker that steps none
_STUCK = 10.0  # seconds in one env after which the worker counts as stuck
_SLOW = 3.0  # an env is slow from this many times the usual duration
_ENOUGH = 20  # steps of each env before one is called slow
_STARVED = 0.25  # the share of the time without a CPU from which the verdict mentions it
_WAITING = 0.3  # envs that use a CPU for less than this share of their time wait for something else


@dataclass(frozen=True)
class WorkerLook:
    """The activity of one worker since the last look.

    Attributes:
        main: Whether this is the program itself instead of a worker.
        pid: Its pid; None if it has ended.
        cpu: The CPU that it ran on last; None if it has ended.
        env: The env that it is stepping or resetting; None if it waits.
        since: Seconds since it began to do so, or to wait.
        steps: Env steps per second.
        step_p50: Seconds.
        step_p99: Seconds.
        reset_p50: Seconds; 0 without resets.
        reset_p99: Seconds; 0 without resets.
        busy: The share of the time spent in its envs.
        on_cpu: The share of the time that it ran; None if the kernel does not count it.
        starved: The share of the time that it was runnable without a CPU; None likewise.
        blocked: The share of the time that a full ring blocked it; None if it has no ring.
        acts: Whether it calls the policy too.
        lag: How many versions its weights are behind the newest; None if it loads no weights.
        restarts: The number of times it was lost and replaced.
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
    """The activity of a pool since the last look.

    Attributes:
        seconds: The time since the last look.
        steps: Env steps per second, of all workers.
        busy: The share of the time that the workers spent in envs: the pool's speed as a fraction
            of its speed if workers never waited.
        program: The share of the time that the program did not wait for workers.
        verdict: The bottleneck, in one line.
        records: The number of records in the actors' ring; None without a ring.
        most_records: The number at which actors block; None without a ring.
        workers: Each worker, then the program itself if it steps envs too.
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
    """Looks at one pool repeatedly.

    Args:
        pool: The pool.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._last = _Snapshot(pool)

    def follow(self, pool: Pool) -> None:
        """Adopt the pids of the workers from a newer ``Pool`` of the same segment."""
        self._pool.workers = pool.workers

    def look(self) -> Look:
        """Return the activity since the last look, or since this object was created."""
        pool, gauges = self._pool, self._pool.gauges
        before, after = self._last, _Snapshot(pool)
        self._last = after
        seconds = max(1, after.ns - before.ns) / 1e9
        in_current = after.running - before.running
        steps, resets = (_Since(before.rows[key], after.rows[key]) for key in ("steps", "resets"))
        newest, versions = gauges.newest, gauges.versions.tolist()
        records, most_records = gauges.records, gauges.most_records
        blocked = np.clip((after.blocked_ns - before.blocked_ns) / 1e9 / seconds, 0, 1).tolist()
        program = 1 - min(1.0, (after.waited_ns - before.waited_ns) / 1e9 / seconds)
        workers = []
        for index, (first, end) in enumerate(pool.about.envs):
            own = slice(first, end)
            pid = pool.workers.get(index)
            on_cpu, starved = _shares(before.ran.get(pid, []), after.ran.get(pid, []), seconds)
            env = int(after.working[index])
            since = (after.ns - int(after.began[index])) / 1e9
            # A step that is still running counts up to now; what the last look counted of it, or of
            # one that has ended, does not count again.
            busy = (steps.ns[own].sum() + resets.ns[own].sum() + in_current[index]) / 1e9
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
                    busy=min(1.0, max(0.0, float(busy) / seconds)),
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


class _Snapshot:
    """The numbers of a pool and of its workers' processes at one moment.

    Attributes:
        rows: The counters of each env.
        working: The env at work in each worker, since ``began``.
        ns: The time, in ns of ``now()``.
        running: How long each worker's current step or reset has run, in ns.
        blocked_ns: How long a full ring has blocked each actor.
        waited_ns: How long the program has waited for workers.
        ran: The ns that each worker has run, and waited for a CPU, by pid; empty if unknown.
    """

    def __init__(self, pool: Pool) -> None:
        self.rows = pool.counters.envs.copy()
        self.working, self.began = pool.counters.at_work()
        self.ns = now()
        self.running = running_ns(self.working, self.began, self.ns)
        self.blocked_ns = pool.gauges.blocked_ns.copy()
        self.waited_ns = int(pool.gauges.waited_ns[0])
        self.ran: dict[int | None, list[int]] = {
            pid: [int(ns) for ns in text_of(f"/proc/{pid}/schedstat").split()[:2]]
            for pid in pool.workers.values()
        }


class _Since:
    """The durations counted between two copies of the counters."""

    def __init__(self, before: npt.NDArray[np.void], after: npt.NDArray[np.void]) -> None:
        self.count = after["count"] - before["count"]
        self.ns = after["total_ns"].astype(np.int64) - before["total_ns"].astype(np.int64)
        self._buckets = after["buckets"] - before["buckets"]

    def quantile(self, envs: slice, share: float) -> float:
        """Return a quantile of the durations of some envs, in seconds; 0 without any."""
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
    """Return the bottleneck of the pool, in one line."""
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
        return (
            f"the learner is the limit: a full ring blocks actors {blocked:.0%} of the time; "
            "use fewer actors"
        )
    if not (steps.count.any() or resets.count.any()):
        if longest is not None:
            return f"all wait for {noun} {longest.env}, at work for {with_unit(longest.since)}"
        waits = min(worker.since for worker in workers)
        return f"the program has sent no command for {waits:.1f} s"
    most = max(worker.busy for worker in workers)
    if most < 0.5 and any(worker.acts for worker in workers):
        limits = "policy" if workers[0].blocked is not None else "policy or the program"
        return (
            f"the {limits} is the limit: workers step {noun}s only {busy:.0%} of the time; "
            f"give each worker more {noun}s"
        )
    starved = float(np.mean([worker.starved or 0.0 for worker in workers]))
    remark = ""
    if starved > _STARVED:
        remark = f"workers wait for a CPU {starved:.0%} of the time: run fewer processes or threads"
    limit = ""
    if most >= 0.5:
        limit = _limit_of_envs(workers, busy, steps, resets, about)
    elif program > 0.5:
        limit = (
            f"the program is the limit: it is busy elsewhere {program:.0%} of the time; "
            "pysampler trace shows when"
        )
    elif not remark:
        round_seconds = seconds * len(steps.count) / max(1, int(steps.count.sum()))
        limit = (
            f"waking workers is the limit: all {noun}s step in {with_unit(round_seconds)}; "
            'try num_workers="auto"'
        )
    return "; ".join(filter(None, [limit, remark]))


def _limit_of_envs(
    workers: list[WorkerLook], busy: float, steps: _Since, resets: _Since, about: SegmentManifest
) -> str:
    """Return why envs take most of the time, in one line."""
    noun = about.noun
    in_resets = resets.ns.sum() / max(1, steps.ns.sum() + resets.ns.sum())
    if in_resets > 0.5:
        return (
            f"resets are the limit: they take {in_resets:.0%} of the {noun}s' time; "
            "use spare_envs, shorter resets, or longer episodes"
        )
    mean = steps.ns / np.maximum(steps.count, 1) / 1e9
    sizes = itertools.chain(*about.groups)
    if slow := slow_envs(steps.count, mean, sizes, _SLOW, _ENOUGH):
        env, times = slow[0]
        return (
            f"one {noun} slow: {env} takes {times:.1f} times the usual; "
            "min_envs lets you take the others"
        )
    most, least = (f(worker.busy for worker in workers) for f in (max, min))
    if most > 0.9 and least < 0.6 * most:
        return (
            f"work is uneven: the busiest worker steps {noun}s {most:.0%} of the time, the idlest "
            f"{least:.0%}; mix slow and fast {noun}s"
        )
    wanted = [
        worker.on_cpu + worker.starved
        for worker in workers
        if worker.on_cpu is not None and worker.starved is not None
    ]
    if wanted and float(np.mean(wanted)) < _WAITING * busy:
        return (
            f"{noun}s wait for something other than a CPU: use more workers than CPUs; "
            "pysampler tune finds how many"
        )
    return f"{noun}s are the limit: workers step them {busy:.0%} of the time"


def _cpu_of(pid: int) -> int | None:
    """Return the CPU that a process ran on last; None if it has ended."""
    fields = text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[36]) if fields else None


def running_ns(working: _Numbers, began: _Numbers, at: int) -> _Numbers:
    """Return how long each worker's current step or reset has run, in ns; 0 if it has none.

    Args:
        working: The env at work in each worker, as ``Counters.at_work`` returns it.
        began: Since when.
        at: The time now.
    """
    return np.where(working == _IDLE, 0, np.maximum(at - began, 0))


def _shares(
    before: list[int], after: list[int], seconds: float
) -> tuple[float | None, float | None]:
    """Return the differences of two pairs of ns, as shares of some seconds; None if unknown."""
    if not (before and after):
        return None, None
    ran, waited = ((b - a) / 1e9 / seconds for a, b in zip(before, after, strict=True))
    return min(1.0, ran), min(1.0, waited)
