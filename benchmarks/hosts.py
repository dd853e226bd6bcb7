"""Samplers on hosts of a Ray cluster, beside the same samplers without Ray, and beside others'.

    python benchmarks/hosts.py --out benchmarks/results
    python benchmarks/hosts.py --quick --out build/bench-smoke

Hosts are nodes with one CPU, of a cluster on this machine. Contenders are programs of their own;
those that are compared work in turn, in slices of some seconds. host_costs.py measures what Ray
costs, host_peers.py samples with others.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import importlib.metadata
import itertools
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import host_costs
import host_peers
import numpy as np
import psutil
import running
from hosting import (
    CARTPOLE,
    CASES,
    CHEETAH,
    IMAGE,
    IMAGE_BY_RAY,
    Case,
    Linear,
    counted,
    pin,
    start_cluster,
    stop_cluster,
)
from running import (
    Contender,
    answer,
    heading,
    machine,
    publish,
    quartiles,
    say,
    spread,
    stolen_share,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

running.LIMIT = 300.0  # a cluster with many hosts takes its time to start

NODES = [1, 2, 4]
WARM = 0.4  # seconds before a slice is counted
# Of which the throughput is compared: what samples, and envs.
COMPARED = [
    *(("Rollouts", CARTPOLE), ("Rollouts", CHEETAH)),
    *(("Rollouts", IMAGE), ("Rollouts", IMAGE_BY_RAY)),
    *(("Actors", CARTPOLE), ("Actors", CHEETAH)),
]
HORIZONS = [32, 128, 512, 2048]  # of CartPole, on two hosts
LEARNS, PARAMETERS = 0.02, 250_000  # seconds that a learner takes for an update, and 1 MB
SIZES = [0.02, 0.08, 0.16, 0.5, 1.0, 8.0, 32.0]  # MB of a result
INLINE_SIZES = [0.08, 0.16, 0.5, 1.0, 4.0]
PUTS, FETCHES = [0.1, 1.0, 8.0, 32.0], [1.0, 8.0, 32.0]
REFS = [1, 10, 100, 1000]
FLEETS = [1, 2, 4, 8, 16, 32]
POLICIES = [0.1, 1.0, 10.0]  # MB
TARGET, RECEIVING = 0.95, 0.05


# -- in a contender's process ----------------------------------------------------------------------


def hosts(nodes: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Prepare a cluster. It is asked to open a sampler, to run slices, to close it, and to end."""
    import pysampler.ray
    from pysampler.ray._host_memory import HostMemory

    cluster = start_cluster(int(nodes))
    map_memory = HostMemory.map
    sampler: Any = None
    take: Callable[[], int]
    lags: list[float] = []

    def opened(cell: dict[str, Any]) -> dict[str, Any]:
        nonlocal sampler, take
        case, name = Case(*cell["case"]), cell["case"][0]
        HostMemory.map = map_memory if case.in_memory else lambda _: None  # type: ignore[method-assign]
        options: dict[str, Any] = {
            "hosts": int(nodes),
            "num_envs": case.envs,
            "vector_kwargs": {"num_workers": 1},
            "in_flight": cell["in_flight"],
            "seed": 0,
        }
        if cell["kind"] == "Actors":
            sampler = pysampler.ray.Actors(case.make(), Linear(name), high=case.high, **options)
            take = lambda: len(sampler.take(case.high, min_records=case.high))  # noqa: E731
        else:
            policy = Linear(name, PARAMETERS if cell["learns"] else 0)
            sampler = pysampler.ray.Rollouts(case.make(), policy, case.horizon, **options)
            take = functools.partial(_learn, sampler, lags) if cell["learns"] else first_ready
        for _ in range(3 * int(nodes)):
            take()
        return {}

    def first_ready() -> int:
        return sum(one.steps for one in sampler.take(min_hosts=1))

    def run(cell: dict[str, Any]) -> dict[str, Any]:
        began = False
        t0, cpu0, before = time.monotonic(), time.thread_time(), sampler.stats()

        def one() -> int:
            nonlocal began, t0, cpu0, before
            count = take()
            if not began and time.monotonic_ns() >= cell["begin"]:
                began = True
                t0, cpu0, before = time.monotonic(), time.thread_time(), sampler.stats()
                lags.clear()
            return count

        result = counted(one, cell["begin"], cell["end"])
        t1, cpu1, after = time.monotonic(), time.thread_time(), sampler.stats()
        answers = sum(h.taken for h in after.hosts) - sum(h.taken for h in before.hosts)
        answers = max(answers, 1)
        shares = {
            name: (getattr(after, name) - getattr(before, name)) / (t1 - t0)
            for name in ("receiving", "waiting", "publishing")
        }
        return {
            **result,
            **shares,
            "thread": (cpu1 - cpu0) / (t1 - t0),
            "answers": answers / (t1 - t0),
            "calls": (after.calls - before.calls) / answers,
            "bytes": (after.bytes_received - before.bytes_received) / answers,
            "updates": (after.version - before.version) / (t1 - t0),
            "lag": float(np.mean(lags)) if lags else 0.0,
        }

    def close(_: dict[str, Any]) -> dict[str, Any]:
        sampler.close()
        return {}

    requests = {"open": opened, "run": run, "close": close, "end": lambda _: stop_cluster(cluster)}
    return lambda cell: requests[cell["do"]](cell)


