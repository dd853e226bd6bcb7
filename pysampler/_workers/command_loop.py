"""The loop of a worker, whether it is a process or a thread: it runs commands on its env server.

The part that steps the blocks is in C++ (``_core.Worker``); jobs and notes run here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pysampler import _core
from pysampler._workers.counters import Counters
from pysampler._workers.gauges import Gauges
from pysampler._workers.jobs import Close, Failure, LayOut, Leave, Note, failure_of
from pysampler._workers.setup import wait_policy

if TYPE_CHECKING:
    from pysampler._workers.jobs import Server
    from pysampler._workers.setup import Attachment, Layout
    from pysampler.sync import Segment

__all__ = ["CommandLoop", "Link"]


class Link(Protocol):
    """How messages travel between the parent and a worker."""

    def receive(self) -> bytes:
        """Return the message of the command that came."""

    def unpacked(self, message: bytes) -> Any:
        """Return the job or note in a message."""

    def receive_layout(self) -> tuple[Layout, Segment]:
        """Return the next layout and its segment."""

    def post(self, group: int, number: int, answer: Any, doing: str) -> bool:
        """Send an answer; return whether ``flush`` must send a rest."""

    def flush(self) -> bool:
        """Send more of what is left; return whether something is still unsent."""


class CommandLoop:
    """An attached worker: runs commands, and sends answers.

    Args:
        index: The number of the worker.
        attachment: Where its shared objects are.
        segment: The segment that has them.
        server: Its env server.
        link: Its link to the parent, through which a first layout comes.
    """

    def __init__(
        self, index: int, attachment: Attachment, segment: Segment, server: Server, link: Link
    ) -> None:
        at = attachment
        size, gauges_size = Counters.size_of(*at.counted), Gauges.size_of(at.counted[1])
        counted = segment.array((size,), np.dtype(np.uint8), at.counters)[1]
        meter = Counters(*at.counted, counted).meter(index)
        meter.trace_to(_core.Track(segment, at.trace, index))
        gauges = segment.array((gauges_size,), np.dtype(np.uint8), at.gauges)[1]
        server.count_with(meter, Gauges(at.counted[1], gauges).of(index), at.first)
        self.server = server
        self._link = link
        self._layout = 0  # number of the newest layout
        self._lay_out(1)
        meter.idle()
        self._failed_note: Failure | None = None
        self._first_group = sum(at.groups[:index])
        self.core = _core.Worker(
            segment, at.pool, at.groups, index, meter, wait_policy(at.policy), at.inline_groups
        )

    def _lay_out(self, number: int) -> None:
        """Attach the env server to this layout, unless the worker began with it or a later one."""
        layout = None
        while self._layout < number:  # the parent gave up earlier layouts
            layout, segment = self._link.receive_layout()
            self._layout = layout.number
        if layout is not None:
            layout.attach.attach(self.server, segment)

    def run(self) -> None:
        """Serve the parent's commands until it sends ``Close`` or ``Leave``."""
        while True:
            kind, group, frame, number = self.core.serve(
                self.server.blocks, self._report, self._link.flush
            )
            message = self._link.receive()
            block = group - self._first_group
            request: Any = "reading a request"
            answer: Any = None
            try:
                request = self._link.unpacked(message)
                match request:
                    case Note():
                        request.apply(self.server)
                    case Close():
                        self.server.close()
                    case LayOut():
                        self._lay_out(request.number)
                    case _:
                        answer = request.run(self.server, block, frame)
            except BaseException as error:
                answer = failure_of(error, request)
            if isinstance(request, Leave):
                return
            if kind == _core.Command.NOTE:
                # Notes have no answer: the next answer reports a note's failure.
                self._failed_note = self._failed_note or answer
                self.core.set_overflow(self._failed_note is not None)
                continue
            answer, self._failed_note = self._failed_note or answer, None
            doing = request if isinstance(request, str) else request.doing
            # Before the completion: that wakes the parent, which must find the message.
            unsent = self._link.post(group, number, answer, doing)
            self.core.complete(group, message=True)
            if isinstance(request, Close):
                while unsent:
                    unsent = self._link.flush()
                return

    def _report(self, group: int, number: int) -> bool:
        """Send a group's overflow after a step; return whether some is still unsent."""
        overflow: Any = self.server.take_overflow(group - self._first_group)
        if self._failed_note is not None:
            overflow, self._failed_note = self._failed_note, None
        return self._link.post(group, number, overflow, "stepping")
