"""Renewal: finds workers that live and should be replaced, so that what their envs leak is freed.

``Recovery`` replaces them, as if they were lost: the running episodes of their envs end, and are
marked. A worker with one env waits for the end of its episode, so that nothing is lost.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from pysampler._workers.links import Links
    from pysampler._workers.processes import Processes
    from pysampler._workers.recovery import Faults

__all__ = ["Renewal", "own_memory"]

# Seconds between two looks at the memory of the workers: the kernel walks all their pages.
LOOK_S = 5.0
# Steps of an env that keeps its worker from being renewed again, after which we warn.
LONG_EPISODE = 1000
_MEMORY = ("smaps_rollup", ("Private_Clean:", "Private_Dirty:")), ("status", ("RssAnon:",))

_log = logging.getLogger("pysampler")


def own_memory(pid: int) -> int:
    """Return the bytes of memory that only this process uses; 0 if they are not known."""
    for name, fields in _MEMORY:
        with contextlib.suppress(OSError, ValueError):
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
            found = [line.split() for line in lines if line.startswith(fields)]
            if found:
                return 1024 * sum(int(words[1]) for words in found)
    return 0


@dataclass
class _Start:
    """The state when the present process of a worker began."""

    pid: int
    resets: npt.NDArray[np.int64]  # of each of its envs
    steps: npt.NDArray[np.int64]  # likewise
    is_new: bool = False  # whether it replaced another, and its memory was not measured yet


class Renewal:
    """Finds the workers of a pool that are due.

    Args:
        links: The links to its workers.
        processes: The workers.
        faults: When a worker is due.
        ended: Returns which envs have just ended their episodes; None: that is not known.
    """

    def __init__(
        self,
        links: Links,
        processes: Processes,
        faults: Faults,
        ended: Callable[[range], Sequence[bool] | None],
    ) -> None:
        self._links = links
        self._processes = processes
        self._faults = faults
        self._ended = ended
        self._workers = range(len(processes.assignments))
        self._starts = [self._start_of(index) for index in self._workers]
        self._begun = -1  # resets of all envs at the last look
        self._waiting = False  # whether a worker is due that cannot be renewed yet
        self._next_look = time.monotonic() + LOOK_S
        self._memory: dict[int, int] = {}  # of processes that have too much, by pid
        self._warned: set[int] = set()  # pids of processes that a long episode keeps
        self._warned_of_limit = False

    def due(self, begun: frozenset[int]) -> list[tuple[int, str]]:
        """Return the workers to renew before the groups ``begun`` are reset, and why."""
        count = int(self._links.counters.envs["resets"]["count"].sum())
        if count == self._begun and time.monotonic() < self._next_look and not self._waiting:
            return []
        self._begun, self._waiting = -1, False  # if interrupted, the next call looks again
        for index in self._workers:
            if self._starts[index].pid != self._processes.children[index].pid:  # it was lost
                self.renewed(index)
        self._look()
        found = []
        for index in self._workers:
            if why := self._why(index):
                if self._may_end(index, begun):
                    found.append((index, why))
                else:
                    self._waiting = True
        # If an exception ends the renewals of some, the next call finds the others.
        self._begun = count if not found else -1
        return found

    def renewed(self, index: int) -> None:
        """Note that another process is this worker now."""
        self._starts[index] = self._start_of(index)
        self._starts[index].is_new = True

    def _start_of(self, index: int) -> _Start:
        share = self._processes.assignments[index].envs
        envs = self._links.counters.envs[share.start : share.stop]
        resets, steps = envs["resets"]["count"].copy(), envs["steps"]["count"].copy()
        return _Start(self._processes.children[index].pid, resets, steps)

    def _why(self, index: int) -> str:
        """Return why a worker is due; an empty string if it is not."""
        # Resets begin episodes: of each env, one has not ended yet.
        begun = self._start_of(index).resets - self._starts[index].resets
        ended = int(begun.sum()) - len(begun)
        if (after := self._faults.recycle_after) is not None and ended >= after:
            return f"after {ended} episodes"
        if used := self._memory.get(self._starts[index].pid):
            return f"with {used / 1e9:.3g} GB of memory"
        return ""

    def _may_end(self, index: int, begun: frozenset[int]) -> bool:
        """Return whether a worker can be renewed now; one with a single env waits for its end."""
        if any(map(self._links.native.in_flight, self._links.groups_of[index])):
            return False
        over = self._ended(envs := self._processes.assignments[index].envs)
        if over is None or len(envs) > 1 or over[0] or begun >= {*self._links.groups_of[index]}:
            return True
        self._warn(index)
        return False

    def _look(self) -> None:
        """Measure the memory of the workers now and then."""
        most = self._faults.recycle_above
        if most is None or time.monotonic() < self._next_look:
            return
        self._memory.clear()
        for index in self._workers:
            pid = self._starts[index].pid
            if (used := own_memory(pid)) > most:
                self._memory[pid] = used
            self._expect_room(index)
        self._next_look = time.monotonic() + LOOK_S

    def _expect_room(self, index: int) -> None:
        """Warn once if a new process is above the limit from the first look on."""
        start = self._starts[index]
        is_new, start.is_new = start.is_new, False
        if not is_new or self._warned_of_limit or start.pid not in self._memory:
            return
        self._warned_of_limit = True
        _log.warning(
            "pysampler: worker %s (pid %s) uses %.3g GB right after its renewal, recycle_above is "
            "%.3g GB: workers are renewed again and again; expected more than envs need at first",
            index,
            start.pid,
            self._memory[start.pid] / 1e9,
            (self._faults.recycle_above or 0) / 1e9,
        )

    def _warn(self, index: int) -> None:
        """Warn once if an episode that does not end keeps a worker above its limit."""
        before, after = self._starts[index], self._start_of(index)
        steps = int(after.steps[0] - before.steps[0])
        used = self._memory.get(before.pid)
        if used is None or before.pid in self._warned or steps < LONG_EPISODE:
            return
        self._warned.add(before.pid)
        _log.warning(
            "pysampler: worker %s (pid %s) uses %.3g GB, recycle_above is %.3g GB; it is not "
            "renewed before env %s ends its episode, %s steps after the last renewal",
            index,
            before.pid,
            used / 1e9,
            (self._faults.recycle_above or 0) / 1e9,
            self._processes.assignments[index].envs.start,
            steps,
        )
