"""What tests of examples share."""

import contextlib
import signal
import subprocess
import sys


def killed_after(steps, checkpoints, program, *arguments):
    """Kill a training once it has saved a checkpoint of more steps; return those of the newest."""
    training = subprocess.Popen([sys.executable, program, *arguments], start_new_session=True)
    try:
        while (checkpoints.latest or 0) <= steps and training.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                training.wait(0.05)
    finally:
        training.kill()
    assert training.wait() == -signal.SIGKILL
    return checkpoints.latest
