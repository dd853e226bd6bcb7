"""Counters of samplers on Ray."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HostStats", "Stats"]


@dataclass(frozen=True)
class HostStats:
    """The state and the counters of a host.

    Attributes:
        host: The index of the host.
        pid: Its process id on its node.
        node: Its node: the address and the beginning of the id.
        serves: Whether it is sampling. If not, it is starting or gone.
        gone: Whether it has ended and will not be restarted.
        restarts: The number of its restarts.
        taken: The number of its answers that you took: rollouts, or messages with records.
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
    """Counters of the hosts and the learner so far.

    Attributes:
        hosts: The hosts, by index.
        taken: The number of rollouts or records taken.
        dropped: The number of rollouts or records dropped because they were too old.
        lost: The number of host losses.
        version: The newest version of the policy.
        lag: The mean age, in versions, of the rollouts or records taken last.
        calls: The number of calls made to hosts.
        bytes_received: The total size of the hosts' answers.
        bytes_published: The total size of all versions of the policy, each counted once.
        waiting: Seconds that the learner waited for hosts.
        receiving: Seconds that the learner spent receiving answers, without waiting.
        publishing: Seconds that the learner spent publishing the policy.
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