def _learn(sampler: Any, lags: list[float]) -> int:
    """Take a rollout of each host, and change the policy as a learner on another device does."""
    taken = sampler.take()
    lags.extend(one.lag for one in taken)
    steps = sum(one.steps for one in taken)
    time.sleep(LEARNS)
    sampler.policy.change()
    return steps


def plain(index: str, kind: str, case_data: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Prepare the sampler of one host, without Ray."""
    import pysampler

    pin(int(index))
    case = Case(*json.loads(case_data))
    options: dict[str, Any] = {
        "num_envs": case.envs,
        "vector_kwargs": {"num_workers": 1},
        "seed": int(index) * case.envs,
    }
    name = json.loads(case_data)[0]
    take: Callable[[], int]
    if kind == "Actors":
        actors = pysampler.Actors(case.make(), Linear(name), high=case.high, **options)
        take = lambda: len(actors.take(case.high, 0.05, min_records=case.high))  # noqa: E731
    else:
        rollouts = pysampler.Rollouts(case.make(), Linear(name), case.horizon, **options)
        take = lambda: next(rollouts).steps  # noqa: E731
    for _ in range(3):
        take()
    requests = {"run": lambda cell: counted(take, cell["begin"], cell["end"]), "end": lambda _: {}}
    return lambda cell: requests[cell["do"]](cell)


KINDS: dict[str, Callable[..., Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "hosts": hosts,
    "plain": plain,
    **host_costs.KINDS,
    **host_peers.KINDS,
}


def child(kind: str, *arguments: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Prepare a contender, which also says its process id, and what has failed in it."""
    measure: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    failed = ""
    try:
        measure = KINDS[kind](*arguments)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"

    def answered(cell: dict[str, Any]) -> dict[str, Any]:
        if cell["do"] == "pid":
            return {"pid": os.getpid()}
        if measure is None:
            return {"failed": failed}
        try:
            return measure(cell)
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    return answered


# -- in the process that measures ------------------------------------------------------------------


class Quiet:
    """Waits until other programs leave the machine alone, for a number of seconds in all.

    Attributes:
        limit: How many CPUs others may use.
        disturbed: Of how many slices in which others used more.
        slices: How many slices there were.
    """

    limit = 0.1

    def __init__(self) -> None:
        self.patience = 0.0
        self.disturbed = self.slices = 0

    @staticmethod
    def busy_seconds() -> float:
        """Return how much CPU time this machine has used for anything."""
        times = psutil.cpu_times()
        return times.user + times.nice + times.system + times.irq + times.softirq

    def wait(self) -> None:
        """Wait until nearly no CPU is used."""
        while self.patience > 0:
            busy, began = self.busy_seconds(), time.monotonic()
            time.sleep(0.5)
            seconds = time.monotonic() - began
            if (self.busy_seconds() - busy) / seconds < 2 * self.limit:
                return
            self.patience -= seconds

    def repeat(self, others: float, seconds: float) -> bool:
        """Return whether to repeat a slice in which others used that many CPUs."""
        disturbed = others > self.limit
        if disturbed and self.patience > 0:
            self.patience -= seconds
            return True
        self.slices += 1
        self.disturbed += disturbed
        return False


QUIET = Quiet()


class Group:
    """Contenders that work at the same time, and the processes that they have started."""

    def __init__(self, *arguments: tuple[Any, ...]) -> None:
        self._parts: dict[str, list[psutil.Process]] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(len(arguments) + 1)
        make = functools.partial(Contender, __file__, "--child")
        self._contenders = list(self._pool.map(lambda each: make(*each), arguments))
        try:
            self._roots = [psutil.Process(one["pid"]) for one in self.ask(do="pid")]
            self.look()
        except BaseException:
            self.end()
            raise

    def look(self) -> None:
        """Find the processes, by what they are for."""
        parts: dict[str, list[psutil.Process]] = {"driver": [], "samplers": [], "ray": []}
        for root in self._roots:
            below = root.children(recursive=True)
            lines = {process: _line(process) for process in below}
            actors = [one for one, line in lines.items() if line.startswith("ray::HostActor")]
            hosted = {*actors, *(part for one in actors for part in one.children(recursive=True))}
            if not any("raylet" in line for line in lines.values()):  # a sampler without Ray
                hosted = {root, *below}
            parts["samplers"] += hosted
            parts["driver"] += [] if root in hosted else [root]
            parts["ray"] += [one for one in below if one not in hosted]
        self._parts = parts

    def cpu_seconds(self) -> dict[str, float]:
        """Return how much CPU time the processes have used."""
        found = dict.fromkeys(self._parts, 0.0)
        for part, processes in self._parts.items():
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    found[part] += times.user + times.system
        return found

    def settle(self) -> None:
        """Wait until the samplers have nothing to do."""
        before, limit = self.cpu_seconds()["samplers"], time.monotonic() + 10
        while time.monotonic() < limit:
            time.sleep(0.1)
            after = self.cpu_seconds()["samplers"]
            if after - before < 0.015:
                return
            before = after

    def slice(self, seconds: float, idle: Group | None = None) -> dict[str, Any]:
        """Let them work; return what they did in the same seconds, and the CPUs that that took.

        Of an idle group, and of all other programs, it returns how many CPUs they took meanwhile.
        """
        while True:
            QUIET.wait()
            result = self._slice(seconds, idle)
            if not QUIET.repeat(result["others"], seconds):
                return result

    def _slice(self, seconds: float, idle: Group | None) -> dict[str, Any]:
        def used() -> tuple[dict[str, float], float, float]:
            own, idled = self.cpu_seconds(), sum(idle.cpu_seconds().values()) if idle else 0.0
            others = QUIET.busy_seconds() - sum(own.values()) - idled - time.process_time()
            return own, idled, others

        begin = time.monotonic_ns() + int(WARM * 1e9)
        end = begin + int(seconds * 1e9)
        asked = self._pool.submit(self.ask, do="run", begin=begin, end=end)
        time.sleep((begin - time.monotonic_ns()) / 1e9)
        own, idled, others = used()
        time.sleep((end - time.monotonic_ns()) / 1e9)
        own_after, idled_after, others_after = used()
        results = asked.result()
        self.settle()
        return {
            **results[0],
            "rate": sum(result["steps"] for result in results) / seconds,
            "cpus": {part: (own_after[part] - own[part]) / seconds for part in own},
            "idle": (idled_after - idled) / seconds,
            "others": (others_after - others) / seconds,
        }

    def ask(self, **cell: Any) -> list[dict[str, Any]]:
        """Ask all at once, and return their answers."""
        threads = [self._pool.submit(one.measure, **cell) for one in self._contenders[1:]]
        results = [self._contenders[0].measure(**cell), *(one.result() for one in threads)]
        for one, result in zip(self._contenders, results, strict=True):
            if result is None or "failed" in result:
                raise RuntimeError(one.trouble if result is None else result["failed"])
        return results

    def end(self) -> None:
        """End the contenders, and what a cluster that was not stopped has left."""
        left = self._parts
        with contextlib.suppress(RuntimeError, psutil.NoSuchProcess):
            self.look()
            left = self._parts
            self.ask(do="end")
        for one in self._contenders:
            one.end()
        for process in itertools.chain(*left.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def data(case: Case) -> list[Any]:
    return [case.env, case.envs, case.horizon, case.high, case.in_memory]


def plain_group(nodes: int, kind: str, case: Case) -> Group:
    return Group(*(("plain", index, kind, json.dumps(data(case))) for index in range(nodes)))


def pairs(ours: Group, without: Group, repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measure hosts, and the same samplers without Ray before and after."""
    rows, before = [], without.slice(seconds, ours)
    for _ in range(repetitions):
        measured = ours.slice(seconds)
        after = without.slice(seconds, ours)
        ratio = measured["rate"] / statistics.mean([before["rate"], after["rate"]])
        rows.append({"ratio": ratio, "hosts": measured, "plain": before})
        before = after
    return rows


def compared(
    kinds: list[tuple[str, str]], repetitions: int, seconds: float, nodes_list: list[int]
) -> list[dict[str, Any]]:
    """Measure hosts beside samplers without Ray; first these alone, without a cluster."""
    rows: list[dict[str, Any]] = []
    for nodes in nodes_list:
        alone = {}
        for kind, name in kinds:
            with plain_group(nodes, kind, CASES[name]) as group:
                slices = [group.slice(seconds) for _ in range(max(2, repetitions // 3))]
                alone[kind, name] = [one["rate"] for one in slices]
        with Group(("hosts", nodes)) as ours:
            for kind, name in kinds:
                opened(ours, kind, CASES[name])
                with plain_group(nodes, kind, CASES[name]) as without:
                    measured = pairs(ours, without, repetitions, seconds)
                ours.ask(do="close")
                row = {"kind": kind, "case": name, "nodes": nodes}
                rows.append({**row, "pairs": measured, "alone": alone[kind, name]})
                say(f"  {kind}, {name}, {nodes} nodes: {quartiles(ratios(rows[-1]))}")
    return rows


def opened(group: Group, kind: str, case: Case, **cell: Any) -> None:
    """Let a cluster open a sampler, and find its processes."""
    defaults = {"in_flight": 2, "learns": False}
    group.ask(do="open", kind=kind, case=data(case), **{**defaults, **cell})
    group.look()


def lengths(horizons: list[int], repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measure the same for rollouts of different lengths, on two hosts."""
    rows = []
    with Group(("hosts", 2)) as ours:
        for horizon in horizons:
            case = Case(CARTPOLE, CASES[CARTPOLE].envs, horizon)
            opened(ours, "Rollouts", case)
            with plain_group(2, "Rollouts", case) as without:
                measured = pairs(ours, without, repetitions, seconds)
            ours.ask(do="close")
            rows.append({"horizon": horizon, "pairs": measured})
            say(f"  horizon {horizon}: {quartiles(ratios(rows[-1]))}")
    return rows


def learners(repetitions: int, seconds: float, nodes_list: list[int]) -> list[dict[str, Any]]:
    """Measure a learner that takes of all hosts, updates and publishes."""
    rows = []
    for nodes in nodes_list:
        with Group(("hosts", nodes)) as ours:
            for in_flight in (1, 2):
                opened(ours, "Rollouts", CASES[CHEETAH], in_flight=in_flight, learns=True)
                runs = [ours.slice(seconds) for _ in range(repetitions)]
                ours.ask(do="close")
                rows.append({"nodes": nodes, "in_flight": in_flight, "runs": runs})
                say(f"  {nodes} nodes, {in_flight} in flight")
    return rows


def costs(seconds: float, *, quick: bool) -> dict[str, Any]:
    """Measure what Ray costs, thing by thing."""
    found: dict[str, Any] = {}
    with Group(("costs",)) as group:

        def each(what: str, name: str, values: list[Any], **cell: Any) -> list[dict[str, Any]]:
            say(f"  {what}")
            return [{name: value, **ask(what, **{name: value}, **cell)} for value in values]

        def ask(what: str, **cell: Any) -> dict[str, Any]:
            QUIET.wait()
            result: dict[str, Any] = group.ask(do=what, **{"seconds": seconds, **cell})[0]
            return result

        found["idle"] = ask("idle", seconds=2 * seconds)
        for what in ("synchronous", "asynchronous"):
            found[what] = ask(what)
        found["result"] = each("result", "mb", SIZES, inline=False)
        found["result, inline"] = each("result", "mb", INLINE_SIZES, inline=True)
        found["copy"] = each("copy", "mb", [32.0])
        found["put"] = each("put", "mb", PUTS)
        found["fetch"] = each("fetch", "mb", FETCHES, hosts=1)
        found["fetch of two"] = each("fetch", "mb", FETCHES, hosts=2)
        found["wait"] = each("wait", "refs", REFS)
        say("  restart")
        found["restart"] = ask("restart", times=2 if quick else 7)["seconds"]
    with Group(("takes",)) as group:
        say("  takes")
        fleets, times = (FLEETS[:3], 6) if quick else (FLEETS, 40)
        found["take"] = [
            {"hosts": hosts, **ask("take", hosts=hosts, times=times)} for hosts in fleets
        ]
        found["publishing"] = [
            {"hosts": n, "mb": mb, **ask("publishing", hosts=n, mb=mb, times=times)}
            for n, mb in [*((1, mb) for mb in POLICIES), (fleets[-1], POLICIES[0])]
        ]
    return found


def peers(rounds: int, seconds: float) -> dict[str, Any]:
    """Measure samplers of others, each with a cluster of its own, in turn."""
    found: dict[str, Any] = {name: [] for name in ("without Ray", *host_peers.PEERS)}
    troubles: dict[str, str] = {}
    for _ in range(rounds):
        for name, rates in found.items():
            arguments: list[tuple[Any, ...]] = [("peer", name)]
            if name == "without Ray":
                arguments = [("alone", index) for index in range(host_peers.HOSTS)]
            if name in troubles:
                continue
            try:
                with Group(*arguments) as group:
                    QUIET.wait()
                    results = group.ask(do="run", seconds=seconds)
                rates.append(sum(result["rate"] for result in results))
                say(f"  {name}: {rates[-1]:,.0f}")
            except RuntimeError as error:
                troubles[name] = str(error)
                say(f"  {name}: {error}")
    return {"rates": found, "troubles": troubles}


# -- what is reported ------------------------------------------------------------------------------


def ratios(row: dict[str, Any]) -> list[float]:
    return [pair["ratio"] for pair in row["pairs"]]


def middle(row: list[dict[str, Any]], *path: str) -> float:
    """Return the median of a number, which lies at the end of a path."""
    return statistics.median(functools.reduce(lambda d, name: d[name], path, one) for one in row)


def us_a_step(slices: list[dict[str, Any]]) -> float:
    """Return the CPU time of samplers, in us a step."""
    return statistics.median(1e6 * one["cpus"]["samplers"] / one["rate"] for one in slices)


def percent(values: list[float]) -> str:
    return quartiles([100 * value for value in values], 1)


def throughput_tables(results: dict[str, Any]) -> list[str]:
    rows = []
    for row in results["compared"]:
        alone = statistics.median(row["alone"])
        measured = row["pairs"]
        rows.append(
            [
                *(row["kind"], row["case"], str(row["nodes"])),
                f"{middle(measured, 'hosts', 'rate'):,.0f}",
                f"{middle(measured, 'plain', 'rate'):,.0f}",
                f"{alone:,.0f}",
                f"**{quartiles(ratios(row))}**",
            ]
        )
    header = ["", "envs", "nodes", "hosts, steps/s", "plain, steps/s"]
    text = (
        "## Beside the same samplers without Ray\n\nEnv steps a second that a learner receives "
        "from `pysampler.ray` with that number of one-CPU nodes, and *plain*: the same samplers as "
        "programs that run side by side without Ray, as many processes with the same envs, policy "
        "and horizon, while a program waits for them. What belongs to a node runs on one CPU; so "
        "does each plain sampler. In turn, slice by slice, while the cluster "
        "stands by; *no cluster*: before that was started. The ratio is of a slice to the plain "
        f"ones before and after: median [quartiles], the target {TARGET:g}. This machine has "
        f"{results['machine']['cpus']} CPUs, which the learner, the hosts and all of Ray's "
        "processes share. The learner reads rollouts in the memory of hosts on its machine, except "
        "*through Ray*: as from another machine. With as many nodes, what the others use, the "
        "samplers lack.\n\n"
    )
    parts = [text + table([*header, "no cluster, steps/s", "hosts / plain"], rows)]
    rows = []
    for row in results["compared"]:
        measured = [pair["hosts"] for pair in row["pairs"]]
        one = measured[0]
        rows.append(
            [
                *(row["kind"], row["case"], str(row["nodes"])),
                f"{1e3 * row['nodes'] / middle(measured, 'answers'):.0f}",
                f"{middle(measured, 'calls'):.2f}",
                f"{one['bytes'] / 1e6:.2f}",
                percent([each["receiving"] for each in measured]),
                percent([each["thread"] for each in measured]),
                *(
                    f"{middle(measured, 'cpus', part):.2f}"
                    for part in ("samplers", "driver", "ray")
                ),
                f"{middle(row['pairs'], 'plain', 'idle'):.2f}",
                *(
                    f"{us_a_step([pair[how] for pair in row['pairs']]):.1f}"
                    for how in ("plain", "hosts")
                ),
            ]
        )
    header = ["", "envs", "nodes", "ms each", "calls", "MB", "receiving, %", "thread, %"]
    header += ["CPUs: samplers", "learner", "Ray", "idle", "us a step, plain", "us a step, hosts"]
    parts.append(
        "## What it costs\n\nA rollout, or a message of actors: after how many *ms each* host sent "
        "one, how many *calls* it took, its size. Of the learner's time: *receiving*, as `stats()` "
        f"says (target: less than {RECEIVING:.0%}), and the CPU time of its thread, all of `take` "
        "included. How many CPUs the samplers, the learner's process and Ray's other processes "
        "used, and all of these while they stood by; the samplers' CPU time a step, without Ray "
        "and with it.\n\n" + table(header, rows)
    )
    rows = [
        [
            str(row["horizon"]),
            f"{2e3 / middle(row['pairs'], 'hosts', 'answers'):.0f}",
            f"{middle(row['pairs'], 'hosts', 'bytes') / 1e6:.2f}",
            f"{middle(row['pairs'], 'hosts', 'rate'):,.0f}",
            f"{middle(row['pairs'], 'plain', 'rate'):,.0f}",
            quartiles(ratios(row)),
        ]
        for row in results["lengths"]
    ]
    header = ["horizon", "ms each", "MB", "hosts, steps/s", "plain, steps/s", "hosts / plain"]
    parts.append(
        f"## The length of rollouts\n\n{CARTPOLE}, {CASES[CARTPOLE].envs} envs a host, two "
        "nodes.\n\n" + table(header, rows)
    )
    rows = [
        [
            *(str(row["nodes"]), str(row["in_flight"])),
            quartiles([run["rate"] for run in row["runs"]], 0),
            quartiles([run["updates"] for run in row["runs"]], 1),
            quartiles([run["lag"] for run in row["runs"]]),
            percent([run["publishing"] for run in row["runs"]]),
            percent([run["receiving"] for run in row["runs"]]),
        ]
        for row in results["learners"]
    ]
    header = ["nodes", "in flight", "steps/s", "updates/s", "lag, versions", "publishing, %"]
    parts.append(
        f"## With a learner\n\n{CHEETAH}: `take()` of all hosts, {1e3 * LEARNS:.0f} ms of learning "
        f"on another device, and the policy changed, of {4 * PARAMETERS / 1e6:.0f} MB.\n\n"
        + table([*header, "receiving, %"], rows)
    )
    return parts


def cost_tables(found: dict[str, Any]) -> list[str]:
    cpu = ["driver", "driver's raylet", "host", "host's raylet"]

    def row(name: str, one: dict[str, Any]) -> list[str]:
        return [name, f"{one['ms']:.2f}", *(f"{one['cpu'][part]:.2f}" for part in cpu)]

    rows = [row("a call that is waited for", found["synchronous"])]
    send = found["asynchronous"]["send"]
    rows.append(row(f"one of many calls (sending it: {send:.2f})", found["asynchronous"]))
    for name in ("result", "result, inline"):
        how = name.partition("result")[2]
        rows += [row(f"a result of {one['mb']:g} MB{how}", one) for one in found[name]]
    rows += [row(f"copying {one['mb']:g} MB", one) for one in found["copy"]]
    rows += [row(f"put, {one['mb']:g} MB", one) for one in found["put"]]
    for hosts, name in ((1, "fetch"), (2, "fetch of two")):
        label = f"weights of {{:g}} MB to {hosts} host{'s' * (hosts > 1)}"
        rows += [row(label.format(one["mb"]), one) for one in found[name]]
    parts = [
        "## What Ray costs\n\nms of the driver's time, a median, and of the CPU time of processes: "
        "results come from another node. Weights: beyond the call that they are an argument of; "
        "their CPU time holds two such calls and a put.\n\n"
        + table(["", "ms", *(f"CPU: {part}" for part in cpu)], rows)
    ]
    rows = [[str(one["refs"]), f"{1e3 * one['ms']:.0f}"] for one in found["wait"]]
    parts.append("`ray.wait` for answers that are there:\n\n" + table(["answers", "us"], rows))
    rows = [
        [str(one["hosts"]), *(f"{one[name]:.2f}" for name in ("take", "take, cpu", "next, cpu"))]
        for one in found["take"]
    ]
    parts.append(
        "`take()` of what is there, one tiny rollout of each host; the same with `next()`, one "
        "rollout a call. CPU time is of the driver's thread.\n\n"
        + table(["hosts", "take, ms", "take, CPU ms", "next for all, CPU ms"], rows)
    )
    rows = [
        [str(one["hosts"]), f"{one['mb']:g}", f"{one['same']:.2f}", f"{one['changed']:.2f}"]
        for one in found["publishing"]
    ]
    parts.append(
        "What `take` spends on looking at the policy, and on publishing it if it has changed:\n\n"
        + table(["hosts", "policy, MB", "unchanged, ms", "changed, ms"], rows)
    )
    parts.append(
        "A host that is killed has sent its next rollout after "
        f"{spread(found['restart'], 1)} s: median [least, most].\n"
    )
    return parts


def peer_tables(results: dict[str, Any]) -> list[str]:
    found = results["peers"]
    without = found["rates"]["without Ray"]
    rows = []
    for name, rates in found["rates"].items():
        if not rates:
            rows.append([name, found["troubles"][name], "-"])
            continue
        each = [ours / plain for ours, plain in zip(rates, without, strict=False)]
        rows.append([name, spread(rates, 0), spread(each)])
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    text = (
        f"## Beside others\n\n{CHEETAH}, {host_peers.HOSTS} one-CPU nodes with {host_peers.ENVS} "
        f"envs each, {host_peers.HORIZON} steps of each at once; a torch policy with two hidden "
        f"layers, {host_peers.WIDTH} wide, that draws actions. Each has a cluster of its own, and "
        "runs in turn with the others. *Without Ray*: two samplers of ours side by side. Median "
        f"[least, most]. {versions}.\n\n"
    )
    return [text + table(["", "steps/s", "of without Ray"], rows)]


def tables(results: dict[str, Any]) -> str:
    parts = [heading("Hosts on Ray", results["machine"])]
    parts.append(
        f"In {results['disturbed']:.0%} of the slices other programs used more than "
        f"{QUIET.limit:g} CPUs.\n"
    )
    parts += throughput_tables(results)
    parts += cost_tables(results["costs"])
    parts += peer_tables(results) if results["peers"] else []
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--rounds", type=int, default=3, help="of peers; 0 leaves them out")
    parser.add_argument(
        "--patience", type=float, default=1800, help="seconds to wait for other programs, in all"
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--quick", action="store_true", help="see that it works, measure nothing")
    parser.add_argument("--name", default="hosts", help="of the files of results")
    parser.add_argument("--out", type=Path, help="folder to write results to")
    options = parser.parse_args()
    if options.child:
        answer(functools.partial(child, *options.child))
        return
    n, seconds, rounds = options.repetitions, options.seconds, options.rounds
    kinds, horizons, nodes = COMPARED, HORIZONS, options.nodes
    if options.quick:
        n, seconds, rounds = 2, 0.5, min(1, rounds)
        kinds, horizons, nodes = [COMPARED[1], COMPARED[-1]], HORIZONS[1:2], nodes[:1]
    # Clusters and samplers end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    QUIET.patience = 0.0 if options.quick else options.patience
    results: dict[str, Any] = {"machine": machine(), "in_memory": True}
    names = ("ray", "gymnasium", "torch", "torchrl")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        results["versions"] = {name: importlib.metadata.version(name) for name in names}
    with stolen_share(results["machine"]):
        say("costs")
        results["costs"] = costs(seconds, quick=options.quick)
        say("compared")
        results["compared"] = compared(kinds, n, seconds, nodes)
        say("lengths")
        results["lengths"] = lengths(horizons, n, seconds)
        say("learners")
        results["learners"] = learners(n, seconds, nodes)
        say("peers")
        results["peers"] = peers(rounds, 2 * seconds) if rounds else {}
    results["disturbed"] = QUIET.disturbed / QUIET.slices
    text = tables(results)
    publish(options, options.name, results, text)


if __name__ == "__main__":
    main()
