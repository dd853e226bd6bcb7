"""What the driver knows of a host, and of the calls on their way to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pysampler.ray._host import Answer, Description

__all__ = ["Call", "Host"]


@dataclass
class Call:
    """A call on its way.

    Attributes:
        ref: Its answer to be.
        sent_at: When it was sent, in ns.
        number: How many calls had been sent to the host before.
        answer: The answer, once it was received.
        overdue_at: When it was first seen that the answer is late, in ns.
        read: How much of the answer has been read, for samplers that read a part.
    """

    ref: Any
    sent_at: int
    number: int
    answer: Answer | None = None
    overdue_at: int | None = None
    read: int = 0


@dataclass
class Host:
    """What the driver knows of a host.

    Attributes:
        index: Its index.
        place: What the placement calls its place.
        actor: The Ray actor.
        generation: How many samplers it had made before the one that it has, or makes.
        pid: Its process id.
        node: The address and the beginning of the id of its node.
        description: What is known of its sampler.
        serves: Whether it has a sampler.
        gone: Whether it will not come back.
        ended: Whether its sampler has ended, and is called no more.
        starting: What it is asked while it starts: whether its process runs, then to begin.
        begins: Whether that is to begin.
        call_again_at: When to ask again whether its process runs, in ns.
        calls: The calls on their way, the oldest first.
        answered_at: When the last answer was seen, in ns.
        taken_at: How many answers had been taken of all hosts when one was taken of this.
        loading: The last control call with a version of the policy.
        loaded: The version that it carries.
        losses: When it was lost, in ns.
        started_at: When it was asked to make its sampler, in ns.
        sent: How many calls were sent to it.
        served: How many of its answers were taken.
    """

    index: int
    place: Any
    actor: Any
    generation: int = 0
    pid: int = 0
    node: str = ""
    description: Description | None = None
    serves: bool = False
    gone: bool = False
    ended: bool = False
    starting: Any = None
    begins: bool = False
    call_again_at: int = 0
    calls: deque[Call] = field(default_factory=deque)
    answered_at: int = 0
    taken_at: int = 0
    loading: Any = None
    loaded: int = 0
    losses: deque[int] = field(default_factory=deque)
    started_at: int = 0
    sent: int = 0
    served: int = 0

    def __str__(self) -> str:
        where = f" (pid {self.pid} on node {self.node})" if self.pid else ""
        return f"host {self.index}{where}"
