"""Watch: notices dead processes."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from pysampler import _core
from pysampler._common.closing import Closing
from pysampler._core import Loss

__all__ = ["Loss", "Watch"]


class _Process(Protocol):
    """An object with a pid."""

    @property
    def pid(self) -> int | None: ...


class Watch(Closing, _core.Watch):
    """Notice at once when processes die, and end the waits for them with ``LostError``.

    A native thread holds a pidfd for each process. Add a process together with its parts, that is,
    its roles at the primitives, before you join it:

    ``watch.add(process, flag.poster(), bell.member(3), ring.producer(), ring.consumer(),
    board.writer())``

    Posts that a process made before its death remain; a wait for more raises ``LostError``.
    ``losses`` and ``wait()`` return which processes were lost, when, and how (for children that
    were not joined yet). When ``wait()`` returns a loss, all parts of that process are marked. Once
    another process has taken its place, call ``replaced()`` of each flag, ring or board
    (``revive()`` of a doorbell).

    In a worker, ``Watch().leave_with()`` ends this process with its parent, even in the middle of a
    call.

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
        """Watch a process, and mark its parts as lost when it ends.

        Args:
            process: A pid, or an object with one (``multiprocessing.Process``,
                ``subprocess.Popen``).
            *parts: The parts of the process, such as ``flag.poster()``.
            alone: Pass True to replace all parts that were added for this process before, instead
                of adding to them.

        Raises:
            TypeError: One of ``parts`` is not a part.
            ValueError: ``process`` is not a started process.
        """
        for part in parts:
            if not isinstance(part, _core.Part):
                raise TypeError(
                    f"cannot watch process: part {part!r}, expected one such as flag.poster(), "
                    "bell.member(i) or ring.producer()"
                )
        self._add_pid(_pid(process), list(parts), alone)

    def forget(self, process: int | _Process) -> bool:
        """Stop watching a process.

        Args:
            process: A pid, or an object with one.

        Returns:
            False if the process was not watched or has already ended.
        """
        return self._forget_pid(_pid(process))

    def settle(self, process: int | _Process) -> bool:
        """Mark the parts of a process as lost now, if it has ended.

        Args:
            process: A pid, or an object with one.

        Returns:
            Whether the process has ended, and all its parts are marked; True if it is not watched.
        """
        return self._settle_pid(_pid(process))

    def leave_with(self, process: int | _Process | None = None, code: int = 1) -> None:
        """End this process when another one ends, immediately and without cleaning up.

        Args:
            process: A pid, or an object with one; None: the parent of this process.
            code: The exit code of this process.

        Raises:
            ValueError: ``code`` is not 0 to 255.
        """
        if not isinstance(code, int) or not 0 <= code < 256:
            raise ValueError(f"cannot leave: code {code!r}, expected 0 to 255")
        pid = os.getppid() if process is None else _pid(process)
        self._leave_with_pid(pid, code)
        _for_life.append(self)
        if process is None and os.getppid() != pid:  # it ended between the two lines above
            os._exit(code)


# Keeps the watches of leave_with() alive, without another reference.
_for_life: list[Watch] = []


def _pid(process: int | _Process) -> int:
    """Return the pid of a process, or raise ValueError."""
    pid = process if isinstance(process, int) else getattr(process, "pid", None)
    if not isinstance(pid, (int, np.integer)) or isinstance(pid, bool) or not 0 < pid < 2**31:
        raise ValueError(f"cannot watch {process!r}: expected a pid, or a process that was started")
    return int(pid)
