"""How long a program with a vector env takes to begin, beside gymnasium's AsyncVectorEnv.

    python benchmarks/start.py --out benchmarks/results
    python benchmarks/start.py --quick --out build/bench-smoke

Each run is a new interpreter, in turn with the others.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from running import Options, in_interpreter, say, study, table

PROGRAM = """
import json, time
import gymnasium as gym
{imports}
def start():
    begun = time.perf_counter()
    envs = {make}
    envs.reset(seed=0)
    took = time.perf_counter() - begun
    envs.close()
    return took, time.perf_counter() - begun
first, second = start(), start()
print(json.dumps([first[0], *second]))
"""
OURS = "import pysampler"
FUNCTIONS = "[lambda: gym.make({env!r})] * {envs}"
CONTENDERS = {
    "AsyncVectorEnv": ("", f"gym.vector.AsyncVectorEnv({FUNCTIONS})"),
    "VectorEnv": (OURS, f"pysampler.VectorEnv({FUNCTIONS})"),
    'VectorEnv, context="fork"': (OURS, f'pysampler.VectorEnv({FUNCTIONS}, context="fork")'),
    "make_vec": (OURS, "pysampler.make_vec({env!r}, {envs})"),
    "make_vec, native=False": (OURS, "pysampler.make_vec({env!r}, {envs}, native=False)"),
}


def measured(name: str, env: str, envs: int) -> list[float]:
    """Return the seconds of a whole program, of the first vector env and of a second one."""
    imports, make = CONTENDERS[name]
    begun = time.perf_counter()
    first, second, whole_second = in_interpreter(
        "-c", PROGRAM.format(imports=imports, make=make.format(env=env, envs=envs))
    )
    return [time.perf_counter() - begun - whole_second, first, second]


def measure(options: Options) -> dict[str, Any]:
    cases = []
    for env in ("CartPole-v1", "HalfCheetah-v5"):
        seconds: dict[str, list[list[float]]] = {name: [] for name in CONTENDERS}
        for run in range(options.repetitions + 1):
            for name, of_name in seconds.items():
                say(f"{env}, {name}, run {run}")
                took = measured(name, env, 8)
                if run > 0 or options.quick:  # the first one compiles modules
                    of_name.append(took)
        cases.append({"env": env, "envs": 8, "seconds": seconds})
    return {"repetitions": options.repetitions, "cases": cases}


def report(results: dict[str, Any]) -> list[str]:
    about = (
        f"Seconds, medians of {results['repetitions']} runs in turn, each in a new interpreter "
        "with compiled modules. *Program*: from the start of the interpreter to its end, with "
        "one vector env, its first reset and `close()`. AsyncVectorEnv forks the program with "
        "all that it has loaded; pysampler's default starts a clean interpreter first, from "
        "which later workers come too.\n"
    )
    rows = []
    for case in results["cases"]:
        base = statistics.median(one[0] for one in case["seconds"]["AsyncVectorEnv"])
        for name, seconds in case["seconds"].items():
            program, first, second = (statistics.median(one) for one in zip(*seconds, strict=True))
            row = [f"{case['env']} x {case['envs']}", name, f"{program:.2f}"]
            rows.append([*row, f"{program / base:.2f}", f"{first:.3f}", f"{second:.3f}"])
    titles = ["", "", "program", "/ AsyncVectorEnv", "first vector env", "second"]
    return [about, table(titles, rows)]


if __name__ == "__main__":
    study("Starting", measure, report, quick={"repetitions": 1}, repetitions=6)
