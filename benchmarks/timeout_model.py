"""A sampler that waits for its workers up to a time-out, simulated from costs measured one by one.

Workers are processes that share CPUs with the parent. The parent waits as ``MultiTaskSampler``
does: for ``min_workers`` of them, or until the time-out for those that have answered, at least one.
It then calls the policy once for these and sends them on. No cost is fitted to what is predicted.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

BLOCK = 50  # rounds that a worker takes from one measured trace before it changes to another


# -- a simulation of events ------------------------------------------------------------------------


class Simulation:
    """Runs processes: generators that yield what they wait for.

    A process yields seconds to sleep; or what its work is added to, with the seconds of work;
    or a list, of those that wait for a ``wake``.
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


# -- what things cost ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """What was measured, in seconds.

    Attributes:
        traces: For each measured worker, how long its rounds took, in order from a reset, with as
            many workers at work as there are CPUs.
        policy: Pairs: a number of rows, and what a call of the policy for them costs.
        call: What the parent spends around a call of the policy, whatever its batch.
        receive: What the parent spends on the answer of one worker.
        send: What it spends to send one worker on.
        hop: How long it takes from a wake until the woken process runs on a free CPU.
        slice: How long a process runs while others wait for its CPU.
        on_cpu: Whether the policy needs a CPU, as it does not on a GPU.
    """

    traces: Sequence[Sequence[float]]
    policy: Sequence[tuple[float, float]]
    call: float = 0.0
    receive: float = 0.0
    send: float = 0.0
    hop: float = 0.0
    slice: float = 4e-3
    on_cpu: bool = True

    def policy_seconds(self, rows: int) -> float:
        """Return the cost of a call: straight lines between what was measured, and beyond it."""
        sizes = [size for size, _ in self.policy]
        seconds = [cost for _, cost in self.policy]
        if rows > sizes[-1] and len(sizes) > 1:
            slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
            return max(seconds[-1], seconds[-1] + slope * (rows - sizes[-1]))
        return float(np.interp(rows, sizes, seconds))

    @property
    def round(self) -> float:
        """The mean time of a worker's round."""
        return statistics.fmean(itertools.chain.from_iterable(self.traces))


# -- CPUs ------------------------------------------------------------------------------------------


class Cpus:
    """CPUs that threads share in slices of time, as a fair kernel does.

    A free CPU takes the waiting thread that has used least. A thread keeps its CPU until it sleeps,
    or until it has had it for a slice while another thread waits.
    """

    def __init__(self, simulation: Simulation, count: int, slice_: float) -> None:
        self._simulation = simulation
        self._count = count
        self._slice = slice_
        self._running: dict[Thread, float] = {}  # since when; the longest first
        self._waiting: list[tuple[float, int, Thread]] = []
        self._order = itertools.count()
        self._finishing: Thread | None = None  # keeps its CPU if it has more work at once
        self._slice_is_awaited = False  # the end of the longest one

    def enter(self, thread: Thread) -> None:
        """Run a thread that has work; one that has slept may have to wait for a CPU."""
        if thread is self._finishing:
            self._finishing = None
            self._run(thread)
            return
        # What it used before it slept counts for a slice at most.
        used = [one.used_at(self._simulation.now) for one in itertools.islice(self._running, 1)]
        used += [self._waiting[0][0]] if self._waiting else []
        if used:
            thread.used = min(max(thread.used, min(used)), min(used) + self._slice)
        self._queue(thread)
        self._share_out()

    def _queue(self, thread: Thread) -> None:
        heapq.heappush(self._waiting, (thread.used, next(self._order), thread))

    def _run(self, thread: Thread) -> None:
        thread.since = self._simulation.now
        thread.turn += 1
        call = functools.partial(self._finish, thread, thread.turn)
        self._simulation.at(thread.since + thread.left, call)

    def _share_out(self) -> None:
        now = self._simulation.now
        while self._waiting and len(self._running) < self._count:
            _, _, thread = heapq.heappop(self._waiting)
            self._running[thread] = now
            self._run(thread)
        if self._waiting and not self._slice_is_awaited:
            self._slice_is_awaited = True
            longest = next(iter(self._running.values()))
            self._simulation.at(max(now, longest + self._slice), self._end_slice)

    def _finish(self, thread: Thread, turn: int) -> None:
        if thread.turn != turn:  # it has lost its CPU since
            return
        thread.stop(self._simulation.now)
        assert thread.resume is not None
        self._finishing = thread
        thread.resume()
        if self._finishing is thread:  # it sleeps
            self._finishing = None
            del self._running[thread]
            self._share_out()

    def _end_slice(self) -> None:
        self._slice_is_awaited = False
        if self._waiting and self._running:
            thread, began = next(iter(self._running.items()))
            # A slice may seem shorter by what rounding takes.
            if self._simulation.now - began >= self._slice * (1 - 1e-9):
                del self._running[thread]
                thread.stop(self._simulation.now)
                self._queue(thread)
        self._share_out()


