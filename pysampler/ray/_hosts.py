"""Host and Call: the driver's state of a host and of its pending calls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler.ray._host import Answer, Description
    from pysampler.sync import Segment

__all__ = ["Call", "Host"]


@dataclass
class Call:
    """A pending call.

    Attributes:
        ref: The reference to its future answer.
        sent_at: When it was sent, in ns.
        number: The number of calls sent to the host before.
        answer: The answer, once it was received.
        overdue_at: When the answer was first noticed to be late, in ns.
        read: How much of the answer has been read, for samplers that read it in parts.
    """

    ref: Any
    sent_at: int
    number: int
    answer: Answer | None = None
    overdue_at: int | None = None
    read: int = 0


@dataclass
class Host:
    """The driver's state of a host, whose process is a new Ray actor after each loss.

    Attributes:
        index: The index of the host.
        place: The key of its place, for the placement.
        actor: The Ray actor.
        generation: The number of its earlier processes.
        pid: Its process id.
        node: The address and the beginning of the id of its node.
        description: The description of its sampler.
        serves: Whether it has a sampler.
        gone: Whether it has ended and will not be restarted.
        ended: Whether its sampler has ended, so that it is not called any more.
        starting: The pending call while it starts: ``ready``, then ``begin``.
        begins: Whether that call is ``begin``.
        calls: The pending calls, the oldest first.
        answered_at: When the last answer was received, in ns.
        taken_at: The number of answers taken from all hosts when one was last taken from this host.
        loading: The last control call with a version of the policy.
        loaded: The version of the policy in that call.
        losses: The times of its last losses, in ns.
        lost: The number of its losses.
        errors: Errors to raise. Those that have been raised have a traceback.
        started_at: When ``begin`` was called, in ns.
        sent: The number of calls sent to it.
        served: The number of its answers that were taken.
        memory: The segment of its frames, if this process could map it.
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
    calls: deque[Call] = field(default_factory=deque)
    answered_at: int = 0
    taken_at: int = 0
    loading: Any = None
    loaded: int = 0
    losses: Sequence[int] = ()
    lost: int = 0
    errors: Sequence[Exception] = ()
    started_at: int = 0
    sent: int = 0
    served: int = 0
    memory: Segment | None = None

    @property
    def answer(self) -> Answer:
        """The answer to the oldest call, which was received."""
        answer = self.calls[0].answer
        assert answer is not None
        return answer

    def __str__(self) -> str:
        return f"host {self.index}" + f" (pid {self.pid} on node {self.node})" * bool(self.pid)

    def become(self, **values: Any) -> None:
        """Set attributes in one call, so that no signal handler runs between two of them."""
        before = {**vars(self)}  # dropped after the call: that may run Python code
        vars(self).update(values)
        del before
