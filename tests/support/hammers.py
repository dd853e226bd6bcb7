"""Threads that call the same objects at the same time."""

import contextlib
import sys
import threading


def together(*loops):
    """Run each function in a thread, all at once; raise the first exception of any."""
    errors = []
    start = threading.Barrier(len(loops))

    def run(loop):
        start.wait()
        try:
            loop()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # with Python's lock, threads that only retry hold it for less long
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]


def calling(*calls, until, refused=()):
    """Return a function that makes these calls until ``until`` is set, or one is refused for good.

    Args:
        calls: Functions without arguments.
        until: An event.
        refused: Exceptions that end a single call.
    """

    def loop():
        while not until.is_set():
            for call in calls:
                with contextlib.suppress(*refused):
                    call()

    return loop
