"""A learner and hosts, simulated: what hosts.py has measured, put together.

Hosts sample, results travel to the learner, the learner takes them, learns and publishes. What each
of these costs is a number that was measured for itself; none is fitted to what is predicted.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

# Up to which size results come with the answer, and not through the stores of two nodes: by Ray's
# own setting, and by that of pysampler.ray.
INLINE_LIMITS = {False: 0.1, True: 4 * 2**20 / 1e6}  # MB
RAYLET_THREADS = 2  # that copy objects on the learner's node; Ray uses a quarter of its CPUs
TEN_GBIT = 1250.0  # MB/s


# -- a simulation of events ------------------------------------------------------------------------


class Simulation:
    """Runs processes: generators that yield what they wait for.

    A process yields seconds to sleep; or a ``Shared`` or a ``Line`` and the seconds of work that it
    has for that; or a list, of those that wait for a ``wake``.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), call))

    def start(self, process: Generator[Any, None, None]) -> None:
        self.at(self.now, functools.partial(self._resume, process))

    def _resume(self, process: Generator[Any, None, None]) -> None:
        try:
            awaited = next(process)
        except StopIteration:
            return
        resume = functools.partial(self._resume, process)
        if isinstance(awaited, list):
            awaited.append(resume)
        elif isinstance(awaited, tuple):
            shared, work = awaited
            shared.add(work, resume)
        else:
            self.at(self.now + awaited, resume)

    def wake(self, waiting: list[Callable[[], None]]) -> None:
        for resume in waiting:
            self.at(self.now, resume)
        waiting.clear()

    def run(self, done: Callable[[], bool]) -> None:
        while self._events and not done():
            self.now, _, call = heapq.heappop(self._events)
            call()


class Shared:
    """CPUs that jobs share equally; a job uses one at most."""

    def __init__(self, simulation: Simulation, cpus: float) -> None:
        self._simulation = simulation
        self._cpus = cpus
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._done = 0.0  # how much work each job could have done until now
        self._since = 0.0
        self._plan = 0

    def add(self, work: float, resume: Callable[[], None]) -> None:
        self._go_on()
        heapq.heappush(self._jobs, (self._done + work, next(self._order), resume))
        self._look_ahead()

    def _rate(self) -> float:
        return min(1.0, self._cpus / len(self._jobs)) if self._jobs else 0.0

    def _go_on(self) -> None:
        self._done += (self._simulation.now - self._since) * self._rate()
        self._since = self._simulation.now

    def _look_ahead(self) -> None:
        self._plan += 1
        if self._jobs:
            seconds = max(0.0, self._jobs[0][0] - self._done) / self._rate()
            call = functools.partial(self._finish, self._plan)
            self._simulation.at(self._simulation.now + seconds, call)

    def _finish(self, plan: int) -> None:
        if plan != self._plan:  # another job has come or gone since
            return
        self._go_on()
        _, _, resume = heapq.heappop(self._jobs)
        self._look_ahead()
        resume()


class Line:
    """A link, or threads, that serve jobs in the order in which they come."""

    def __init__(self, simulation: Simulation, servers: int = 1) -> None:
        self._simulation = simulation
        self._free_at = [0.0] * servers
        self.worked = 0.0

    def add(self, work: float, resume: Callable[[], None]) -> None:
        end = max(heapq.heappop(self._free_at), self._simulation.now) + work
        heapq.heappush(self._free_at, end)
        self.worked += work
        self._simulation.at(end, resume)


# -- what things cost ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultCost:
    """CPU seconds that one result costs, beside its sampling and the learner's ``take``."""

    host: float
    host_raylet: float
    driver_raylet: float
    driver_threads: float  # of Ray's, in the learner's process
    thread: float  # the learner's own, beyond what a tiny result costs


