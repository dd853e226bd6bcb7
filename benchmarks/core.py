"""Run every benchmark of the core, one at a time; write results with machine, kernel and date.

benchmarks/results/<date>.json holds the numbers, .md the tables, .png the picture.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from core_report import draw, report
from running import Options, say, study

HERE = Path(__file__).parent


def run(command: list[str], label: str, minutes: float) -> str:
    """Run a command and return its output. Its whole process group is ended with it."""
    say(f"{label} ...")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as p:
        try:
            out, _ = p.communicate(timeout=60 * minutes)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
    if p.returncode != 0:
        raise SystemExit(f"{label} failed: {' '.join(command)} returned {p.returncode}")
    return out


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def measure(options: Options) -> dict[str, Any]:
    if options.native is None:
        raise SystemExit("--native must name the folder of the native benchmarks")
    native, python = Path(options.native), sys.executable
    waiting = ["20,150", "1,2", "5,5000", "1", "50"] if options.quick else []
    latency = run([str(native / "bench_latency")], "latency", 5)
    ways = run([str(native / "bench_waiting"), *waiting], "ways of waiting", 15)
    trips = run([python, str(HERE / "primitives.py"), "--json"], "round trips from Python", 10)
    return {"latency": lines(latency), "waiting": lines(ways), "round_trips": json.loads(trips)}


if __name__ == "__main__":
    study("The core", measure, report, picture=draw, quick={}, out=HERE / "results", native=str)