class Thread:
    """A thread on some CPUs; a process yields it with the seconds of work that it has for it."""

    def __init__(self, cpus: Cpus) -> None:
        self._cpus = cpus
        self.used = 0.0
        self.left = 0.0
        self.since = 0.0  # it runs, if it does
        self.turn = 0
        self.resume: Callable[[], None] | None = None

    def add(self, work: float, resume: Callable[[], None]) -> None:
        self.left, self.resume = work, resume
        self._cpus.enter(self)

    def used_at(self, now: float) -> float:
        return self.used + now - self.since

    def stop(self, now: float) -> None:
        self.used += now - self.since
        self.left -= now - self.since
        self.turn += 1


# -- a sampler -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """What is simulated.

    Attributes:
        workers: How many there are.
        envs: How many envs each has.
        cpus: How many CPUs the workers and the parent share.
        length: How many steps each env makes.
        min_workers: Go on once this many have answered; None for all.
        timeout: Go on after this many seconds; None for never.
        after_first: Whether the time-out begins with the first answer, as in the article's sampler,
            and not with the wait.
    """

    workers: int
    envs: int
    cpus: int
    length: int
    min_workers: int | None = None
    timeout: float | None = None
    after_first: bool = False


@dataclass(frozen=True)
class Outcome:
    """What happened.

    Attributes:
        rate: Env steps a second.
        batch: The mean share of all envs that the policy was called for.
    """

    rate: float
    batch: float


class Model:
    """A parent and workers in a world."""

    def __init__(self, costs: Costs, world: World, seed: int = 0) -> None:
        self._costs, self._world = costs, world
        self._simulation = Simulation()
        cpus = Cpus(self._simulation, world.cpus, costs.slice)
        self._parent_thread = Thread(cpus)
        self._threads = [Thread(cpus) for _ in range(world.workers)]
        random = np.random.default_rng(seed)
        self._rounds = [self._draw(random) for _ in range(world.workers)]
        self._made = [0] * world.workers  # rounds
        self._pending = 0
        self._answered: list[int] = []
        self._needed = 0  # answers for which the parent sleeps; 0 while it does not
        self._sleeping: list[Callable[[], None]] = []
        self._waits = 0
        self._batches: list[int] = []
        self._ended = False

    def _draw(self, random: np.random.Generator) -> list[float]:
        """Return how long the rounds of one worker take.

        They come from measured traces, in blocks: what makes a worker slow for a while stays.
        """
        traces = self._costs.traces
        rounds: list[float] = []
        while len(rounds) < self._world.length:
            trace = traces[int(random.integers(len(traces)))]
            begin = len(rounds) % len(trace)
            rounds += trace[begin : begin + BLOCK]
        return rounds

    def run(self) -> Outcome:
        world = self._world
        self._simulation.start(self._parent())
        self._simulation.run(lambda: self._ended)
        steps = world.workers * world.envs * world.length
        batch = statistics.fmean(self._batches) / world.workers
        return Outcome(steps / self._simulation.now, batch)

    # -- processes

    def _parent(self) -> Generator[Any, None, None]:
        costs, world, main = self._costs, self._world, self._parent_thread
        ready = list(range(world.workers))
        while True:
            unfinished = [worker for worker in ready if self._made[worker] < world.length]
            if unfinished:
                self._batches.append(len(unfinished))
                seconds = costs.policy_seconds(len(unfinished) * world.envs)
                if costs.on_cpu:
                    yield main, costs.call + seconds
                else:
                    yield main, costs.call
                    yield seconds
                for worker in unfinished:
                    yield main, costs.send
                    self._pending += 1
                    self._simulation.start(self._worker(worker))
            if not self._pending and not self._answered:
                self._ended = True
                return
            yield from self._wait()
            yield main, costs.receive  # of the first; by then others may have answered
            ready, self._answered = self._answered, []
            yield main, costs.receive * (len(ready) - 1)

    def _worker(self, worker: int) -> Generator[Any, None, None]:
        yield self._costs.hop
        yield self._threads[worker], self._rounds[worker][self._made[worker]]
        self._made[worker] += 1
        self._pending -= 1
        self._answered.append(worker)
        world = self._world
        if len(self._answered) == 1 and world.after_first and world.timeout is not None:
            self._set_timer(world.timeout)
        self._wake_parent()

    def _wait(self) -> Generator[Any, None, None]:
        """Wait as ``MultiTaskSampler`` does."""
        world = self._world
        self._waits += 1
        self._needed = min(world.min_workers or world.workers, self._pending + len(self._answered))
        if world.timeout is not None and (self._answered or not world.after_first):
            self._set_timer(world.timeout)
        if len(self._answered) < self._needed:
            yield self._sleeping
            yield self._costs.hop
        self._needed = 0

    def _set_timer(self, seconds: float) -> None:
        if seconds <= 0:
            self._time_out(self._waits)
        else:
            call = functools.partial(self._time_out, self._waits)
            self._simulation.at(self._simulation.now + seconds, call)

    def _time_out(self, wait: int) -> None:
        """End the parent's wait, or let it end with the first answer."""
        if wait == self._waits and self._needed:
            self._needed = 1
            self._wake_parent()

    def _wake_parent(self) -> None:
        if self._needed and len(self._answered) >= self._needed:
            self._simulation.wake(self._sleeping)


