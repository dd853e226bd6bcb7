"""When does it help to receive part of a batch, or to set a timeout?

16 envs in 16 groups over 2 workers, whose steps last 100 us on average (exponentially distributed),
with and without one env that is ten times slower, and policies of different costs: env steps per
second of ``recv(min_envs=k, timeout=t)``, as multiples of waiting for all envs.

    python benchmarks/partial.py                    # everything, and the peers
    python benchmarks/partial.py --no-peers --repetitions 1

Each contender is a process of its own, measured in turn; one that hangs is reported as such.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from envs import Busy, Skewed
from running import (
    Contender,
    answer,
    heading,
    machine,
    say,
    spread,
    stolen_share,
    table,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
        return
    end = time.perf_counter_ns() + us * 1e3
    while time.perf_counter_ns() < end:
        pass


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
        policy, steps = cell["policy"], 0
        elsewhere = cell.get("elsewhere", False)
        begun = time.perf_counter()
        end = begun + seconds
        if cell["least"] == "step":
            while time.perf_counter() < end:
                think(policy, elsewhere=elsewhere)
                envs.step(actions)
                steps += envs.num_envs
            return {"rate": steps / (time.perf_counter() - begun)}
        envs.send(actions)
        calls = 0
        while time.perf_counter() < end:
            infos = envs.recv(cell["least"], cell.get("most"), cell["timeout"])[4]
            ids = infos["env_id"]
            calls += 1
            if len(ids) == 0:
                continue
            think(policy, elsewhere=elsewhere)
            steps += len(ids)
            envs.send(actions[ids], ids)
        elapsed = time.perf_counter() - begun
        envs.recv()
        return {"rate": steps / elapsed, "batch": steps / max(calls, 1)}

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


def tianshou(setup: str, least: int) -> Callable[[Cell, float], dict[str, Any]]:
    from tianshou.env import ShmemVectorEnv

    envs = ShmemVectorEnv(makers(slow=setup == "straggler"), wait_num=least)
    envs.reset()

    def measure(cell: Cell, seconds: float) -> dict[str, Any]:
        steps, calls, ids = 0, 0, np.array(envs.ready_id)
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            think(cell["policy"])
            *_, infos = envs.step(np.zeros(len(ids), int), ids)
            ids = np.array([info["env_id"] for info in infos])
            steps += len(ids)
            calls += 1
        return {"rate": steps / (time.perf_counter() - begun), "batch": steps / max(calls, 1)}

    return measure


def torchrl(setup: str, least: int) -> Callable[[Cell, float], dict[str, Any]]:
    import warnings

    warnings.simplefilter("ignore")
    import torch
    from torchrl.envs import AsyncEnvPool, GymWrapper

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

    def measure(cell: Cell, seconds: float) -> dict[str, Any]:
        from torchrl.envs.utils import step_mdp

        steps = calls = 0
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            got = pool.async_step_recv(min_get=least, timeout=cell["timeout"])
            think(cell["policy"])
            steps += got.numel()
            calls += 1
            after = step_mdp(got, keep_other=True)
            after["action"] = got["action"]
            pool.async_step_send(after)
        return {"rate": steps / (time.perf_counter() - begun), "batch": steps / max(calls, 1)}

    return measure


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

    def measure(cell: Cell, seconds: float) -> dict[str, Any]:
        steps = 0
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            infos = envs.recv()[-1]
            think(cell["policy"])
            ids = infos["env_id"]
            steps += len(ids)
            envs.send(actions[ids], ids)
        return {"rate": steps / (time.perf_counter() - begun), "batch": float(least)}

    return measure


PEERS: dict[str, Callable[..., Any]] = {
    "Tianshou": tianshou,
    "TorchRL": torchrl,
    "EnvPool": envpool,
}


def child(name: str, setup: str, least: str) -> None:
    def make() -> Callable[[Cell], dict[str, Any]]:
        measure = pysampler(setup) if name == "pysampler" else PEERS[name](setup, int(least))
        return lambda cell: measure(cell, cell["seconds"])

    answer(make)


# -- in the process that measures ------------------------------------------------------------------


def contender(name: str, setup: str, least: int = 0) -> Contender:
    return Contender(__file__, "--child", name, setup, least)


def grid(setup: str, repetitions: int, seconds: float) -> dict[str, Any]:
    """Measure each cell next to step(), several times; return medians of ratios."""
    ours = contender("pysampler", setup)
    cells: dict[str, list[float]] = {}
    steps: dict[int, list[float]] = {policy: [] for policy in POLICIES}
    for repetition in range(repetitions):
        for policy in POLICIES:
            for least in LEAST:
                for timeout in TIMEOUTS:
                    if least == ENVS and timeout is None:
                        continue
                    cell = {"policy": policy, "seconds": seconds}
                    barrier = ours.measure(least="step", timeout=None, **cell)
                    partial = ours.measure(least=least, timeout=timeout, **cell)
                    assert barrier is not None, ours.trouble
                    assert partial is not None, ours.trouble
                    steps[policy].append(barrier["rate"])
                    key = json.dumps([policy, least, timeout])
                    cells.setdefault(key, []).append(partial["rate"] / barrier["rate"])
        say(f"  {repetition + 1}/{repetitions}", end="\r")
    ours.end()
    return {
        "step": {policy: statistics.median(rates) for policy, rates in steps.items()},
        "cells": {key: statistics.median(ratios) for key, ratios in cells.items()},
    }


def compared(setup: str, least: int, names: list[str], repetitions: int, seconds: float) -> Any:
    """Return the steps per second of contenders, measured in turn."""
    timeout = 1.0 if setup == "skewed" else None
    running = {name: contender(name, setup, least) for name in ["pysampler", *names]}
    rates: dict[str, list[float]] = {name: [] for name in ("step()", *running)}
    for _ in range(repetitions):
        for name, one in running.items():
            cell = {"policy": 0, "timeout": timeout, "seconds": seconds}
            if name == "pysampler":
                result = one.measure(least="step", **cell)
                rates["step()"].append(result["rate"] if result else 0.0)
            result = one.measure(least=least, **cell)
            rates[name].append(result["rate"] if result else 0.0)
    for one in running.values():
        one.end()
    return {
        name: running[name].trouble
        if name in running and running[name].trouble
        else statistics.median(values)
        for name, values in rates.items()
    }


def alternating(repetitions: int, seconds: float) -> dict[str, list[float]]:
    """Compare halves in turn with all envs at once, where policy and envs take as long."""
    ratios: dict[str, list[float]] = {}
    for us in (100, 1000):
        ours = contender("pysampler", f"halves {us}")
        for _ in range(repetitions):
            for where in ("elsewhere", "here"):
                cell = {"timeout": None, "seconds": seconds, "elsewhere": where == "elsewhere"}
                # A round of all of them lasts as long as the policy for all of them.
                policy = us * ENVS / WORKERS
                both = ours.measure(least="step", policy=policy, **cell)
                half = ours.measure(least=8, most=8, policy=policy / 2, **cell)
                assert both is not None, ours.trouble
                assert half is not None, ours.trouble
                key = f"steps of {us:,} us, policy {where}"
                ratios.setdefault(key, []).append(half["rate"] / both["rate"])
        ours.end()
    return ratios


def seconds_text(timeout: float | None) -> str:
    return "none" if timeout is None else f"{timeout * 1e3:g} ms"


def tables(results: dict[str, Any]) -> str:
    parts = [
        heading("Part of a batch", results["machine"]),
        (
            f"{ENVS} envs in as many groups over {WORKERS} workers, steps of 100 us on average "
            "(exponential). Env steps a second of `recv(min_envs, timeout=...)`, as multiples of "
            "`step()` measured just before; the policy takes so long for each call.\n"
        ),
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
            rate = found["step"].get(policy, found["step"].get(str(policy)))
            parts.append(
                f"## Policy of {policy} us{slow}: step() does {rate:,.0f} a second\n\n"
                + table(["min_envs \\ timeout", *map(seconds_text, TIMEOUTS)], rows)
            )
    rows = [[where, spread(ratios)] for where, ratios in results["alternating"].items()]
    parts.append(
        "## Halves in turn\n\nWith `groups=2` and a policy that takes as long as the envs: "
        "`recv(8, 8)` as a multiple of `step()`. 2 would be the most. A policy that runs "
        "here takes a CPU from the workers; one that runs elsewhere (on a GPU) only waits.\n\n"
        + table(["", ""], rows)
    )
    rows = [
        [f"{float(t) * 1e6:,.0f}", f"{d['p50']:.2f}", f"{d['p99']:.2f}", str(d["n"])]
        for t, d in results["deadlines"].items()
    ]
    parts.append(
        "## Beyond the time-out, us: recv() with nothing ready\n\n"
        + table(["time-out", "p50", "p99", "waits"], rows)
    )
    for title, found in results["peers"].items():
        rows = [
            [name, value if isinstance(value, str) else f"{value:,.0f}"]
            for name, value in found.items()
        ]
        parts.append(f"## {title}, env steps a second\n\n" + table(["", ""], rows))
    return "\n".join(parts)


def picture(results: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
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
        axis.set_xlabel("min_envs")
        axis.set_title("one env ten times slower" if setup == "straggler" else "all alike")
    axes[0].set_ylabel("env steps a second / step()")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, help="folder to write results to")
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    n, s = options.repetitions, options.seconds
    results: dict[str, Any] = {"machine": machine()}
    with stolen_share(results["machine"]):
        results["grids"] = {}
        for setup in ("plain", "straggler"):
            say(setup)
            results["grids"][setup] = grid(setup, n, s)
        say("alternating, deadlines")
        results["alternating"] = alternating(n + 2, 4 * s)
        ours = contender("pysampler", "sleeping")
        results["deadlines"] = {t: ours.measure(deadline=t, seconds=0) for t in HELD_DEADLINES}
        ours.end()
        results["peers"] = {}
        if not options.no_peers:
            say("peers")
            others = ["Tianshou", "TorchRL"]
            for least in (4, 8):
                title = f"One env ten times slower, {least} of {ENVS}"
                results["peers"][title] = compared("straggler", least, others, n, 4 * s)
            title = "TorchRL's case: 32 envs, steps of 1 ms, resets of 200 ms, 8 of 32"
            results["peers"][title] = compared("skewed", 8, ["TorchRL"], n, 8 * s)
            title = f"HalfCheetah-v5, 8 of {ENVS} (EnvPool's is C++)"
            results["peers"][title] = compared("HalfCheetah", 8, ["EnvPool"], n, 4 * s)
    text = tables(results)
    print(text)
    if options.out:
        stem = write(options.out, "partial", results, text)
        picture(results, stem.with_suffix(".svg"))


if __name__ == "__main__":
    main()
