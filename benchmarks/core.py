"""Run every benchmark of the core, one at a time; write results with machine, kernel and date.

benchmarks/results/<date>.json holds the numbers, .md the tables, .png the picture.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from core_report import draw, tables
from running import machine, say, stolen_share, write

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--native", type=Path, required=True, help="folder of the native benchmarks"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    options = parser.parse_args()
    python = sys.executable
    waiting = ["20,150", "1,2", "5,5000", "1", "50"] if options.quick else []
    results: dict[str, Any] = {"machine": machine()}
    with stolen_share(results["machine"]):
        results["latency"] = lines(run([str(options.native / "bench_latency")], "latency", 5))
        results["waiting"] = lines(
            run([str(options.native / "bench_waiting"), *waiting], "ways of waiting", 15)
        )
        primitives = [python, str(HERE / "primitives.py"), "--json"]
        results["round_trips"] = json.loads(run(primitives, "round trips from Python", 10))

    text = tables(results)
    stem = write(options.out, "core", results, text)
    draw(results, stem.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
