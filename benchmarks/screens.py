"""Pictures of what the command ``pysampler`` shows, for docs/slow.md.

    python benchmarks/screens.py            # writes docs/pictures/screen-*.svg and trace.svg

The commands run in a terminal, beside programs that are slow for a reason. Other runs make other
numbers, and so other files.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyte
from matplotlib import pyplot
from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS = 100
# A program in which env 5 takes four times as long as the others, which say what they are.
SLOW_ENV = """
import time
import gymnasium as gym
import pysampler

class Simulated(gym.Wrapper):
    def __init__(self, env, seconds):
        super().__init__(env)
        self.seconds = seconds
    def step(self, action):
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return self.env.step(action)

def maker(i):
    return lambda: Simulated(gym.make("CartPole-v1"), 4e-4 if i == 5 else 1e-4)

if __name__ == "__main__":
    envs = pysampler.VectorEnv([maker(i) for i in range(8)], num_workers=2)
    envs.reset(seed=1)
    while True:
        envs.step(envs.action_space.sample())
"""
COLORS = {
    "step": "#2f6db3",
    "reset": "#7fb2ea",
    "group": "#c9d1d4",
    "send": "#b3261e",
    "wait": "#e0ab4a",
    "waits": "#eef2f3",
    "read": "#0b6e4f",
    "program": "#9aa7ad",
}


@contextlib.contextmanager
def running(program: str) -> Iterator[int]:
    """Run a program during the block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(program)
        process = subprocess.Popen(
            ["python", "train.py"],  # what the pictures show
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def screen_of(*arguments: str, lines: int, seconds: float | None = None) -> pyte.Screen:
    """Run ``pysampler`` in a terminal; return what it shows at its end, or after some seconds."""
    screen = pyte.Screen(COLUMNS, lines)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "pysampler", *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, COLUMNS, 0, 0))
    end = time.monotonic() + (600 if seconds is None else seconds)
    with contextlib.suppress(OSError):  # EIO: it has ended
        while time.monotonic() < end:
            if select.select([terminal], [], [], 0.1)[0]:
                stream.feed(os.read(terminal, 1 << 16))
    if seconds is not None:
        os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    os.close(terminal)
    return screen


def picture(name: str, title: str, screen: pyte.Screen) -> None:
    """Write a picture of a terminal."""
    text = Text()
    rows = [line.rstrip() for line in screen.display]
    last = max(i for i, row in enumerate(rows) if row)
    for y, row in enumerate(rows[: last + 1]):
        for x in range(len(row)):
            cell = screen.buffer[y][x]
            color = "" if cell.fg == "default" else cell.fg.replace("brown", "yellow")
            text.append(cell.data, f"{'bold ' if cell.bold else ''}{color}".strip())
        text.append("\n")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text, end="")
    svg = console.export_svg(title=title, unique_id=name)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # which a browser would fetch
    (PICTURES / f"screen-{name}.svg").write_text(svg)


def draw_trace(path: Path, rounds: float) -> None:
    """Draw some rounds of a trace in JSON, as a viewer shows them."""
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    slices = [one for one in events if one["ph"] == "X"]
    sends = sorted(one["ts"] for one in slices if one["name"].startswith("send"))
    lengths = [later - earlier for earlier, later in itertools.pairwise(sends)]
    usual = statistics.median(lengths)
    # The rounds that follow one another and are most like the usual one.
    count = int(rounds)
    odd = [
        sum(abs(length - usual) for length in lengths[i : i + count])
        for i in range(len(lengths) - count)
    ]
    begin = sends[odd.index(min(odd))] - usual / 40
    end = begin + rounds * usual
    mpl.rcParams["svg.hashsalt"] = "pysampler"
    figure, axes = pyplot.subplots(figsize=(10, 2.6))
    tracks = sorted(names)
    for one in slices:
        first, last = one["ts"], one["ts"] + one["dur"]
        if last < begin or first > end:
            continue
        kind = one["name"].split()[0]
        row = -tracks.index(one["tid"])
        inner = kind in ("step", "reset")
        axes.barh(
            *(row - 0.2 * inner, last - first, 0.4 if inner else 0.8, first - begin),
            color=COLORS.get(kind, "#9aa7ad"),
            edgecolor="white",
            linewidth=0.5,
            zorder=2 if inner else 1,
        )
        if last - first > (end - begin) / 40 and begin < first < last < end and kind != "waits":
            label = one["name"] if not inner else one["name"].split()[1]
            height = row - 0.2 if inner else row + 0.2 * (kind == "group")
            axes.text((first + last) / 2 - begin, height, label, ha="center", va="center", size=7)
    axes.set_yticks([-i for i in range(len(tracks))], [names[tid] for tid in tracks])
    axes.set_xlim(0, end - begin)
    axes.set_xlabel("us")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(PICTURES / "trace.svg", metadata={"Date": None})


def main() -> None:
    picture("doctor", "pysampler doctor", screen_of("doctor", lines=60))
    with running(SLOW_ENV) as pid:
        time.sleep(3)  # until its workers have begun
        picture("top", "pysampler top", screen_of("top", str(pid), lines=16, seconds=5))
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            arguments = ["trace", str(pid), "--seconds", "2", "-o", "run.json"]
            picture("trace", "pysampler trace", screen_of(*arguments, lines=16))
            draw_trace(Path("run.json"), rounds=3.3)
    picture("bench", "pysampler bench", screen_of("bench", "CartPole-v1", lines=60))
    picture("tune", "pysampler tune", screen_of("tune", "CartPole-v1", lines=60))


if __name__ == "__main__":
    main()
