"""Runs every benchmark of the core, one at a time; writes results with machine, kernel and date.

benchmarks/results/<date>.json holds the numbers, .md the tables, .png the picture.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from report import draw, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


def run(command: list[str], label: str, minutes: float) -> str:
    """Its standard output. It ends with its whole process group, whatever it left behind."""
    print(f"{label} ...", file=sys.stderr, flush=True)
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


def machine() -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "processor": model,
        "cpus": len(os.sched_getaffinity(0)),
        "virtual": "hypervisor" in Path("/proc/cpuinfo").read_text(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def stolen() -> int:
    """CPU time the hypervisor has given to others, in ticks; it spoils any measurement."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8])


@contextlib.contextmanager
def stolen_share(told: dict[str, Any]) -> Iterator[None]:
    """What part of the CPUs' time went to others meanwhile, told of a machine."""
    before, begun = stolen(), time.monotonic()
    yield
    ticks = (time.monotonic() - begun) * os.sysconf("SC_CLK_TCK") * told["cpus"]
    told["stolen"] = (stolen() - before) / ticks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--native", type=Path, required=True, help="folder of the native benchmarks"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--quick", action="store_true", help="a look, not a result")
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
        seconds = "0.1" if options.quick else "0.5"
        throughput = [python, str(HERE / "throughput.py"), "--seconds", seconds]
        results["throughput"] = json.loads(run(throughput, "throughput", 15))

    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"{results['machine']['date']}-core"
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    text = tables(results)
    stem.with_suffix(".md").write_text(text)
    draw(results, stem.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
