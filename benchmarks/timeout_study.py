"""When does a time-out help a synchronous multi-task sampler?

A sampler of many HalfCheetahs may call its policy when every worker has answered, or after a
time-out for those that have. An article on such a sampler (8 workers of 20 or 4,000 envs, a GPU)
found waiting for all better with few envs and a small network, and 0.1 ms 8 % better than 0.1 s
with many. This is that experiment at the article's sizes, beside what timeout_model.py predicts
from costs that are measured one by one, and what it predicts for machines with more CPUs.

    python benchmarks/timeout_study.py --out benchmarks/results
    python benchmarks/timeout_study.py --per-worker 20 --seconds 1 --repetitions 1
    python benchmarks/timeout_study.py --python --per-worker 20 --networks small

The article's own experiment, with its time-outs and their beginning, takes half an hour:

    python benchmarks/timeout_study.py --per-worker 4000 --networks small --horizon 1000 \
        --timeouts 0.0001 0.1 --timeout-from first --repetitions 1
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import running
import timeout_model
from envs import mlp
from running import Contender, Measure, Options, cpu_clocks, ratios, say, spread, study, table

from pysampler._cli.kernel import busy_seconds

WIDTHS = {"small": [64] * 2, "large": [1024] * 2, "huge": [2048] * 3}  # huge: 34 MB
TIMEOUTS = [0.0, 1e-4, 1e-3, 0.1]
SIZES = 8  # bars of a histogram of batches
AUTO = "auto"  # of min_envs and timeout
ROW = 370  # bytes that a sampler keeps for a step of an env
PIECE = 100  # steps of each env that are kept in memory; then all workers wait for the slowest
SPREAD = [1, 20, 400, 4000]
LIMIT = 3600.0  # seconds for a sample
LEAST_LENGTH = 10  # steps of each env in a sample
LEARNING = 300.0  # seconds that "auto" has for its first trial, before it is measured
GPU_CALL = 3e-4  # seconds, assumed for any batch
DISTURBED = 0.05  # of the CPUs' time, that other processes take
TRIES = 2
PREDICTED = [(8, 2), (8, 8), (64, 64), (1024, 1024)]  # workers and CPUs


# -- in a contender's process ----------------------------------------------------------------------


def network(name: str, device: str = "cpu") -> Callable[[Any], Any]:
    """Return a policy of observations, the same in each process."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = mlp([17, *WIDTHS[name], 6], "Tanh").append(torch.nn.Tanh()).to(device)

    def policy(observations: Any) -> Any:
        with torch.no_grad():
            return net(torch.from_numpy(observations).float().to(device)).cpu().numpy()

    return policy


def cheetahs(workers: int, per_worker: int, native: str, **vector_kwargs: Any) -> Any:
    import pysampler
    import pysampler.envs.meta

    kwargs = {"num_workers": workers, "native": native == "native", **vector_kwargs}
    return pysampler.make_vec("HalfCheetahDir-v5", workers * per_worker, vector_kwargs=kwargs)


