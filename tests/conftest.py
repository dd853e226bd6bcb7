"""What every test may rely on, however the tests were started."""

import signal


def pytest_configure():
    # A shell without job control starts what runs in the background with Ctrl-C ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
