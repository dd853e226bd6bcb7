"""A loop of recv, policy and send over worker processes, simulated.

Workers step groups of envs in the order in which they were sent. The parent waits until enough envs
are ready or a time-out is over, pays for the policy, and sends them on. A rule is either fixed or
chosen by a ``BatchTuner``, which is the code that ``recv(min_envs="auto")`` runs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from pysampler._vector.tuner import WaitRule

DRAWS = 1 << 14  # step times that are drawn at a time


@dataclass(frozen=True)
class Loop:
    """What is simulated; all times are in seconds.

    Attributes:
        workers: The number of worker processes.
        envs: The number of envs, each a group of its own.
        steps: "constant", "exponential", "straggler" (exponential, the first env is ten times
            slower) or "resets" (one step of a hundred takes fifty times as long).
        step: The mean time of a usual step.
        policy: What a call of the policy costs.
        policy_row: What each row adds to it.
        batch: What recv and send cost, whatever the batch.
        row: What each row adds to that.
        hop: How long it takes from a wake until the woken process runs.
        cpus: How many CPUs the workers and the parent share; None for enough.
        isolated: Whether the first env has a worker of its own, and the others share the rest.
    """

    workers: int
    envs: int
    steps: str
    step: float = 100e-6
    policy: float = 0.0
    policy_row: float = 0.0
    batch: float = 40e-6
    row: float = 0.5e-6
    hop: float = 20e-6
    cpus: int | None = None
    isolated: bool = False

    def worker_of(self, env: int) -> int:
        """Return the worker that steps an env."""
        if not self.isolated:
            return env * self.workers // self.envs
        return 0 if env == 0 else 1 + (env - 1) * (self.workers - 1) // (self.envs - 1)

    def draw(self, random: np.random.Generator) -> list[float]:
        """Return step times; env i takes those at i, i + envs, i + 2 * envs and so on."""
        count = DRAWS // self.envs * self.envs
        if self.steps == "constant":
            times = np.full(count, self.step)
        elif self.steps == "resets":
            times = np.where(random.random(count) < 0.01, 50 * self.step, self.step)
        else:
            times = random.exponential(self.step, count)
            if self.steps == "straggler":
                times[:: self.envs] *= 10
        drawn: list[float] = times.tolist()
        return drawn


class Waiter(Protocol):
    """Says how the parent waits, as a ``BatchTuner`` does."""

    rule: WaitRule

    def called(self) -> int:
        """Take note that the parent begins to wait."""

    def received(self, count: int) -> None:
        """Take note of a batch."""


@dataclass
class Fixed:
    """Always uses the same rule."""

    rule: WaitRule

    def called(self) -> int:
        """Ignore a wait."""
        return 0

    def received(self, count: int) -> None:
        """Ignore a batch."""


def simulated(
    loop: Loop,
    make_waiter: Callable[[Callable[[], int]], Waiter],
    length: int,
    *,
    warm_up: int = 0,
    seed: int = 0,
) -> float:
    """Return the env steps a second of a loop.

    Args:
        loop: What is simulated.
        make_waiter: Returns what says how the parent waits, given a clock in ns.
        length: How many env steps are counted.
        warm_up: How many are made before that.
        seed: Of the step times.
    """
    random = np.random.default_rng(seed)
    envs = loop.envs
    times = loop.draw(random)
    made = [0] * envs
    worker_of = [loop.worker_of(env) for env in range(envs)]
    free = [0.0] * loop.workers  # when each worker has done all that it was sent
    missing = 0 if loop.cpus is None else max(0, loop.workers + 1 - loop.cpus)
    share = missing / loop.workers  # of the parent's work, which delays each worker
    taken = 0.0  # of the time that each worker could have worked
    seen = [0.0] * loop.workers
    under_way: list[tuple[float, int]] = []
    now = 0.0
    waiter = make_waiter(lambda: int(now * 1e9))
    ready = list(range(envs))
    steps, begun = -warm_up - envs, 0.0
    while steps < length:
        for env in ready:
            worker = worker_of[env]
            start = free[worker]
            delay = taken - seen[worker]
            seen[worker] = taken
            if start <= now:  # it sleeps, and the parent took nothing from it
                start, delay = now + loop.hop, 0.0
            index = made[env] * envs + env
            if index >= len(times):
                times = loop.draw(random)
                made = [0] * envs
                index = env
            made[env] += 1
            free[worker] = done = start + times[index] + delay
            heapq.heappush(under_way, (done, env))
        # Wait.
        waiter.called()
        min_envs, timeout = waiter.rule
        deadline = None if timeout is None else now + timeout
        needed = min(min_envs, len(under_way))
        ready = []
        slept = False
        while len(ready) < needed:
            done, env = under_way[0]
            if done > now:
                slept = True
                if ready and deadline is not None and done > deadline:
                    now = max(now, deadline)
                    break
                now = done
            ready.append(env)
            heapq.heappop(under_way)
        if slept:
            now += loop.hop
        while under_way and under_way[0][0] <= now:
            ready.append(heapq.heappop(under_way)[1])
        # Act.
        count = len(ready)
        receiving = loop.batch / 2
        now += receiving
        waiter.received(count)
        acting = loop.batch / 2 + loop.policy + (loop.row + loop.policy_row) * count
        now += acting
        taken += (receiving + acting) * share
        if steps < 0 <= steps + count:
            begun = now
            steps = 0
        else:
            steps += count
    return steps / (now - begun)
