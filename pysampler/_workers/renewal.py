"""Renewal: replaces workers that live, so that what their envs have leaked is freed.

A worker that is due first retires: its process reads no more commands and steps its envs for the
process in its place. There each env is a new one, but the old env finishes its episode: until then
the new process passes its steps on. With the last episode the old process ends. So no step is lost,
in any autoreset mode, even if the envs of a worker never end their episodes together.

Signal handlers may raise between any two lines, so each step may be repeated: a worker that is
retiring stays on a list, and the next command of the pool begins with it. A worker that dies before
it has retired is taken off the list, and ``Recovery`` replaces it like any other.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from pysampler._workers.commands import Commands
    from pysampler._workers.links import Links
    from pysampler._workers.processes import Processes
    from pysampler._workers.recovery import Faults
    from pysampler._workers.setup import Layout
    from pysampler.sync import Segment

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
    is_new: bool = False  # whether it took another's place, and its memory was not measured yet


class Renewal:
    """Renews the workers of a pool.

    Args:
        links: The links to its workers.
        processes: The workers.
        commands: The commands that they were given.
        faults: When a worker is due.
        current_layout: Returns the layout of the frames, and their segment.
        flush: Waits until all commands have gone out.
    """

    def __init__(
        self,
        links: Links,
        processes: Processes,
        commands: Commands,
        faults: Faults,
        current_layout: Callable[[], tuple[Layout, Segment]],
        flush: Callable[[], None],
    ) -> None:
        self._links = links
        self._processes = processes
        self._commands = commands
        self._faults = faults
        self._current_layout = current_layout
        self._flush = flush
        self._workers = range(len(processes.assignments))
        self._starts = [self._start_of(index) for index in self._workers]
        self._retiring: dict[int, tuple[int, str]] = {}  # by worker: the pid, and why
        self._begun = -1  # resets of all envs at the last look
        self._waiting = False  # whether a worker is due that cannot retire yet
        self._next_look = time.monotonic() + LOOK_S
        self._memory: dict[int, int] = {}  # of processes that have too much, by pid
        self._warned: set[int] = set()  # pids of processes that a long episode keeps
        self._warned_of_limit = False

    @property
    def interrupted(self) -> bool:
        """Whether a worker is retiring, and none has taken its place yet."""
        return bool(self._retiring)

    def finish(self) -> None:
        """Finish renewals that exceptions of signal handlers interrupted."""
        for index in list(self._retiring):
            self._renew(index)

    def renew_due(self) -> None:
        """Renew the workers that are due and have nothing in flight."""
        self.finish()
        self._processes.let_go()
        begun = int(self._links.counters.envs["resets"]["count"].sum())
        if begun == self._begun and time.monotonic() < self._next_look and not self._waiting:
            return
        self._begun, self._waiting = -1, False  # if interrupted, the next call looks again
        self._look()
        for index in self._workers:
            if why := self._due(index):
                self._retiring[index] = self._processes.children[index].pid, why
                self._renew(index)
        self._begun = begun

    # -- who is due ------------------------------------------------------------------------------

    def _start_of(self, index: int) -> _Start:
        share = self._processes.assignments[index].envs
        envs = self._links.counters.envs[share.start : share.stop]
        resets, steps = envs["resets"]["count"].copy(), envs["steps"]["count"].copy()
        return _Start(self._processes.children[index].pid, resets, steps)

    def _due(self, index: int) -> str:
        """Return why a worker is due; an empty string if it is not, or cannot retire now."""
        if self._starts[index].pid != self._processes.children[index].pid:  # it replaced a lost one
            # The successor of the retired one is gone, and it may hang.
            self._processes.release_retired(index, kill=True)
            self._starts[index] = self._start_of(index)
        # Resets begin episodes: of each env, one has not ended yet.
        begun = self._start_of(index).resets - self._starts[index].resets
        ended = int(begun.sum()) - len(begun)
        if (after := self._faults.recycle_after) is not None and ended >= after:
            why = f"after {ended} episodes"
        elif used := self._memory.get(self._starts[index].pid):
            why = f"with {used / 1e9:.3g} GB of memory"
        else:
            return ""
        native, groups = self._links.native, self._links.groups_of[index]
        # Counted by episodes: when exactly a process ends must not decide what the envs do.
        succeeding = self._processes.predecessor(index) is not None and not begun.all()
        if succeeding or any(native.in_flight(group) or native.is_new(group) for group in groups):
            self._waiting = True
            return ""
        self._processes.release_retired(index)
        return why

    def _look(self) -> None:
        """Measure the memory of the workers now and then."""
        most = self._faults.recycle_above
        if most is None or time.monotonic() < self._next_look:
            return
        self._memory.clear()
        for index in self._workers:
            retired = self._processes.predecessor(index)
            for child in (self._processes.children[index], *([] if retired is None else [retired])):
                if (used := own_memory(child.pid)) > most:
                    self._memory[child.pid] = used
                    if retired is not None:
                        self._warn(index, child.pid, retired.pid)
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
            *(index, start.pid, self._memory[start.pid] / 1e9),
            (self._faults.recycle_above or 0) / 1e9,
        )

    def _warn(self, index: int, pid: int, retired: int) -> None:
        """Warn once if an episode that does not end keeps a worker above its limit."""
        before, share = self._starts[index], self._processes.assignments[index].envs
        after = self._start_of(index)
        steps = (after.steps - before.steps) * (after.resets == before.resets)
        if retired in self._warned or steps.max() < LONG_EPISODE:
            return
        self._warned.add(retired)
        _log.warning(
            "pysampler: worker %s (pid %s) uses %.3g GB, recycle_above is %.3g GB; it is not "
            "renewed before env %s ends its episode, %s steps after the last renewal",
            *(index, pid, self._memory[pid] / 1e9, (self._faults.recycle_above or 0) / 1e9),
            *(share[int(steps.argmax())], steps.max()),
        )

    # -- renewing --------------------------------------------------------------------------------

    def _renew(self, index: int) -> None:
        """Put another process in the place of one that is retiring. May be repeated."""
        pid, why = self._retiring[index]
        links, processes = self._links, self._processes
        child = processes.children[index]
        if child.pid == pid:
            retired = self._retire(index)
        elif retired := processes.has_retired(index, pid):
            child.kill()  # its setup was interrupted
            child.ended(SHUTDOWN_TIMEOUT_S)
        if not retired:  # it was lost before
            del self._retiring[index]
            return
        links.renew(index, child.pid)
        start = now() + int(SHUTDOWN_TIMEOUT_S * 1e9)
        links.counters.begin(index, processes.assignments[index].envs.start, start)
        attachment = links.attachments[index]
        processes.succeed(index, pid, attachment, links.segment, self._current_layout())
        new = processes.children[index].pid
        links.watch_worker(index, new)
        self._commands.resume(index)
        self._starts[index] = self._start_of(index)
        self._starts[index].is_new = True
        del self._retiring[index]
        processes.let_go()
        _log.info("pysampler: worker %s (pid %s) renewed %s: pid %s", index, pid, why, new)

    def _retire(self, index: int) -> bool:
        """Make a worker retire; return False if it was lost before."""
        pid = self._processes.children[index].pid
        if not self._commands.retire(index):
            self._flush()  # may replace a lost worker
        if self._processes.children[index].pid != pid:
            return False
        if not self._processes.await_retirement(index):
            return False
        self._links.watch.forget(pid)  # its end is no loss
        return True
