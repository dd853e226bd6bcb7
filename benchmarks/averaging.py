"""Does averaging help? DQN in 1, 2 and 4 workers, whose networks are averaged after each round.

    python benchmarks/averaging.py --out benchmarks/results
    python benchmarks/averaging.py --quick --out build/bench-smoke

The learner is that of examples/dqn_average.py. A run goes on until all its workers together have
made the steps of its env, and until it has taken the seconds that one worker took for them. So its
curve can be read at the same steps and at the same seconds. Evaluations of the averaged network,
between rounds, take none of these seconds. Each run is a process of its own, one at a time, in
turn.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import curves
import gymnasium as gym
import numpy as np
from curves import SECONDS, STEPS
from envs import Shaped
from running import Contender, Measure, Options, say, spread, study, table

ALONE = "1 worker"
NAMES = {1: ALONE, 2: "2 workers", 4: "4 workers"}
LIMIT = 3600.0  # seconds within which a run must end


@dataclass(frozen=True)
class Case:
    """What is trained: steps are those of all workers together."""

    env: str
    steps: int
    goal: float
    between: int = 500  # steps of each worker between two averages
    every: int = 4_000  # steps between two evaluations
    episodes: int = 50  # of an evaluation
    limit: int | None = None  # steps of an episode, if not the env's own
    shaped: bool = False  # whether learners get rewards for energy
    settings: dict[str, Any] = field(default_factory=dict)  # where they differ from the example's


# In episodes of 200 steps, its default, DQN hardly ever gets to the top.
HILL = Case(
    "MountainCar-v0", 120_000, -120.0, limit=1_000, settings={"n_step": 3, "exploring": 2_000}
)
CASES = {
    "CartPole-v1": Case("CartPole-v1", 80_000, 475.0),
    "MountainCar-v0": HILL,
    "MountainCar-v0, shaped": replace(HILL, shaped=True),
}


def distance(weights: list[Any]) -> float:
    """Return how far workers' weights are from their mean on average, relative to its length."""
    rows = np.asarray(weights, np.float64)
    mean = rows.mean(0)
    return float(np.linalg.norm(rows - mean, axis=1).mean() / np.linalg.norm(mean))


# -- in the process of a run -----------------------------------------------------------------------


def learner_with_weights() -> Any:
    """Return the learner of the example, which also reports its weights after each round."""
    curves.add_examples_to_path()
    import dqn_average
    import torch

    class ReportingLearner(dqn_average.Learner):
        def train(self, steps: int) -> dict[str, Any]:
            report = super().train(steps)
            flat = torch.cat([weight.flatten() for weight in self.state_dict().values()])
            return {**report, "weights": flat.numpy()}

    return ReportingLearner


