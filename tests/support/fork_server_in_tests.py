"""What tests of the fork server share."""

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
    """A program of a user's: what it prints, once it has ended well."""
    return completed("-c", textwrap.dedent(program), **kwargs).stdout
