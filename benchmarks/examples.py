"""Run the examples to their end, with several seeds each: what they reach, and how long that takes.

    python benchmarks/examples.py --out benchmarks/results
    python benchmarks/examples.py --only 'sac|dqn' --seeds 5

Each run is a process of its own, one after the other. Its result and its log are kept in a folder
(build/examples), and a run that is there already is not repeated: what was stopped goes on where it
was. Examples that ``--only``, a regular expression, leaves out stay as the newest results in
``--out`` have them.
"""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import curves
from curves import EXAMPLES
from running import Options, machine, parse, run, say, spread, table, write

MACHINE = "{processor}, {cpus} CPUs, Linux {kernel}, Python {python}"
RUNS = EXAMPLES.parent / "build" / "examples"


@dataclass
class Training:
    """An example with arguments; ``random`` is what a policy that has learned nothing reaches."""

    name: str
    env: str
    arguments: str = ""
    random: float | None = None
    seeds: int = 3
    number: str = "return"
    unit: str = "steps"

    @property
    def title(self) -> str:
        return f"{self.name}.py {self.arguments}".strip()

    @property
    def key(self) -> str:
        """Name the folder of its runs."""
        words = f"{self.name} {self.env} {self.arguments}".replace("/", "-").replace("--", "")
        return "-".join(words.split())


PIXELS = "MinAtar/Breakout-v1"
RAINBOW = ["", "--prioritised", "--dueling", "--categorical", "--noisy"]
RAINBOW += [" ".join(RAINBOW[1:])]
TRAININGS = [
    Training("ppo", "CartPole-v1", random=22),
    Training("ppo", "CartPole-v1", "--a2c", random=22),
    Training("ppo", "MaskedCartPole-v1", "--lstm", random=22),
    Training("ppo", "MaskedCartPole-v1", random=22),
    Training("r2d1", "MaskedCartPole-v1", "--actors 1", random=22),
    Training("r2d1", "MaskedCartPole-v1", "--actors 1 --forgetful --steps 150000", random=22),
    Training("ppo_learners", "CartPole-v1", "--learners 2", random=22),
    Training("ppo", "HalfCheetah-v5", "--steps 1000000", random=-280),
    Training("dqn", "CartPole-v1", random=22),
    Training("dqn", "CartPole-v1", "--prioritised", random=22),
    Training("dqn", "CartPole-v1", "--dueling --categorical --noisy", random=22),
    Training("dqn_average", "CartPole-v1", random=22, number="average"),
    Training("impala", "CartPole-v1", random=22),
    Training("dppo", "Pendulum-v1", random=-1230),
    Training("sac", "Pendulum-v1", "--steps 15000", random=-1230),
    Training("sac", "Pendulum-v1", "--td3 --steps 15000", random=-1230),
    Training("sac", "Pendulum-v1", "--ddpg --steps 15000", random=-1230),
    Training("sac", "HalfCheetah-v5", "--steps 50000", random=-280, seeds=1),
    Training("maml", "Navigation2D-v0", number="gap", unit="iterations"),
    Training("maml", "HalfCheetahDir-v5", "--iterations 60", number="gap", unit="iterations"),
    Training("dqn_atari", PIXELS, "--actors 1 --steps 500000", random=0.5),
    *(
        Training("dqn_atari", PIXELS, f"--actors 1 --steps 150000 {parts}".strip(), random=0.5)
        for parts in RAINBOW
    ),
    Training("dqn_atari", "ALE/Pong-v5", "--actors 1 --bfloat16 --steps 600000", -20.7, seeds=1),
]


