"""Does recv(min_envs="auto", timeout="auto") find the batches that give the most env steps?

python benchmarks/auto_batches.py --out benchmarks/results
python benchmarks/auto_batches.py --only simulated     # the grid; needs one CPU
python benchmarks/auto_batches.py --only stragglers    # what a worker of its own gains
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_model import Fixed, Loop, simulated
from envs import Busy
from partial import think
from running import Contender, answer, heading, machine, say, spread, stolen_share, table, write

from pysampler._vector.tuner import BatchTuner, WaitRule, wait_rules

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS, WORKERS = 16, 2
SETUPS = ["constant", "exponential", "straggler", "resets"]
POLICIES = [0, 500]  # us a call
FIXED = [16, 12, 8, 4]
LONGEST_TRIAL = 20  # seconds after which the first trial is not waited for

# Of the simulation.
SIZES = {2: 16, 8: 32, 64: 64}  # envs by workers
COSTS = [(0, 0), (0.1, 0), (1, 0), (5, 0), (0, 1), (0, 5)]  # of a policy, ms: a call, all rows
TIMEOUTS = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]


def makers(setup: str) -> list[Callable[[], Any]]:
    if setup == "constant":
        return [functools.partial(Busy, 100)] * ENVS
    if setup == "resets":
        return [functools.partial(Busy, 100, rare=50)] * ENVS
    slow = [1000 if setup == "straggler" else 100] + [100] * (ENVS - 1)
    return [functools.partial(Busy, us, exponential=True) for us in slow]


def ideal(setup: str) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Prepare processes that step the envs, and never wait for one another."""
    fns = makers(setup)
    each = len(fns) // WORKERS
    context = multiprocessing.get_context("fork")
    pipes = []
    for first in range(0, len(fns), each):
        ours, theirs = context.Pipe()
        chosen = fns[first : first + each]
        context.Process(target=_alone, args=(chosen, theirs), daemon=True).start()
        pipes.append(ours)

    def measure(cell: dict[str, Any]) -> dict[str, float]:
        for pipe in pipes:
            pipe.send(cell["seconds"])
        return {"rate": sum(pipe.recv() for pipe in pipes)}

    return measure


def _alone(fns: list[Callable[[], Any]], pipe: Any) -> None:
    envs = [fn() for fn in fns]
    for env in envs:
        env.reset()
    while True:
        seconds = pipe.recv()
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            for env in envs:
                env.step(0)
            steps += len(envs)
        pipe.send(steps / (time.perf_counter() - begun))


def choice_of(envs: Any) -> str:
    """Return what a vector env has chosen, as text."""
    choice = envs.stats().batches
    return "" if choice is None else way_text(choice.min_envs, choice.timeout)


def way_text(min_envs: int, timeout: float | None) -> str:
    return f"{min_envs}" if timeout is None else f"{min_envs}, {timeout * 1e3:.2g} ms"


