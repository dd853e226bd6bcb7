"""Rounds of ``step()`` on more CPUs, simulated: with workers alone, or with the parent at work too.

A round sends, wakes the workers, waits for the slowest process, notices and reads. Processes are
never equally fast: each draws how slow it is, round by round. The costs are those measured on 2 and
on 16 CPUs (results/*-vector.md, results/*-vector-16-cpus.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROUNDS = 4000


@dataclass(frozen=True)
class Costs:
    """What a round costs beside the steps of envs, in us; each pair is fixed, and a worker's.

    Attributes:
        send: To write actions and commands.
        wake: From there until the last worker begins.
        notice: Until a parent that sleeps runs again.
        read: To return the results.
        spread: The standard deviation of how slow a process is in a round, as a share: with 0.074
            the slower of two takes 1.04 times as long as both on average.
    """

    send: tuple[float, float] = (3.0, 0.5)
    wake: tuple[float, float] = (6.0, 0.7)
    notice: tuple[float, float] = (4.0, 0.7)
    read: float = 12.0
    spread: float = 0.074


def simulated(envs: int, workers: int, own: int, step: float, costs: Costs | None = None) -> float:
    """Return the mean duration of a step of all envs, in us.

    Args:
        envs: The number of envs.
        workers: The number of workers.
        own: How many envs the parent steps itself. If it steps none, it sleeps.
        step: What a step of an env takes, in us.
        costs: What else takes time.
    """
    costs = costs or Costs()

    def cost(pair: tuple[float, float]) -> float:
        return pair[0] + pair[1] * workers

    random = np.random.default_rng(1)
    shares = np.array([len(part) for part in np.array_split(np.arange(envs - own), workers)])
    slow = 1 + costs.spread * random.standard_normal((ROUNDS, workers + 1))
    theirs = cost(costs.wake) + (slow[:, 1:] * shares * step).max(1)
    if own == 0:
        rounds = theirs + cost(costs.notice)
    else:
        rounds = np.maximum(slow[:, 0] * own * step, theirs)
    return float(cost(costs.send) + rounds.mean() + costs.read)


def gain(envs: int, cpus: int, step: float) -> tuple[float, int]:
    """Return how much faster a step is if the parent steps the best number of envs, and that.

    Compared are a worker for each CPU, and one less.
    """
    usual = simulated(envs, min(cpus, envs), 0, step)
    workers = min(cpus - 1, envs - 1)
    even = envs // (workers + 1)
    near = range(max(1, even // 2), min(envs - workers, 2 * even + 2) + 1)
    took, own = min((simulated(envs, workers, own, step), own) for own in near)
    return usual / took, own
