"""When does it help to receive part of a batch, or to set a timeout?

16 envs in 16 groups over 2 workers, whose steps last 100 us on average (exponentially distributed),
with and without one env that is ten times slower, and policies of different costs: env steps per
second of ``recv(min_envs=k, timeout=t)``, as multiples of waiting for all envs.

    python benchmarks/partial.py                    # everything, and the peers
    python benchmarks/partial.py --no-peers --repetitions 1

Each contender is a process of its own, measured in turn; one that hangs is reported as such.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import running
from envs import Busy, Skewed, spin
from running import Measure, Options

ENVS, WORKERS = 16, 2
LEAST = [1, 2, 4, 8, 12, 16]
TIMEOUTS = [None, 0.0, 1e-4, 1e-3]
POLICIES = [0, 50, 500]  # us a call
HELD_DEADLINES = [1e-5, 1e-4, 1e-3, 1e-2]


# -- in a contender's process ----------------------------------------------------------------------


def makers(*, slow: bool) -> list[Callable[[], Any]]:
    return [
        functools.partial(Busy, 1000 if slow and env == 0 else 100, exponential=True)
        for env in range(ENVS)
    ]


def think(us: float, *, elsewhere: bool = False) -> None:
    """Take the time of a policy: on this CPU, or asleep as if it ran on a GPU."""
    if elsewhere:
        time.sleep(us / 1e6)
    else:
        spin(us)


Cell = dict[str, Any]


def pysampler(setup: str) -> Callable[[Cell, float], dict[str, Any]]:
    from pysampler import VectorEnv

    if setup == "skewed":
        envs = VectorEnv([Skewed] * 32, num_workers=32, autoreset_mode="SameStep")
    elif setup.startswith("halves"):
        fn = functools.partial(Busy, float(setup.split()[1]))
        envs = VectorEnv([fn] * ENVS, num_workers=WORKERS, groups=2)
    elif setup == "sleeping":
        envs = VectorEnv([functools.partial(Skewed, 0.02, 0)], num_workers=1)
    elif setup == "HalfCheetah":
        import pysampler as package

        kwargs = {"num_workers": WORKERS, "groups": ENVS // WORKERS, "autoreset_mode": "SameStep"}
        envs = package.make_vec("HalfCheetah-v5", ENVS, vector_kwargs=kwargs)
    else:
        envs = VectorEnv(
            makers(slow=setup == "straggler"), num_workers=WORKERS, groups=ENVS // WORKERS
        )
    envs.reset(seed=0)
    actions = envs.action_space.sample()

    def measure(cell: Cell, seconds: float) -> dict[str, Any]:
        if cell.get("deadline"):
            return deadlines(envs, actions, cell["deadline"])
        policy, elsewhere = cell["policy"], cell.get("elsewhere", False)

        def step() -> int:
            think(policy, elsewhere=elsewhere)
            envs.step(actions)
            return int(envs.num_envs)

        def receive(cell: Cell) -> int:
            ids = envs.recv(cell["least"], cell.get("most"), cell["timeout"])[4]["env_id"]
            if len(ids) > 0:
                think(policy, elsewhere=elsewhere)
                envs.send(actions[ids], ids)
            return len(ids)

        if cell["least"] == "step":
            return running.repeated(step)({"seconds": seconds})
        envs.send(actions)
        found = receiving(receive)(cell, seconds)
        envs.recv()
        return found

    return measure


def deadlines(envs: Any, actions: Any, timeout: float) -> dict[str, Any]:
    """Return how late recv returns after its timeout with nothing ready, in us."""
    from pysampler.sync import now

    late = []
    for _ in range(300):
        envs.send(actions)
        begun = now()
        results = envs.recv(min_envs=envs.num_envs, timeout=timeout)
        done = now()
        if len(results[1]) == 0:
            late.append((done - begun) / 1e3 - timeout * 1e6)
        while envs.pending:
            envs.recv()
    return {"p50": float(np.median(late)), "p99": float(np.quantile(late, 0.99)), "n": len(late)}


def receiving(batch: Callable[[Cell], int]) -> Callable[[Cell, float], dict[str, Any]]:
    """Return a function that receives batches for some seconds; ``batch`` returns their sizes."""

    def measure(cell: Cell, seconds: float) -> dict[str, Any]:
        calls = itertools.count()

        def counted() -> int:
            next(calls)
            return batch(cell)

        found = running.repeated(counted)({"seconds": seconds})
        return {"rate": found["rate"], "batch": found["steps"] / max(next(calls), 1)}

    return measure


def tianshou(setup: str, least: int) -> Callable[[Cell, float], dict[str, Any]]:
    from tianshou.env import ShmemVectorEnv

    envs = ShmemVectorEnv(makers(slow=setup == "straggler"), wait_num=least)
    envs.reset()

    ids = np.array(envs.ready_id)

    def batch(cell: Cell) -> int:
        nonlocal ids
        think(cell["policy"])
        *_, infos = envs.step(np.zeros(len(ids), int), ids)
        ids = np.array([info["env_id"] for info in infos])
        return len(ids)

    return receiving(batch)


def torchrl(setup: str, least: int) -> Callable[[Cell, float], dict[str, Any]]:
    import warnings

    warnings.simplefilter("ignore")
    import torch
    from torchrl.envs import AsyncEnvPool, GymWrapper
    from torchrl.envs.utils import step_mdp

    torch.set_num_threads(1)
    if setup == "skewed":
        fns, per_worker = [Skewed] * 32, 1
    else:
        fns, per_worker = makers(slow=setup == "straggler"), ENVS // WORKERS
    pool = AsyncEnvPool(
        [functools.partial(_wrapped, fn, GymWrapper) for fn in fns],
        backend="multiprocessing",
        exchange="shm",
        envs_per_worker=per_worker,
    )
    tensors = pool.reset()
    pool.async_step_send(pool.rand_action(tensors))

    def batch(cell: Cell) -> int:
        got = pool.async_step_recv(min_get=least, timeout=cell["timeout"])
        think(cell["policy"])
        after = step_mdp(got, keep_other=True)
        after["action"] = got["action"]
        pool.async_step_send(after)
        return int(got.numel())

    return receiving(batch)


def _wrapped(fn: Callable[[], Any], wrapper: Any) -> Any:
    return wrapper(fn())


def envpool(setup: str, least: int) -> Callable[[Cell, float], dict[str, Any]]:
    """Prepare EnvPool, whose envs are in C++: not the same envs."""
    import envpool as package

    envs = package.make(
        f"{setup}-v5", "gymnasium", num_envs=ENVS, batch_size=least, num_threads=WORKERS
    )
    envs.async_reset()
    actions = np.stack([envs.action_space.sample() for _ in range(ENVS)])

    def batch(cell: Cell) -> int:
        ids = envs.recv()[-1]["env_id"]
        think(cell["policy"])
        envs.send(actions[ids], ids)
        return len(ids)

    return receiving(batch)


PEERS: dict[str, Callable[..., Any]] = {
    "Tianshou": tianshou,
    "TorchRL": torchrl,
    "EnvPool": envpool,
}


def contender(name: str, setup: str, least: int = 0) -> Measure:
    measure = pysampler(setup) if name == "pysampler" else PEERS[name](setup, least)
    return lambda cell: measure(cell, cell["seconds"])


# -- in the process that measures ------------------------------------------------------------------


def grid(setup: str, repetitions: int, seconds: float) -> dict[str, Any]:
    """Measure each cell next to step(), several times; return medians of ratios."""
    cells: dict[str, list[float]] = {}
    steps: dict[int, list[float]] = {policy: [] for policy in POLICIES}
    asked = [
        one
        for one in itertools.product(POLICIES, LEAST, TIMEOUTS)
        if one[1:] != (ENVS, None)  # which is step()
    ]
    with running.Contender(__file__, "pysampler", setup) as ours:
        for repetition in range(repetitions):
            for policy, least, timeout in asked:
                cell = {"policy": policy, "seconds": seconds}
                barrier = ours.ask(least="step", timeout=None, **cell)["rate"]
                partial = ours.ask(least=least, timeout=timeout, **cell)["rate"]
                steps[policy].append(barrier)
                cells.setdefault(json.dumps([policy, least, timeout]), []).append(partial / barrier)
            running.say(f"  {repetition + 1}/{repetitions}", end="\r")
    return {
        "step": {policy: statistics.median(rates) for policy, rates in steps.items()},
        "cells": {key: statistics.median(found) for key, found in cells.items()},
    }


def compared(setup: str, least: int, names: list[str], repetitions: int, seconds: float) -> Any:
    """Return the steps per second of contenders, measured in turn."""
    cell = {"policy": 0, "timeout": 1.0 if setup == "skewed" else None, "seconds": seconds}
    names = ["pysampler", *names]
    rates: dict[str, list[float]] = {name: [] for name in ("step()", *names)}
    with running.started(__file__, {name: (name, setup, least) for name in names}) as contenders:
        for name, one in running.turns(contenders, repetitions):
            if name == "pysampler":
                result = one.measure(least="step", **cell)
                rates["step()"].append(result["rate"] if result else 0.0)
            result = one.measure(least=least, **cell)
            rates[name].append(result["rate"] if result else 0.0)
    troubles = {name: one.trouble for name, one in contenders.items() if one.trouble}
    return {name: statistics.median(values) for name, values in rates.items()} | troubles


def alternating(repetitions: int, seconds: float) -> dict[str, list[float]]:
    """Compare halves in turn with all envs at once, where policy and envs take as long."""
    found: dict[str, list[float]] = {}
    for us in (100, 1000):
        # A round of all of them lasts as long as the policy for all of them.
        policy = us * ENVS / WORKERS
        with running.Contender(__file__, "pysampler", f"halves {us}") as ours:
            for _ in range(repetitions):
                for where in ("elsewhere", "here"):
                    cell = {"timeout": None, "seconds": seconds, "elsewhere": where == "elsewhere"}
                    both = ours.ask(least="step", policy=policy, **cell)
                    half = ours.ask(least=8, most=8, policy=policy / 2, **cell)
                    key = f"steps of {us:,} us, policy {where}"
                    found.setdefault(key, []).append(half["rate"] / both["rate"])
    return found


def seconds_text(timeout: float | None) -> str:
    return "none" if timeout is None else f"{timeout * 1e3:g} ms"


def report(results: dict[str, Any]) -> list[str]:
    parts = [
        (
            f"{ENVS} envs in as many groups over {WORKERS} workers, steps of 100 us on average "
            "(exponential). Env steps a second of `recv(min_envs, timeout=...)`, as multiples of "
            "`step()` measured just before; the policy takes so long for each call.\n"
        )
    ]
    for setup, found in results["grids"].items():
        slow = ", one env ten times slower" if setup == "straggler" else ""
        for policy in POLICIES:
            rows = []
            for least in LEAST:
                row = [str(least)]
                for timeout in TIMEOUTS:
                    ratio = found["cells"].get(json.dumps([policy, least, timeout]))
                    row.append("1" if ratio is None else f"{ratio:.2f}")
                rows.append(row)
            rate = found["step"][str(policy)]
            parts.append(
                f"## Policy of {policy} us{slow}: step() does {rate:,.0f} a second\n\n"
                + running.table(["min_envs \\ timeout", *map(seconds_text, TIMEOUTS)], rows)
            )
    rows = [[where, running.spread(ratios)] for where, ratios in results["alternating"].items()]
    parts.append(
        "## Halves in turn\n\nWith `groups=2` and a policy that takes as long as the envs: "
        "`recv(8, 8)` as a multiple of `step()`. 2 would be the most. A policy that runs "
        "here takes a CPU from the workers; one that runs elsewhere (on a GPU) only waits.\n\n"
        + running.table(["", ""], rows)
    )
    rows = [
        [f"{float(t) * 1e6:,.0f}", f"{d['p50']:.2f}", f"{d['p99']:.2f}", str(d["n"])]
        for t, d in results["deadlines"].items()
    ]
    parts.append(
        "## Beyond the time-out, us: recv() with nothing ready\n\n"
        + running.table(["time-out", "p50", "p99", "waits"], rows)
    )
    for title, found in results["peers"].items():
        rows = [
            [name, value if isinstance(value, str) else f"{value:,.0f}"]
            for name, value in found.items()
        ]
        parts.append(f"## {title}, env steps a second\n\n" + running.table(["", ""], rows))
    return parts


def picture(results: dict[str, Any], stem: Path) -> None:
    figure, axes = running.pyplot().subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, (setup, found) in zip(axes, results["grids"].items(), strict=True):
        for policy in POLICIES:
            for timeout, style in ((None, "-"), (1e-4, ":")):
                ratios = [
                    found["cells"].get(json.dumps([policy, least, timeout]), 1.0) for least in LEAST
                ]
                label = f"policy {policy} us" + (", timeout 0.1 ms" if timeout else "")
                axis.plot(LEAST, ratios, style, marker="o", color=f"C{POLICIES.index(policy)}")
                axis.lines[-1].set_label(label)
        axis.axhline(1, color="grey", linewidth=0.5)
        title = "one env ten times slower" if setup == "straggler" else "all alike"
        axis.set(xlabel="min_envs", title=title)
    axes[0].set_ylabel("env steps a second / step()")
    axes[0].legend(fontsize=7)
    figure.savefig(stem.with_suffix(".svg"))


def measure(options: Options) -> dict[str, Any]:
    n, s = options.repetitions, options.seconds
    results: dict[str, Any] = {"grids": {}, "peers": {}}
    for setup in ("plain", "straggler"):
        running.say(setup)
        results["grids"][setup] = grid(setup, n, s)
    running.say("alternating, deadlines")
    results["alternating"] = alternating(n + 2, 4 * s)
    with running.Contender(__file__, "pysampler", "sleeping") as ours:
        results["deadlines"] = {t: ours.measure(deadline=t, seconds=0) for t in HELD_DEADLINES}
    if not options.no_peers:
        running.say("peers")
        others = ["Tianshou", "TorchRL"]
        for least in (4, 8):
            title = f"One env ten times slower, {least} of {ENVS}"
            results["peers"][title] = compared("straggler", least, others, n, 4 * s)
        title = "TorchRL's case: 32 envs, steps of 1 ms, resets of 200 ms, 8 of 32"
        results["peers"][title] = compared("skewed", 8, ["TorchRL"], n, 8 * s)
        title = f"HalfCheetah-v5, 8 of {ENVS} (EnvPool's is C++)"
        results["peers"][title] = compared("HalfCheetah", 8, ["EnvPool"], n, 4 * s)
    return results


if __name__ == "__main__":
    running.study(
        *("Part of a batch", measure, report),
        contender=contender,
        picture=picture,
        repetitions=3,
        seconds=0.25,
        no_peers=False,
    )
