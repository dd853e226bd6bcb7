"""When does a timeout help a synchronous multi-task sampler?

A sampler of many HalfCheetahs may call its policy when every worker has answered, or after a
timeout for those that have. An article on such a sampler (8 workers of 20 or 4,000 envs, a GPU)
found waiting for all better with few envs and a small network, and 0.1 ms 8 % better than 0.1 s
with many. This is that experiment at the scale of two CPUs.

    python benchmarks/timeout_study.py --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from running import Contender, answer, heading, machine, say, spread, stolen_share, table, write

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 2
PER_WORKER = [20, 400]
WIDTHS = {"small": 64, "large": 1024}
TIMEOUTS: list[float | None] = [0.0, 1e-4, 1e-3, 0.1, None]
STEPS = 16_000  # of all envs together, in one sample
SPREAD = [1, 5, 20, 100, 400]


# -- in a contender's process ----------------------------------------------------------------------


def sampler(per_worker: str, width: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    import torch
    from torch import nn

    import pysampler
    import pysampler.envs.meta

    torch.set_num_threads(1)
    size = int(width)
    net = nn.Sequential(
        *(nn.Linear(17, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 6))
    )
    calls: list[int] = []

    def policy(observations: Any, _: Any, __: Any) -> Any:
        calls.append(len(observations))
        with torch.no_grad():
            return torch.tanh(net(torch.from_numpy(observations).float())).numpy()

    count = WORKERS * int(per_worker)
    kwargs = {"num_workers": WORKERS}
    envs = pysampler.make_vec("HalfCheetahDir-v5", count, vector_kwargs=kwargs)
    assert isinstance(envs, pysampler.VectorEnv)

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        with pysampler.MultiTaskSampler(envs, policy, timeout=cell["timeout"], seed=0) as one:
            length = STEPS // count
            one.sample(length, tasks=one.sample_tasks(WORKERS))
            calls.clear()
            begun = time.perf_counter()
            rollout = one.sample(length)
            elapsed = time.perf_counter() - begun
            return {
                "rate": rollout.steps / elapsed,
                "batch": float(np.mean(calls)) / count,
                "policy": rollout.seconds["policy"] / elapsed,
            }

    return measure


def rounds(per_worker: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Measure how long a worker takes for a step of all its envs."""
    import pysampler
    import pysampler.envs.meta

    count = WORKERS * int(per_worker)
    kwargs = {"num_workers": WORKERS}
    envs: Any = pysampler.make_vec("HalfCheetahDir-v5", count, vector_kwargs=kwargs)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(16)]

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        took = []
        before = envs.stats()
        for at in range(cell["rounds"]):
            envs.step(actions[at % 16])
            after = envs.stats()
            seconds = after.steps.seconds - before.steps.seconds
            took.append(np.bincount(after.worker_of, seconds) * 1e6)
            before = after
        us = np.array(took)
        # In half the rounds at least no other process took the CPU.
        quiet = us[us.sum(axis=1) <= np.median(us.sum(axis=1))]
        return {
            "mean": float(us.mean()),
            "std": float(us.std()),
            "quiet_std": float(quiet.std()),
            "waited": float((us.max(axis=1) - us.mean(axis=1)).mean()),
        }

    return measure


# -- in the process that measures ------------------------------------------------------------------


def study(repetitions: int) -> list[dict[str, Any]]:
    rows = []
    for per_worker in PER_WORKER:
        for name, width in WIDTHS.items():
            say(f"{per_worker} envs a worker, {name} network")
            one = Contender(__file__, "--child", "sampler", per_worker, width)
            found: dict[str, list[dict[str, Any]]] = {}
            for _ in range(repetitions):
                for timeout in TIMEOUTS:
                    result = one.measure(timeout=timeout)
                    assert result is not None, one.trouble
                    found.setdefault(json.dumps(timeout), []).append(result)
            one.end()
            all_of_them = [r["rate"] for r in found["null"]]
            for key, results in found.items():
                ratios = [r["rate"] / a for r, a in zip(results, all_of_them, strict=True)]
                rows.append(
                    {
                        "per_worker": per_worker,
                        "network": name,
                        "timeout": json.loads(key),
                        "rate": statistics.median(r["rate"] for r in results),
                        "batch": statistics.median(r["batch"] for r in results),
                        "policy": statistics.median(r["policy"] for r in results),
                        "ratios": ratios,
                    }
                )
    return rows


