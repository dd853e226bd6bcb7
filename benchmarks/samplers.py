"""What rollouts cost: with a free policy, with the policy in workers, with halves in turn.

    python benchmarks/samplers.py --out benchmarks/results

Each contender is a process of its own; they are measured in turn, with the ideal before and after.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import running
from contenders import rounds_alone, stepper
from envs import CASES, Busy, Case, mlp
from running import Measure, Options

WORKERS = 2
HORIZON = 128
FREE = ["HalfCheetah-v5, 64", "CartPole-v1, 64"]
FREE_WAYS = [
    *("step()", "main", 'main, main_envs="auto"'),
    *("main, halves", "workers", "workers, overlap"),
]
# Envs, and the width of both hidden layers.
PLACES = [
    *(("CartPole-v1", 8, 64), ("CartPole-v1", 64, 64), ("CartPole-v1", 512, 64)),
    *(("CartPole-v1", 64, 512), ("CartPole-v1", 512, 512), ("CartPole-v1", 64, 1024)),
    *(("CartPole-v1", 512, 1024), ("HalfCheetah-v5", 64, 64), ("HalfCheetah-v5", 64, 1024)),
]
# How long the policy takes for all envs, as a multiple of how long they take.
RATIOS = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0]
BUSY, BUSY_ENVS = 250, 16  # us a step


# -- in a contender's process ----------------------------------------------------------------------


class Free:
    """A policy that costs nothing."""

    def __init__(self, space: Any) -> None:
        self._actions = np.stack([space.sample() for _ in range(64)])
        self._at = 0

    def __call__(self, observations: Any) -> Any:
        self._at += 1
        return self._actions[self._at % 64][: len(observations)]


class Sleeping:
    """A policy on another device: takes ``us`` for a batch of all envs, or for any batch."""

    def __init__(self, us: float, *, by_size: bool) -> None:
        self._us, self._by_size = us, by_size

    def __call__(self, observations: Any) -> Any:
        part = len(observations) / BUSY_ENVS if self._by_size else 1
        time.sleep(self._us * part / 1e6)
        return np.zeros(len(observations), np.int64)


def network(width: int, env: str) -> Any:
    import torch

    inputs, outputs = {"CartPole-v1": (4, 2), "HalfCheetah-v5": (17, 6)}[env]

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp([inputs, width, width, outputs], "Tanh")

        def forward(self, observations: Any) -> Any:
            outputs = self.layers(observations.float())
            return outputs.argmax(-1) if env == "CartPole-v1" else torch.tanh(outputs)

    return Net()


def sampled(rollouts: Any, seconds: float) -> dict[str, float]:
    """Sample rollouts for some seconds after a first one; return steps and times."""
    rollouts.resume()
    next(rollouts)
    begun, steps, spent = time.perf_counter(), 0, dict.fromkeys(("policy", "envs", "waiting"), 0.0)
    while time.perf_counter() < begun + seconds:
        rollout = next(rollouts)
        steps += rollout.steps
        for name in spent:
            spent[name] += rollout.seconds[name]
    elapsed = time.perf_counter() - begun
    rollouts.pause()  # nothing may run while others are measured
    return {"steps": steps, "seconds": elapsed, **spent}


def rollouts_of(make: Callable[[], Any], count: int, policy: Any, way: str) -> Any:
    import pysampler

    division: dict[str, Any] = {"num_workers": WORKERS}
    if "main_envs" in way:
        division = {"num_workers": WORKERS - 1, "main_envs": "auto"}
    envs = pysampler.VectorEnv([make] * count, groups=2 if "halves" in way else 1, **division)
    if policy is None:
        policy = Free(envs.action_space)
    where = "workers" if "workers" in way else "main"
    options: dict[str, Any] = {"policy_in": where, "overlap": "overlap" in way, "seed": 0}
    if "threads" in way:
        options["threads"] = WORKERS
    rollouts = pysampler.Rollouts(envs, policy, HORIZON, **options)
    rollouts.pause()
    return rollouts


def free(name: str, way: str) -> Measure:
    from contenders import pysampler

    case = CASES[name]
    if way == "step()":
        return pysampler(case)
    if way in ("ideal", "equal shares"):
        return (alone if way == "ideal" else equal_shares)(case)
    rollouts = rollouts_of(case.make, case.envs, None, way)
    return lambda cell: sampled(rollouts, cell["seconds"])


def alone(case: Case) -> Measure:
    """Measure processes that never talk: the ideal.

    ``step`` and ``rollout`` are steps a second if each round of that length took as long as in the
    slower process, and waiting cost nothing.
    """
    rounds_in = rounds_alone(case)

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        seconds = cell["seconds"]
        rounds = [np.array(each) for each in rounds_in(seconds)]
        rate = sum(case.envs / WORKERS * len(each) / each.sum() for each in rounds)
        rollouts = max(1, min(map(len, rounds)) // HORIZON)
        length = min(HORIZON, *map(len, rounds))
        each = np.array([one[: rollouts * length].reshape(rollouts, length) for one in rounds])
        steps = rollouts * length * case.envs
        return {
            "steps": rate * seconds,
            "seconds": seconds,
            "step": steps / each.max(0).sum(),
            "rollout": steps / each.sum(2).max(0).sum(),
        }

    return measure


def equal_shares(case: Case) -> Measure:
    """Measure the ideal in which each process does the same number of steps, as in a rollout."""
    make_rounds = running.asked_at_once(_share, WORKERS, case)
    make_rounds(0)  # until they are ready

    def rollout() -> int:
        make_rounds(HORIZON)
        return HORIZON * case.envs

    return running.repeated(rollout)


def _share(case: Case) -> Callable[[int], None]:
    step = stepper(case)

    def make_rounds(count: int) -> None:
        for _ in range(count):
            step()

    return make_rounds


def place(env: str, count: int, width: int, where: str) -> Callable[[Any], dict[str, Any]]:
    import gymnasium as gym

    make = functools.partial(gym.make, env)
    rollouts = rollouts_of(make, count, network(width, env), where)
    return lambda cell: sampled(rollouts, cell["seconds"])


def halves(way: str, ratio: float, by_size: bool) -> Any:  # noqa: FBT001
    policy = Sleeping(ratio * BUSY * BUSY_ENVS / WORKERS, by_size=by_size)
    rollouts = rollouts_of(functools.partial(Busy, BUSY), BUSY_ENVS, policy, way)
    return lambda cell: sampled(rollouts, cell["seconds"])


# -- in the process that measures ------------------------------------------------------------------


def fractions(name: str, repetitions: int, seconds: float) -> dict[str, Any]:
    """Return speeds as fractions of the ideal, with a policy that costs nothing."""
    ways = ["equal shares", *FREE_WAYS]
    found: dict[str, list[float]] = {way: [] for way in ways}
    of_barrier: dict[str, list[float]] = {way: [] for way in ways}
    rates = []
    arguments = {way: ("free", name, way) for way in ("ideal", *ways)}
    with running.started(__file__, arguments) as contenders:
        reference = contenders.pop("ideal")

        def ideals(way: str) -> tuple[float, float]:
            """Return the steps a second of the ideal, and of the barrier that this way waits at."""
            result = reference.ask(seconds=seconds)
            barrier = "rollout" if "workers" in way or way == "equal shares" else "step"
            return running.rate_of(result), result[barrier]

        for way, one in running.turns(contenders, repetitions):
            before, now, after = ideals(way), one.rate(seconds=seconds), ideals(way)
            rates.append(after[0])
            found[way].append(2 * now / (before[0] + after[0]))
            of_barrier[way].append(2 * now / (before[1] + after[1]))
    return {"ideal": statistics.median(rates), "fractions": found, "of_barrier": of_barrier}


def places(repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Compare the policy in workers with the policy in the main process, pair by pair."""
    rows = []
    for env, count, width in PLACES:
        ways = "main", "main, threads", "workers", "workers, overlap"
        arguments = {way: ("place", env, count, width, way) for way in ways}
        with running.started(__file__, arguments) as contenders:
            found = running.answers_in_turn(contenders, repetitions, seconds=seconds)
        rates = {way: [*map(running.rate_of, results)] for way, results in found.items()}
        row = {
            "env": env,
            "envs": count,
            "width": width,
            "ratios": {way: running.ratios(rates[way], rates["main"]) for way in ways[1:]},
            "main": statistics.median(rates["main"]),
            "policy": statistics.median(running.rate_of(one, "policy") for one in found["main"]),
        }
        rows.append(row)
        running.say(
            f"  {env}, {count} envs, {width} wide: {running.spread(row['ratios']['workers'])}"
        )
    return rows


