"""What benchmarks share: contenders in processes of their own, the machine, tables, results."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 60.0  # seconds that a contender may take to answer


class Contender:
    """A program that says "ready", then answers each line of JSON with one.

    It ends with its whole process group. ``trouble`` says why it does not answer any more.
    """

    def __init__(self, program: Path | str, *arguments: Any) -> None:
        self.trouble = ""
        # A pipe would fill, and hold up who writes to it.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, str(program), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )
        if self._line() != "ready":
            self.trouble = self.trouble or self._last_words()

    def measure(self, **cell: Any) -> dict[str, Any] | None:
        """None where it is in trouble, now or already."""
        if self.trouble:
            return None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(cell).encode() + b"\n")
        self._process.stdin.flush()
        line = self._line()
        if not line:
            self.trouble = self.trouble or self._last_words()
            return None
        result: dict[str, Any] = json.loads(line)
        return result

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LIMIT)[0]:
            self.trouble = f"hung: no answer within {LIMIT:.0f} s"
            self.end()
            return ""
        return self._process.stdout.readline().decode().strip()

    def _last_words(self) -> str:
        self.end()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:120] if lines else "ended"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def answer(make: Callable[[], Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Be a contender: ``make`` gets ready, what it returns measures."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    # What envs print is not ours to read.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    measure = make()
    print("ready", file=out)
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            print(json.dumps(measure(json.loads(line))), file=out)


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


def _stolen() -> int:
    """CPU time the hypervisor has given to others, in ticks; it spoils any measurement."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8])


@contextlib.contextmanager
def stolen_share(told: dict[str, Any]) -> Iterator[None]:
    """What part of the CPUs' time went to others meanwhile, told of a machine."""
    before, begun = _stolen(), time.monotonic()
    yield
    ticks = (time.monotonic() - begun) * os.sysconf("SC_CLK_TCK") * told["cpus"]
    told["stolen"] = (_stolen() - before) / ticks


def heading(title: str, m: dict[str, Any]) -> str:
    """What was measured, when and where."""
    return (
        f"# {title}, measured {m['date']}\n\n{m['processor']}, {m['cpus']} CPUs"
        f"{', virtual' if m['virtual'] else ''}, Linux {m['kernel']}, Python {m['python']}. "
        f"{m['stolen']:.1%} of its CPU time went to other machines meanwhile.\n"
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    body = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in body) + "\n"


def spread(values: list[float], digits: int = 2) -> str:
    """Median [least, most]."""
    middle = sorted(values)[len(values) // 2]
    return f"{middle:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def write(out: Path, name: str, results: dict[str, Any], text: str) -> Path:
    """``<date>-<name>.json`` and ``.md`` in a folder; their path without the ending."""
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{results['machine']['date']}-{name}"
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    return stem


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