def sampler(
    workers: int, per_worker: int, name: str, native: str, device: str, since: str
) -> Measure:
    """Sample with a time-out, from the first call of the policy until every env is done.

    What is longer than a piece is sampled piece by piece, so that memory stays bounded.
    """
    import pysampler

    act = network(name, device)
    envs = cheetahs(workers, per_worker, native)
    usage = cpu_clocks(envs, workers)
    cpus = os.sched_getaffinity(0)
    calls: list[tuple[float, int]] = []

    def policy(observations: Any, _: Any, __: Any) -> Any:
        calls.append((time.perf_counter(), len(observations)))
        return act(observations)

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        left, timeout = cell["length"], cell["timeout"]
        waits = {"min_envs": AUTO} if timeout == AUTO else {"timeout_from": since}
        if timeout is None:
            waits = {}
        steps, elapsed, acting, wall, other = 0, 0.0, 0.0, 0.0, 0.0
        batches: list[int] = []
        with pysampler.MultiTaskSampler(envs, policy, timeout=timeout, seed=0, **waits) as one:
            tasks = one.sample_tasks(workers)
            learned = time.perf_counter()
            while timeout == AUTO and time.perf_counter() - learned < LEARNING:
                if (choice := envs.stats().batches) is not None and choice.trials:
                    break
                one.sample(PIECE, tasks=tasks)
            learned = time.perf_counter() - learned
            while left > 0:
                calls.clear()
                begun, busy = time.perf_counter(), busy_seconds(cpus)
                own = usage() + time.process_time()
                piece = min(PIECE, left)
                rollout = one.sample(piece, tasks=tasks)
                ended = time.perf_counter()
                busy, own = busy_seconds(cpus) - busy, usage() + time.process_time() - own
                made = sampling_calls(calls, rollout.steps)
                steps, elapsed = steps + rollout.steps, elapsed + ended - made[0][0]
                acting += rollout.seconds["policy"]
                wall, other = wall + ended - begun, other + max(0.0, busy - own)
                batches += [rows for _, rows in made]
                left -= piece
            choice = envs.stats().batches
        chosen = None
        if timeout == AUTO and choice is not None:
            chosen = [choice.min_envs, choice.timeout, choice.trials]
        return {
            "rate": steps / elapsed,
            "batch": statistics.fmean(batches) / envs.num_envs,
            "sizes": np.histogram(batches, SIZES, (0, envs.num_envs))[0].tolist(),
            "policy": acting / elapsed,
            "others": other / wall / len(cpus),
            "chosen": chosen,
            "learned": learned,
        }

    return measure


def sampling_calls(calls: list[Any], steps: int) -> list[Any]:
    """Return the last calls, which made these steps; what came before only showed the shapes."""
    first = len(calls)
    while steps > 0:
        first -= 1
        steps -= calls[first][1]
    return calls[first:]


