"""Errors that name the limit which they have met."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["naming_process_limit"]


@contextlib.contextmanager
def naming_process_limit() -> Iterator[None]:
    """Name the limits in the error if the system refuses to start a process or a thread."""
    try:
        yield
    except BlockingIOError as error:
        number = error.errno or errno.EAGAIN
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limit = "unlimited" if most == resource.RLIM_INFINITY else most
        raise BlockingIOError(
            number,
            f"cannot start worker: {os.strerror(number)}; the limit on processes and threads of "
            f"this user is {limit} (ulimit -u), and that of the cgroup (pids.max) may be lower; "
            "raise it, or pass a smaller num_workers",
        ) from None
