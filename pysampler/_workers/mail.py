"""Mail: messages of any size from a worker to its parent, each about a group.

A worker never waits here while there is a command for it: an unread message about one group does
not keep other groups from stepping. Messages for which the ring is too full are kept, and sent when
there is nothing else to do.

A message is sent in parts. Each is a record in a byte ring: the group, the number of the command
that the message answers, whether more parts follow, and bytes. A message that answers no command in
flight is dropped.

A large message lies in memory of its own, a *parcel*, whose descriptor goes through the socket
between the two (``_core.send_parcel``) before a record that announces it. If that fails, the
message is sent in parts.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

from pysampler import _core
from pysampler.errors import LayoutError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = ["Inbox", "Outbox"]

_HEAD = struct.Struct("<IIB")
# What follows this part: nothing, more parts, or the whole message as a parcel.
_LAST, _MORE, _PARCEL = range(3)
# Bytes of a part. A few parts fit the ring, so that one is read while the next is written.
_PART_BYTES = 1 << 14
# How long an idle worker waits for space in the ring before it looks for commands, in seconds.
_FLUSH_SECONDS = 0.001


class Outbox:
    """The end of a worker: sends messages through a byte ring and a socket (its descriptor)."""

    def __init__(self, ring: _core.ByteRing, socket: int) -> None:
        self._ring = ring
        self._socket = socket
        self._unsent: deque[bytes] = deque()

    def post(self, group: int, number: int, message: bytes) -> bool:
        """Send a message that answers the command of this number, as far as the ring has space.

        Returns whether some of it is left for ``flush``.
        """
        last = _HEAD.pack(group, number, _LAST)
        if len(message) > _PART_BYTES and _core.send_parcel(self._socket, last, message):
            self._unsent.append(_HEAD.pack(group, number, _PARCEL))
            return self._flush(0)
        for at in range(0, len(message) or 1, _PART_BYTES):
            head = _HEAD.pack(group, number, _MORE) if at + _PART_BYTES < len(message) else last
            self._unsent.append(head + message[at : at + _PART_BYTES])
        return self._flush(0)

    def flush(self) -> bool:
        """Send more, waiting a little for space; return whether something is left."""
        return self._flush(_FLUSH_SECONDS)

    def _flush(self, timeout: float) -> bool:
        """Send parts until the ring is full for ``timeout`` seconds; return if any are left."""
        try:
            while self._unsent:
                self._ring.send(self._unsent[0], timeout)
                self._unsent.popleft()
        except WaitTimeoutError:  # a part is sent as a whole or not at all
            pass
        return bool(self._unsent)


class Inbox:
    """The end of the parent: receives messages in the order of posting, reads them by group.

    ``socket`` returns the descriptor of the socket to the worker.

    Ctrl-C may come between any two lines. Nothing that was received is lost by that or counted
    twice: each step may be repeated.
    """

    def __init__(self, ring: _core.ByteRing, groups: range, socket: Callable[[], int]) -> None:
        self._ring = ring
        self._groups = groups
        self._socket = socket
        self._received: list[bytes] = []  # parts that are not sorted by group yet
        self._parcels: list[Buffer] = []  # whose records have not been sorted
        self._parts: dict[int, list[Buffer]] = {}  # of the newest message about each group

    def read(self, group: int, number: int, deadline: int | None = None) -> bytes | memoryview:
        """Return the message about a group that answers the command of this number.

        Raises WaitTimeoutError if it has not come whole by the deadline (in ns). Returns the same
        message again until there is a newer one about the group, or ``drop``.
        """
        while not self._is_whole(group, number):
            if not self._received:
                self._ring.recv_into(self._received, deadline=deadline)
            part: Buffer = self._received[0]
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
            if follows == _PARCEL:  # those before it belong to answers that were given up
                self._parcels.clear()
        bodies = [memoryview(part)[_HEAD.size :] for part in self._parts[group]]
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def _parcel(self, about: int, answers: int) -> Buffer:
        """Return the parcel that a record announces. Parcels come in the order of their records."""
        while True:
            for parcel in self._parcels:
                if _head(parcel) == (about, answers, _LAST):
                    return parcel
            _core.receive_parcel(self._socket(), self._parcels)

    def _is_whole(self, group: int, number: int) -> bool:
        """Return whether the answer of a group to this command has come to its end."""
        parts = self._parts.get(group, [])
        if not parts:
            return False
        _, answers, follows = _head(parts[-1])
        return answers == number and follows == _LAST

    def drop(self, group: int) -> None:
        """Free the memory of the message about a group, which has been read."""
        self._parts.pop(group, None)


def _head(part: Buffer) -> tuple[int, int, int]:
    """Return group, number, and what follows; of a corrupt record, any numbers."""
    head = bytes(memoryview(part)[: _HEAD.size])
    about, number, follows = _HEAD.unpack(head.ljust(_HEAD.size, b"\xff"))
    return about, number, follows
