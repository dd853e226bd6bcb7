"""What every test may rely on, however the tests were started."""

import os
import signal

import pytest

# Tests run beside each other. Threads of a matrix product wait for each other by spinning, and
# where something else has their CPU that takes twenty times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure():
    # A shell without job control starts what runs in the background with Ctrl-C ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _signals():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return mask, {n: signal.getsignal(n) for n in signal.valid_signals()}


@pytest.fixture(autouse=True)
def signals_are_left_as_they_were():
    """A signal that one test leaves blocked or ignored is so in all programs of later tests."""
    before = _signals()
    yield
    assert _signals() == before