def training(case: Case, workers: int, seed: int, least: float) -> dict[str, Any]:
    """Train for the steps of a case and at least for some seconds; return the curve."""
    learner = learner_with_weights()
    import dqn_average
    import torch

    import pysampler

    torch.set_num_threads(1)
    s = dqn_average.Settings(**case.settings)
    # Together workers explore for as many steps as one alone.
    s = replace(s, warmup=s.warmup // workers, exploring=s.exploring // workers)
    env = gym.make(case.env, max_episode_steps=case.limit)
    spec, learned = env.spec, (Shaped(env) if case.shaped else env).spec
    steps, seconds, waited = 0, 0.0, 0.0
    curve: list[tuple[int, float, float]] = []
    distances: list[tuple[int, float]] = []
    with (
        contextlib.closing(pysampler.make_vec(spec, min(case.episodes, 20))) as envs,
        pysampler.Averaging(
            functools.partial(learner, learned, s), workers, seed=seed
        ) as averaging,
    ):
        net = dqn_average.Net(envs.single_observation_space, envs.single_action_space, s.width)
        while steps < case.steps or seconds < least:
            began = time.perf_counter()
            finished = averaging.round(case.between)
            seconds += time.perf_counter() - began
            waited += float(finished.seconds["waiting"].mean())
            steps += case.between * workers
            apart = distance([report["weights"] for report in finished.reports])
            if steps % case.every == 0:
                weights = averaging.weights
                net.load_state_dict({n: torch.from_numpy(w) for n, w in weights.items()})
                found = pysampler.evaluate(envs, net, case.episodes, seed=seed)
                curve.append((steps, seconds, float(found.mean)))
                distances.append((steps, apart))
    return {
        "workers": workers,
        "seed": seed,
        "steps": steps,
        "seconds": seconds,
        "waiting": waited / seconds,
        "curve": curve,
        "distances": distances,
    }


def contender(case: dict[str, Any]) -> Measure:
    return lambda cell: training(Case(**case), **cell)


# -- in the process that measures ------------------------------------------------------------------


def run_of(case: Case, workers: int, seed: int, least: float) -> dict[str, Any]:
    """Run a training in a process of its own."""
    with Contender(__file__, asdict(case), limit=LIMIT) as one:
        run = one.ask(workers=workers, seed=seed, least=least)
    say(
        f"  {workers} workers, seed {seed}: {run['steps']:,} steps in {run['seconds']:.0f} s, "
        f"return {curves.return_at(run['curve']):.0f}"
    )
    return run


def one_case(case: Case, seeds: list[int]) -> dict[str, Any]:
    """Train with each number of workers, seed by seed; one worker says how long the others take."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES.values()}
    for seed in seeds:
        seconds = 0.0
        for workers, name in NAMES.items():
            run = run_of(case, workers, seed, seconds)
            runs[name].append(run)
            seconds = seconds or run["seconds"]
    return {**asdict(case), "runs": runs}


def row_of(name: str, runs: list[dict[str, Any]], case: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    alone = case["runs"][ALONE]
    all_curves = [run["curve"] for run in runs]
    at_steps = [curves.return_at(curve, STEPS, case["steps"]) for curve in all_curves]
    at_seconds = [
        curves.return_at(curve, SECONDS, one["seconds"])
        for curve, one in zip(all_curves, alone, strict=True)
    ]
    apart = [statistics.median(x for _, x in run["distances"]) for run in runs]
    return [
        name,
        curves.spread_to_goal(all_curves, case["goal"], STEPS),
        curves.spread_to_goal(all_curves, case["goal"], SECONDS),
        spread(at_steps, 0),
        spread(at_seconds, 0),
        spread([run["steps"] / run["seconds"] for run in runs], 0),
        f"{statistics.median(run['waiting'] for run in runs):.0%}",
        spread(apart, 3),
    ]


def title_of(case: dict[str, Any]) -> str:
    return f"{case['env']}{', shaped' * case['shaped']}"


def report(results: dict[str, Any]) -> list[str]:
    parts = [
        (
            "DQN in workers that each train a network with an env, replay and optimizer of their "
            "own; after each round of steps all load the mean of their weights. Steps are those "
            "of all workers together, over which they also share the warm-up and the decrease of "
            "epsilon. Median [least, most] of the "
            f"{results['seeds']} seeds, in turn. *To the goal*: until the averaged network first "
            "returns that, without exploring. *Return at the same steps*, *at the same seconds*: "
            f"the mean of the last {curves.RECENT} evaluations within the steps of the env, and "
            "within the seconds that one worker took for them. *Waiting*: which share of a round a "
            "worker waits for the others and the average. *Distance*: how far the workers' "
            "weights are from their mean before it is taken, relative to its length (L2).\n"
        ),
    ]
    header = ["", "steps to the goal", "seconds to the goal", "return at the same steps"]
    header += ["at the same seconds", "steps/s", "waiting", "distance"]
    pairs = [(name, ALONE) for name in NAMES.values() if name != ALONE]
    for case in results["cases"]:
        episodes = f"Episodes of at most {case['limit']:,} steps. " if case["limit"] else ""
        episodes += "Learners also get rewards for energy. " if case["shaped"] else ""
        changed = ", ".join(f"{name} {value}" for name, value in case["settings"].items())
        parts.append(
            f"## {title_of(case)}, {case['steps']:,} steps\n\n{episodes}"
            f"Goal {case['goal']:g}, an average after {case['between']} steps of each worker, an "
            f"evaluation of {case['episodes']} episodes after {case['every']:,} steps of all. "
            f"Hyperparameters of the example{f', but {changed}' * bool(changed)}.\n\n"
            + table(header, [row_of(n, runs, case) for n, runs in case["runs"].items()])
            + "\n"
            + curves.verdict(case["runs"], pairs, case["goal"])
        )
    return [*parts, "![curves]({picture})\n"]


def picture(results: dict[str, Any], stem: Path) -> None:
    """Draw returns over steps and over seconds, and distances."""
    rows = []
    for case in results["cases"]:
        env = title_of(case)
        apart = {n: [run["distances"] for run in runs] for n, runs in case["runs"].items()}
        distances = {"title": env, "x": "steps", "y": "distance", "curves": apart}
        rows.append([*curves.panels(env, case), distances])
    curves.picture(stem, rows)


def measure(options: Options) -> dict[str, Any]:
    cases = []
    for env in options.envs:
        say(env)
        case = replace(CASES[env], steps=options.steps or CASES[env].steps)
        if options.quick:
            case = replace(case, every=2_000, episodes=10)
        cases.append(one_case(case, options.seeds))
    return {"seeds": len(options.seeds), "cases": cases}


if __name__ == "__main__":
    study(
        *("Averaging", measure, report),
        contender=contender,
        picture=picture,
        quick={"seeds": [1], "steps": 8_000},
        envs=CASES,
        seeds=[1, 2, 3],
        steps=int,
    )
