"""What envs and workers did, counted while they did it (csrc/meter.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Counters", "Stats"]

_DURATIONS = np.dtype(
    [("count", "<u8"), ("total_ns", "<u8"), ("buckets", "<u4", (_core.Meter.BUCKETS,))]
)
_ENV = np.dtype(
    {
        "names": ["steps", "resets"],
        "formats": [_DURATIONS, _DURATIONS],
        "itemsize": 384,
    }
)
_WORKER = np.dtype(
    {
        "names": ["since", "env", "waits", "parks", "awake_ns", "parked_ns", "spin_ns"],
        "formats": ["<i8", "<i8", "<u8", "<u8", "<i8", "<i8", "<i8"],
        "itemsize": 128,
    }
)
# Lower ends of the buckets, in ns: two to a doubling.
_LOWER = np.array(
    [
        2.0 ** ((b + _core.Meter.FIRST_BUCKET) // 2) * (1 + (b % 2) / 2)
        for b in range(_core.Meter.BUCKETS)
    ]
)


class Counters:
    """Those of a pool, over some memory: ``size_of`` bytes of zeros, at first."""

    def __init__(self, envs: int, workers: int, memory: npt.NDArray[np.uint8]) -> None:
        split = envs * _ENV.itemsize
        end = split + workers * _WORKER.itemsize
        self._env_rows = memory[:split].reshape(envs, _ENV.itemsize)
        self._worker_rows = memory[split:end].reshape(workers, _WORKER.itemsize)
        self.envs = memory[:split].view(_ENV)
        self.workers = memory[split:end].view(_WORKER)

    @staticmethod
    def size_of(envs: int, workers: int) -> int:
        """Bytes it takes."""
        return envs * _ENV.itemsize + workers * _WORKER.itemsize

    def meter(self, worker: int) -> _core.Meter:
        """For a worker to write with."""
        return _core.Meter(self._env_rows, self._worker_rows, worker)

    def begin(self, worker: int, env: int, now: int) -> None:
        """The parent, for a worker that is not there yet: this env is at work."""
        self.workers["since"][worker] = now
        self.workers["env"][worker] = env

    def at_work(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Which env each worker is at, or -1, and since when, ns of now()."""
        envs = self.workers["env"].copy()  # before the times: see meter.h
        return envs, self.workers["since"].copy()

    def busy_seconds(self) -> float:
        """How long all envs together have been at work."""
        rows = self.envs
        return float(rows["steps"]["total_ns"].sum() + rows["resets"]["total_ns"].sum()) / 1e9


@dataclass(frozen=True, repr=False)
class Times:
    """How often something was done by each env, and how long it took."""

    count: npt.NDArray[np.uint64]
    seconds: npt.NDArray[np.float64]  # in all
    buckets: npt.NDArray[np.uint32]  # [envs, buckets]: how often it took how long
    lower: npt.NDArray[np.float64]  # seconds: the lower ends of the buckets

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Seconds; 0 where there were none."""
        return self.seconds / np.maximum(self.count, 1)

    def quantile(self, share: float) -> npt.NDArray[np.float64]:
        """Seconds that so many of them did not take longer than, to within a fifth, by env.

        Half a second stands for all that took longer.
        """
        return np.array([_quantile(row, self.lower, share) for row in self.buckets])

    def __repr__(self) -> str:
        count = int(self.count.sum())
        mean = float(self.seconds.sum()) / max(1, count)
        return f"<pysampler.Times of {len(self.count)} envs: {count:,}, {_text(mean)} each>"


@dataclass(frozen=True, repr=False)
class Stats:
    """What there was up to a moment: ``envs.stats()``. Printed, it is a table."""

    steps: Times
    resets: Times
    worker_of: npt.NDArray[np.int64]  # of each env
    waits: npt.NDArray[np.uint64]  # by worker, as those below
    parks: npt.NDArray[np.uint64]
    spin_seconds: npt.NDArray[np.float64]
    yield_seconds: npt.NDArray[np.float64]
    park_seconds: npt.NDArray[np.float64]
    losses: npt.NDArray[np.int64]  # how often a worker was replaced

    @classmethod
    def of(cls, counters: Counters, envs: list[range], losses: list[int]) -> Stats:
        """As they are now; ``envs`` of each worker."""
        rows, workers = counters.envs.copy(), counters.workers.copy()
        worker_of = np.repeat(np.arange(len(envs)), [len(some) for some in envs])
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
        )

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        head = f"{'':>10}{'envs':>8}{'steps':>12}{'p50':>10}{'p99':>10}{'resets':>10}{'p50':>10}"
        head += f"{'p99':>10}{'spun':>8}{'yielded':>8}{'parked':>8}{'lost':>6}"
        lines = [head]
        for worker in range(len(self.waits)):
            mine = self.worker_of == worker
            lines.append(
                f"{'worker ' + str(worker):>10}{mine.sum():>8}{_summary(self.steps, mine, 12)}"
                f"{_summary(self.resets, mine, 10)}{self.spin_seconds[worker]:>7.2f}s"
                f"{self.yield_seconds[worker]:>7.2f}s{self.park_seconds[worker]:>7.2f}s"
                f"{self.losses[worker]:>6}"
            )
        slow = np.argsort(self.steps.mean)[::-1][:3]
        usual = float(np.median(self.steps.mean))
        lines += [
            f"env {env} of worker {self.worker_of[env]} takes {_text(self.steps.mean[env])}, "
            f"{self.steps.mean[env] / usual:.1f} times the usual"
            for env in slow
            if self.steps.mean[env] > 2 * usual > 0
        ]
        return "\n".join(lines)


def _times(rows: npt.NDArray[Any]) -> Times:
    return Times(rows["count"], rows["total_ns"] / 1e9, rows["buckets"], _LOWER / 1e9)


def _quantile(
    buckets: npt.NDArray[np.uint32], lower: npt.NDArray[np.float64], share: float
) -> float:
    total = int(buckets.sum())
    if total == 0:
        return 0.0
    at = int(np.searchsorted(np.cumsum(buckets), share * total))
    at = min(at, len(lower) - 1)
    # The middle of the bucket.
    return float(lower[at] * (7 / 6 if at % 2 else 5 / 4))


def _summary(times: Times, mine: npt.NDArray[np.bool_], width: int) -> str:
    buckets = times.buckets[mine].sum(axis=0)
    p50, p99 = (_quantile(buckets, times.lower, share) for share in (0.5, 0.99))
    return f"{int(times.count[mine].sum()):>{width},}{_text(p50):>10}{_text(p99):>10}"


def _text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"
