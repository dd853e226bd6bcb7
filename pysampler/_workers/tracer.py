"""Tracing a pool from its beginning to its end, in a process that runs ``pysampler trace``."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

from pysampler._workers.children import environment, is_readable
from pysampler._workers.surroundings import import_path

__all__ = ["Tracer", "dump_of", "how_to_convert"]

# Seconds that the process may take to begin, and to end.
_BEGIN_SECONDS, _END_SECONDS = 30.0, 60.0
_BEGUN = b"tracing "
_CODE = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_module("pysampler", run_name="__main__", alter_sys=True)
"""
# Processes that are writing the end of a trace while nothing waits for them, and its path.
_ending: list[tuple[str, subprocess.Popen[bytes]]] = []


class Tracer:
    """Writes a trace of a pool's processes to a file, until it is closed or this process ends.

    Args:
        path: The file to write.
        pool: The number of the pool's segment.

    Raises:
        OSError: If the file cannot be opened, or the trace cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], pool: int) -> None:
        _reap()
        self._path = os.fspath(path)
        for same in [process for other, process in _ending if other == self._path]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                same.wait(_END_SECONDS)
        self._owner = os.getpid()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        places = json.dumps(import_path())
        trace = ["trace", str(self._owner), "--pool", str(pool), "--until-eof"]
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-P", "-c", _CODE, places, *trace, f"--output={self._path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In a new session: Ctrl-C is meant for the program, which may continue.
            start_new_session=True,
            env=environment(),
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        try:
            why = self._begin()
        except BaseException:
            self._kill()
            raise
        if why:
            self._kill()
            raise OSError(f"cannot trace to {self._path}: {why}")

    def _begin(self) -> str:
        """Wait until tracing has begun; return the reason if it fails, else an empty string."""
        output, deadline = self._output, time.monotonic() + _BEGIN_SECONDS
        text = b""
        while is_readable(output, deadline - time.monotonic()):
            part = os.read(output.fileno(), 4096)
            text += part
            lines = text.split(b"\n")[:-1]
            if any(line.startswith(_BEGUN) for line in lines):
                return ""
            if not part:
                return _last_line(text) or "pysampler trace has ended"
        return f"pysampler trace did not begin within {_BEGIN_SECONDS:.0f} s"

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close_input()
        self._output.close()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self) -> None:
        """Ask it to finish, without waiting. May be repeated; in a fork it does nothing."""
        if self._ask():
            # Later output of the process goes to stderr only.
            with contextlib.closing(self._output):
                self._check()

    def _ask(self) -> bool:
        """Ask it to finish; return False if it was asked before, or in a fork."""
        assert self._process.stdin is not None
        if os.getpid() != self._owner or self._process.stdin.closed:
            return False
        with contextlib.suppress(OSError):
            # A byte, not just end of file: a fork of this process may hold the pipe open.
            self._process.stdin.write(b"\n")
        self._close_input()
        _ending.append((self._path, self._process))
        return True

    def close(self) -> None:
        """Wait until the trace is complete. May be repeated; in a fork it does nothing."""
        self._ask()
        if os.getpid() != self._owner:
            return
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            warnings.warn(
                f"pysampler: process {self._process.pid} still writes the trace {self._path}",
                stacklevel=3,
            )
        with contextlib.closing(self._output):  # a warning may be an error
            self._check()
        _reap()

    def _check(self) -> None:
        """Warn if it has failed before the trace was complete. May be repeated."""
        if not self._process.poll() or self._output.closed:
            return
        ended = f"pysampler trace has ended with {self._process.returncode}"
        if (dump := dump_of(self._path, self._process.pid)).exists():
            ended += f"; {how_to_convert(dump)}"
        why = _last_line(self._output.read()) or ended
        warnings.warn(
            f"pysampler: trace {self._path} ends early: {why}", RuntimeWarning, stacklevel=4
        )


def dump_of(path: str | os.PathLike[str], pid: int) -> Path:
    """Return the dump from which a process makes the trace that a path is or links to."""
    trace = Path(path).resolve()
    return trace.with_name(f"{trace.name[:200]}.{pid}.raw")


def how_to_convert(dump: Path) -> str:
    """Return the command for a dump that is left, as the end of an error."""
    return f"pysampler trace --merge {dump} -o FILE converts the slices until then"


def _last_line(text: bytes) -> str:
    return text.decode(errors="replace").strip().rpartition("\n")[2]


def _reap() -> None:
    """Reap and forget the processes that have ended."""
    _ending[:] = [one for one in _ending if one[1].poll() is None]


atexit.register(_reap)
