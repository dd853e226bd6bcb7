"""Finds out whether envs wait for something other than a CPU: a server, a device, a sleep.

More workers than CPUs step such envs faster, because they wait at the same time. The kernel tells
how long a thread ran, and how long it waited for a CPU beside other programs: the rest of a step is
spent waiting for something else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pysampler._vector.stacks import log_once
from pysampler.sync import usable_cpus

if TYPE_CHECKING:
    from pysampler._workers.pool import Pool

__all__ = ["MOST_ON_CPU", "WaitCheck", "cpu_seconds"]

# Envs that need a CPU for less than this share of their steps wait for something else.
MOST_ON_CPU = 0.5
# Seconds of steps of each worker until the check decides; and of one step, below which it does not
# look on: the round through the workers would take longer than what more of them save.
_ENOUGH, _SHORT = 1.0, 5e-4


def cpu_seconds(thread: int | str) -> float | None:
    """Return how long a thread ran or waited for a CPU, in seconds; None if unknown.

    Args:
        thread: Its id, or "thread-self".
    """
    try:
        with open(f"/proc/{thread}/schedstat") as file:  # noqa: PTH123 - pathlib is slow to import
            ran, waited = map(int, file.read().split()[:2])
    except (OSError, ValueError):
        return None
    return (ran + waited) / 1e9 if ran else None


class WaitCheck:
    """Logs a warning if workers with several envs are off the CPU for most of their steps.

    The vector env calls ``look`` after steps that Python has a part in. While steps are long and
    the check has not decided, all are such steps; other programs pay for a few calls.

    Args:
        pool: The workers.
        envs: The number of envs.
    """

    def __init__(self, pool: Pool, envs: int) -> None:
        self._pool = pool
        self._envs = envs
        self._pids: list[int] = []
        self._begin = self._last = self._cpu = 0.0
        self._decided = False

    def look(self) -> bool:
        """Return whether the next steps need no look: the check has decided, or they are short."""
        if self._decided:
            return True
        busy, pids = self._pool.busy_seconds(), self._pool.pids
        took, self._last = busy - self._last, busy
        if pids != self._pids:  # begins, also if a worker was replaced
            self._pids, self._begin = pids, busy
            self._cpu = self._cpu_seconds()
        elif busy - self._begin >= _ENOUGH * len(pids):
            self._decided = True
            self._decide((self._cpu_seconds() - self._cpu) / (busy - self._begin))
        return took < _SHORT * len(pids)

    def _cpu_seconds(self) -> float:
        """Return the time that the workers needed a CPU; infinite if unknown."""
        each = [cpu_seconds(pid) for pid in self._pids]
        return sum(math.inf if one is None else one for one in each)

    def _decide(self, on_cpu: float) -> None:
        # Not a number, if the kernel says nothing.
        if on_cpu < MOST_ON_CPU:
            workers = min(self._envs, math.ceil(usable_cpus() / max(on_cpu, 1e-3)))
            log_once(
                f"{1 - on_cpu:.0%} of their steps, envs wait for something other than a CPU: "
                f"num_workers={workers} lets more of them wait at the same time"
            )