def pysampler(setup: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    from pysampler import VectorEnv

    fns = makers(setup)
    envs = VectorEnv(fns, num_workers=WORKERS, groups=len(fns) // WORKERS)
    envs.reset()
    actions = envs.action_space.sample()

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        policy, steps = cell["policy"], 0
        if cell.get("until_chosen"):
            end = time.perf_counter() + LONGEST_TRIAL
            while time.perf_counter() < end:
                measure({**cell, "until_chosen": False})
                if envs.stats().batches.trials > 0:
                    break
        begun = time.perf_counter()
        end = begun + cell["seconds"]
        if cell["least"] == "step":
            while time.perf_counter() < end:
                think(policy)
                envs.step(actions)
                steps += len(fns)
            return {"rate": steps / (time.perf_counter() - begun)}
        least, timeout = cell["least"], cell["timeout"]
        envs.send(actions)
        while time.perf_counter() < end:
            ids = envs.recv(least, timeout=timeout)[4]["env_id"]
            if len(ids):
                think(policy)
                steps += len(ids)
                envs.send(actions[ids], ids)
        elapsed = time.perf_counter() - begun
        envs.recv()
        return {"rate": steps / elapsed, "choice": choice_of(envs)}

    return measure


def child(name: str, setup: str) -> None:
    answer(lambda: ideal(setup) if name == "ideal" else pysampler(setup))


# -- on this machine -------------------------------------------------------------------------------


def measured(setup: str, policy: float, repetitions: int, seconds: float) -> dict[str, Any]:
    """Measure rules in turn, between two measurements of the ideal."""
    ours = Contender(__file__, "--child", "pysampler", setup)
    alone = Contender(__file__, "--child", "ideal", setup)

    def rate(contender: Contender, **cell: Any) -> dict[str, Any]:
        result = contender.measure(policy=policy, **cell)
        assert result is not None, contender.trouble
        return result

    cells = {
        "step()": ("step", None),
        **{str(k): (k, None) for k in FIXED},
        "auto": ("auto", "auto"),
    }
    fractions: dict[str, list[float]] = {name: [] for name in cells}
    rates: dict[str, list[float]] = {name: [] for name in cells}
    chosen: list[str] = []
    try:
        rate(ours, least="auto", timeout="auto", seconds=1, until_chosen=True)
        before = rate(alone, seconds=seconds)["rate"]
        for _ in range(repetitions):
            for name, (least, timeout) in cells.items():
                result = rate(ours, least=least, timeout=timeout, seconds=seconds)
                rates[name].append(result["rate"])
                if name == "auto":
                    chosen.append(result["choice"])
            after = rate(alone, seconds=seconds)["rate"]
            for name in cells:
                fractions[name].append(2 * rates[name][-1] / (before + after))
            before = after
    finally:
        ours.end()
        alone.end()
    return {"fractions": fractions, "rates": rates, "chosen": chosen}


# -- simulated -------------------------------------------------------------------------------------


def fixed_rate(loop: Loop, rule: WaitRule, length: int, seed: int) -> float:
    return simulated(loop, lambda _: Fixed(rule), length, warm_up=500, seed=seed)


def best_pair(loop: Loop) -> tuple[WaitRule, float]:
    """Return the best fixed pair, and its env steps a second."""
    pairs = [
        rule._replace(timeout=timeout)
        for rule, timeout in itertools.product(
            wait_rules([1] * loop.envs, loop.envs), [None, *TIMEOUTS]
        )
        if timeout is None or rule.min_envs > 1
    ]
    pairs.sort(key=lambda rule: fixed_rate(loop, rule, 5000, 0), reverse=True)
    rates = {rule: fixed_rate(loop, rule, 50_000, 1) for rule in pairs[:3]}
    best = max(rates, key=rates.__getitem__)
    return best, rates[best]


def cell_of(loop: Loop, seconds: float) -> dict[str, Any]:
    """Compare the tuner, from its start, with the best fixed pair and with step()."""
    best, rate = best_pair(loop)
    tuners = []

    def make(clock: Callable[[], int]) -> BatchTuner:
        tuners.append(BatchTuner(wait_rules([1] * loop.envs, loop.envs), loop.envs, clock=clock))
        return tuners[0]

    auto = simulated(loop, make, int(rate * seconds), seed=2)
    step = fixed_rate(loop, WaitRule(loop.envs), 50_000, 1)
    choice = tuners[0].choice
    return {
        "best": way_text(*best),
        "chosen": way_text(choice.min_envs, choice.timeout),
        "of_best": auto / rate,
        "of_step": auto / step,
    }


def grid(seconds: float) -> list[dict[str, Any]]:
    cells = []
    for (workers, envs), steps, (call, rows) in itertools.product(SIZES.items(), SETUPS, COSTS):
        loop = Loop(workers, envs, steps, policy=call / 1e3, policy_row=rows / 1e3 / envs)
        where = {"workers": workers, "envs": envs, "steps": steps, "call": call, "rows": rows}
        cells.append({**where, **cell_of(loop, seconds)})
        say(f"  {workers} workers, {steps}, {call} + {rows} ms", end="\r")
    return cells


def isolation() -> list[dict[str, Any]]:
    """Compare loops in which the slow env has a worker of its own with others."""
    cells = []
    for (workers, envs), call in itertools.product(SIZES.items(), [0, 1]):
        shared = Loop(workers, envs, "straggler", policy=call / 1e3)
        isolated = replace(shared, isolated=True)
        step = [fixed_rate(loop, WaitRule(envs), 50_000, 1) for loop in (shared, isolated)]
        recv = [best_pair(loop)[1] for loop in (shared, isolated)]
        where = {"workers": workers, "envs": envs, "call": call}
        cells.append({**where, "step": step, "recv": recv})
    return cells


# -- reports ---------------------------------------------------------------------------------------


def real_tables(results: dict[str, Any]) -> str:
    parts = [
        heading("Batches that recv chooses", results["machine"]),
        (
            f"{ENVS} envs in as many groups, {WORKERS} workers, steps of 100 us: constant; "
            "exponential; the same with one env ten times slower (straggler); constant, but one of "
            "a hundred takes 5 ms (resets). Env steps a second as fractions of the ideal: two "
            "processes that step the same envs, without a policy, and never wait for each other. "
            "Median [least, most] of repetitions in turn. The numbers are those of "
            "`recv(min_envs)`, *auto* is "
            f'`recv("auto", timeout="auto")` after its first trial, and *chosen* what it chose.\n'
        ),
    ]
    for policy in POLICIES:
        rows = []
        for setup in SETUPS:
            found = results["real"][f"{setup} {policy}"]
            chosen = statistics.mode(found["chosen"])
            rows.append([setup, *map(spread, found["fractions"].values()), chosen])
            names = list(found["fractions"])
        parts.append(
            f"## Policy of {policy} us a call\n\n" + table(["steps", *names, "chosen"], rows)
        )
    simulation = [
        [
            setup,
            *(f"{statistics.median(found['rates'][k]):,.0f} / {model[k]:,.0f}" for k in model),
        ]
        for setup in SETUPS
        for found, model in [(results["real"][f"{setup} 0"], results["model"][setup])]
    ]
    parts.append(
        "## The simulation beside the machine\n\nEnv steps a second without a policy, measured / "
        "simulated with two CPUs; the costs in the simulation were not fitted to these.\n\n"
        + table(["steps", *results["model"]["constant"]], simulation)
    )
    return "\n".join(parts)


def simulated_tables(results: dict[str, Any]) -> str:
    parts = [
        heading("Batches that recv chooses, simulated", results["machine"]),
        (
            f"The first {results['seconds']:g} s of a loop, with the first trial. Steps of 100 us "
            "as [on the machine](auto-batches.md); enough CPUs; 40 us for recv and send, 20 us for "
            "a wake. *best* is the best of all fixed pairs of `min_envs` and `timeout` (0.1 to "
            "10 ms, or none). A policy costs so much for each call, and so "
            "much more if all envs are in it.\n"
        ),
    ]
    for workers, envs in SIZES.items():
        cells = [cell for cell in results["cells"] if cell["workers"] == workers]
        rows = [
            [
                *(cell["steps"], f"{cell['call']} + {cell['rows']} ms"),
                *(cell["best"], cell["chosen"]),
                *(f"{cell['of_best']:.3f}", f"{cell['of_step']:.2f}"),
            ]
            for cell in cells
        ]
        least = min(cell["of_best"] for cell in cells), min(cell["of_step"] for cell in cells)
        parts.append(
            f"## {workers} workers, {envs} envs\n\nThe least: {least[0]:.3f} of the best pair, "
            f"{least[1]:.3f} of step().\n\n"
            + table(["steps", "policy", "best", "chosen", "of the best", "of step()"], rows)
        )
    return "\n".join(parts)


def isolation_table(results: dict[str, Any]) -> str:
    rows = [
        [
            *(f"{cell['workers']}", f"{cell['envs']}", f"{cell['call']} ms"),
            *(f"{cell[way][1] / cell[way][0]:.2f}" for way in ("step", "recv")),
            f"{cell['recv'][0] / cell['step'][0]:.2f}",
        ]
        for cell in results["cells"]
    ]
    header = ["workers", "envs", "policy", "step()", "recv", "recv instead of step()"]
    return "\n".join(
        [
            heading("A worker for a slow env alone, simulated", results["machine"]),
            (
                "Steps of 100 us, exponential; one env is ten times slower. How many times as many "
                "env steps a second all envs make if that env has one of the workers to itself, "
                "with `step()` and with the best fixed `recv`; beside it what `recv` gains over "
                "`step()` without that.\n"
            ),
            table(header, rows),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=["real", "simulated", "stragglers"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--simulated-seconds", type=float, default=30)
    parser.add_argument("--out", type=Path, help="folder to write results to")
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    if options.only in (None, "real"):
        results: dict[str, Any] = {"machine": machine(), "real": {}}
        with stolen_share(results["machine"]):
            for setup, policy in itertools.product(SETUPS, POLICIES):
                say(f"  {setup}, {policy} us", end="\r")
                found = measured(setup, policy, options.repetitions, options.seconds)
                results["real"][f"{setup} {policy}"] = found
        results["model"] = {
            setup: {
                str(k): fixed_rate(Loop(WORKERS, ENVS, setup, cpus=2), WaitRule(k), 50_000, 0)
                for k in FIXED
            }
            for setup in SETUPS
        }
        report(results, "auto-batches", real_tables(results), options.out)
    if options.only in (None, "stragglers"):
        results = {"machine": machine()}
        with stolen_share(results["machine"]):
            results["cells"] = isolation()
        report(results, "stragglers", isolation_table(results), options.out)
    if options.only in (None, "simulated"):
        results = {"machine": machine(), "seconds": options.simulated_seconds}
        with stolen_share(results["machine"]):
            results["cells"] = grid(options.simulated_seconds)
        report(results, "auto-batches-simulated", simulated_tables(results), options.out)


def report(results: dict[str, Any], name: str, text: str, out: Path | None) -> None:
    print(text)
    if out:
        write(out, name, results, text)


if __name__ == "__main__":
    main()
