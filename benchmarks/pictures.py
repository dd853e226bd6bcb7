"""The pictures of the documentation, drawn from the newest results.

Each picture has a light and a dark version. The same results make the same files, which a test
compares.
"""

from __future__ import annotations

import json
import statistics
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PICTURES = HERE.parent / "docs" / "pictures"

COLOURS = {  # in the light theme and in the dark one
    "ink": ("#1c2326", "#e6ecee"),
    "soft": ("#5f6b70", "#9fabb0"),
    "line": ("#c9d1d4", "#455056"),
    "paper": ("#eef2f3", "#262d31"),
    "ours": ("#0b6e4f", "#4cc9a0"),
    "peer": ("#9aa7ad", "#75848b"),
    "cpp": ("#c98a1b", "#e0ab4a"),
    "bad": ("#b3261e", "#f2827b"),
    "blue": ("#2f6db3", "#7fb2ea"),
    "on": ("#ffffff", "#131416"),
}
THEMES = {
    theme: {name: both[at] for name, both in COLOURS.items()}
    for at, theme in enumerate(("light", "dark"))
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
# Of the contenders of vector.py, in the order of the picture: which colour, and what they are cal
SHOWN = {
    "gymnasium AsyncVectorEnv": ("peer", "gymnasium AsyncVectorEnv"),
    "SB3 SubprocVecEnv": ("peer", "SB3 SubprocVecEnv"),
    "gymnasium SyncVectorEnv": ("peer", "gymnasium SyncVectorEnv"),
    "pysampler": ("ours", "pysampler"),
    "EnvPool (its own C++ envs)": ("cpp", "EnvPool, its own envs in C++"),
}
CASES = ["HalfCheetah-v5, 64", "CartPole-v1, 64"]
ROUND = {
    "send": ("write actions, wake the workers", "blue"),
    "wake": ("until the last worker begins", "peer"),
    "step": ("envs step", "ours"),
    "slowest": ("wait for the slowest worker", "cpp"),
    "notice": ("the parent notices", "peer"),
    "read": ("the results are read", "blue"),
}


def newest(name: str, *, many_cpus: bool = False) -> tuple[Path, dict[str, Any]]:
    """Return the newest results of a benchmark: of a machine with two CPUs, or with more."""
    found = []
    for path in sorted(RESULTS.glob(f"*-{name}*.json")):
        results = json.loads(path.read_text())
        if (results["machine"]["cpus"] > 2) == many_cpus:
            found.append((path, results))
    return found[-1]


def speed(results: dict[str, Any], case: str, contender: str) -> float | None:
    """Return the steps a second of a contender, a median."""
    measured = results["cases"].get(case, {})
    values = measured.get("fractions", {}).get(contender)
    return None if not values else statistics.median(values) * measured["ideal"]


class Svg:
    """A picture of a width and a height in one theme."""

    def __init__(self, width: int, height: int, theme: str, title: str, *, top: int = 0) -> None:
        self.colour = THEMES[theme]
        self._parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top} {width} {height - top}" '
                f'width="{width}" height="{height - top}" role="img" font-family="{FONT}">'
            ),
            f"<title>{escape(title)}</title>",
        ]

    def text(
        self,
        x: float,
        y: float,
        what: str,
        *,
        size: float = 13,
        fill: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        family = ' font-family="ui-monospace, Menlo, Consolas, monospace"' if mono else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
            f'{weight}{family} fill="{self.colour[fill]}">{escape(what)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        stroke: str = "",
        radius: float = 3,
        dashed: bool = False,
        opacity: float = 1,
    ) -> None:
        edge = f' stroke="{self.colour[stroke]}" stroke-width="1.2"' if stroke else ""
        edge += ' stroke-dasharray="4 3"' if dashed else ""
        inside = self.colour[fill] if fill else "none"
        faint = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
            f'rx="{radius:g}" fill="{inside}"{faint}{edge}/>'
        )

    def line(self, points: list[tuple[float, float]], stroke: str, *, arrow: bool = False) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{self.colour[stroke]}" '
            'stroke-width="1.4"/>'
        )
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            length = max(((x - x0) ** 2 + (y - y0) ** 2) ** 0.5, 1e-9)
            dx, dy = (x - x0) / length, (y - y0) / length
            head = [(x, y), (x - 8 * dx - 4 * dy, y - 8 * dy + 4 * dx)]
            head.append((x - 8 * dx + 4 * dy, y - 8 * dy - 4 * dx))
            ends = " ".join(f"{a:.1f},{b:.1f}" for a, b in head)
            self._parts.append(f'<polygon points="{ends}" fill="{self.colour[stroke]}"/>')

    def done(self) -> str:
        return "\n".join([*self._parts, "</svg>\n"])


