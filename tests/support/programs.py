"""User programs, run in a new interpreter."""

import os
import subprocess
import sys
from pathlib import Path


def completed(*arguments, code=0, prefix=(), timeout=100, **kwargs):
    """Run the interpreter with these arguments, after a prefix; it must exit with this code."""
    done = subprocess.run(
        [*prefix, sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        **kwargs,
    )
    assert done.returncode == code, done.stderr
    return done


def processes_in(folder):
    """Return the pids of other processes whose working directory is ``folder``."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink() == folder:
                found.add(int(path.parent.name))
        except OSError:  # it has ended
            pass
    return found - {os.getpid()}
