"""Stops and continues processes, like Ctrl-Z, a batch system or a paused container."""

import contextlib
import os
import signal
import time

import psutil


def family(pid):
    """Return the pids of a process and of all its descendants, parents first."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def stop(pids):
    """Stop processes, and wait until they have stopped."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    stopped = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() not in stopped:
                os.sched_yield()


def continue_(pids):
    """Continue processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def suspended(pids):
    """Stop processes for the duration of the block."""
    try:
        stop(pids)
        yield
    finally:
        continue_(pids)


def suspend(pids, seconds):
    """Stop processes for some seconds."""
    with suspended(pids):
        time.sleep(seconds)
