"""The side channel from a worker: messages of any size, each about a group.

A worker never waits here while there is a command for it, and so never keeps a group from its step
because nobody has read yet what another group had to say. What finds no room is kept, and goes when
there is nothing else to do.

Each part of a message is a record of its own in the byte ring: group, the number of the command
that it answers, whether it is the last part, bytes. A message that answers no command in flight is
dropped: its answer was not wanted any more.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from pysampler.errors import LayoutError, WaitTimeoutError

if TYPE_CHECKING:
    from pysampler import _core

__all__ = ["Inbox", "Outbox"]

_HEAD = struct.Struct("<II?")
# Of a part: a few of them fit the ring, so that one is read while the next is written.
_PART = 1 << 14
# How long a worker with nothing else to do waits for room before it looks for commands, seconds.
_SLICE = 0.001


class Outbox:
    """The worker's end."""

    def __init__(self, ring: _core.ByteRing) -> None:
        self._ring = ring
        self._left: deque[bytes] = deque()

    def post(self, group: int, number: int, message: bytes) -> bool:
        """Send what there is room for; whether something is left for ``flush``.

        ``number``: of the command that the message answers.
        """
        for at in range(0, len(message) or 1, _PART):
            part = message[at : at + _PART]
            self._left.append(_HEAD.pack(group, number, at + _PART >= len(message)) + part)
        return self._flush(0)

    def flush(self) -> bool:
        """Send more, waiting a little for room; whether something is left."""
        return self._flush(_SLICE)

    def _flush(self, timeout: float) -> bool:
        try:
            while self._left:
                self._ring.send(self._left[0], timeout)
                self._left.popleft()
        except WaitTimeoutError:  # nothing of this part has gone: it fits the ring
            pass
        return bool(self._left)


class Inbox:
    """The parent's end: messages as they were posted, taken by group.

    Ctrl-C may come between any two lines, and nothing that was received is lost by that, nor
    counted twice: each step that is repeated makes the same of it.
    """

    def __init__(self, ring: _core.ByteRing, groups: range) -> None:
        self._ring = ring
        self._groups = groups
        self._received: list[bytes] = []  # of no group yet
        self._parts: dict[int, list[bytes]] = {}  # of the newest message about a group

    def read(self, group: int, number: int, deadline: int | None = None) -> bytes:
        """Return the message about a group that answers the command of this number.

        The deadline is in ns; WaitTimeoutError if the message has not come whole by then. The same
        message is returned again until there is a newer one about the group.
        """
        while not self._whole(group, number):
            if not self._received:
                self._ring.recv_into(self._received, deadline=deadline)
            part = self._received[0]
            about, answers, _ = _head(part)
            if about not in self._groups:
                raise LayoutError("cannot receive from worker: a message about no group of its own")
            parts = self._parts.get(about, [])
            if not parts or _head(parts[0])[1] != answers:
                self._parts[about] = [part]
            elif parts[-1] is not part:
                parts.append(part)
            del self._received[0]
        return b"".join(part[_HEAD.size :] for part in self._parts[group])

    def _whole(self, group: int, number: int) -> bool:
        parts = self._parts.get(group, [])
        if not parts:
            return False
        _, answers, last = _head(parts[-1])
        return answers == number and last

    def drop(self, group: int) -> None:
        """Forget the message about a group, which has been read. Not needed, but for its memory."""
        self._parts.pop(group, None)


def _head(part: bytes) -> tuple[int, int, bool]:
    """Return group, number, and whether it is the last part; of garbage, something."""
    about, number, last = _HEAD.unpack_from(part.ljust(_HEAD.size, b"\xff"))
    return about, number, last
