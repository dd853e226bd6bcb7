"""MuJoCo envs that are simulated together, beside their physics alone, EnvPool and ordinary envs.

    python benchmarks/mujoco_envs.py --out benchmarks/results
    python benchmarks/mujoco_envs.py --envs HalfCheetah-v5 --counts 8 64
    python benchmarks/mujoco_envs.py --quick --out build/bench-smoke

The contenders of a case make the same rounds in turn, slice by slice. (This file is not called
mujoco.py: programs beside it would import it in the place of the library.)
"""

from __future__ import annotations

import importlib.metadata
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import running
from mujoco_contenders import LEAST, Case
from running import Options

LIMIT = 300.0  # seconds: thousands of envs take their time to be made
PROGRAM = Path(__file__).parent / "mujoco_contenders.py"
CHEETAH = "HalfCheetah-v5"
ENVS = [
    *("Ant-v5", CHEETAH, "Hopper-v5", "Humanoid-v5", "HumanoidStandup-v5"),
    *("InvertedDoublePendulum-v5", "InvertedPendulum-v5", "Pusher-v5", "Reacher-v5"),
    *("Swimmer-v5", "Walker2d-v5"),
]
COUNTS = [64, 1024]  # of each env, and of HalfCheetah:
CHEETAHS = [8, 64, 512, 1024, 4096, 32_000]
MANY = 32_000  # of which memory is measured
PHYSICS, NATIVE, POOL = "bare physics", "pysampler, native", "EnvPool"
BARRIER = "the same at a barrier"  # as long as the slower process, in each round
ORDINARY, SYNC = "pysampler, ordinary", "gymnasium SyncVectorEnv"
ASYNC = "gymnasium AsyncVectorEnv"
# Which part of the rounds of a slice those that are slower make, as their slices would be long.
PARTS = {ORDINARY: 1 / 2, SYNC: 1 / 4, ASYNC: 1 / 8}


def contenders_of(case: Case) -> list[str]:
    names = [PHYSICS, NATIVE]
    if case.envs <= 4096:
        names.append(POOL)
    if case.envs <= 64 or (case.env == CHEETAH and case.envs <= 1024):
        names += [ORDINARY, SYNC]
    if case.envs <= 64:
        names.append(ASYNC)
    return names


def measured(case: Case, repetitions: int, seconds: float) -> dict[str, Any]:
    names = contenders_of(case)
    rates: dict[str, list[float]] = {name: [] for name in names}
    barrier: list[float] = []
    arguments = {name: (name, case.env, case.envs, case.workers) for name in names}
    with running.started(PROGRAM, arguments, LIMIT) as contenders:
        plan = contenders[PHYSICS].measure(seconds=seconds, slices=repetitions)
        for name, one in running.turns(contenders, repetitions if plan else 0):
            rounds = max(LEAST, round(plan["rounds"] * PARTS.get(name, 1)))
            if (said := one.measure(rounds=rounds)) is not None:
                rates[name].append(said["rate"])
                if name == PHYSICS:
                    barrier.append(said["barrier"])
        same = contenders[PHYSICS].measure(check=True)
        versions = contenders[POOL].measure(versions=True) if POOL in contenders else None
    running.drop_those_in_trouble(contenders, rates)
    return {
        "env": case.env,
        "envs": case.envs,
        "rates": {**rates, BARRIER: barrier},
        "rounds": plan and plan["rounds"],
        "same": same and same["same"],
        "versions": versions or {},
    }


def measured_memory(case: Case, repetitions: int) -> list[dict[str, float]]:
    what = "memory", case.env, case.envs, case.workers
    runs = [running.once(PROGRAM, *what, limit=LIMIT) for _ in range(repetitions)]
    return [run for run in runs if run is not None]


# -- what it says ----------------------------------------------------------------------------------


def ratios(case: dict[str, Any], other: str) -> list[float]:
    """Return how many times as fast as another native envs are, in each repetition."""
    return running.ratios(*(case["rates"].get(name, []) for name in (NATIVE, other)))


def rows_of(cases: list[dict[str, Any]], first: Callable[[dict[str, Any]], str]) -> str:
    others = [PHYSICS, BARRIER, POOL, ORDINARY, SYNC, ASYNC]
    present = [name for name in others if any(ratios(case, name) for case in cases)]
    rates = {first(case): case["rates"] for case in cases}
    rows = running.ratio_rows(rates, NATIVE, present, of_base=False)
    return running.table(["", "native, env steps/s", *(f"/ {name}" for name in present)], rows)


