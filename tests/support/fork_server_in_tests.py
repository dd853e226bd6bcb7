"""Helpers for tests of the fork server."""

import contextlib
import os
import textwrap

import psutil
from programs import completed


def alive(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(condition):
    while not condition():
        os.sched_yield()


def run(program, **kwargs):
    """Run a user program that must succeed; return its stdout."""
    return completed("-c", textwrap.dedent(program), **kwargs).stdout