class Costs:
    """What was measured, as functions of sizes in MB; all in seconds."""

    def __init__(self, measured: dict[str, Any]) -> None:
        self._measured = measured
        rows, values = [], []
        for row in measured["take"]:
            n = row["hosts"]
            rows += [(1, n, n), (n, n * n, n)]
            values += [row["take, cpu"] / 1e3, row["next, cpu"] / 1e3]
        weights = 1 / np.array(values)  # relative errors count
        found = np.linalg.lstsq(np.array(rows) * weights[:, None], np.ones(len(rows)), rcond=None)
        # A take: for itself, for each host that there is, for each rollout that is taken.
        self.take, self.look, self.rollout = (max(0.0, float(one)) for one in found[0])
        self.send = min(measured["asynchronous"]["send"] / 1e3, self.rollout)
        self.copy = measured["copy"][0]["ms"] / measured["copy"][0]["mb"] / 1e3
        self.restart = statistics.median(measured["restart"])
        # What take spends on the policy: a line in MB where it is as it was, and where it is not.
        alone = [row for row in measured["publishing"] if row["hosts"] == 1]
        sizes = [row["mb"] for row in alone]
        self.same = np.polyfit(sizes, [row["same"] / 1e3 for row in alone], 1)
        self.changed = np.polyfit(sizes, [row["changed"] / 1e3 for row in alone], 1)
        few, many = alone[0], measured["publishing"][-1]
        per_host = (many["changed"] - few["changed"]) / (many["hosts"] - few["hosts"]) / 1e3
        self.announce = max(0.0, per_host)
        call = measured["synchronous"]["cpu"]
        fetch = measured["fetch"]
        size = [row["mb"] for row in fetch]
        self._fetch = {
            name: np.polyfit(size, [max(0, row["cpu"][name]) / 1e3 for row in fetch], 1)
            for name in ("driver's raylet", "host's raylet")
        }
        self.call_on_host = call["host"] / 1e3
        self.call_in_driver = max(0.0, call["driver"] - call["driver's thread"]) / 1e3

    def publish(self, mb: float, *, changed: bool) -> float:
        line = self.changed if changed else self.same
        return max(0.0, float(np.polyval(line, mb)))

    def fetch(self, mb: float, where: str) -> float:
        """Return what weights that a host fetches cost the raylet of the driver or the host."""
        return (
            max(0.0, float(np.polyval(self._fetch[where], mb))) if mb > INLINE_LIMITS[False] else 0
        )

    def result(self, mb: float, *, inline: bool) -> ResultCost:
        """Return the costs of a result; between sizes that were measured, on straight lines."""
        rows = self._measured["result"]
        by_answer = mb <= INLINE_LIMITS[inline]
        if inline and by_answer:
            rows = self._measured["result, inline"]
        else:
            rows = [row for row in rows if (row["mb"] <= INLINE_LIMITS[False]) == by_answer]

        def at(name: str) -> float:
            sizes, values = [row["mb"] for row in rows], [row["cpu"][name] for row in rows]
            if mb > sizes[-1] and len(sizes) > 1:
                slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
                return (values[-1] + slope * (mb - sizes[-1])) / 1e3
            return float(np.interp(mb, sizes, values)) / 1e3

        tiny = self._measured["result"][0]["cpu"]["driver's thread"] / 1e3
        return ResultCost(
            host=at("host"),
            host_raylet=0.0 if by_answer else at("host's raylet"),
            driver_raylet=0.0 if by_answer else at("driver's raylet"),
            driver_threads=max(0.0, at("driver") - at("driver's thread")),
            thread=max(0.0, at("driver's thread") - tiny),
        )


# -- hosts and a learner ---------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What is simulated.

    Attributes:
        hosts: How many there are.
        steps: The number of steps in a rollout of a host.
        seconds: How long a host takes for it, on CPUs of its own.
        variation: The standard deviation of that, as a share of it.
        mb: Its size.
        in_flight: How many rollouts a host may have under way or ready.
        min_hosts: How many the learner waits for; None for all.
        learns: How many seconds it learns after each take, on another device; None for a learner
            that only takes, and never publishes.
        policy_mb: The size of the policy.
        cpus: How many CPUs the learner, the hosts and Ray share: if there are more than hosts, each
            host has one and the others are the learner's. None if each host has CPUs of its own,
            the learner's thread has one, and so has each thread of Ray's on its node.
        link: What the learner's link carries in a second, in MB.
        losses: How often a host is lost, in a second.
        inline: Whether results of up to 4 MB come with the answer, as they do by default.
        in_memory: Whether the learner reads rollouts in the hosts' memory, as on one machine.
        length: How many rollouts of each host are simulated.
    """

    hosts: int
    steps: int
    seconds: float
    mb: float
    variation: float = 0.1
    in_flight: int = 2
    min_hosts: int | None = None
    learns: float | None = None
    policy_mb: float = 0.0
    cpus: int | None = None
    link: float = TEN_GBIT
    losses: float = 0.0
    inline: bool = True
    in_memory: bool = False
    length: int = 24


@dataclass
class SimulatedHost:
    """A host, as the learner and Ray know it."""

    cpus: Shared | None
    pending: int = 0
    requests: deque[int] = field(default_factory=deque)  # versions of the policy
    results: deque[int] = field(default_factory=deque)  # likewise; the oldest may be on the way
    sent: int = 0  # of the results
    arrived: int = 0
    weights: int = 1
    serves: bool = True
    generation: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What happened.

    Attributes:
        rate: Steps a second that the learner received.
        share: How much that is of what the hosts make where nothing holds them up.
        takes: How often it took, a second.
        lag: How many versions old rollouts were, on average.
        busy: Which share of the time what was busy, by name.
    """

    rate: float
    share: float
    takes: float
    lag: float
    busy: dict[str, float]

    @property
    def limit(self) -> str:
        """What limits the rate: what is busiest, unless the hosts do nearly what they can."""
        return "the hosts" if self.share > 0.9 else max(self.busy, key=lambda one: self.busy[one])