def spreads() -> list[dict[str, Any]]:
    rows = []
    for per_worker in SPREAD:
        one = Contender(__file__, "--child", "rounds", per_worker)
        one.measure(rounds=20)
        result = one.measure(rounds=max(50, 6000 // per_worker))
        assert result is not None, one.trouble
        one.end()
        rows.append({"per_worker": per_worker, **result})
        say(f"  rounds of {per_worker}: {result['mean']:,.0f} us, std {result['std']:,.0f}")
    return rows


def named(timeout: float | None) -> str:
    return "none (all)" if timeout is None else f"{timeout * 1e3:g} ms"


def tables(results: dict[str, Any]) -> str:
    rows = [
        [
            *(str(r["per_worker"]), r["network"], named(r["timeout"]), f"{r['rate']:,.0f}"),
            *(f"{r['batch']:.0%}", f"{r['policy']:.0%}", spread(r["ratios"])),
        ]
        for r in results["study"]
    ]
    header = ["envs a worker", "network", "time-out", "steps/s", "of all envs in a batch"]
    header += ["time in policy", "against waiting for all"]
    parts = [
        heading("Does a time-out help?", results["machine"]),
        (
            f"HalfCheetahDir-v5, {WORKERS} workers, a policy of two hidden layers "
            f"({WIDTHS['small']} or {WIDTHS['large']} wide) on the CPU, one thread. A sampler that "
            "asks the policy when all have answered, or after the time-out for those that have, at "
            "least one worker. Median [least, most].\n"
        ),
        table(header, rows),
    ]
    rows = [
        [
            *(str(r["per_worker"]), f"{r['mean']:,.0f}", f"{r['std']:,.1f}"),
            *(f"{r['quiet_std']:,.1f}", f"{r['std'] / r['mean']:.1%}"),
            f"{r['waited'] / r['mean']:.1%}",
        ]
        for r in results["spread"]
    ]
    header = ["envs a worker", "round, us", "std, us", "std in the quieter half", "std / round"]
    parts.append(
        "## How a worker's round spreads as its envs grow\n\n*Waited* is what the faster of two "
        "workers waits for the slower, as a share of a round.\n\n"
        + table([*header, "waited"], rows)
    )
    parts.append(findings(results))
    return "\n".join(parts)


def findings(results: dict[str, Any]) -> str:
    """Return the results next to those of the article, as text."""
    lines = ["## What was found, beside what the article says\n"]
    says = {
        (20, "small"): "waiting for all is better: a small network on a GPU costs the same for any "
        "batch, so that fewer calls win",
        (400, "small"): "with many envs (4,000 a worker) 0.1 ms is 8 % better than 0.1 s: sums of "
        "step times spread, so that waiting for the slowest costs more",
        (
            20,
            "large",
        ): "where the network's cost grows with the batch, parts of a batch lose nothing",
    }
    says[400, "large"] = says[20, "large"]
    for per_worker in PER_WORKER:
        for network in WIDTHS:
            rows = [
                r
                for r in results["study"]
                if r["per_worker"] == per_worker and r["network"] == network
            ]
            best = max(rows, key=lambda r: statistics.median(r["ratios"]))
            short = next(r for r in rows if r["timeout"] == 1e-4)
            gain = statistics.median(short["ratios"]) - 1
            lines.append(
                f"- {per_worker} envs a worker, {network} network. Article: "
                f"{says[per_worker, network]}. Here: best with {named(best['timeout'])} "
                f"({statistics.median(best['ratios']):.2f} of waiting for all); 0.1 ms does "
                f"{gain:+.0%}, with {short['batch']:.0%} of the envs in a batch."
            )
    few, many = results["spread"][0], results["spread"][-1]
    grown = many["quiet_std"] / few["quiet_std"]
    root = (many["per_worker"] / few["per_worker"]) ** 0.5
    lines.append(
        f"- The spread of a round does grow with the envs: {grown:.0f} times from "
        f"{few['per_worker']} to {many['per_worker']} envs a worker (independent steps would make "
        f"it {root:.0f} times), but the round grows {many['mean'] / few['mean']:.0f} times: its "
        f"share falls from {few['quiet_std'] / few['mean']:.0%} to "
        f"{many['quiet_std'] / many['mean']:.1%}. What is left to wait for is mostly that CPUs are "
        "not equally fast at a time."
    )
    lines.append(
        "- Where parts of a batch gain here, it is not by waiting less for the slowest: with two "
        "workers a part is one worker's envs, and the policy acts for them while the other worker "
        "steps. With the article's eight workers and a GPU that takes as long for any batch, each "
        "part costs a whole call."
    )
    return "\n".join(lines) + "\n"


def picture(results: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    rows = results["spread"]
    envs = np.array([row["per_worker"] for row in rows])
    left.loglog(envs, [row["std"] for row in rows], "o-", label="std of a round")
    left.loglog(envs, [row["quiet_std"] for row in rows], "o-", label="in the quieter half")
    left.loglog(envs, rows[0]["quiet_std"] * np.sqrt(envs), ":", color="grey", label="square root")
    left.set_xlabel("envs a worker")
    left.set_ylabel("us")
    left.legend(fontsize=8)
    for per_worker in PER_WORKER:
        for network in WIDTHS:
            some = [
                r
                for r in results["study"]
                if r["per_worker"] == per_worker and r["network"] == network
            ]
            right.plot(
                [named(r["timeout"]) for r in some],
                [statistics.median(r["ratios"]) for r in some],
                marker="o",
                label=f"{per_worker} envs, {network} network",
            )
    right.axhline(1, color="grey", linewidth=0.5)
    right.set_xlabel("time-out")
    right.set_ylabel("steps a second / waiting for all")
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder to write results to")
    options = parser.parse_args()
    if options.child:
        kind, *arguments = options.child
        answer(lambda: {"sampler": sampler, "rounds": rounds}[kind](*arguments))
        return
    results: dict[str, Any] = {"machine": machine()}
    with stolen_share(results["machine"]):
        results["study"] = study(options.repetitions)
        results["spread"] = spreads()
    text = tables(results)
    print(text)
    if options.out:
        picture(results, write(options.out, "timeout", results, text).with_suffix(".svg"))


if __name__ == "__main__":
    main()
