"""Fixtures for tests of what learners keep."""

import gc
import os

import pytest
from averaging_in_tests import Adds, left

from pysampler._learning.averaging import Averaging
from pysampler._workers import fork_server


@pytest.fixture
def fifos(tmp_path):
    """A folder in which a trainer that hangs tells that it is at work, and waits to go on."""
    os.mkfifo(tmp_path / "at work")
    os.mkfifo(tmp_path / "go on")
    return tmp_path


@pytest.fixture
def nothing_left():
    """No process, fd, thread or memory more than before; the fork server stays."""
    Averaging(Adds, 1).close()
    collect()
    before = left()
    yield
    collect()
    # Fewer, where an earlier test's garbage went.
    assert all(now <= then for now, then in zip(left(), before, strict=True)), (before, left())


def collect():
    """Drop garbage. The fork server reaps workers once it has imported its modules."""
    gc.collect()
    while fork_server._fork_servers and fork_server._fork_servers[-1].loading():
        pass
