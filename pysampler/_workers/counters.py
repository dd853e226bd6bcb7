"""Counters of env steps, resets and worker waits, in shared memory (csrc/meter.h).

Workers always count: a few stores a step, without locks. Thus numbers read together may be of
slightly different moments. Durations go into a histogram with two buckets per power of two.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

__all__ = [
    "BatchChoice",
    "Counters",
    "SpareUse",
    "Stats",
    "Times",
    "quantile",
    "slow_envs",
    "with_unit",
]

_DURATIONS = np.dtype(
    [("count", "<u8"), ("total_ns", "<u8"), ("buckets", "<u8", (_core.Meter.BUCKETS,))]
)
_ENV = np.dtype({"names": ["steps", "resets"], "formats": [_DURATIONS] * 2, "itemsize": 768})
_WORKER = np.dtype(
    {
        "names": ["since", "env", "waits", "parks", "awake_ns", "parked_ns", "spin_ns"],
        "formats": ["<i8", "<i8", "<u8", "<u8", "<i8", "<i8", "<i8"],
        "itemsize": 128,
    }
)
_SIZES = 4  # of batches that ``Stats`` prints
# Lower bounds of the buckets, in ns; two buckets per power of two.
_LOWER = np.array(
    [
        2.0 ** ((b + _core.Meter.FIRST_BUCKET) // 2) * (1 + (b % 2) / 2)
        for b in range(_core.Meter.BUCKETS)
    ]
)


class Counters:
    """The counters of a pool, in ``size_of`` bytes of memory that are zero at first."""

    def __init__(self, envs: int, workers: int, memory: npt.NDArray[np.uint8]) -> None:
        split = envs * _ENV.itemsize
        end = split + workers * _WORKER.itemsize
        self._env_rows = memory[:split].reshape(envs, _ENV.itemsize)
        self._worker_rows = memory[split:end].reshape(workers, _WORKER.itemsize)
        self.envs = memory[:split].view(_ENV)
        self.workers = memory[split:end].view(_WORKER)

    @staticmethod
    def size_of(envs: int, workers: int) -> int:
        """Return the size of the counters in bytes."""
        return envs * _ENV.itemsize + workers * _WORKER.itemsize

    def meter(self, worker: int) -> _core.Meter:
        """Return the meter through which a worker counts."""
        return _core.Meter(self._env_rows, self._worker_rows, worker)

    def begin(self, worker: int, env: int, now: int) -> None:
        """Record for a worker that is still starting that ``env`` is at work since ``now``."""
        self.workers["since"][worker] = now
        self.workers["env"][worker] = env

    def at_work(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the env at work in each worker (-1: none), and since when, in ns of now()."""
        envs = self.workers["env"].copy()  # before the times: see meter.h
        return envs, self.workers["since"].copy()

    def busy_seconds(self) -> float:
        """Return the time that all envs together have been at work, in seconds."""
        rows = self.envs
        return float(rows["steps"]["total_ns"].sum() + rows["resets"]["total_ns"].sum()) / 1e9


# Report an env as slow after this many steps of each, if its mean is this many seconds longer.
_ENOUGH, _STRAGGLES = 100, 50e-6


@dataclass(frozen=True, repr=False)
class Times:
    """How many steps or resets each env made, and how long they took.

    Attributes:
        count: The number of steps (or resets) of each env.
        seconds: Their total duration for each env, in seconds.
        buckets: A histogram of the durations for each env: ``[envs, buckets]``.
        lower: The lower bounds of the buckets, in seconds.
    """

    count: npt.NDArray[np.uint64]
    seconds: npt.NDArray[np.float64]
    buckets: npt.NDArray[np.uint64]
    lower: npt.NDArray[np.float64]

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """The mean duration for each env, in seconds; 0 for envs without any."""
        return self.seconds / np.maximum(self.count, 1)

    def quantile(self, share: float) -> npt.NDArray[np.float64]:
        """Return a quantile of the durations for each env, in seconds.

        It is accurate to 20 %, because it comes from a histogram; durations above half a second
        count as half a second.

        Args:
            share: The quantile, from 0 to 1: 0.5 is the median.

        Returns:
            An array with a value for each env; 0 for envs without any durations.
        """
        return np.array([_quantile(row, self.lower, share) for row in self.buckets])

    def __repr__(self) -> str:
        count = int(self.count.sum())
        mean = float(self.seconds.sum()) / max(1, count)
        return f"<pysampler.Times of {len(self.count)} envs: {count:,}, {with_unit(mean)} each>"


class BatchChoice(NamedTuple):
    """The choice of ``min_envs="auto"`` or ``timeout="auto"``, with the rates behind it.

    Attributes:
        min_envs: The number of envs that a batch waits for.
        timeout: Seconds after which a batch is returned with fewer envs; None: never.
        rates: Env steps per second of each ``(min_envs, timeout)`` in the last completed trial.
        trials: The number of completed trials.
    """

    min_envs: int
    timeout: float | None
    rates: dict[tuple[int, float | None], float]
    trials: int

    def __str__(self) -> str:
        chosen = f"batches wait for {_wait_text(self.min_envs, self.timeout)}"
        if not self.rates:
            return f"{chosen}, in its first trial"
        tried = (f"{_wait_text(*wait)}: {rate:,.0f}" for wait, rate in self.rates.items())
        return f"{chosen}; tried, in env steps/s: {'; '.join(tried)}"