class Model:
    """A learner and hosts in a world."""

    def __init__(self, costs: Costs, world: World, seed: int = 0) -> None:
        self._costs, self._world = costs, world
        self._random = np.random.default_rng(seed)
        self._simulation = simulation = Simulation()
        shared = None
        nodes: list[Shared | None] = [None] * world.hosts
        if world.cpus is not None and world.hosts < world.cpus:
            shared = Shared(simulation, world.cpus - world.hosts)
            nodes = [Shared(simulation, 1) for _ in nodes]
        elif world.cpus is not None:
            shared = Shared(simulation, world.cpus)
            nodes = [shared] * world.hosts
        self._cpus = shared
        self._link, self._own_threads = Line(simulation), Line(simulation)
        self._own_raylet = Line(simulation, RAYLET_THREADS)
        self._threads = shared or self._own_threads
        self._raylet = shared or self._own_raylet
        self._hosts = [SimulatedHost(cpus=node) for node in nodes]
        sent = 0.0 if world.in_memory else world.mb
        self._cost = costs.result(sent, inline=world.inline)
        self._through_stores = sent > INLINE_LIMITS[world.inline]
        self._arrival: list[Callable[[], None]] = []
        self._asks = False  # the learner waits for results
        self._ready = self._needed = 0  # how many hosts' results are there, and must be
        self._version = 1
        self._worked = {"thread": 0.0, "learning": 0.0}
        self._received = 0  # rollouts
        self._taken: list[tuple[float, int, float]] = []  # when, how many rollouts, their lag

    def run(self) -> Outcome:
        world = self._world
        least = max(300, world.length * world.hosts)
        first, began, before = 0, 0.0, self._busy()

        def done() -> bool:
            """Return whether enough was received; mark where the first quarter of it was."""
            nonlocal first, began, before
            if not first and self._received >= least / 4:
                first, began, before = len(self._taken), self._simulation.now, self._busy()
            return self._received >= least

        self._simulation.start(self._learner())
        for host in self._hosts:
            self._simulation.start(self._host(host))
        self._simulation.run(done)
        after, seconds = self._busy(), self._simulation.now - began
        taken = self._taken[first:]
        rollouts = sum(one[1] for one in taken)
        lag = sum(one[1] * one[2] for one in taken) / rollouts
        busy = {name: (after[name] - before[name]) / seconds for name in after}
        rate = world.steps * rollouts / seconds
        cpus = min(world.hosts, world.cpus or world.hosts)
        share = rate * world.seconds / (cpus * world.steps)
        return Outcome(rate, share, len(taken) / seconds, lag, busy)

    def _busy(self) -> dict[str, float]:
        found = {
            "learner's thread": self._worked["thread"],
            "learning": self._worked["learning"],
            "link": self._link.worked,
        }
        if self._cpus is None:
            found["Ray's thread"] = self._own_threads.worked
            found["Ray's copying"] = self._own_raylet.worked / RAYLET_THREADS
        return found

    # -- processes

    def _main(self, seconds: float) -> Any:
        """Return what to yield for work of the learner's thread."""
        self._worked["thread"] += seconds
        return seconds if self._cpus is None else (self._cpus, seconds)

    def _learner(self) -> Generator[Any, None, None]:
        costs, world = self._costs, self._world
        each = costs.rollout - costs.send + self._cost.thread + costs.copy * world.mb
        while True:
            changed = world.learns is not None
            yield self._main(costs.publish(world.policy_mb, changed=changed))
            if changed:
                self._version += 1
                for host in self._hosts:
                    if host.serves:
                        if world.in_flight > 1:
                            yield self._main(costs.announce)
                        self._simulation.start(self._weights(host, host.generation, self._version))
            while True:
                for host in self._hosts:
                    while host.serves and host.pending < world.in_flight:
                        yield self._main(costs.send)
                        host.pending += 1
                        host.requests.append(self._version)
                        self._simulation.wake(host.waiting)
                serving = sum(host.serves for host in self._hosts)
                ready = [host for host in self._hosts if host.arrived]
                needed = serving if world.min_hosts is None else min(world.min_hosts, serving)
                if ready and len(ready) >= needed:
                    break
                self._asks = True
                self._ready, self._needed = len(ready), needed
                for host in self._hosts:
                    self._send(host)
                yield self._arrival
            self._asks = False
            yield self._main(costs.take + costs.look * serving + each * len(ready))
            ready = [host for host in ready if host.arrived]
            lags = [self._version - host.results.popleft() for host in ready]
            for host in ready:
                host.pending -= 1
                host.sent -= 1
                host.arrived -= 1
            if ready:
                mean = float(np.mean(lags)) if changed else 0.0
                self._received += len(ready)
                self._taken.append((self._simulation.now, len(ready), mean))
            if world.learns:
                self._worked["learning"] += world.learns
                yield world.learns

    def _host(self, host: SimulatedHost) -> Generator[Any, None, None]:
        world, cost = self._world, self._cost
        spread = np.sqrt(np.log1p(world.variation**2))
        while True:
            while not host.requests or host.weights < host.requests[0]:
                yield host.waiting
            version = host.weights
            factor = self._random.lognormal(-(spread**2) / 2, spread)
            seconds = world.seconds * factor + cost.host
            if world.losses and (until := self._random.exponential(1 / world.losses)) < seconds:
                yield until
                yield from self._lose(host)
                continue
            yield seconds if host.cpus is None else (host.cpus, seconds)
            host.requests.popleft()
            host.results.append(version)
            self._send(host)

    def _lose(self, host: SimulatedHost) -> Generator[Any, None, None]:
        host.generation += 1
        host.serves = False
        host.pending = host.sent = host.arrived = 0
        host.requests.clear()
        host.results.clear()
        self._simulation.wake(self._arrival)
        yield self._costs.restart
        host.weights, host.serves = self._version, True
        self._simulation.wake(self._arrival)

    def _send(self, host: SimulatedHost) -> None:
        """Let results travel: from a store the oldest, while the learner asks for it."""
        most = len(host.results)
        if self._through_stores:
            most = min(most, int(self._asks))
        while host.sent < most:
            host.sent += 1
            self._simulation.start(self._travel(host, host.generation))

    def _travel(self, host: SimulatedHost, generation: int) -> Generator[Any, None, None]:
        cost = self._cost
        if self._through_stores:
            yield cost.host_raylet if host.cpus is None else (host.cpus, cost.host_raylet)
        if self._cpus is None:
            yield self._link, self._world.mb / self._world.link
        if self._through_stores:
            yield self._raylet, cost.driver_raylet
        yield self._threads, cost.driver_threads
        if host.generation == generation:
            host.arrived += 1
            self._ready += host.arrived == 1
            if self._ready >= self._needed:
                self._simulation.wake(self._arrival)

    def _weights(
        self, host: SimulatedHost, generation: int, version: int
    ) -> Generator[Any, None, None]:
        costs, mb = self._costs, self._world.policy_mb
        yield self._raylet, costs.fetch(mb, "driver's raylet")
        if self._cpus is None:
            yield self._link, mb / self._world.link
        seconds = costs.fetch(mb, "host's raylet") + costs.call_on_host
        yield seconds if host.cpus is None else (host.cpus, seconds)
        if host.generation == generation:
            host.weights = max(host.weights, version)
            self._simulation.wake(host.waiting)


@functools.cache
def simulated(costs: Costs, world: World) -> Outcome:
    return Model(costs, world).run()
