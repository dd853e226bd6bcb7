"""Renewal: replaces workers that live, so that what their envs have leaked is freed.

A worker that is due first retires: its process reads no more commands and steps its envs for the
process in its place. There each env is a new one, but the old env finishes its episode: until then
the new process passes its steps on. With the last episode the old process ends. So no step is lost,
in any autoreset mode, even if the envs of a worker never end their episodes together.

``Recovery`` replaces what has died; both start processes and connect them in the same way.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pysampler import _core
from pysampler._workers.children import OwnedConnection, is_readable, socket_pair
from pysampler._workers.jobs import Failure, Retire
from pysampler._workers.processes import SHUTDOWN_TIMEOUT_S
from pysampler.errors import PysamplerError
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pysampler._workers.commands import Commands
    from pysampler._workers.jobs import Answer, Job
    from pysampler._workers.links import Links
    from pysampler._workers.processes import Processes
    from pysampler._workers.recovery import Faults
    from pysampler._workers.setup import Layout

__all__ = ["Renewal", "own_memory"]

# Seconds between two looks at the memory of the workers: the kernel walks all their pages.
LOOK_S = 5.0
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


class CommandsOfPool(Protocol):
    """The methods of a ``Pool`` that a renewal needs."""

    closed: bool

    def send_now(self, group_frames: Iterable[tuple[int, int]], jobs: Mapping[int, Job]) -> None:
        """Send jobs to groups, without a renewal before."""

    def wait_for(self, groups: Sequence[int]) -> list[Answer]:
        """Wait until these groups are back, and return their answers."""

    def take(self, groups: Sequence[int]) -> None:
        """Take groups that have come back."""

    def current_layout(self) -> tuple[Layout, int]:
        """Return the layout of the frames, and the descriptor of their segment."""

    def kill(self) -> None:
        """End the pool."""


class Renewal:
    """Renews the workers of a pool. Each step may be repeated, as in ``Recovery``.

    Args:
        pool: The pool.
        links: The links to its workers.
        processes: The workers.
        commands: The commands that they were given.
        faults: When a worker is due.
    """

    def __init__(
        self,
        pool: CommandsOfPool,
        links: Links,
        processes: Processes,
        commands: Commands,
        faults: Faults,
    ) -> None:
        self._pool = pool
        self._links = links
        self._processes = processes
        self._commands = commands
        self._faults = faults
        workers = range(len(processes.assignments))
        self._before = [0] * len(workers)  # resets of each worker's envs when it started
        self._pids = [0] * len(workers)
        self._resets = links.counters.envs["resets"]["count"]
        self._begun = -1  # resets of all envs at the last look
        self._waiting = False  # whether a worker is due that cannot retire yet
        self._next_look = time.monotonic() + LOOK_S
        self._large: dict[int, int] = {}  # the memory of workers that have too much
        # Workers that are retiring: the pid, why, and both ends of a connection to the successor.
        self._retiring: dict[int, tuple[int, str, OwnedConnection, OwnedConnection]] = {}

    @property
    def interrupted(self) -> bool:
        """Whether a worker has retired, and none has taken its place yet."""
        return bool(self._retiring)

    def renew_due(self) -> None:
        """Renew the workers that are due and have nothing in flight."""
        for index in list(self._retiring):
            self._renew(index)
        # Resets begin episodes: of each env, one has not ended yet.
        begun = int(self._resets.sum())
        if begun == self._begun and time.monotonic() < self._next_look and not self._waiting:
            return
        self._begun, self._waiting = begun, False
        self._look()
        for index in range(len(self._before)):
            if (why := self._due(index)) and self._retire(index, why):
                self._renew(index)

    def _due(self, index: int) -> str:
        """Return why a worker is due; an empty string if it is not, or cannot retire now."""
        native, groups = self._links.native, self._links.groups_of[index]
        envs = self._processes.assignments[index].envs
        pid = self._processes.children[index].pid
        begun = int(self._resets[envs.start : envs.stop].sum())
        if self._pids[index] != pid:  # it has just started
            if self._pids[index]:
                self._before[index] = begun
            self._pids[index] = pid
            self._large.pop(index, None)
        ended = begun - self._before[index] - len(envs)
        why = ""
        if (after := self._faults.recycle_after) is not None and ended >= after:
            why = f"after {ended} episodes"
        elif index in self._large:
            why = f"with {self._large[index] / 1e9:.3g} GB of memory"
        if not why:
            return ""
        self._processes.release_retired()
        cannot = self._processes.is_succeeding(index) or any(
            native.in_flight(group) or native.is_new(group) for group in groups
        )
        self._waiting = self._waiting or cannot
        return "" if cannot else why

    def _look(self) -> None:
        """Measure the memory of the workers now and then."""
        if time.monotonic() < self._next_look:
            return
        most = self._faults.recycle_above
        for index, child in enumerate(self._processes.children if most is not None else ()):
            if (used := own_memory(child.pid)) > (most or 0):
                self._large[index] = used
        self._next_look = time.monotonic() + LOOK_S

    def _renew(self, index: int) -> None:
        """Put another process in the place of one that has retired."""
        pid, why, ours, theirs = self._retiring[index]
        links, processes = self._links, self._processes
        # It reports once more when it has left the commands behind.
        if not is_readable(theirs, SHUTDOWN_TIMEOUT_S):
            self._pool.kill()
            raise PysamplerError(f"cannot renew worker {index}: pid {pid} did not retire")
        links.watch.forget(pid)  # its end is no loss
        links.renew(index, pid)
        start = now() + int(SHUTDOWN_TIMEOUT_S * 1e9)
        links.counters.begin(index, processes.assignments[index].envs.start, start)
        attachment, layout = links.attachments[index], self._pool.current_layout()
        processes.succeed(index, pid, theirs.fileno(), attachment, links.segment.fd, layout)
        links.watch_worker(index, processes.children[index].pid)
        self._commands.resume(index)
        del self._retiring[index]
        ours.close()
        theirs.close()
        new = processes.children[index].pid
        _log.info("pysampler: worker %s (pid %s) renewed %s: pid %s", index, pid, why, new)

    def _retire(self, index: int, why: str) -> bool:
        """Make a worker retire; return False if it was lost before."""
        child, group = self._processes.children[index], self._links.groups_of[index].start
        ours, theirs = map(OwnedConnection, socket_pair())  # close if they are dropped
        try:
            _core.send_descriptors(child.connection.fileno(), b"retire", [ours.fileno()])
        except OSError:  # the watch notices its loss
            return False
        try:
            self._pool.send_now([(group, 0)], {group: Retire()})
        finally:
            self._await_retirement(index, child.pid, why, (ours, theirs))
        return index in self._retiring

    def _await_retirement(
        self, index: int, pid: int, why: str, ends: tuple[OwnedConnection, OwnedConnection]
    ) -> None:
        """Wait for the worker's answer, also if a signal handler raises: no call expects it."""
        group = self._links.groups_of[index].start
        raised: BaseException | None = None
        while not self._pool.closed and self._links.native.in_flight(group):
            try:
                answers = self._pool.wait_for([group])
                if not isinstance(answers[0].result, Failure):
                    self._retiring[index] = pid, why, *ends
                self._pool.take([group])
            except BaseException as error:
                if raised is not None:  # the second time: the worker seems to hang
                    self._pool.kill()
                    raise
                raised = error
        if raised is not None:
            raise raised
