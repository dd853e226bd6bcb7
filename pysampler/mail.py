"""The side channel from a worker: messages of any size, each about a group.

A worker never waits here while there is a command for it, and so never keeps a group from its step
because nobody has read yet what another group had to say. What finds no room is kept, and goes when
there is nothing else to do.

Each part of a message is a record of its own in the byte ring: group, whether it is the last part,
bytes.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from pysampler.errors import LayoutError, WaitTimeoutError

if TYPE_CHECKING:
    from pysampler import _core

__all__ = ["Inbox", "Outbox"]

_HEAD = struct.Struct("<I?")
# Of a part: a few of them fit the ring, so that one is read while the next is written.
_PART = 1 << 14
# How long a worker with nothing else to do waits for room before it looks for commands, seconds.
_SLICE = 0.001


class Outbox:
    """The worker's end."""

    def __init__(self, ring: _core.ByteRing) -> None:
        self._ring = ring
        self._left: deque[bytes] = deque()

    def post(self, group: int, message: bytes) -> bool:
        """Send what there is room for; whether something is left for ``flush``."""
        for at in range(0, len(message) or 1, _PART):
            part = message[at : at + _PART]
            self._left.append(_HEAD.pack(group, at + _PART >= len(message)) + part)
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
        self._parts: dict[int, list[bytes]] = {}

    def read(self, group: int, deadline: int | None = None) -> bytes:
        """The message about a group, until it is dropped; WaitTimeoutError if it came not whole.

        The deadline is in ns.
        """
        while not self._whole(group):
            if not self._received:
                self._ring.recv_into(self._received, deadline=deadline)
            part = self._received[0]
            about, _ = _head(part)
            if about not in self._groups:
                raise LayoutError("cannot receive from worker: a message about no group of its own")
            parts = self._parts.setdefault(about, [])
            if not parts or parts[-1] is not part:
                parts.append(part)
            del self._received[0]
        return b"".join(part[_HEAD.size :] for part in self._parts[group])

    def _whole(self, group: int) -> bool:
        parts = self._parts.get(group, [])
        return bool(parts) and _head(parts[-1])[1]

    def drop(self, group: int) -> None:
        """Forget the message, if there was one."""
        self._parts.pop(group, None)


def _head(part: bytes) -> tuple[int, bool]:
    """Which group it is about, and whether it is the last; of garbage, something."""
    about, last = _HEAD.unpack_from(part.ljust(_HEAD.size, b"\xff"))
    return about, last