def speeds(theme: str) -> str:
    """Draw steps a second beside the peers, on both machines."""
    machines = [
        (results, f"{results['machine']['cpus']} CPUs, {results.get('workers', 2)} workers")
        for _, results in (newest("vector"), newest("vector", many_cpus=True))
    ]
    width, row, left = 760, 20, 196
    height = 44 + len(CASES) * (34 + len(SHOWN) * row)
    svg = Svg(width, height, theme, "Env steps a second beside other vector envs")
    svg.text(0, 18, "Env steps a second, 64 envs in Python", size=15, bold=True)
    y = 44.0
    for case in CASES:
        svg.text(0, y, case.split(",")[0], bold=True)
        for column, (results, where) in enumerate(machines):
            x = left + column * 290
            svg.text(x, y, where, fill="soft", size=12)
            speeds_ = {name: speed(results, case, name) for name in SHOWN}
            most = max(value for value in speeds_.values() if value)
            for at, (name, (fill, label)) in enumerate(SHOWN.items()):
                top = y + 10 + at * row
                bold = fill == "ours"
                if column == 0:
                    ink = "ink" if bold else "soft"
                    svg.text(left - 8, top + 12, label, size=12, anchor="end", fill=ink, bold=bold)
                if (value := speeds_[name]) is None:
                    continue
                svg.box(x, top, 200 * value / most, row - 5, fill)
                svg.text(x + 200 * value / most + 6, top + 12, f"{value:,.0f}", size=12, bold=bold)
        y += 34 + len(SHOWN) * row
    return svg.done()