def targets(results: dict[str, Any]) -> str:
    def least(other: str, counts: list[int], envs: list[str]) -> tuple[float, str] | None:
        found = [
            (statistics.median(values), f"{case['env']}, {case['envs']:,}")
            for case in results["cases"]
            if case["envs"] in counts and case["env"] in envs and (values := ratios(case, other))
        ]
        return min(found) if found else None

    at_least = [
        ("of bare physics, 64 envs", 0.92, least(PHYSICS, [64], ENVS)),
        ("of bare physics, 1,024 envs", 0.97, least(PHYSICS, [1024], ENVS)),
        ("of EnvPool, 64 HalfCheetah-v5", 1.35, least(POOL, [64], [CHEETAH])),
        ("of EnvPool, 64 Swimmer-v5", 1.1, least(POOL, [64], ["Swimmer-v5"])),
        ("of EnvPool, any", 1.0, least(POOL, COUNTS, ENVS)),
        ("of ordinary envs, 8 HalfCheetah-v5", 1.3, least(ORDINARY, [8], [CHEETAH])),
    ]
    rows = []
    for name, target, found in at_least:
        value, where = found or (0.0, "")
        met = "not measured" if found is None else "met" if value >= target else "missed"
        said = f"{value:.2f} ({where})" if found else "-"
        rows.append([name, f"at least {target:.2f}", said, met])
    memory = results["memory"]["measured"] if results["memory"]["envs"] == MANY else []
    at_most = [("MB", "megabytes", 1000.0), ("s to make", "make", 10.0)]
    for name, key, target in at_most:
        value = statistics.median(one[key] for one in memory) if memory else 0.0
        met = "not measured" if not memory else "met" if value < target else "missed"
        said = f"{value:,.1f}" if memory else "-"
        rows.append([f"{MANY:,} {CHEETAH}, {name}", f"less than {target:,.0f}", said, met])
    return running.table(["", "target", "measured (the least)", ""], rows)


def report(results: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    differing = [f"{c['env']}, {c['envs']:,}" for c in results["cases"] if not c["same"]]
    exceptions = f", **but not of** {'; '.join(differing)}" if differing else ""
    parts = [
        (
            f"{versions}. {results['workers']} workers, processes of bare physics and threads of "
            "EnvPool. Random actions. Each column after the second is how many times as fast "
            "native envs are: medians [quartiles] of repetitions in turn, all on the same rounds.\n"
        ),
        (
            "*Bare physics* are processes that never communicate. Each makes what its share of "
            "the simulations made in the vector env, step by step and reset by reset, from the "
            "same states with the same actions, and nothing else: no observations, rewards or "
            "infos, no random numbers. It has `mj_rnePostConstraint` where the env needs it. *The "
            "same at a barrier* counts each round as long as the slower of the processes, as if "
            "they waited for one another at no cost: two CPUs are never equally fast. In the end "
            f"the states are the same, bit for bit{exceptions}.\n"
        ),
    ]
    for count in sorted({case["envs"] for case in results["cases"] if case["env"] != CHEETAH}):
        cases = [case for case in results["cases"] if case["envs"] == count]
        parts.append(f"## {count:,} envs\n\n" + rows_of(cases, lambda case: case["env"]))
    if cases := [case for case in results["cases"] if case["env"] == CHEETAH]:
        parts.append(f"## {CHEETAH}\n\n" + rows_of(cases, lambda case: f"{case['envs']:,} envs"))
    if measured := results["memory"]["measured"]:
        keys = "make", "reset", "megabytes"
        make, reset, size = (statistics.median(one[key] for one in measured) for key in keys)
        parts.append(
            f"## {results['memory']['envs']:,} {CHEETAH}\n\nMade in {make:.2f} s, the first in a "
            f"program, and reset in {reset:.2f} s. The program and its workers, with all that "
            f"they have imported, use {size:,.0f} MB (proportional set size).\n"
        )
    return [*parts, "## Targets\n\n" + targets(results)]


def measure(options: Options) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("mujoco", "gymnasium")}
    cases = []
    for env in options.envs:
        for count in options.counts or (CHEETAHS if env == CHEETAH else COUNTS):
            running.say(f"{env}, {count}")
            repetitions = min(options.repetitions, 15 if count <= 1024 else 7)
            case = Case(env, count, options.workers)
            cases.append(measured(case, repetitions, options.seconds))
            versions |= cases[-1].pop("versions")
    count = 64 if options.quick else MANY
    wanted = CHEETAH in options.envs and (options.quick or MANY in (options.counts or CHEETAHS))
    running.say("memory")
    memory = measured_memory(Case(CHEETAH, count, options.workers), 3) if wanted else []
    return {
        "workers": options.workers,
        "versions": versions,
        "cases": cases,
        "memory": {"envs": count, "measured": memory},
    }


if __name__ == "__main__":
    running.study(
        *("MuJoCo envs that are simulated together", measure, report),
        file="mujoco",
        quick={"envs": ENVS[1:3], "counts": [8], "repetitions": 2, "seconds": 0.02},
        choices={"envs": ENVS},
        envs=ENVS,
        counts=[int],
        **running.SLICES | {"seconds": 0.2},
    )
