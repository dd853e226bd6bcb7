"""Fixtures for tests of replay, averaging and checkpoints."""

import gc
import os

import pytest
from averaging_in_tests import Adds, left

from pysampler._learning.averaging import Averaging
from pysampler._workers import fork_server


@pytest.fixture
def fifos(tmp_path):
    """A folder with two pipes: a hanging trainer writes "at work" and reads "go on"."""
    os.mkfifo(tmp_path / "at work")
    os.mkfifo(tmp_path / "go on")
    return tmp_path


@pytest.fixture
def nothing_left():
    """Check that the test leaves no process, fd, thread or memory; the fork server stays."""
    Averaging(Adds, 1).close()
    collect()
    before = left()
    yield
    collect()
    # Fewer if garbage of an earlier test was collected.
    assert all(now <= then for now, then in zip(left(), before, strict=True)), (before, left())


def collect():
    """Drop garbage. The fork server reaps workers once it has imported its modules."""
    gc.collect()
    while fork_server._fork_servers and fork_server._fork_servers[-1].busy():
        pass
