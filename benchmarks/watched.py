"""What it costs to be watched: a vector env while ``pysampler`` looks at it, and while not.

That is ``top``, or ``trace``, which has the processes write what they do. One program steps
CartPoles. The watcher runs in a terminal of its own, and is stopped and continued in turn, in
slices.

    python benchmarks/watched.py --out benchmarks/results
"""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from pathlib import Path
from typing import Any

from contenders import rounds_of
from running import Options, quartiles, ratios, say, study, table

import pysampler

ENVS, WORKERS = 64, 2
# What watches, and how many looks a second it takes; a trace reads all the time.
WATCHERS: dict[str, tuple[list[str], float | None]] = {
    "`top` every second, as by default": (["top", "--seconds", "1"], 1),
    "`top` ten times a second": (["top", "--seconds", "0.1"], 10),
    "`trace`": (["trace", "--seconds", "3600", "--megabytes", "1e6", "-o", "trace.json"], None),
}
SECONDS = 2.0  # of a slice
PAUSE = 1.2  # seconds before it: processes trace for one more when what reads them is stopped


class Watcher:
    """``pysampler``, looking at this process; stopped at first.

    Args:
        arguments: The subcommand, and its arguments.
    """

    def __init__(self, arguments: list[str]) -> None:
        terminal, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._shown = threading.Event()
        threading.Thread(target=self._read, args=(terminal,), daemon=True).start()
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm")  # for what a trace writes
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pysampler", *arguments, str(os.getpid())],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=self._folder.name,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(other)
        if not self._shown.wait(60):
            raise TimeoutError("pysampler shows nothing")
        self.watch(now=False)

    def _read(self, terminal: int) -> None:
        shown = b""
        try:
            while part := os.read(terminal, 1 << 16):
                shown = shown[-4096:] + part
                if b"steps/s" in shown or b"slices" in shown:
                    self._shown.set()
        except OSError:  # it has ended
            os.close(terminal)

    def watch(self, *, now: bool) -> None:
        """Go on looking, or stop."""
        self._process.send_signal(signal.SIGCONT if now else signal.SIGSTOP)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that it has taken."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        ticks = map(int, text.rpartition(")")[2].split()[11:13])
        return sum(ticks) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def watched(envs: pysampler.VectorEnv, arguments: list[str], turns: int) -> dict[str, Any]:
    """Return env steps a second, watched and not, of each turn, and the watcher's CPU time."""
    step = functools.partial(envs.step, envs.action_space.sample())
    watcher = Watcher(arguments)
    rates: dict[str, list[float]] = {"watched": [], "alone": []}
    cpu = []
    try:
        for turn in range(2 * turns):
            # The order changes, since what comes second may profit.
            watched = turn % 4 in (0, 3)
            watcher.watch(now=watched)
            rounds_of(step, PAUSE)
            before = watcher.cpu_seconds
            rounds = rounds_of(step, SECONDS)
            rates["watched" if watched else "alone"].append(ENVS * len(rounds) / sum(rounds))
            if watched:
                cpu.append((watcher.cpu_seconds - before) / sum(rounds))
    finally:
        watcher.end()
    return {"rates": rates, "cpu": cpu}


def measure(options: Options) -> dict[str, Any]:
    found = {}
    envs = pysampler.make_vec("CartPole-v1", ENVS, vector_kwargs={"num_workers": WORKERS})
    envs.reset(seed=0)
    for name, (arguments, _) in WATCHERS.items():
        found[name] = watched(envs, arguments, options.turns)
        say(f"{name}: done")
    envs.close()
    return {"turns": options.turns, "watchers": found}


def report(results: dict[str, Any]) -> list[str]:
    rows = []
    for name, found in results["watchers"].items():
        rates = found["rates"]
        cpu = statistics.median(found["cpu"])
        looks = WATCHERS[name][1]
        rows.append(
            [
                *(name, quartiles(ratios(rates["watched"], rates["alone"]), 3)),
                *(f"{statistics.median(rates['alone']):,.0f}", f"{cpu:.1%}"),
                f"{cpu / looks * 1e3:.1f} ms" if looks else "",
            ]
        )
    about = (
        f"{ENVS} CartPoles in {WORKERS} workers, while `pysampler` looks at them in a "
        "terminal of its own, and while it is stopped, in turn, in slices of "
        f"{SECONDS:g} s. Median [quartiles] of {results['turns']} pairs. The last columns: "
        "what it takes of one CPU, and the CPU time of a look. Each pair has the same "
        "workers, whose counters `top` only reads; for `trace` they write 32 bytes for "
        "each step, which it reads, encodes and here writes to memory.\n"
    )
    header = ["watched by", "speed, watched / not", "steps/s, not watched", "its CPU", "a look"]
    return [about, table(header, rows)]


if __name__ == "__main__":
    study("What it costs to be watched", measure, report, turns=12)