def alternating(repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Compare halves in turn with all envs at once, for policies of different costs."""
    rows = []
    ways = "main", "main, halves"
    for by_size in (True, False):
        for ratio in RATIOS:
            arguments = {way: ("halves", way, ratio, by_size) for way in ways}
            with running.started(__file__, arguments) as contenders:
                found = running.answers_in_turn(contenders, repetitions, seconds=seconds)
            gains = running.ratios(*(map(running.rate_of, found[way]) for way in ways[::-1]))
            rows.append({"ratio": ratio, "by_size": by_size, "gains": gains})
            running.say(
                f"  policy {ratio} of the envs' time, by size {by_size}: {running.spread(gains)}"
            )
    return rows


def report(results: dict[str, Any]) -> list[str]:
    sections = {"free": free_table, "places": places_table, "alternating": alternating_table}
    return [sections[name](results) for name in sections if name in results]


def free_table(results: dict[str, Any]) -> str:
    ways = list(
        dict.fromkeys(way for found in results["free"].values() for way in found["fractions"])
    )
    rows = [
        [name, of, f"{found['ideal']:,.0f}", *(running.spread(found[key][way]) for way in ways)]
        for name, found in results["free"].items()
        for of, key in (("ideal", "fractions"), ("barrier", "of_barrier"))
    ]
    return (
        f"## A policy that costs nothing: fractions of the ideal\n\nRollouts of {HORIZON} steps, "
        f"{WORKERS} workers, against the same envs in two processes that never talk. *Equal "
        f"shares*: such processes that wait for each other every {HORIZON} steps, as any rollout "
        "must; what it lacks is what this machine's CPUs differ in speed at a time. *Barrier*: the "
        "ideal, but each round as long as in the slower process, waiting at no cost; a round is a "
        f"step, or {HORIZON} steps where the policy is in workers. Median [least, most].\n\n"
        + running.table(["env, envs", "of the", "ideal steps/s", *ways], rows)
    )


def places_table(results: dict[str, Any]) -> str:
    rows = [
        [
            *(row["env"], str(row["envs"]), str(row["width"]), f"{row['main']:,.0f}"),
            *(f"{row['policy']:.0%}", *map(running.spread, row["ratios"].values())),
        ]
        for row in results["places"]
    ]
    header = ["env", "envs", "hidden width", "main, steps/s", "of it policy"]
    header += ["main, two threads", "workers", "workers, overlap"]
    return (
        "## Where the policy is: multiples of the main's steps a second\n\nA torch network with "
        "two hidden layers, on the CPU: with one thread in the main, with two, or one in each of "
        "two workers.\n\n" + running.table(header, rows)
    )


def alternating_table(results: dict[str, Any]) -> str:
    rows = [
        [
            f"{ratio:g}",
            *(
                running.spread(row["gains"])
                for by_size in (True, False)
                for row in results["alternating"]
                if row["ratio"] == ratio and row["by_size"] == by_size
            ),
        ]
        for ratio in RATIOS
    ]
    return (
        f"## Halves in turn against all at once\n\n{BUSY_ENVS} envs of {BUSY} us, `groups=2` "
        "against 1; a policy that runs elsewhere, and takes the given multiple of the envs' time "
        "for all of them; for a half, half of that, or the same.\n\n"
        + running.table(["policy / envs", "half as long for a half", "as long for a half"], rows)
    )


def frees(repetitions: int, seconds: float) -> dict[str, Any]:
    """Return speeds with a policy that costs nothing, by env."""
    return {name: fractions(name, repetitions, seconds) for name in FREE}


PARTS: dict[str, Callable[[int, float], Any]] = {
    "free": frees,
    "places": places,
    "alternating": alternating,
}


def picture(results: dict[str, Any], stem: Path) -> None:
    if "alternating" not in results:
        return
    figure, axis = running.pyplot().subplots(figsize=(6, 4))
    for by_size, label in ((True, "half as long for a half"), (False, "as long for a half")):
        rows = [row for row in results["alternating"] if row["by_size"] == by_size]
        axis.plot(
            [row["ratio"] for row in rows],
            [statistics.median(row["gains"]) for row in rows],
            marker="o",
            label=label,
        )
    ratios = np.geomspace(RATIOS[0], RATIOS[-1], 50)
    best = (1 + ratios) / np.maximum(1, ratios)
    axis.plot(ratios, best, ":", color="grey", label="the most there is to gain")
    axis.axhline(1, color="grey", linewidth=0.5)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("time of the policy / time of the envs")
    axis.set_ylabel("steps a second, halves in turn / all at once")
    axis.legend(fontsize=8)
    figure.savefig(stem.with_suffix(".svg"))


def measure(options: Options) -> dict[str, Any]:
    results = {}
    for part in options.only:
        running.say(part)
        results[part] = PARTS[part](options.repetitions, options.seconds)
    return results


if __name__ == "__main__":
    running.study(
        *("Rollouts", measure, report),
        contender={"free": free, "place": place, "halves": halves},
        picture=picture,
        only=PARTS,
        repetitions=5,
        seconds=0.7,
    )
