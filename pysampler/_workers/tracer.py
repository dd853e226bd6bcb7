"""A process that traces a pool from its beginning to its end: ``pysampler trace``, started here."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

__all__ = ["Tracer"]

# Seconds that writing the end of a trace may take.
_PATIENCE = 60.0


class Tracer:
    """Writes what the processes of a pool do to a file, until it is closed or this process ends.

    Args:
        path: The file; as JSON if it ends so.
        pool: The number of the pool's segment.

    Raises:
        OSError: The file cannot be written, or the trace cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], pool: int) -> None:
        path = Path(path)
        as_json = ["--json"] if path.suffix == ".json" else []
        module = [sys.executable, "-m", "pysampler", "trace", str(os.getpid())]
        self._process = subprocess.Popen(
            [*module, "--until-eof", "--pool", str(pool), *as_json, "-o", os.fspath(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In a session of its own: Ctrl-C is the program's, which may go on.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._process.stdout is not None
        with self._process.stdout as output:
            began = output.readline()  # as soon as it traces; it says on stderr why it does not
        if not began:
            self.close()
            raise OSError(f"cannot trace to {path}: pysampler trace has ended")

    def end(self) -> None:
        """Let it write the rest, and end. May be repeated."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            # Not only its end: a fork of this process may hold it open.
            self._process.stdin.write(b"\n")
            self._process.stdin.close()

    def close(self) -> None:
        """Wait until it has written all. May be repeated."""
        self.end()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            warnings.warn(f"the trace was not written within {_PATIENCE:.0f} s", stacklevel=3)
            self._process.kill()
            self._process.wait()
