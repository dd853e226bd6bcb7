"""The side channel from a worker: messages of any size, each about a group.

A worker never waits here while there is a command for it: what the parent has not read yet of one
group keeps no other group from its step. What finds no room is kept, and goes when there is nothing
else to do.

Each part of a message is a record of its own in the byte ring: group, the number of the command
that it answers, whether more follows, bytes. A message that answers no command in flight is
dropped: its answer was not wanted any more.

A large message lies in memory of its own, whose descriptor goes through the socket between the two
(``_core.send_parcel``) before the record that tells of it. Where that cannot be, it goes in parts.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from pysampler import _core
from pysampler.errors import LayoutError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Inbox", "Outbox"]

_HEAD = struct.Struct("<IIB")
# What follows: nothing, more parts, or the message itself in memory of its own.
_LAST, _MORE, _PARCEL = range(3)
# Of a part: a few of them fit the ring, so that one is read while the next is written.
_PART = 1 << 14
# How long a worker with nothing else to do waits for room before it looks for commands, seconds.
_SLICE = 0.001


class Outbox:
    """The worker's end: a byte ring, and the descriptor of a socket."""

    def __init__(self, ring: _core.ByteRing, socket: int) -> None:
        self._ring = ring
        self._socket = socket
        self._left: deque[bytes] = deque()

    def post(self, group: int, number: int, message: bytes) -> bool:
        """Send what there is room for; whether something is left for ``flush``.

        ``number``: of the command that the message answers.
        """
        last = _HEAD.pack(group, number, _LAST)
        if len(message) > _PART and _core.send_parcel(self._socket, last, message):
            self._left.append(_HEAD.pack(group, number, _PARCEL))
            return self._flush(0)
        for at in range(0, len(message) or 1, _PART):
            head = _HEAD.pack(group, number, _MORE) if at + _PART < len(message) else last
            self._left.append(head + message[at : at + _PART])
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

    ``socket`` returns the descriptor of the socket to the worker.

    Ctrl-C may come between any two lines, and nothing that was received is lost by that, nor
    counted twice: each step that is repeated makes the same of it.
    """

    def __init__(self, ring: _core.ByteRing, groups: range, socket: Callable[[], int]) -> None:
        self._ring = ring
        self._groups = groups
        self._socket = socket
        self._received: list[bytes] = []  # of no group yet
        self._parcels: list[bytes] = []  # no record has been received of
        self._parts: dict[int, list[bytes]] = {}  # of the newest message about a group

    def read(self, group: int, number: int, deadline: int | None = None) -> bytes | memoryview:
        """Return the message about a group that answers the command of this number.

        The deadline is in ns; WaitTimeoutError if the message has not come whole by then. The same
        message is returned again until there is a newer one about the group.
        """
        while not self._whole(group, number):
            if not self._received:
                self._ring.recv_into(self._received, deadline=deadline)
            part = self._received[0]
            about, answers, follows = _head(part)
            if about not in self._groups:
                raise LayoutError("cannot receive from worker: a message about no group of its own")
            if follows == _PARCEL:
                part = self._parcel(about, answers)
            parts = self._parts.get(about, [])
            if not parts or _head(parts[0])[1] != answers:
                self._parts[about] = [part]
            elif parts[-1] is not part:
                parts.append(part)
            del self._received[0]
            if follows == _PARCEL:  # those before it were given up
                self._parcels.clear()
        bodies = [memoryview(part)[_HEAD.size :] for part in self._parts[group]]
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def _parcel(self, about: int, answers: int) -> bytes:
        """Return the parcel that a record tells of. They come in the order of their records."""
        while True:
            for parcel in self._parcels:
                if _head(parcel) == (about, answers, _LAST):
                    return parcel
            _core.receive_parcel(self._socket(), self._parcels)

    def _whole(self, group: int, number: int) -> bool:
        parts = self._parts.get(group, [])
        if not parts:
            return False
        _, answers, follows = _head(parts[-1])
        return answers == number and follows == _LAST

    def drop(self, group: int) -> None:
        """Forget the message about a group, which has been read. Not needed, but for its memory."""
        self._parts.pop(group, None)


def _head(part: bytes) -> tuple[int, int, int]:
    """Return group, number, and what follows; of garbage, something."""
    about, number, follows = _HEAD.unpack_from(part[: _HEAD.size].ljust(_HEAD.size, b"\xff"))
    return about, number, follows
