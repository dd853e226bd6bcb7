"""How to divide many CPUs between workers and the parent, for 4, 8 and all CPUs of a machine.

Each case runs in lanes of so many CPUs, several lanes side by side if they are small. Within a lane
contenders take turns with the ideal, as in vector.py.

    python benchmarks/many_cpus.py --out benchmarks/results
    python benchmarks/many_cpus.py --cpus 2 --slices 2 --envs 8      # a short look, on two CPUs
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from envs import CASES
from running import Options, columns, machine, quartiles, say, study, write
from vector import ROUND, measured

DIVISIONS = [
    *("pysampler", "a worker less", 'pysampler, main_envs="auto"', "a worker less, pinned"),
    *("pysampler, pinned", 'pysampler, wait="park"'),
]
NATIVE = ["pysampler, native", "a worker less, native", "EnvPool (its own C++ envs)"]
PEERS = ["gymnasium SyncVectorEnv", "gymnasium AsyncVectorEnv"]
ENVS = [8, 64, 1024]
KINDS = {
    "CartPole-v1": "CartPole-v1, 64",
    "HalfCheetah-v5": "HalfCheetah-v5, 64",
    "20 us of work": "20 us of work, 64",
    "exponential, mean 100 us": "exponential, mean 100 us, 16",
}


def contenders_of(kind: str, envs: int, *, peers: bool) -> list[str]:
    names = list(DIVISIONS)
    if envs > 64:  # the longer a round, the less is to be gained
        names = names[:3]
    if not peers:
        return names
    if CASES[KINDS[kind]].env.endswith("-v5"):
        names += NATIVE
    elif CASES[KINDS[kind]].env.endswith("-v1"):
        names += NATIVE[-1:]
    if envs <= 64:
        names += PEERS
    return names


def lanes(size: int) -> list[list[int]]:
    """Split the CPUs that this process may use into sets of ``size``, siblings together."""
    usable = sorted(os.sched_getaffinity(0), key=lambda cpu: (_first_sibling(cpu), cpu))
    return [usable[at : at + size] for at in range(0, len(usable) - size + 1, size)]


def _first_sibling(cpu: int) -> int:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return int(path.read_text().replace("-", ",").split(",")[0]) if path.exists() else cpu


def measure_case(
    kind: str, envs: int, names: list[str], slices: int, seconds: float
) -> dict[str, Any]:
    """Measure contenders on the CPUs that this process may use."""
    workers = min(len(os.sched_getaffinity(0)), envs)
    workers = max(w for w in range(1, workers + 1) if envs % w == 0)
    case = dataclasses.replace(CASES[KINDS[kind]], workers=workers, envs=envs)
    return {**measured(case, names, slices, seconds), "workers": workers}


def measure_lanes(
    cases: list[tuple[str, int]], size: int, options: Any, *, peers: bool
) -> Iterator[dict[str, Any]]:
    """Measure cases in lanes of ``size`` CPUs, each in a process that may use only those."""
    free: SimpleQueue[list[int]] = SimpleQueue()
    sets = lanes(size)
    for cpus in sets:
        free.put(cpus)

    def one(case: tuple[str, int]) -> Any:
        cpus = free.get()
        try:
            what = [*case, contenders_of(*case, peers=peers), options.slices, options.seconds]
            done = subprocess.run(
                [sys.executable, __file__, "one", *map(str, what)],
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            )
            if done.returncode:
                say(f"{case}: {done.stderr[-2000:]}")
                return None
            say(f"{size} CPUs: {case[0]}, {case[1]}")
            return json.loads(done.stdout.splitlines()[-1])
        finally:
            free.put(cpus)

    with ThreadPoolExecutor(len(sets)) as pool:
        for (kind, envs), row in zip(cases, pool.map(one, cases), strict=True):
            if row is not None:
                yield {"env": kind, "envs": envs, "cpus": size, **row}


def report(results: dict[str, Any]) -> list[str]:
    rows = results["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["fractions"]))
    about = (
        "As many workers as CPUs (or as divide the envs evenly), or one fewer. Smaller numbers "
        "of CPUs are lanes of the same machine, measured side by side. Median [quartiles] of "
        f"slices of {results['slice_seconds']:g} s, in turn with the ideal and compared with "
        "the slices before and after.\n"
    )
    case: dict[str, Callable[[dict[str, Any]], Any]] = {
        "CPUs": lambda row: row["cpus"],
        "env, envs": lambda row: f"{row['env']}, {row['envs']}",
    }
    measured_in = {
        "ideal steps/s": lambda row: f"{row['ideal']:,.0f}",
        "workers": lambda row: row["workers"],
    }

    def fractions(key: str) -> dict[str, Callable[[dict[str, Any]], str]]:
        return {name: lambda row, name=name: quartiles(row[key].get(name, [])) for name in names}

    parts = [about]
    for key, title in (("of_barrier", "the ideal barrier"), ("fractions", "the ideal")):
        parts.append(f"## Fractions of {title}\n")
        parts.append(columns(rows, {**case, **measured_in, **fractions(key)}))
    spent = {part: lambda row, part=part: f"{row['where'][part]:.1f}" for part in ROUND}
    spent["alone"] = lambda row: f"{row['envs'] / row['ideal'] * 1e6:.1f}"
    parts.append("## Where a round of `pysampler` goes, us\n")
    return [*parts, columns([row for row in rows if row["where"]], {**case, **spent})]


def measure(options: Options) -> dict[str, Any]:
    everything = len(os.sched_getaffinity(0))
    sizes = options.cpus or sorted({everything, *(n for n in (4, 8) if n < everything)})[::-1]
    rows: list[dict[str, Any]] = []
    results = {"slice_seconds": options.seconds, "rows": rows}
    cases = [(kind, envs) for kind in options.kinds for envs in options.envs]
    cases = [case for case in cases if case != ("exponential, mean 100 us", 1024)]
    for size in sizes:
        for row in measure_lanes(cases, size, options, peers=size == everything):
            rows.append(row)
            if options.out:  # a run that is stopped leaves what it has measured
                so_far = {"machine": machine(), **results}
                write(options.out, "many-cpus", so_far, "\n".join(report(so_far)))
    return results


if __name__ == "__main__":
    study(
        *("Many CPUs", measure, report),
        figures={"one": measure_case},
        cpus=[int],
        envs=ENVS,
        kinds=KINDS,
        slices=8,
        seconds=0.2,
    )
