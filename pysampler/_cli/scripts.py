"""The envs of a training script, found by running it in a separate process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pysampler._cli.hangs import ASK, PATIENCE
from pysampler._cli.turns import MeasureError, ended_with

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

__all__ = ["source_for"]

_PROGRAM = "from pysampler._cli.script_process import main; main()"


@contextlib.contextmanager
def source_for(options: argparse.Namespace) -> Iterator[str]:
    """Yield the source of the envs for contenders; run the script that makes them, if it is one.

    Args:
        options: The arguments of the command.
    """
    script = options.env
    if not script.endswith(".py"):
        if options.script_args is not None:
            raise MeasureError(f"--script-args needs a script, got {script}")
        yield script
        return
    if not Path(script).is_file():
        raise MeasureError(f"script not found: {script}")
    with tempfile.TemporaryDirectory(prefix="pysampler-") as folder:
        out = Path(folder) / "envs"
        print(f"running {script} until it makes a vector env", file=sys.stderr, flush=True)
        _run(script, options.script_args or [], options.limit, out)
        yield f"saved:{out}"


def _run(script: str, arguments: Sequence[str], limit: float, out: Path) -> None:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), str(out), script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            why = f"it made no vector env within {limit:g} s (--limit){_where(process, out)}"
            raise MeasureError(f"cannot measure {script}: {why}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0 and out.exists():
            return
        errors.seek(0)
        printed = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    report = _report_of(out)
    why = report.read_text() if report.exists() else ended_with(process.returncode)
    if why.startswith("SystemExit") or not report.exists():
        why = "; ".join([why, *printed])
    raise MeasureError(f"cannot measure {script}: {why}")


def _where(process: subprocess.Popen[bytes], out: Path) -> str:
    """Return where a script hangs, if it can still report that; reporting ends it."""
    process.send_signal(ASK)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    report = _report_of(out)
    return report.read_text() if report.exists() else ""


def _report_of(out: Path) -> Path:
    """Return the file in which the process of a script says why it has found no envs."""
    return Path(f"{out}.why")
