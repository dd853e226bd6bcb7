"""Programs of a user's, run in an interpreter of their own."""

import os
import subprocess
import sys
from pathlib import Path


def completed(*arguments, **kwargs):
    """Run the interpreter with these arguments to its end, which must be a good one."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        **kwargs,
    )
    assert done.returncode == 0, done.stderr
    return done


def processes_in(folder):
    """Return the pids of the other processes that work in a folder."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink() == folder:
                found.add(int(path.parent.name))
        except OSError:  # it has ended
            pass
    return found - {os.getpid()}
