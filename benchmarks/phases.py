"""When do two phases pay? PPO whose workers act while the learner learns, or wait for it.

    python benchmarks/phases.py --out benchmarks/results
    python benchmarks/phases.py --quick --out build/bench-smoke

Network and learner are those of examples/dppo.py. All schemes learn from as many steps in each
update, and make as many updates; the policy acts in the workers. Each run is a process of its own,
one at a time, in turn.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import curves
import gymnasium as gym
import numpy as np
from curves import SECONDS, STEPS
from running import Contender, Measure, Options, cpu_clocks, in_turn, say, spread, study, table

ENVS, WORKERS = 16, 2
BATCH = 4096  # steps of an update
QUEUE, ROWS = 64, 512  # trajectories of an update, steps of a minibatch
ROOM = 4  # batches that the queue holds for workers that never wait
WINDOW = 4  # updates, of whose episodes the return is the mean
SLEEP = 1e-3  # seconds
LIMIT = 3600.0  # seconds within which a run must end

PHASES, DISCARD, OVERLAP, SYNCHRONOUS = "two phases", "discard", "overlap", "synchronous"
SCHEMES = {
    PHASES: "workers wait while the queue is full, and the learner empties it before it lets them "
    "act with its new weights",
    DISCARD: "workers never wait; the learner throws away records of older weights (`max_lag=0`)",
    OVERLAP: "workers wait only while the queue is full; records of older weights are used",
    SYNCHRONOUS: "no queue: `pysampler.Rollouts`, whose workers all wait for the update",
}


@dataclass(frozen=True)
class Case:
    """What is trained: steps are those that the learner learns from."""

    title: str
    env: str
    steps: int
    goal: float
    batch: int = BATCH
    sleeps: bool = False
    normalizes: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # where they differ from the example's

    @property
    def length(self) -> int:
        """Steps of a trajectory."""
        return self.batch // QUEUE


CASES = {
    "Pendulum": Case("Pendulum-v1", "Pendulum-v1", 200_000, -300.0),
    "Pendulum, few steps": Case("Pendulum-v1", "Pendulum-v1", 200_000, -300.0, batch=512),
    "HalfCheetah": Case(
        "HalfCheetah-v5",
        *("HalfCheetah-v5", 600_000, 800.0),
        normalizes=True,
        settings={"gamma": 0.99, "scale": 1.0},
    ),
    "slow": Case(
        "Pendulum-v1 that sleeps 1 ms a step", "Pendulum-v1", 160_000, -300.0, sleeps=True
    ),
}


class Sleeping(gym.Wrapper):
    """An env that waits for something else than a CPU in each step."""

    def step(self, action: Any) -> Any:
        time.sleep(SLEEP)
        return self.env.step(action)


# -- in the process of a run -----------------------------------------------------------------------


class Source:
    """Batches for the learner by one of the schemes, and what they cost.

    Attributes:
        batches: Yields the records of each update, and the returns of episodes that ended in them.
        cpu_seconds: Returns the CPU time of the workers.
    """

    def __init__(self, scheme: str, case: Case, net: Any, seed: int) -> None:
        import pysampler

        self._made, self._waiting, self._length = 0, 0.0, case.length
        self._envs = pysampler.make_vec(
            *(case.env, ENVS), wrappers=[Sleeping] if case.sleeps else None, num_workers=WORKERS
        )
        self.cpu_seconds = cpu_clocks(self._envs, WORKERS)
        shared = {"seed": seed, "normalize": pysampler.Normalizer() if case.normalizes else None}
        self._sampler: Any
        if scheme == SYNCHRONOUS:
            horizon = case.batch // ENVS
            self._sampler = pysampler.Rollouts(
                *(self._envs, net, horizon), policy_in="workers", **shared
            )
            self.batches = self._rollouts()
            return
        limits = {DISCARD: {"high": ROOM * QUEUE, "max_lag": 0}, OVERLAP: {"high": QUEUE}}
        options = limits.get(scheme, {})
        self._sampler = pysampler.Actors(self._envs, net, steps=case.length, **options, **shared)
        self.batches = self._phases() if scheme == PHASES else self._taken()

    def _rollouts(self) -> Iterator[tuple[Any, Any]]:
        while True:
            began = time.perf_counter()
            rollout = next(self._sampler)
            self._waiting += time.perf_counter() - began
            self._made += rollout.steps
            yield trajectories(rollout, self._length), rollout.ended.returns

    def _taken(self) -> Iterator[tuple[Any, Any]]:
        while True:
            records = self._sampler.take(QUEUE, min_records=QUEUE)
            yield records, records.ended
            self._sampler.publish()

    def _phases(self) -> Iterator[tuple[Any, Any]]:
        for phase in self._sampler.phases(high=QUEUE):
            records = phase.all()
            yield records, records.ended
            self._sampler.publish()

    def count(self) -> dict[str, float]:
        """Return env steps made and thrown away, the learner's wait, and the last batch's lag."""
        if not hasattr(self._sampler, "stats"):
            return {"made": self._made, "dropped": 0, "waiting": self._waiting, "lag": 0.0}
        stats = self._sampler.stats()
        made = (stats.taken + stats.dropped + stats.ready) * self._length
        return {
            "made": made,
            "dropped": stats.dropped * self._length,
            "waiting": stats.waiting,
            "lag": stats.lag,
        }

    def close(self) -> None:
        self._sampler.close()
        self._envs.close()


def trajectories(rollout: Any, length: int) -> Any:
    """Return a rollout as records of trajectories, [n, length, ...], which the example takes."""
    data = rollout.torch()
    after = data.observations[1:].clone()
    ended = data.terminated | data.truncated
    after[ended] = data.final_observations[ended]
    fields = {
        "observations": data.observations[:-1],
        "next_observations": after,
        **{name: getattr(data, name) for name in ("rewards", "terminated", "truncated")},
        **data.extras,
    }
    records = SimpleNamespace(
        **{
            name: tensor.transpose(0, 1).unflatten(1, (-1, length)).flatten(0, 1)
            for name, tensor in fields.items()
        }
    )
    records.torch = lambda _: records
    return records


def training(case: Case, scheme: str, seed: int) -> dict[str, Any]:
    """Train with a scheme; return the curve and what it took."""
    curves.add_examples_to_path()
    import dppo
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    s = dppo.Settings(length=case.length, queue=QUEUE, rows=ROWS, **case.settings)
    net = dppo.ActorCritic(*dppo.spaces_of(case.env, "bounded"))
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5, fused=True)
    recent: deque[Any] = deque(maxlen=WINDOW)
    curve: list[tuple[float, float, float]] = []
    lags: list[float] = []
    updates = max(1, case.steps // case.batch)
    with closing(Source(scheme, case, net, seed)) as source:
        for number, (records, returns) in enumerate(source.batches):
            if number == 0:  # the workers had to start, and to import torch
                began, own, workers = time.perf_counter(), time.process_time(), source.cpu_seconds()
                first = source.count()
            recent.append(returns)
            counted = source.count()
            lags.append(counted["lag"])
            seconds = time.perf_counter() - began
            if len(ended := np.concatenate(recent)) > 0:
                curve.append((counted["made"], seconds, float(ended.mean())))
            if number == updates:
                break
            data = dppo.prepared(records, net, s)
            for group in optimizer.param_groups:
                group["lr"] = s.rate * (1 - number / updates)
            dppo.learn(net, optimizer, data, s)
        own, workers = time.process_time() - own, source.cpu_seconds() - workers
    return {
        "scheme": scheme,
        "seed": seed,
        "seconds": seconds,
        "made": counted["made"],
        "dropped": counted["dropped"] / counted["made"],
        "lag": statistics.fmean(lags),
        "waiting": (counted["waiting"] - first["waiting"]) / seconds,
        "learner": own / seconds,
        "workers": workers / seconds / WORKERS,
        "curve": curve,
    }


def contender(case: dict[str, Any]) -> Measure:
    return lambda cell: training(Case(**case), **cell)


# -- in the process that measures ------------------------------------------------------------------


def run_of(case: Case, scheme: str, seed: int) -> dict[str, Any]:
    """Run a training in a process of its own."""
    with Contender(__file__, asdict(case), limit=LIMIT) as one:
        run = one.ask(scheme=scheme, seed=seed)
    last = curves.return_at(run["curve"])
    say(f"  {scheme}, seed {seed}: {run['seconds']:.1f} s, return {last:.0f}")
    return run


def row_of(scheme: str, runs: list[dict[str, Any]], case: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    shortest = min(run["seconds"] for runs in case["runs"].values() for run in runs)
    all_curves = [run["curve"] for run in runs]

    def percent(name: str) -> str:
        return f"{statistics.median(run[name] for run in runs):.0%}"

    return [
        scheme,
        curves.spread_to_goal(all_curves, case["goal"], STEPS),
        curves.spread_to_goal(all_curves, case["goal"], SECONDS),
        spread([curves.return_at(curve, SECONDS, shortest) for curve in all_curves], 0),
        spread([curves.return_at(curve) for curve in all_curves], 0),
        spread([run["seconds"] for run in runs], 1),
        f"{statistics.median(run['lag'] for run in runs):.2f}",
        *map(percent, ("dropped", "waiting", "learner", "workers")),
    ]


def heading_of(case: dict[str, Any]) -> str:
    return f"{case['title']}, {case['batch']:,} steps an update"


def report(results: dict[str, Any]) -> list[str]:
    described = "\n".join(f"- *{name}*: {text}." for name, text in SCHEMES.items())
    parts = [
        (
            f"PPO as in examples/dppo.py: {ENVS} envs in {WORKERS} workers, {QUEUE} trajectories "
            f"for each update, minibatches of {ROWS} steps.\n\n{described}\n\n"
            f"Median [least, most] of {results['seeds']} seeds, in turn. The return is the mean "
            f"of the episodes of {WINDOW} updates, which explore. *Steps* are those of the envs, "
            "also those that were thrown away; *seconds* count from the first update on. *At the "
            "same seconds*: when the shortest run of the env ended. *Lag*: how many versions old "
            "the weights were that made an update's steps. *Waits*: share of the time that the "
            "learner waits for steps. *Learner* and *workers*: share of a CPU that each uses.\n"
        ),
    ]
    header = ["", "steps to the goal", "seconds to the goal", "return at the same seconds"]
    header += ["at the end", "seconds", "lag", "thrown away", "waits", "learner", "workers"]
    pairs = [(PHASES, scheme) for scheme in (DISCARD, OVERLAP, SYNCHRONOUS)]
    for case in results["cases"]:
        rows = [row_of(scheme, runs, case) for scheme, runs in case["runs"].items()]
        changed = {**case["settings"], **({"normalized": True} if case["normalizes"] else {})}
        text = ", ".join(f"{name} {value}" for name, value in changed.items())
        parts.append(
            f"## {heading_of(case)}\n\n{case['steps'] // case['batch']:,} updates of trajectories "
            f"of {case['batch'] // QUEUE} steps; goal {case['goal']:g}. "
            f"Hyperparameters of the example{f', but {text}' * bool(text)}.\n\n"
            + table(header, rows)
            + "\n"
            + curves.verdict(case["runs"], pairs, case["goal"])
        )
    return [*parts, "![curves]({picture})\n"]


def picture(results: dict[str, Any], stem: Path) -> None:
    """Draw returns over steps and over seconds."""
    curves.picture(stem, [curves.panels(heading_of(case), case) for case in results["cases"]])


def measure(options: Options) -> dict[str, Any]:
    cases = []
    for name in options.cases:
        case = replace(CASES[name], steps=options.steps or CASES[name].steps)
        say(heading_of(asdict(case)))
        runs = in_turn(SCHEMES, options.seeds, functools.partial(run_of, case))
        cases.append({**asdict(case), "runs": runs})
    return {"seeds": len(options.seeds), "cases": cases}


if __name__ == "__main__":
    study(
        *("Phases", measure, report),
        contender=contender,
        picture=picture,
        quick={
            "cases": ["Pendulum", "HalfCheetah"],
            "seeds": [1],
            "steps": 4 * BATCH,
        },
        cases=CASES,
        seeds=[1, 2, 3],
        steps=int,
    )
