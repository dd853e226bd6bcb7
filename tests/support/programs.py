"""Programs of a user's, run in an interpreter of their own."""

import subprocess
import sys


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
