"""What README and docs say of the newest results, and which results are older than the code.

    python benchmarks/pages.py    # writes pictures, README.md and docs; prints the ages of results

Numbers stand in Markdown between two comments that name a function below, which writes them. Each
page of docs/results includes the newest results of its name.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import pictures
from pictures import CASES, RESULTS, newest, speed
from running import say, table

ROOT = Path(__file__).parents[1]
CODE = ["csrc", "pysampler", ":!pysampler/_cli"]  # what benchmarks measure
PEERS = {
    "gymnasium SyncVectorEnv": "SyncVectorEnv",
    "gymnasium AsyncVectorEnv": "AsyncVectorEnv",
    "SB3 SubprocVecEnv": "SubprocVecEnv",
    "EnvPool (its own C++ envs)": "EnvPool",
    "pysampler, native": "pysampler, native",
}
CHEETAH, POLE = 0, 1  # rows of trainings.py


# -- what stands between comments ------------------------------------------------------------------


def speeds() -> str:
    """Return steps a second beside other libraries, and how long whole trainings take."""
    header = ["64 envs", "CPUs", "pysampler", *PEERS.values()]
    rows, links = [], []
    for many in (False, True):
        path, results = newest("vector", many_cpus=many)
        cpus = results["machine"]["cpus"]
        links.append(f"[{cpus} CPUs](benchmarks/results/{path.stem}.md)")
        for case in CASES:
            ours, *others = (speed(results, case, name) or 0 for name in ["pysampler", *PEERS])
            cells = [f"{value:,.0f} ({ours / value:.1f}x)" if value else "-" for value in others]
            rows.append([case.split(",")[0], str(cpus), f"**{ours:,.0f}**", *cells])
    path, results = newest("trainings")
    names = {way: way for way in ("pysampler", "SyncVectorEnv", "AsyncVectorEnv")}
    others = "pysampler", "SubprocVecEnv", "DummyVecEnv"
    names |= {f"{name}, PPO of SB3": f"SB3 on {name}" for name in others}
    trainings = [
        [
            "{steps:,} steps of {envs} {env}".format_map(results["cases"][row]["settings"]),
            *(seconds(row, way) for way in names),
        ]
        for row in (CHEETAH, POLE)
    ]
    return (
        table(header, rows)
        + "\nIn parentheses: pysampler's speed divided by that column's. 2 and 16 CPUs are two "
        + "machines, so compare\nwithin a row. EnvPool steps environments that are rewritten in "
        + "C++. All others but the last step gymnasium's Python\nenvironments one by one "
        + "(pysampler with `native=False`). The last is pysampler's default, which steps\n"
        + "[MuJoCo](docs/guides/mujoco.md) and [classic "
        + "control](docs/guides/batches.md#classic-control) together. "
        + f"Spreads and machines:\n{', '.join(links)} (an earlier version, "
        + "five repetitions).\n\nWhole trainings gain less, since the learner does not get faster "
        + f"([all numbers](benchmarks/results/{path.stem}.md)):\n\n"
        + table(["seconds of a PPO, 2 CPUs", *names.values()], trainings)
    )


def seconds(row: int, way: str) -> str:
    """Return how long a training of trainings.py takes, a median."""
    _, results = newest("trainings")
    return f"{statistics.median(run['seconds'] for run in results['cases'][row]['runs'][way]):.0f}"


def cleanrl() -> str:
    """Return how long trainings in the style of CleanRL take."""
    ours, sync, asynchronous = (
        seconds(CHEETAH, way) for way in ("pysampler", "SyncVectorEnv", "AsyncVectorEnv")
    )
    pole, alone = (seconds(POLE, way) for way in ("pysampler", "SyncVectorEnv"))
    return (
        f"On 2 CPUs, [a training](results/trainings.md) with 64 HalfCheetah takes {ours} s, with "
        f"`SyncVectorEnv` {sync} s, and with\n`AsyncVectorEnv` {asynchronous} s, with the same "
        f"returns. One with four CartPole takes {pole} s, and {alone} s with `SyncVectorEnv`.\n"
    )


def sb3() -> str:
    """Return how long trainings with Stable-Baselines3 take."""
    cheetah, pole = (
        [
            seconds(row, f"{way}, PPO of SB3")
            for way in ("pysampler", "SubprocVecEnv", "DummyVecEnv")
        ]
        for row in (CHEETAH, POLE)
    )
    return (
        "On 2 CPUs, [a training](results/trainings.md) of SB3's PPO takes, in seconds:\n\n"
        + table(
            ["", "`VecEnv` of pysampler", "`SubprocVecEnv`", "`DummyVecEnv`"],
            [["64 HalfCheetah", *cheetah], ["4 CartPole", *pole]],
        )
    )


WRITERS: dict[str, Callable[[], str]] = {one.__name__: one for one in (speeds, cleanrl, sb3)}
MARKED = re.compile(r"(<!-- benchmarks/pages.py: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the pages that have such comments, or are in docs/results."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return [
        path for path in found if path.parent.name == "results" or MARKED.search(path.read_text())
    ]


def written(page: Path) -> str:
    """Return the text that a page should have."""
    text = MARKED.sub(lambda mark: mark[1] + WRITERS[mark[2]](), page.read_text())
    if page.parent.name == "results" and page.name != "history.md":  # whose file grows
        shown = max(path.name for path in RESULTS.glob(f"????-??-??-{page.name}"))
        text = re.sub(
            r"benchmarks/results/\d{4}-\d\d-\d\d-" + re.escape(page.name),
            f"benchmarks/results/{shown}",
            text,
        )
    return text


# -- how old results are ---------------------------------------------------------------------------


def ages() -> list[list[str]]:
    """Return rows of a table: results, the commit that they measured, lines changed since."""
    rows = []
    for page in (ROOT / "docs" / "results").glob("*.md"):
        for path in sorted(RESULTS.glob(f"????-??-??-{page.stem}.json"))[-1:]:
            date, about = path.name[:10], json.loads(path.read_text()).get("machine", {})
            commit = about.get("commit", "").rstrip("+")  # older results have none
            commit = commit or git("rev-list", "-1", f"--before={date} 23:59", "HEAD") or ""
            changed = git("diff", "--shortstat", f"{commit}^{{commit}}", "--", *CODE)
            lines = sum(map(int, re.findall(r"(\d+) (?:insertion|deletion)", changed or "")))
            rows.append((changed is None, lines, page.stem, date, commit[:8]))
    return [
        [name, date, commit, "unknown" if is_unknown else f"{lines:,}"]
        for is_unknown, lines, name, date, commit in sorted(rows)
    ]


def git(*arguments: str) -> str | None:
    """Return what git prints; None if it fails, as where the history is not complete."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> None:
    pictures.draw()
    for page in pages():
        page.write_text(written(page))
    say(table(["results", "measured", "at commit", "lines of code changed since"], ages()))


if __name__ == "__main__":
    main()