class SpareUse(NamedTuple):
    """The use of ``spare_envs``.

    Attributes:
        spares: The number of spare envs.
        episodes: How many episodes began with a spare env.
        waits: How many of them waited, because no spare was ready.
        wait_seconds: How long they waited in all.
        enough: How many spares would have been ready for 95 % of these episodes.
    """

    spares: int
    episodes: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    enough: int = 0

    def after(self, *, waited: bool, seconds: float) -> SpareUse:
        """Return the use after one more episode has begun."""
        return self._replace(
            episodes=self.episodes + 1,
            waits=self.waits + waited,
            wait_seconds=self.wait_seconds + waited * seconds,
        )

    def with_needed(self, needed: Mapping[int, int]) -> SpareUse:
        """Return it with ``enough``, for how many episodes how many spares were needed."""
        left = 0.95 * sum(needed.values())
        for count in sorted(needed):
            left -= needed[count]
            if left <= 0:
                return self._replace(enough=count)
        return self

    def __str__(self) -> str:
        text = f"{self.episodes:,} episodes began with one of {self.spares} spare envs"
        if self.waits == 0:
            return f"{text}, which was always ready"
        return (
            f"{text}; {self.waits:,} waited for it, {with_unit(self.wait_seconds / self.waits)} "
            f"each; spare_envs={self.enough} would have been enough for 95 %"
        )


@dataclass(frozen=True, repr=False)
class Stats:
    """Statistics of envs and workers so far, as ``envs.stats()`` returns them; prints as a table.

    Attributes:
        steps: Number and durations of each env's steps.
        resets: Number and durations of each env's resets.
        worker_of: The index of the worker of each env; envs in this process count as one worker
            more.
        waits: How often each worker waited for a command.
        parks: How often each worker slept in a wait, because spinning and yielding took too long.
        spin_seconds: Seconds each worker spent spinning in waits.
        yield_seconds: Seconds each worker spent yielding the CPU in waits.
        park_seconds: Seconds each worker slept in waits.
        losses: How often each worker was lost and replaced.
        native: Whether all envs were native when they were made; ``describe`` says whether they
            still are. The time of a native env's step is the time of its group's step divided by
            the number of envs.
        batches: The choice of ``recv`` or of a sampler if ``min_envs`` or ``timeout`` is "auto";
            otherwise None.
        batch_sizes: By size, the number of partial batches: those that ``recv`` returned, or for
            which a sampler acted (``min_envs``, ``timeout``, or actors with a ``device``).
        spares: The use of ``spare_envs``, a :class:`pysampler.SpareUse`; None without. Envs then
            include the spares.
    """

    steps: Times
    resets: Times
    worker_of: npt.NDArray[np.int64]
    waits: npt.NDArray[np.uint64]
    parks: npt.NDArray[np.uint64]
    spin_seconds: npt.NDArray[np.float64]
    yield_seconds: npt.NDArray[np.float64]
    park_seconds: npt.NDArray[np.float64]
    losses: npt.NDArray[np.int64]
    native: bool = False
    batches: BatchChoice | None = None
    batch_sizes: Mapping[int, int] = field(default_factory=dict)
    spares: SpareUse | None = None
    _groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, counters: Counters, groups: list[tuple[int, ...]], losses: list[int]) -> Stats:
        """Return a snapshot of the counters.

        Args:
            counters: The counters of a pool.
            groups: The number of envs of each group of each worker.
            losses: How often each worker was lost.

        Returns:
            A copy, which does not change.
        """
        rows, workers = counters.envs.copy(), counters.workers.copy()
        worker_of = np.repeat(np.arange(len(groups)), [sum(own) for own in groups])
        return cls(
            _times(rows["steps"]),
            _times(rows["resets"]),
            worker_of,
            workers["waits"],
            workers["parks"],
            workers["spin_ns"] / 1e9,
            np.maximum(workers["awake_ns"] - workers["spin_ns"], 0) / 1e9,
            workers["parked_ns"] / 1e9,
            np.array(losses, np.int64),
            _groups=tuple(itertools.chain(*groups)),
        )

    def to_dict(self) -> dict[str, float]:
        """Return totals over all envs and workers as a flat dict, for loggers; times in seconds."""
        numbers: dict[str, float] = {}
        for name, times in (("step", self.steps), ("reset", self.resets)):
            buckets = times.buckets.sum(axis=0)
            numbers[f"{name}s"] = int(times.count.sum())
            numbers[f"{name}_seconds"] = float(times.seconds.sum())
            for share in (50, 99):
                numbers[f"{name}_p{share}"] = _quantile(buckets, times.lower, share / 100)
        for name in ("spin_seconds", "yield_seconds", "park_seconds"):
            numbers[name] = float(getattr(self, name).sum())
        numbers["losses"] = int(self.losses.sum())
        return numbers

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        head, *rows = self._table()
        cells = "".join(f"<th>{name}</th>" for name in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows
        )
        import html  # noqa: PLC0415 - rare

        below = "".join(f"<div>{html.escape(line)}</div>" for line in self._remarks())
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{below}"

    def __str__(self) -> str:
        widths = (10, 8, 12, 10, 10, 10, 10, 10, 8, 8, 8, 6)
        lines = [
            "".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            for row in self._table()
        ]
        return "\n".join([*lines, *self._remarks()])

    def _table(self) -> list[list[str]]:
        """Return the column names, and a row for each worker."""
        names = ["", "envs", "steps", "p50", "p99", "resets", "p50", "p99"]
        table = [[*names, "spun", "yielded", "parked", "lost"]]
        for worker in range(len(self.waits)):
            own = self.worker_of == worker
            waited = self.spin_seconds, self.yield_seconds, self.park_seconds
            table.append(
                [
                    *(f"worker {worker}", str(own.sum())),
                    *(*_summary(self.steps, own), *_summary(self.resets, own)),
                    *(f"{seconds[worker]:.2f}s" for seconds in waited),
                    str(self.losses[worker]),
                ]
            )
        return table

    def _remarks(self) -> list[str]:
        """Return lines below the table: native envs, slow envs, sizes of batches."""
        lines = ["native: a group's envs step together, in the time of all / their number"]
        lines = lines[: self.native]
        slow = slow_envs(self.steps.count, self.steps.mean, self._groups, 2, _ENOUGH)
        lines += [
            f"env {env} of worker {self.worker_of[env]} takes {with_unit(self.steps.mean[env])}, "
            f"{times:.1f} times the usual"
            for env, times in slow[:3]
        ]
        if sizes := self.batch_sizes:
            usual = sorted(sizes, key=lambda size: (-sizes[size], size))[:_SIZES]
            total = sum(sizes.values())
            shares = ", ".join(f"{size} ({sizes[size] / total:.0%})" for size in usual)
            lines.append(f"envs in {total:,} batches: {shares}{', ...' * (len(sizes) > _SIZES)}")
        if self.batches is not None:
            lines.append(str(self.batches))
        if self.spares is not None:
            lines.append(str(self.spares))
        return lines


