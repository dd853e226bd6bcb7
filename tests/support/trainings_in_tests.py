"""Helpers for tests of examples."""

import contextlib
import signal
import subprocess
import sys


def killed_after(steps, checkpoints, program, *arguments):
    """Kill a training once it saved a checkpoint past ``steps``; return the newest one's step."""
    training = subprocess.Popen([sys.executable, program, *arguments], start_new_session=True)
    try:
        while (checkpoints.latest or 0) <= steps and training.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.wait(0.05)
    finally:
        training.kill()
    assert training.wait() == -signal.SIGKILL
    return checkpoints.latest