def where_a_round_goes(theme: str) -> str:
    """Draw how long the parts of a round take, as shares of it."""
    _, results = newest("vector")
    cases = [name for name in results["cases"] if "1024" not in name]
    svg = Svg(760, 70 + 30 * len(cases) + 62, theme, "Where the time of a round goes")
    svg.text(0, 18, "Where the time of a round goes", size=15, bold=True)
    for at, name in enumerate(cases):
        parts = results["cases"][name]["where"]
        total, x, y = sum(parts.values()), 220.0, 40 + 30 * at
        svg.text(212, y + 14, name, size=12, anchor="end")
        for key, (_, fill) in ROUND.items():
            length = 440 * parts[key] / total
            svg.box(x, y, length, 20, fill, radius=0)
            if length > 60:
                middle = x + length / 2
                took = f"{parts[key]:,.0f} µs"
                svg.text(middle, y + 14, took, size=11, fill="on", anchor="middle")
            x += length
        svg.text(666, y + 14, f"{total:,.0f} µs", size=12, fill="soft")
    for at, (label, fill) in enumerate(ROUND.values()):
        x, y = 220 + (at % 2) * 250, 58 + 30 * len(cases) + 20 * (at // 2)
        svg.box(x, y, 12, 12, fill, radius=0)
        svg.text(x + 18, y + 10, label, size=12, fill="soft")
    return svg.done()


def loss(theme: str) -> str:
    """Draw what envs and the program did while a worker was killed."""
    _, results = newest("loss")
    run = results["run"]
    first, last = run["window"]
    lost_envs = set(range(run["envs_each"], 2 * run["envs_each"]))
    back = next(row["at"] for row in run["received"] if set(row["restarted"]) & lost_envs)
    noticed = run["log"][0][0]
    envs = run["workers"] * run["envs_each"]
    height = 66 + envs * 24 + 80
    svg = Svg(760, height, theme, "A worker is killed: a timeline")

    def at(seconds: float) -> float:
        return 120 + 620 * (seconds - first) / (last - first)

    svg.text(0, 18, "A worker is killed while six envs step, recorded", size=15, bold=True)
    top, rows = 54, {}
    for env in range(envs):
        worker = env // run["envs_each"]
        rows[env] = top + env * 24 + worker * 6
        if env % run["envs_each"] == 0:
            svg.text(0, rows[env] + 24, f"worker {worker}", size=12, fill="soft")
        svg.text(112, rows[env] + 12, f"env {env}", size=12, anchor="end")
    bottom = rows[envs - 1] + 24
    for env in lost_envs:
        svg.box(at(0), rows[env], at(back) - at(0), 16, "bad", opacity=0.18)
    for env, kind, begun, ended in run["spans"]:
        fill = "blue" if kind == "reset" else "ours"
        svg.box(at(begun), rows[env], max(at(ended) - at(begun) - 1, 2), 16, fill, radius=1.5)
    svg.text(0, bottom + 22, "program", size=12, fill="soft")
    for row in run["received"]:
        fill = "bad" if row["restarted"] else "soft"
        svg.box(at(row["at"]) - 1, bottom + 10, 2, 16, fill, radius=0)
    for seconds, what, y, fill, anchor in (
        (0.0, "SIGKILL", 42, "bad", "middle"),
        (noticed, f"noticed and logged after {noticed * 1e3:.0f} ms", bottom + 44, "soft", "start"),
        (back, f"its envs are back after {back * 1e3:.0f} ms, truncated", 42, "bad", "middle"),
    ):
        svg.line([(at(seconds), 48), (at(seconds), bottom + 32)], fill)
        svg.text(at(seconds), y, what, size=12, fill=fill, anchor=anchor)
    note, length = "Boxes are steps; a mark below is a return of recv().", (last - first) * 1e3
    svg.text(0, bottom + 66, note, size=12, fill="soft")
    svg.text(740, bottom + 66, f"{length:.0f} ms in all", size=12, fill="soft", anchor="end")
    return svg.done()


def mechanism(theme: str) -> str:
    """Draw processes, the segment, frames and commands."""
    svg = Svg(760, 400, theme, "How it works", top=38)
    # The parent.
    svg.box(0, 40, 170, 356, "paper", stroke="line", radius=8)
    svg.text(85, 64, "your program", anchor="middle", bold=True)
    for at, call in enumerate(["step()", "send(), recv()", "Rollouts", "Actors"]):
        svg.text(85, 92 + 20 * at, call, anchor="middle", size=12, mono=True, fill="soft")
    svg.text(85, 262, "ask the policy", anchor="middle", size=12, fill="soft")
    svg.text(85, 280, "learn", anchor="middle", size=12, fill="soft")
    # The segment.
    svg.box(232, 40, 296, 356, "", stroke="ours", radius=8)
    svg.text(380, 64, "shared memory without a name", anchor="middle", bold=True, fill="ours")
    svg.text(248, 96, "commands, a ring for each worker", size=12)
    for worker in range(3):
        for slot in range(5):
            full = slot < 2 - (worker == 1)
            fill = "blue" if full else "paper"
            svg.box(248 + slot * 22, 106 + worker * 20, 19, 15, fill, stroke="line")
    svg.text(248, 198, "frames, a ring: one holds a step of all envs", size=12)
    fields = ["observations", "actions", "rewards, ends", "infos"]
    for frame in range(3):
        for at, _ in enumerate(fields):
            y = 210 + at * 24
            svg.box(248 + frame * 48, y, 44, 20, "ours" if frame == 1 else "paper", stroke="line")
    for at, name in enumerate(fields):
        svg.text(398, 224 + at * 24, name, size=12, fill="soft")
    svg.text(248, 336, "doorbell: who is done", size=12)
    for worker in range(3):
        svg.box(248 + worker * 22, 346, 19, 15, "cpp" if worker != 1 else "paper", stroke="line")
    svg.text(330, 358, "one wake for a whole batch", size=12, fill="soft")
    svg.text(248, 386, "mail, counters, weights of policies", size=12, fill="soft")
    # The workers.
    for worker in range(3):
        y = 40 + worker * 122
        svg.box(590, y, 170, 112, "paper", stroke="line", radius=8)
        svg.text(675, y + 22, f"worker {worker}", anchor="middle", bold=True)
        for env in range(4):
            svg.box(604 + env * 37, y + 36, 32, 24, "ours")
            svg.text(620 + env * 37, y + 53, "env", size=11, anchor="middle", fill="on")
        svg.text(675, y + 82, "a loop in C++ calls", size=12, anchor="middle", fill="soft")
        svg.text(675, y + 98, "env.step() in Python", size=12, anchor="middle", fill="soft")
    # What travels: from and to, how high, a word, how high that is, and the colour of both.
    arrows = [
        (170, 242, 122, "step", 114, "blue"),
        (170, 242, 258, "actions", 250, "ours"),
        (242, 170, 286, "views", 304, "ours"),
        (242, 170, 354, "wake", 372, "cpp"),
    ]
    for begin, end, height, word, beside, fill in arrows:
        svg.line([(begin, height), (end, height)], fill, arrow=True)
        svg.text(206, beside, word, size=11, fill=fill, anchor="middle")
    for y in (40, 162, 284):
        svg.line([(528, y + 36), (586, y + 36)], "blue", arrow=True)
        svg.line([(590, y + 84), (532, y + 84)], "ours", arrow=True)
        svg.text(559, y + 28, "step", size=11, fill="blue", anchor="middle")
        svg.text(559, y + 102, "results", size=11, fill="ours", anchor="middle")
    return svg.done()


DRAWN = {"speed": speeds, "round": where_a_round_goes, "loss": loss, "mechanism": mechanism}


def draw() -> None:
    """Write each picture in both themes."""
    PICTURES.mkdir(exist_ok=True)
    for name, drawn in DRAWN.items():
        for theme in THEMES:
            (PICTURES / f"{name}-{theme}.svg").write_text(drawn(theme))