def simulated(costs: Costs, world: World, seeds: int = 3) -> Outcome:
    """Return the means over some seeds."""
    outcomes = [Model(costs, world, seed).run() for seed in range(seeds)]
    return Outcome(
        statistics.fmean(one.rate for one in outcomes),
        statistics.fmean(one.batch for one in outcomes),
    )


# -- the best of some ways to wait -----------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A way to wait, and its rate as a multiple of that of waiting for all."""

    min_workers: int
    timeout: float | None
    gain: float


def choices(
    costs: Costs, world: World, timeouts: Sequence[float | None], seeds: int = 1
) -> list[Choice]:
    """Simulate waiting for parts of the workers, with and without time-outs; the best first."""
    count = world.workers
    some = sorted({max(1, count * quarters // 4) for quarters in (0, 1, 2, 3, 4)})
    # With one worker no time-out can end the wait earlier.
    ways = [(k, timeout) for k in some for timeout in (timeouts if k > 1 else [None])]
    rates = {
        way: simulated(costs, replace(world, min_workers=way[0], timeout=way[1]), seeds).rate
        for way in {*ways, (count, None)}
    }
    found = [Choice(*way, rates[way] / rates[count, None]) for way in ways]
    # Of those that are equally good, the one that waits for most, and longest.
    return sorted(
        found,
        key=lambda one: (
            -round(one.gain, 3),
            -one.min_workers,
            -math.inf if one.timeout is None else -one.timeout,
        ),
    )
