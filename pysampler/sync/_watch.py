"""Who has died."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from pysampler import _core
from pysampler._closing import Closing
from pysampler._core import Loss

__all__ = ["Loss", "Watch"]


class _Process(Protocol):
    @property
    def pid(self) -> int | None: ...


class Watch(Closing, _core.Watch):
    """Notices the death of processes at once, and ends the waits for them.

    One native thread with a pidfd for each process. Tell it what a process is part of, while the
    process is known to be alive or has not been joined yet:

    ``watch.add(process, flag.poster(), bell.member(3), ring.producer(), ring.consumer(),
    board.writer())``

    ``process`` is a pid, or anything with one (``multiprocessing.Process``, ``subprocess.Popen``).
    What the dead had posted is still there; a wait for more raises ``LostError``. ``losses`` and
    ``wait()`` tell which process was lost, when, and how (of children that were not joined yet).
    ``wait(known=n)`` waits for others than the first n; when it tells of a loss, all parts of that
    process have been marked, and may be told that it was ``replaced()``.

    In a worker, ``Watch().leave_with()`` ends this process with its parent, whatever it is doing.

    >>> import subprocess, sys
    >>> flag = Flag()
    >>> with Watch() as watch:
    ...     child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    ...     watch.add(child, flag.poster())
    ...     [loss] = watch.wait()
    >>> loss.exit_code
    3
    >>> flag.poster_lost
    True
    >>> child.wait()
    3
    """

    def add(self, process: int | _Process, *parts: _core.Part, alone: bool = False) -> None:
        """Mark each of the parts lost when this process ends; ``alone``: and no others any more."""
        for part in parts:
            if not isinstance(part, _core.Part):
                raise TypeError(
                    f"cannot watch {part!r}: expected a part of it, such as flag.poster(), "
                    "bell.member(i) or ring.producer()"
                )
        self._add_pid(_pid(process), list(parts), alone)

    def forget(self, process: int | _Process) -> bool:
        """Stop watching it; False if it was not watched, or has ended already."""
        return self._forget_pid(_pid(process))

    def settle(self, process: int | _Process) -> bool:
        """Mark the parts of a process that has ended, if that is not done yet; False if it lives.

        When this returns True, no mark of that process is still to come.
        """
        return self._settle_pid(_pid(process))

    def leave_with(self, process: int | _Process | None = None, code: int = 1) -> None:
        """End this process, at once and without cleaning up, when that one (its parent) ends."""
        if not isinstance(code, int) or not 0 <= code < 256:
            raise ValueError(f"cannot leave: code {code!r}, expected 0 to 255")
        pid = os.getppid() if process is None else _pid(process)
        self._leave_with_pid(pid, code)
        _for_life.append(self)
        if process is None and os.getppid() != pid:  # it ended between the two lines above
            os._exit(code)


# A process leaves with its parent though no reference to the watch is left.
_for_life: list[Watch] = []


def _pid(process: int | _Process) -> int:
    pid = process if isinstance(process, int) else getattr(process, "pid", None)
    if not isinstance(pid, (int, np.integer)) or isinstance(pid, bool) or not 0 < pid < 2**31:
        raise ValueError(f"cannot watch {process!r}: expected a pid, or a process that was started")
    return int(pid)
