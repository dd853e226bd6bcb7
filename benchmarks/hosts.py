"""Samplers on hosts of a Ray cluster, beside the same samplers without Ray, and beside others'.

    python benchmarks/hosts.py --out benchmarks/results
    python benchmarks/hosts.py --quick --out build/bench-smoke

Hosts are nodes with one CPU, of a cluster on this machine. Contenders are the programs of
host_contenders.py; those that are compared work in turn, in slices of some seconds.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib.metadata
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, Self

import host_contenders as programs
import psutil
import running
from host_contenders import CARTPOLE, CASES, CHEETAH, IMAGE, IMAGE_BY_RAY, LEARNS, PARAMETERS, Case
from running import Contender, Options, columns, quartiles, ratios, say, spread, study, table

LIMIT = 300.0  # seconds: a cluster with many hosts takes its time to start
PROGRAM = Path(__file__).parent / "host_contenders.py"
NODES = [1, 2, 4]
WARM = 0.4  # seconds before a slice is counted
# Of which the throughput is compared: what samples, and envs.
COMPARED = [
    *(("Rollouts", CARTPOLE), ("Rollouts", CHEETAH)),
    *(("Rollouts", IMAGE), ("Rollouts", IMAGE_BY_RAY)),
    *(("Actors", CARTPOLE), ("Actors", CHEETAH)),
]
HORIZONS = [32, 128, 512, 2048]  # of CartPole, on two hosts
SIZES = [0.02, 0.08, 0.16, 0.5, 1.0, 8.0, 32.0]  # MB of a result
INLINE_SIZES = [0.08, 0.16, 0.5, 1.0, 4.0]
PUTS, FETCHES = [0.1, 1.0, 8.0, 32.0], [1.0, 8.0, 32.0]
REFS = [1, 10, 100, 1000]
FLEETS = [1, 2, 4, 8, 16, 32]
POLICIES = [0.1, 1.0, 10.0]  # MB
TARGET, RECEIVING = 0.95, 0.05


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

    def wait(self) -> None:
        """Wait until nearly no CPU is used."""
        while self.patience > 0:
            busy, began = running.busy_seconds(), time.monotonic()
            time.sleep(0.5)
            seconds = time.monotonic() - began
            if (running.busy_seconds() - busy) / seconds < 2 * self.limit:
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
        self._roots: list[psutil.Process] = []
        self._pool = concurrent.futures.ThreadPoolExecutor(len(arguments) + 1)
        make = functools.partial(Contender, PROGRAM, limit=LIMIT)
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
            others = running.busy_seconds() - sum(own.values()) - idled - time.process_time()
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


def plain_group(nodes: int, kind: str, case: Case) -> Group:
    return Group(*(("plain", index, kind, [*astuple(case)]) for index in range(nodes)))


def pairs(
    ours: Group, nodes: int, kind: str, case: Case, repetitions: int, seconds: float
) -> list[dict[str, Any]]:
    """Measure a sampler on hosts, and the same samplers without Ray before and after."""
    opened(ours, kind, case)
    with plain_group(nodes, kind, case) as without:
        rows, before = [], without.slice(seconds, ours)
        for _ in range(repetitions):
            measured = ours.slice(seconds)
            after = without.slice(seconds, ours)
            ratio = measured["rate"] / statistics.mean([before["rate"], after["rate"]])
            rows.append({"ratio": ratio, "hosts": measured, "plain": before})
            before = after
    ours.ask(do="close")
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
                measured = pairs(ours, nodes, kind, CASES[name], repetitions, seconds)
                row = {"kind": kind, "case": name, "nodes": nodes}
                rows.append({**row, "pairs": measured, "alone": alone[kind, name]})
                say(f"  {kind}, {name}, {nodes} nodes: {quartiles(ratios_of(rows[-1]))}")
    return rows


def opened(group: Group, kind: str, case: Case, **cell: Any) -> None:
    """Let a cluster open a sampler, and find its processes."""
    defaults = {"in_flight": 2, "learns": False}
    group.ask(do="open", kind=kind, case=astuple(case), **{**defaults, **cell})
    group.look()


def lengths(horizons: list[int], repetitions: int, seconds: float) -> list[dict[str, Any]]:
    """Measure the same for rollouts of different lengths, on two hosts."""
    rows = []
    with Group(("hosts", 2)) as ours:
        for horizon in horizons:
            case = Case(CARTPOLE, CASES[CARTPOLE].envs, horizon)
            measured = pairs(ours, 2, "Rollouts", case, repetitions, seconds)
            rows.append({"horizon": horizon, "pairs": measured})
            say(f"  horizon {horizon}: {quartiles(ratios_of(rows[-1]))}")
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

    def ask(what: str, **cell: Any) -> dict[str, Any]:
        QUIET.wait()
        result: dict[str, Any] = group.ask(do=what, **cell)[0]
        return result

    def each(what: str, name: str, values: list[Any], **cell: Any) -> list[dict[str, Any]]:
        say(f"  {what}")
        return [{name: one, **ask(what, seconds=seconds, **{name: one}, **cell)} for one in values]

    with Group(("costs",)) as group:
        found: dict[str, Any] = {
            "idle": ask("idle", seconds=2 * seconds),
            "synchronous": ask("synchronous", seconds=seconds),
            "asynchronous": ask("asynchronous", seconds=seconds),
            "result": each("result", "mb", SIZES, inline=False),
            "result, inline": each("result", "mb", INLINE_SIZES, inline=True),
            "copy": each("copy", "mb", [32.0]),
            "put": each("put", "mb", PUTS),
            "fetch": each("fetch", "mb", FETCHES, hosts=1),
            "fetch of two": each("fetch", "mb", FETCHES, hosts=2),
            "wait": each("wait", "refs", REFS),
        }
        say("  restart")
        found["restart"] = ask("restart", times=2 if quick else 7)["seconds"]
    fleets, times = (FLEETS[:3], 6) if quick else (FLEETS, 40)
    policies = [*((1, mb) for mb in POLICIES), (fleets[-1], POLICIES[0])]
    with Group(("takes",)) as group:
        say("  takes")
        found["take"] = [{"hosts": n, **ask("take", hosts=n, times=times)} for n in fleets]
        found["publishing"] = [
            {"hosts": n, "mb": mb, **ask("publishing", hosts=n, mb=mb, times=times)}
            for n, mb in policies
        ]
    return found


def peers(rounds: int, seconds: float) -> dict[str, Any]:
    """Measure samplers of others, each with a cluster of its own, in turn."""
    found: dict[str, Any] = {name: [] for name in ("without Ray", *programs.PEERS)}
    troubles: dict[str, str] = {}
    for _ in range(rounds):
        for name, rates in found.items():
            arguments: list[tuple[Any, ...]] = [("peer", name)]
            if name == "without Ray":
                arguments = [("alone", index) for index in range(programs.HOSTS)]
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


def ratios_of(row: dict[str, Any]) -> list[float]:
    return [pair["ratio"] for pair in row["pairs"]]


def middle(row: list[dict[str, Any]], *path: str) -> float:
    """Return the median of a number, which lies at the end of a path."""
    return statistics.median(functools.reduce(lambda d, name: d[name], path, one) for one in row)


def us_a_step(slices: list[dict[str, Any]]) -> float:
    """Return the CPU time of samplers, in us a step."""
    return statistics.median(1e6 * one["cpus"]["samplers"] / one["rate"] for one in slices)


def percent(values: list[float]) -> str:
    return quartiles([100 * value for value in values], 1)


def slices_of(row: dict[str, Any], name: str) -> list[float]:
    return [pair["hosts"][name] for pair in row["pairs"]]


def throughput_tables(results: dict[str, Any]) -> list[str]:
    what = {
        "": lambda row: row["kind"],
        "envs": lambda row: row["case"],
        "nodes": lambda row: row["nodes"],
    }
    rates = {
        "hosts, steps/s": lambda row: f"{middle(row['pairs'], 'hosts', 'rate'):,.0f}",
        "plain, steps/s": lambda row: f"{middle(row['pairs'], 'plain', 'rate'):,.0f}",
    }
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
    last = {
        "no cluster, steps/s": lambda row: f"{statistics.median(row['alone']):,.0f}",
        "hosts / plain": lambda row: f"**{quartiles(ratios_of(row))}**",
    }
    parts = [text + columns(results["compared"], {**what, **rates, **last})]

    def cpus(part: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: f"{middle(row['pairs'], 'hosts', 'cpus', part):.2f}"

    def us(how: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: f"{us_a_step([pair[how] for pair in row['pairs']]):.1f}"

    def ms_each(row: dict[str, Any]) -> str:
        return f"{1e3 * row.get('nodes', 2) / middle(row['pairs'], 'hosts', 'answers'):.0f}"

    costs_of = {
        "ms each": ms_each,
        "calls": lambda row: f"{middle(row['pairs'], 'hosts', 'calls'):.2f}",
        "MB": lambda row: f"{slices_of(row, 'bytes')[0] / 1e6:.2f}",
        "receiving, %": lambda row: percent(slices_of(row, "receiving")),
        "thread, %": lambda row: percent(slices_of(row, "thread")),
        "CPUs: samplers": cpus("samplers"),
        "learner": cpus("driver"),
        "Ray": cpus("ray"),
        "idle": lambda row: f"{middle(row['pairs'], 'plain', 'idle'):.2f}",
        "us a step, plain": us("plain"),
        "us a step, hosts": us("hosts"),
    }
    parts.append(
        "## What it costs\n\nA rollout, or a message of actors: after how many *ms each* host sent "
        "one, how many *calls* it took, its size. Of the learner's time: *receiving*, as `stats()` "
        f"says (target: less than {RECEIVING:.0%}), and the CPU time of its thread, all of `take` "
        "included. How many CPUs the samplers, the learner's process and Ray's other processes "
        "used, and all of these while they stood by; the samplers' CPU time a step, without Ray "
        "and with it.\n\n" + columns(results["compared"], {**what, **costs_of})
    )
    lengths_of = {
        "horizon": lambda row: row["horizon"],
        "ms each": ms_each,
        "MB": lambda row: f"{middle(row['pairs'], 'hosts', 'bytes') / 1e6:.2f}",
        **rates,
        "hosts / plain": lambda row: quartiles(ratios_of(row)),
    }
    parts.append(
        f"## The length of rollouts\n\n{CARTPOLE}, {CASES[CARTPOLE].envs} envs a host, two "
        "nodes.\n\n" + columns(results["lengths"], lengths_of)
    )

    def runs(name: str, show: Callable[[list[float]], str]) -> Callable[[dict[str, Any]], str]:
        return lambda row: show([run[name] for run in row["runs"]])

    learning = {
        "nodes": lambda row: row["nodes"],
        "in flight": lambda row: row["in_flight"],
        "steps/s": runs("rate", functools.partial(quartiles, digits=0)),
        "updates/s": runs("updates", functools.partial(quartiles, digits=1)),
        "lag, versions": runs("lag", quartiles),
        "publishing, %": runs("publishing", percent),
        "receiving, %": runs("receiving", percent),
    }
    parts.append(
        f"## With a learner\n\n{CHEETAH}: `take()` of all hosts, {1e3 * LEARNS:.0f} ms of learning "
        f"on another device, and the policy changed, of {4 * PARAMETERS / 1e6:.0f} MB.\n\n"
        + columns(results["learners"], learning)
    )
    return parts


def cost_tables(found: dict[str, Any]) -> list[str]:
    def of_each(name: str, label: str) -> list[tuple[str, dict[str, Any]]]:
        return [(label.format(one["mb"]), one) for one in found[name]]

    def number(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda one: f"{one[name]:.2f}"

    def cpu(part: str) -> Callable[[tuple[str, dict[str, Any]]], str]:
        return lambda row: f"{row[1]['cpu'][part]:.2f}"

    send = found["asynchronous"]["send"]
    rows = [
        ("a call that is waited for", found["synchronous"]),
        (f"one of many calls (sending it: {send:.2f})", found["asynchronous"]),
        *of_each("result", "a result of {:g} MB"),
        *of_each("result, inline", "a result of {:g} MB, inline"),
        *of_each("copy", "copying {:g} MB"),
        *of_each("put", "put, {:g} MB"),
        *of_each("fetch", "weights of {:g} MB to 1 host"),
        *of_each("fetch of two", "weights of {:g} MB to 2 hosts"),
    ]
    parts_of = ["driver", "driver's raylet", "host", "host's raylet"]
    calls = {
        "": lambda row: row[0],
        "ms": lambda row: f"{row[1]['ms']:.2f}",
        **{f"CPU: {part}": cpu(part) for part in parts_of},
    }
    parts = [
        "## What Ray costs\n\nms of the driver's time, a median, and of the CPU time of processes: "
        "results come from another node. Weights: beyond the call that they are an argument of; "
        "their CPU time holds two such calls and a put.\n\n" + columns(rows, calls)
    ]
    waits = {"answers": lambda one: one["refs"], "us": lambda one: f"{1e3 * one['ms']:.0f}"}
    there = columns(found["wait"], waits)
    parts.append("`ray.wait` for answers that are there:\n\n" + there)
    taking = {
        "hosts": lambda one: one["hosts"],
        "take, ms": number("take"),
        "take, CPU ms": number("take, cpu"),
        "next for all, CPU ms": number("next, cpu"),
    }
    parts.append(
        "`take()` of what is there, one tiny rollout of each host; the same with `next()`, one "
        "rollout a call. CPU time is of the driver's thread.\n\n" + columns(found["take"], taking)
    )
    publishing = {
        "hosts": lambda one: one["hosts"],
        "policy, MB": lambda one: f"{one['mb']:g}",
        "unchanged, ms": number("same"),
        "changed, ms": number("changed"),
    }
    parts.append(
        "What `take` spends on looking at the policy, and on publishing it if it has changed:\n\n"
        + columns(found["publishing"], publishing)
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
        rows.append([name, spread(rates, 0), spread(ratios(rates, without))])
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    text = (
        f"## Beside others\n\n{CHEETAH}, {programs.HOSTS} one-CPU nodes with {programs.ENVS} "
        f"envs each, {programs.HORIZON} steps of each at once; a torch policy with two hidden "
        f"layers, {programs.WIDTH} wide, that draws actions. Each has a cluster of its own, and "
        "runs in turn with the others. *Without Ray*: two samplers of ours side by side. Median "
        f"[least, most]. {versions}.\n\n"
    )
    return [text + table(["", "steps/s", "of without Ray"], rows)]


def report(results: dict[str, Any]) -> list[str]:
    quiet = (
        f"In {results['disturbed']:.0%} of the slices other programs used more than "
        f"{QUIET.limit:g} CPUs.\n"
    )
    parts = [quiet, *throughput_tables(results), *cost_tables(results["costs"])]
    return parts + (peer_tables(results) if results["peers"] else [])


def measure(options: Options) -> dict[str, Any]:
    n, seconds, nodes = options.repetitions, options.seconds, options.nodes
    kinds, horizons = COMPARED, HORIZONS
    if options.quick:
        kinds, horizons = [COMPARED[1], COMPARED[-1]], HORIZONS[1:2]
    QUIET.patience = options.patience
    results: dict[str, Any] = {"in_memory": True}
    names = ("ray", "gymnasium", "torch", "torchrl")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        results["versions"] = {name: importlib.metadata.version(name) for name in names}
    parts = {
        "costs": lambda: costs(seconds, quick=options.quick),
        "compared": lambda: compared(kinds, n, seconds, nodes),
        "lengths": lambda: lengths(horizons, n, seconds),
        "learners": lambda: learners(n, seconds, nodes),
        "peers": lambda: peers(options.rounds, 2 * seconds) if options.rounds else {},
    }
    for name, part in parts.items():
        say(name)
        results[name] = part()
    return results | {"disturbed": QUIET.disturbed / QUIET.slices}


if __name__ == "__main__":
    study(
        *("Hosts on Ray", measure, report),
        file="{name}",
        quick={"repetitions": 2, "seconds": 0.5, "rounds": 1, "patience": 0.0, "nodes": NODES[:1]},
        repetitions=9,
        seconds=2.5,
        rounds=3,
        patience=1800.0,
        nodes=NODES,
        name="hosts",
    )