def _times(rows: npt.NDArray[Any]) -> Times:
    return Times(rows["count"], rows["total_ns"] / 1e9, rows["buckets"], _LOWER / 1e9)


def quantile(buckets: npt.NDArray[np.uint64], share: float) -> float:
    """Return a quantile of a histogram in these counters, in seconds."""
    return _quantile(buckets, _LOWER / 1e9, share)


def slow_envs(
    count: npt.NDArray[np.uint64],
    mean: npt.NDArray[np.float64],
    sizes: Iterable[int],
    least: float,
    enough: int,
) -> list[tuple[int, float]]:
    """Return slow envs, slowest first, each with its step time as a multiple of the usual one.

    The first env of a group steps after a wait, with cold caches: it is compared with the first
    envs of other groups, and all others with each other.

    Args:
        count: The number of steps of each env.
        mean: The mean duration of a step of each env, in seconds.
        sizes: The number of envs of each group.
        least: A slow env takes more than this multiple of the usual time, and 50 us longer.
        enough: The number of steps that every env must have made before any is called slow.
    """
    if count.min() < enough:
        return []
    first = np.zeros(len(mean), bool)
    first[np.cumsum([0, *sizes])[:-1]] = True
    times = np.zeros(len(mean))
    for alike in (first, ~first):
        peers = np.sort(mean[alike])[:-1]  # without the slowest, which may be the culprit
        if not len(peers) and alike is not first:
            peers = mean[first]
        if len(peers):
            usual = float(np.median(peers))
            slow = alike & (mean > max(least * usual, usual + _STRAGGLES))
            times[slow] = mean[slow] / usual
    return [(int(env), float(times[env])) for env in np.argsort(-times) if times[env] > 0]


def _quantile(
    buckets: npt.NDArray[np.uint64], lower: npt.NDArray[np.float64], share: float
) -> float:
    """Return a quantile of one histogram: the middle of the bucket it falls into."""
    total = int(buckets.sum())
    if total == 0:
        return 0.0
    bucket = int(np.searchsorted(np.cumsum(buckets), share * total))
    bucket = min(bucket, len(lower) - 1)
    return float(lower[bucket] * (7 / 6 if bucket % 2 else 5 / 4))


def _summary(times: Times, envs: npt.NDArray[np.bool_]) -> list[str]:
    """Return count, median and 99th percentile of some envs as table cells."""
    buckets = times.buckets[envs].sum(axis=0)
    p50, p99 = (_quantile(buckets, times.lower, share) for share in (0.5, 0.99))
    return [f"{int(times.count[envs].sum()):,}", with_unit(p50), with_unit(p99)]


def _wait_text(min_envs: int, timeout: float | None) -> str:
    return f"{min_envs} env{'s' * (min_envs != 1)}" + (
        "" if timeout is None else f" or {with_unit(timeout)}"
    )


def with_unit(seconds: float) -> str:
    """Return a duration as text in s, ms or us."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
