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
from pysampler._cli.turns import MeasureError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["envs_of_script"]

_PROGRAM = "from pysampler._cli.script_process import main; main()"


@contextlib.contextmanager
def envs_of_script(script: str, arguments: Sequence[str], limit: float) -> Iterator[str]:
    """Run a script until it makes a vector env; yield the source of its envs, for contenders.

    Args:
        script: The path of the script.
        arguments: Its arguments.
        limit: Raise MeasureError if the script takes more than this many seconds.
    """
    if not Path(script).is_file():
        raise MeasureError(f"script not found: {script}")
    with tempfile.TemporaryDirectory(prefix="pysampler-") as folder:
        out = Path(folder) / "envs"
        print(f"running {script} until it makes a vector env", file=sys.stderr, flush=True)
        _run(script, arguments, limit, out)
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
            why = f"it has made no vector env within {limit:g} s{_where(process, out)}"
            raise MeasureError(f"cannot tune {script}: {why}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0 and out.exists():
            return
        errors.seek(0)
        printed = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    report = _report_of(out)
    why = report.read_text() if report.exists() else f"its process has ended: {process.returncode}"
    if why.startswith("SystemExit") or not report.exists():
        why = "; ".join([why, *printed])
    raise MeasureError(f"cannot tune {script}: {why}")


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