def costs(workers: int, per_worker: int, native: str, *names: str) -> Measure:
    """Measure rounds of workers, and what the parent does, in CPU time."""
    import pysampler

    # No process stays awake in a wait, so that CPU time is work.
    envs = cheetahs(workers, per_worker, native, wait="park")
    acts = {name: network(name) for name in names}
    ids = np.arange(envs.num_envs).reshape(workers, -1)
    usage = cpu_clocks(envs, workers)

    def used_by(chosen: list[int]) -> Any:
        time.sleep(1e-4)  # until they sleep: only then it is counted
        return np.array([usage([worker]) for worker in chosen])

    def of_workers(cell: dict[str, Any]) -> dict[str, Any]:
        """Let a few workers step together, from a reset; others sleep."""
        observations = np.array(envs.reset(seed=cell["seed"])[0])
        chosen = ids[cell["workers"]]
        flat = chosen.ravel()
        took, hops = [], []
        for _ in range(cell["length"]):
            actions = acts[names[0]](observations[flat])
            before, used = envs.stats().steps.seconds, used_by(cell["workers"])
            begun, worked = time.perf_counter(), time.thread_time()
            envs.send(actions, flat)
            new, *_, info = envs.recv(len(flat))
            elapsed, worked = time.perf_counter() - begun, time.thread_time() - worked
            seconds = (envs.stats().steps.seconds - before)[chosen].sum(axis=1)
            observations[info["env_id"]] = new
            took.append((used_by(cell["workers"]) - used).tolist())
            hops.append((elapsed - worked - seconds.max()) / 2)
        # In many rounds another process may have had the CPU for a while.
        return {"rounds": np.transpose(took).tolist(), "hop": float(np.quantile(hops, 0.25))}

    def of_parent(cell: dict[str, Any]) -> dict[str, Any]:
        """Sample; return the CPU time of each call of the policy, and of what is between them."""
        act = acts[cell["network"]]
        made: list[tuple[float, int, float]] = []

        def policy(observations: Any, _: Any, __: Any) -> Any:
            begun = time.thread_time()
            actions = act(observations)
            made.append((begun, len(observations), time.thread_time()))
            return actions

        least = cell["min_workers"] * per_worker
        with pysampler.MultiTaskSampler(envs, policy, min_envs=least, seed=0) as one:
            rollout = one.sample(cell["length"], tasks=one.sample_tasks(workers))
        sampling = sampling_calls(made, rollout.steps)
        groups = [rows // per_worker for _, rows, _ in sampling]
        return {
            "groups": groups,
            "policy": [ended - begun for begun, _, ended in sampling],
            "between": [later[0] - earlier[2] for earlier, later in itertools.pairwise(sampling)],
        }

    return lambda cell: {"rounds": of_workers, "calls": of_parent}[cell["what"]](cell)


def rounds(per_worker: int, native: str) -> Measure:
    """Measure how long each of two workers takes for a step of all its envs."""
    envs = cheetahs(2, per_worker, native)
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


def turns() -> Measure:
    """Measure for how long the kernel lets a process run while another wants its CPU."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def spin(until: float) -> list[float]:
        """Return how long this process ran at a time."""
        runs: list[float] = []
        began = last = time.monotonic()
        while last < until:
            now = time.monotonic()
            if now - last > 1e-4:
                runs.append(last - began)
                began = now
            last = now
        return runs

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + cell["seconds"]
        other = multiprocessing.get_context("fork").Process(target=spin, args=(until,))
        other.start()
        runs = spin(until)
        other.join()
        return {"slice": statistics.median(runs)}

    return measure


# -- in the process that measures ------------------------------------------------------------------


def contender(*arguments: Any) -> Contender:
    return Contender(__file__, *arguments, limit=LIMIT)


def measured_costs(per_worker: int, cpus: int, options: Options) -> dict[str, Any]:
    """Measure what the model is made of, each for itself."""
    workers, seconds = options.workers, options.seconds
    say(f"costs of {workers} workers with {per_worker} envs")
    together = min(cpus, workers)
    with contender("costs", workers, per_worker, options.kind, *options.networks) as one:
        first = list(range(together))
        trial = one.ask(what="rounds", workers=first, length=4, seed=0)
        round_time = statistics.fmean(trace[-1] for trace in trial["rounds"])
        length = int(min(400, max(LEAST_LENGTH, seconds / 2 / round_time)))
        traces: list[list[float]] = []
        hops = []
        for at in range(0, workers - together + 1, together):
            if len(traces) >= 8:
                break
            chosen = list(range(at, at + together))
            found = one.ask(what="rounds", workers=chosen, length=length, seed=at)
            traces += found["rounds"]
            hops.append(found["hop"])
        parent: dict[str, Any] = {}
        calls_length = max(3, min(100, 12_000 // per_worker))
        for name in options.networks:
            parent[name] = [
                one.ask(what="calls", network=name, min_workers=least, length=calls_length)
                for least in sorted({1, max(1, workers // 2), workers})
            ]
    return {
        "workers": workers,
        "per_worker": per_worker,
        "traces": traces,
        "hop": max(0.0, statistics.median(hops)),
        "parent": parent,
    }


def costs_of(measured: dict[str, Any], network: str, slice_: float) -> timeout_model.Costs:
    """Return what the model needs, from what was measured."""
    rows, values = [], []
    by_groups: dict[int, list[float]] = {}
    for name, runs in measured["parent"].items():
        for run in runs:
            groups = run["groups"]
            for i, seconds in enumerate(run["between"]):
                rows.append((1, groups[i], groups[i + 1]))
                values.append(seconds)
            if name == network:
                for count, seconds in zip(groups, run["policy"], strict=True):
                    by_groups.setdefault(count, []).append(seconds)
    found, *_ = np.linalg.lstsq(np.array(rows, float), np.array(values), rcond=None)
    call, send, receive = (max(0.0, float(one)) for one in found)
    policy = [
        (count * measured["per_worker"], statistics.median(seconds))
        for count, seconds in sorted(by_groups.items())
    ]
    return timeout_model.Costs(
        *(measured["traces"], policy),
        call=call,
        receive=receive,
        send=send,
        hop=measured["hop"],
        slice=slice_,
    )


def least_disturbed(one: Contender, timeout: float | str | None, length: int) -> dict[str, Any]:
    """Sample again while other processes take the CPUs; return the least disturbed sample."""
    samples: list[dict[str, Any]] = []
    while len(samples) < TRIES and (not samples or samples[-1]["others"] > DISTURBED):
        samples.append(one.ask(timeout=timeout, length=length))
    return min(samples, key=lambda sample: sample["others"])


def studied(per_worker: int, options: Options) -> Iterator[dict[str, Any]]:
    """Measure each time-out with each network, in turn."""
    workers = options.workers
    for name in options.networks:
        say(f"{workers} workers with {per_worker} envs, {name} network")
        what = workers, per_worker, name, options.kind, options.device, options.timeout_from
        with contender("sampler", *what) as one:
            trial = one.ask(timeout=None, length=4)
            made = options.seconds * trial["rate"] / (workers * per_worker)
            length = options.horizon or int(max(LEAST_LENGTH, made))
            memory = ROW * min(length, PIECE) * workers * per_worker / 1e9
            say(f"  {length} steps of each env, in pieces of up to {memory:.1f} GB")
            ways = [*options.timeouts, None, AUTO]
            found: dict[str, list[dict[str, Any]]] = {json.dumps(way): [] for way in ways}
            for repetition in range(options.repetitions):
                for key, results in found.items():
                    results.append(least_disturbed(one, json.loads(key), length))
                best = max(found, key=lambda key: found[key][-1]["rate"])
                say(
                    f"  repetition {repetition + 1}: best {named(json.loads(best))}, others took "
                    f"{max(r[-1]['others'] for r in found.values()):.0%}"
                )
        rates = {key: [r["rate"] for r in results] for key, results in found.items()}
        for key, results in found.items():
            yield {
                "per_worker": per_worker,
                "network": name,
                "timeout": json.loads(key),
                "length": length,
                "rates": rates[key],
                "batch": statistics.median(r["batch"] for r in results),
                "policy": statistics.median(r["policy"] for r in results),
                "others": max(r["others"] for r in results),
                "sizes": [sum(bars) for bars in zip(*(r["sizes"] for r in results), strict=True)],
                "chosen": results[-1]["chosen"],
                "learned": statistics.median(r["learned"] for r in results),
                "ratios": ratios(rates[key], rates["null"]),
            }


def spreads(largest: int, kind: str) -> list[dict[str, Any]]:
    rows = []
    for per_worker in SPREAD:
        if per_worker > max(400, largest):
            continue
        with contender("rounds", per_worker, kind) as one:
            one.ask(rounds=max(2, min(20, 4000 // per_worker)))
            result = one.ask(rounds=max(30, min(2000, 6000 // per_worker)))
        rows.append({"per_worker": per_worker, **result})
        say(f"  rounds of {per_worker}: {result['mean']:,.0f} us, std {result['std']:,.0f}")
    return rows


def named(timeout: float | str | None) -> str:
    if isinstance(timeout, str):
        return timeout
    return "none (all)" if timeout is None else f"{timeout * 1e3:g} ms"


def predicted(row: dict[str, Any], measured: dict[str, Any], results: dict[str, Any]) -> None:
    """Add to a row what the model says of it."""
    machine_ = results["machine"]
    row["rate"] = statistics.median(row["rates"])
    if row["timeout"] == AUTO:
        return
    costs = costs_of(measured, row["network"], machine_["slice"])
    world = timeout_model.World(
        *(measured["workers"], measured["per_worker"], machine_["cpus"], row["length"]),
        timeout=row["timeout"],
        after_first=results["timeout_from"] == "first",
    )
    outcome = timeout_model.simulated(costs, world)
    row["predicted_rate"], row["predicted_batch"] = outcome.rate, outcome.batch
    row["predicted_ratio"] = ratio_to_all(costs, world)


def ratio_to_all(costs: timeout_model.Costs, world: timeout_model.World) -> float:
    """Return the rate as a multiple of that of waiting for all."""
    of_all = dataclasses.replace(world, min_workers=None, timeout=None)
    rate = timeout_model.simulated(costs, world).rate
    return rate / timeout_model.simulated(costs, of_all).rate


def predictions(all_measured: list[dict[str, Any]], slice_: float) -> list[dict[str, Any]]:
    """Return what the model says of machines that were not measured."""
    rows = []
    for measured in all_measured:
        names = list(measured["parent"])
        for policy in (*names, "GPU"):
            costs = costs_of(measured, names[0] if policy == "GPU" else policy, slice_)
            if policy == "GPU":
                costs = dataclasses.replace(costs, policy=[(1, GPU_CALL)], on_cpu=False)
            for workers, cpus in PREDICTED:
                # Many workers are many samples.
                length, seeds = (60, 3) if workers < 64 else (30, 1) if workers < 1000 else (8, 1)
                length = min(length, len(measured["traces"][0]))
                world = timeout_model.World(workers, measured["per_worker"], cpus, length)
                of_all = timeout_model.simulated(costs, world, seeds).rate
                article = dataclasses.replace(world, timeout=1e-4, after_first=True)
                ways = timeout_model.choices(costs, world, [*TIMEOUTS, None], seeds)
                short = next(w for w in ways if (w.min_workers, w.timeout) == (workers, 1e-4))
                rows.append(
                    {
                        "workers": workers,
                        "cpus": cpus,
                        "per_worker": measured["per_worker"],
                        "policy": policy,
                        "rate": of_all,
                        "best": [ways[0].min_workers, ways[0].timeout],
                        "gain": ways[0].gain,
                        "short": short.gain,
                        "article": timeout_model.simulated(costs, article, seeds).rate / of_all,
                    }
                )
    return rows


# -- what is written -------------------------------------------------------------------------------


def way_of(row: dict[str, Any]) -> str:
    """Return the best way to wait, as text."""
    k, timeout = row["best"]
    if k == row["workers"]:
        return "waiting for all" if timeout is None else f"time-out {named(timeout)}"
    return f"{k} of {row['workers']}" + ("" if timeout is None else f", or {named(timeout)}")


def error_of(row: dict[str, Any]) -> float:
    return float(row["predicted_rate"] / row["rate"] - 1)


def bars(sizes: list[int]) -> str:
    """Return a histogram as text."""
    most = max(sizes)
    return "".join("▁▂▃▄▅▆▇█"[int(7 * size / most)] if size else "·" for size in sizes)


def _widths(results: dict[str, Any]) -> str:
    names = results["networks"]
    return ", ".join(f"{len(WIDTHS[name])} x {WIDTHS[name][0]} ({name})" for name in names)


def report(results: dict[str, Any]) -> list[str]:
    cpus, workers = results["machine"]["cpus"], results["workers"]
    rows = []
    for r in results["study"]:
        model = ["", "", "", ""]
        if r["timeout"] != AUTO:
            model = [f"{r['predicted_rate']:,.0f}", f"{error_of(r):+.0%}"]
            model += [f"{r['predicted_ratio']:.2f}", f"{r['predicted_batch']:.0%}"]
        row = [str(r["per_worker"]), r["network"], named(r["timeout"]), f"{r['rate']:,.0f}"]
        row += [*model[:2], spread(r["ratios"]), model[2], f"{r['batch']:.0%}", model[3]]
        rows.append([*row, bars(r["sizes"]), f"{r['policy']:.0%}"])
    header = ["envs a worker", "network", "time-out", "steps/s", "model", "error"]
    header += ["against waiting for all", "model", "of all envs in a batch", "model"]
    header += ["batches, small to large", "time in policy"]
    since = ", counted from the first of them" if results["timeout_from"] == "first" else ""
    parts = [
        (
            f"HalfCheetahDir-v5 ({results['kind']}), {workers} workers on {cpus} CPUs, a policy "
            f"with hidden layers of {_widths(results)} on {results['device']}, one thread. "
            "`MultiTaskSampler` calls the policy when all workers have answered, or after "
            f"the time-out for those that have, at least one{since}. *Model* is what "
            "`timeout_model.py` predicts from costs that were measured one by one, below. Rates "
            "are medians; the ratios are of samples taken in turn, median [least, most]. Other "
            f"processes took up to {max(r['others'] for r in results['study']):.0%} of the CPUs "
            "during a sample.\n"
        ),
        in_short(results),
        table(header, rows),
        costs_table(results),
    ]
    rows = [
        [
            *(str(r["workers"]), str(r["cpus"]), str(r["per_worker"]), r["policy"]),
            *(f"{r['rate']:,.0f}", way_of(r), f"{r['gain']:.2f}"),
            *(f"{r['short']:.2f}", f"{r['article']:.2f}"),
        ]
        for r in results["predictions"]
    ]
    header = ["workers", "CPUs", "envs a worker", "policy", "waiting for all, steps/s", "best"]
    header += ["its gain", "0.1 ms", "0.1 ms after the first answer"]
    parts.append(
        "## What the model predicts for other machines\n\nWith the costs of this machine, and a "
        "policy on a CPU, or on a GPU that takes "
        f"{GPU_CALL * 1e3:g} ms for any batch and needs no CPU (this is assumed, not measured). "
        "*Best* is the best of waiting for a quarter, half, three quarters or all of the workers, "
        "each with any of the time-outs above, and of waiting for one. *Gain* is its rate as a "
        "multiple of that of waiting for all. `MultiTaskSampler` counts a time-out from the "
        "beginning of its wait; the article's sampler counts it from the first answer, which is "
        "the last column. The model knows nothing of memory that many CPUs share.\n\n"
        + table(header, rows)
    )
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
        "## How a worker's round spreads as its envs grow\n\nTwo workers, without a policy. "
        "*Waited* is what the faster of them waits for the slower, as a share of a round.\n\n"
        + table([*header, "waited"], rows)
    )
    shown = "![rates beside the model, and what it predicts]({picture})\n"
    return [*parts, shown]


def in_short(results: dict[str, Any]) -> str:
    """Return advice on which time-out to choose."""
    gains: dict[bool, list[float]] = {True: [], False: []}  # whether the policy takes half the time
    autos = []
    for per_worker in results["per_worker"]:
        for network in results["networks"]:
            *rows, auto = rows_of(results, per_worker, network)
            *_, of_all = rows
            best = max(rows, key=lambda r: r["rate"])
            gains[of_all["policy"] > 0.5].append(statistics.median(best["ratios"]))
            autos.append(statistics.median(ratios(auto["rates"], best["rates"])))
    cheap, dear = (
        f"{min(some):.2f} to {max(some):.2f}" if some else "-" for some in map(gains.get, (0, 1))
    )
    return (
        "**Which time-out should you use?** If the policy takes less time than the envs, wait for "
        f"all workers: the best time-out made {cheap} times the steps. If the policy takes more, "
        "use one of 0.1 to 1 ms, since workers then step while the policy acts for others: the "
        f"best made {dear} times the steps. If you do not know, or it changes, pass "
        f'`min_envs="auto", timeout="auto"`: after its first trial it made {min(autos):.2f} to '
        f"{max(autos):.2f} of the best.\n"
    )


def costs_table(results: dict[str, Any]) -> str:
    rows = []
    for measured in results["costs"]:
        names = results["networks"]
        each = [costs_of(measured, name, results["machine"]["slice"]) for name in names]
        small = each[0]
        means = [statistics.fmean(trace) for trace in measured["traces"]]
        rows.append(
            [
                *(str(measured["per_worker"]), f"{small.round * 1e3:,.2f} ms"),
                *(f"{min(means) * 1e3:,.2f} to {max(means) * 1e3:,.2f} ms",),
                *(
                    f"{one.policy[0][1] * 1e3:,.2f} to {one.policy[-1][1] * 1e3:,.2f} ms"
                    for one in each
                ),
                f"{small.call * 1e6:.0f} us",
                f"{(small.receive + small.send) * 1e6:.0f} us",
                f"{small.hop * 1e6:.0f} us",
            ]
        )
    header = ["envs a worker", "a worker's round", "of single workers"]
    header += [f"{name} network" for name in results["networks"]]
    header += ["around a call", "for each worker in it", "wake"]
    return (
        "## What the model is made of\n\nCPU time of a worker's round, with as many workers at "
        "work as there are CPUs; of a call of the policy for the envs of one worker to all; and of "
        "what the parent does around a call and for each worker in it, in samples that wait for "
        "one, half and all of the workers. A process runs for "
        f"{results['machine']['slice'] * 1e3:.1f} ms while another waits for its CPU. Nothing is "
        "fitted to the rates above.\n\n" + table(header, rows)
    )


def rows_of(results: dict[str, Any], per_worker: int, network: str) -> list[dict[str, Any]]:
    """Return the rows of the study with these envs and this network."""
    return [
        row
        for row in results["study"]
        if row["per_worker"] == per_worker and row["network"] == network
    ]


def picture(results: dict[str, Any], stem: Path) -> None:
    figure, (left, right) = running.pyplot().subplots(1, 2, figsize=(11, 4.2))
    for at, per_worker in enumerate(results["per_worker"]):
        for number, (network, marker) in enumerate(zip(results["networks"], "os^", strict=False)):
            some = rows_of(results, per_worker, network)
            names = [named(r["timeout"]) for r in some]
            middle = np.array([statistics.median(r["ratios"]) for r in some])
            ends = np.array([(min(r["ratios"]), max(r["ratios"])) for r in some]).T
            label = f"{per_worker:,} envs, {network} network"
            look = {"color": f"C{3 * at + number}", "marker": marker}
            left.errorbar(names, middle, abs(ends - middle), capsize=3, label=label, **look)
            left.plot(names[:-1], [r["predicted_ratio"] for r in some[:-1]], ":", **look)
    left.axhline(1, color="grey", linewidth=0.5)
    left.set_title("measured, and by the model (dotted)", fontsize=10)
    left.set(xlabel="time-out", ylabel="steps a second / waiting for all")
    left.legend(fontsize=8)
    machines = [f"{w:,} on {c:,}" for w, c in PREDICTED]
    for at, per_worker in enumerate(results["per_worker"]):
        for number, policy in enumerate((*results["networks"], "GPU")):
            gains = [
                r["gain"]
                for r in results["predictions"]
                if r["per_worker"] == per_worker and r["policy"] == policy
            ]
            look = {"color": f"C{number}", "linestyle": "-" if at else "--"}
            right.plot(machines, gains, "o", label=f"{per_worker:,} envs, {policy}", **look)
    right.axhline(1, color="grey", linewidth=0.5)
    right.set_title("the best way to wait, by the model", fontsize=10)
    right.set_xlabel("workers on CPUs")
    right.legend(fontsize=8)
    figure.savefig(stem.with_suffix(".svg"))


def measure(options: Options) -> dict[str, Any]:
    options.kind = "python" if options.python else "native"
    options.name = f"timeout-{options.horizon}-steps" if options.horizon else "timeout"
    cpus = len(os.sched_getaffinity(0))
    with contender("turns") as one:
        slice_ = one.ask(seconds=1.0)["slice"]
    results: dict[str, Any] = {
        "machine": {"cpus": cpus, "slice": slice_},
        **{name: getattr(options, name) for name in ("workers", "per_worker", "networks")},
        **{name: getattr(options, name) for name in ("kind", "device", "timeout_from")},
        "costs": [],
        "study": [],
    }
    for per_worker in options.per_worker:
        measured = measured_costs(per_worker, cpus, options)
        results["costs"].append(measured)
        for row in studied(per_worker, options):
            predicted(row, measured, results)
            results["study"].append(row)
    results["spread"] = spreads(max(options.per_worker), options.kind)
    say("predictions")
    return {**results, "predictions": predictions(results["costs"], slice_)}


if __name__ == "__main__":
    study(
        *("Does a time-out help?", measure, report),
        file="{name}",
        contender={"sampler": sampler, "costs": costs, "rounds": rounds, "turns": turns},
        picture=picture,
        choices={"networks": WIDTHS, "timeout_from": ["call", "first"]},
        workers=8,
        per_worker=[20, 4000],
        repetitions=3,
        seconds=6.0,
        horizon=int,
        networks=["small", "large"],
        device="cpu",
        timeouts=TIMEOUTS,
        timeout_from="call",
        python=False,
    )
