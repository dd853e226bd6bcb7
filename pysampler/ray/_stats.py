"""What samplers on Ray report."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HostStats", "Stats"]


@dataclass(frozen=True)
class HostStats:
    """What the driver knows of a host.

    Attributes:
        host: Its index.
        pid: Its process id, on its node.
        node: The address and the beginning of the id of its node.
        serves: Whether it samples. Otherwise it starts, or is gone.
        gone: Whether it will not come back.
        restarts: How many times it was started again.
        taken: How many of its answers were taken: rollouts, or messages with records.
    """

    host: int
    pid: int
    node: str
    serves: bool
    gone: bool
    restarts: int
    taken: int


@dataclass(frozen=True)
class Stats:
    """What the hosts and the learner have done so far.

    Attributes:
        hosts: The hosts, by index.
        taken: How many rollouts or records were taken.
        dropped: How many were dropped because they were too old.
        lost: How many times a host was lost.
        version: The newest version of the policy.
        lag: How many versions old what was taken last was, on average.
        calls: How many calls were made to hosts.
        bytes_received: The size of all answers.
        bytes_published: The size of all versions of the policy, each counted once.
        waiting: Seconds that the learner waited for hosts.
        receiving: Seconds that the learner received what they had sent, without waiting.
        publishing: Seconds that the learner published the policy.
    """

    hosts: tuple[HostStats, ...]
    taken: int
    dropped: int
    lost: int
    version: int
    lag: float
    calls: int
    bytes_received: int
    bytes_published: int
    waiting: float
    receiving: float
    publishing: float