def trained(training: Training, seed: int, *, only_kept: bool) -> dict[str, Any] | None:
    """Return the result of a run, which is made if it is not there yet; None if it failed."""
    folder = RUNS / f"{training.key}-{seed}"
    kept = folder / "result.json"
    if only_kept and not kept.exists():
        return None
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "progress.csv").unlink(missing_ok=True)  # of a run that was stopped
        command = [sys.executable, str(EXAMPLES / f"{training.name}.py"), "--env", training.env]
        command += [*training.arguments.split(), "--seed", str(seed), "--log", str(folder)]
        done = run([*command, "--quiet", "--json"], stderr=subprocess.PIPE)
        if done.returncode:
            say(f"  {training.title}, seed {seed}: {done.stderr.strip().splitlines()[-1]}")
            return None
        load = os.getloadavg()[0]
        result = {**json.loads(done.stdout.splitlines()[-1]), "machine": machine(), "load": load}
        kept.write_text(json.dumps(result))
    found: dict[str, Any] = json.loads(kept.read_text())
    with (folder / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    curve = [(float(row[training.unit]), row[training.number]) for row in rows]
    points = [(x, round(float(y), 2)) for x, y in curve if y]
    found["curve"] = points[:: len(points) // 200 + 1]
    return found


def report(results: dict[str, Any]) -> str:
    rows, machines = [], {}
    for one in results["trainings"]:
        runs = one["runs"]
        dates = sorted({run["machine"]["date"] for run in runs})
        machines |= {MACHINE.format_map(run["machine"]): None for run in runs}
        reached = [run[one["number"]] for run in runs]
        rows.append(
            [
                *(f"`{one['title']}`", one["env"], str(len(runs))),
                one["number"] if one["number"] != "return" else "return of 100 episodes",
                "" if one["random"] is None else f"{one['random']:g}",
                spread(reached, 1),
                f"{statistics.median(run[one['unit']] for run in runs):,.0f} {one['unit']}",
                spread([run["seconds"] for run in runs], 0),
                ", ".join(dates),
            ]
        )
    loads = [run["load"] for one in results["trainings"] for run in one["runs"]]
    header = ["example", "env", "seeds", "what", "untrained", "reached", "after", "seconds", "date"]
    return "\n".join(
        [
            f"# What the examples learn, measured {results['machine']['date']}\n",
            f"{'; '.join(machines)}.\n",
            (
                "Median [least, most] of the seeds 1 to n; those with a goal end when they reach "
                "it. `sac.py` takes the mean of 20 episodes. The gap of `maml.py` is the mean "
                "return after the step of adaptation less the one before, in the last iteration. "
                f"At the ends of the runs {spread(loads, 1)} processes wanted a CPU, theirs and "
                "those of other work: seconds are longer where these are more than a run has.\n"
            ),
            table(header, rows),
            "![curves]({picture})\n",
        ]
    )


def picture(results: dict[str, Any], stem: Path) -> None:
    """Draw the curves of all seeds."""
    panels = [
        {
            "title": f"{one['env']}\n{one['title']}",
            "x": one["unit"],
            "y": one["number"],
            "goal": one["random"],
            "curves": {f"seed {at}": [run["curve"]] for at, run in enumerate(one["runs"], 1)},
        }
        for one in results["trainings"]
    ]
    curves.picture(stem, [panels[at : at + 3] for at in range(0, len(panels), 3)])


def made_runs(training: Training, options: Options) -> list[dict[str, Any]]:
    """Return the results of all seeds that do not fail."""
    runs = []
    for seed in range(1, (options.seeds or training.seeds) + 1):
        began = time.perf_counter()
        if (found := trained(training, seed, only_kept=options.kept)) is None:
            continue
        runs.append(found)
        seconds = time.perf_counter() - began
        reached = f"{training.number} {found[training.number]}, {seconds:.0f} s"
        say(f"  {training.env}, {training.title}, seed {seed}: {reached}")
    return runs


def kept_results(out: Path | None) -> dict[tuple[str, str], Any]:
    """Return what the newest results in a folder say of trainings, by title and env."""
    files = sorted(out.glob("????-??-??-examples.json")) if out else []
    trainings = json.loads(files[-1].read_text())["trainings"] if files else []
    return {(one["title"], one["env"]): one for one in trainings}


def main() -> None:
    options = parse(__doc__, {"only": "", "seeds": int, "kept": False})
    results: dict[str, Any] = {"machine": machine(), "trainings": []}
    earlier = kept_results(options.out)
    for training in TRAININGS:
        runs = made_runs(training, options) if re.search(options.only, training.key) else []
        if runs:
            fields = {name: getattr(training, name) for name in ("env", "title", "number")}
            fields |= {"unit": training.unit, "random": training.random, "runs": runs}
            results["trainings"].append(fields)
        elif kept := earlier.get((training.title, training.env)):
            results["trainings"].append(kept)
    if not results["trainings"]:
        sys.exit("no example has run")
    text = report(results)
    print(text)
    if options.out:
        picture(results, write(options.out, "examples", results, text))


if __name__ == "__main__":
    main()
