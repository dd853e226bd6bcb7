"""Mail: messages of any size from a worker to its parent, each about a group.

A worker with a pending command never waits here, so an unread message about one group does not keep
other groups from stepping. Messages that do not fit into the ring are kept, and sent when the
worker is idle.

A message is sent in parts. Each is a record in a byte ring: the group, the number of the command
that the message answers, whether more parts follow, and bytes. The parent drops messages that
answer no command in flight.

A large message is sent in separate memory, a *parcel*. The parcel's descriptor goes through the
socket between both processes (``_core.send_parcel``), followed by a record that announces it. If
that fails, the message is sent in parts.
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
# Kinds of parts: the last, one that others follow, or a record that announces a parcel.
_LAST, _MORE, _PARCEL = range(3)
# Bytes of a part. The ring holds several, so that one is read while the next is written.
_PART_BYTES = 1 << 14
# Seconds that an idle worker waits for space in the ring before it checks for commands.
_FLUSH_SECONDS = 0.001


class Outbox:
    """The worker's end: sends messages through a byte ring and a socket, given by descriptor."""

    def __init__(self, ring: _core.ByteRing, socket: int) -> None:
        self._ring = ring
        self._socket = socket
        self._unsent: deque[bytes] = deque()

    def post(self, group: int, number: int, message: bytes) -> bool:
        """Send a message that answers the command of this number, as far as the ring has space.

        Returns whether ``flush`` must send a rest.
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
        """Send more, waiting briefly for space; return whether parts are left."""
        return self._flush(_FLUSH_SECONDS)

    def _flush(self, timeout: float) -> bool:
        """Send parts until the ring is full for ``timeout`` seconds; return if any are left."""
        try:
            while self._unsent:
                self._ring.send(self._unsent[0], timeout)
                self._unsent.popleft()
        except WaitTimeoutError:  # a part is sent entirely or not at all
            pass
        return bool(self._unsent)


class Inbox:
    """The parent's end: receives messages in the order of posting, reads them by group.

    ``socket`` returns the descriptor of the socket to the worker.

    Ctrl-C may come between any two lines. Every step can be repeated, so that an interrupt neither
    loses received parts nor counts them twice.
    """

    def __init__(self, ring: _core.ByteRing, groups: range, socket: Callable[[], int]) -> None:
        self._ring = ring
        self._groups = groups
        self._socket = socket
        self._received: list[bytes] = []  # parts not yet sorted by group
        self._parcels: list[Buffer] = []  # parcels whose records are not yet sorted
        self._parts: dict[int, list[Buffer]] = {}  # of the newest message about each group

    def read(self, group: int, number: int, deadline: int | None = None) -> bytes | memoryview:
        """Return the message about a group that answers the command of this number.

        Raises WaitTimeoutError if it is incomplete at the deadline (in ns). Returns the same
        message again until a newer one about the group arrives, or ``drop`` is called.
        """
        while not self._is_whole(group, number):
            if not self._received:
                self._ring.recv_into(self._received, deadline=deadline)
            part: Buffer = self._received[0]
            about, answers, follows = _head(part)
            if about not in self._groups:
                raise LayoutError("cannot receive from worker: a message about a foreign group")
            if follows == _PARCEL:
                part = self._parcel(about, answers)
            parts = self._parts.get(about, [])
            if not parts or _head(parts[0])[1] != answers:
                self._parts[about] = [part]
            elif parts[-1] is not part:
                parts.append(part)
            del self._received[0]
            if follows == _PARCEL:  # earlier parcels belong to answers that were given up
                self._parcels.clear()
        bodies = [memoryview(part)[_HEAD.size :] for part in self._parts[group]]
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def _parcel(self, about: int, answers: int) -> Buffer:
        """Return the parcel that a record announces. Both come in the same order."""
        while True:
            for parcel in self._parcels:
                if _head(parcel) == (about, answers, _LAST):
                    return parcel
            _core.receive_parcel(self._socket(), self._parcels)

    def _is_whole(self, group: int, number: int) -> bool:
        """Return whether a group's answer to this command is complete."""
        parts = self._parts.get(group, [])
        if not parts:
            return False
        _, answers, follows = _head(parts[-1])
        return answers == number and follows == _LAST

    def drop(self, group: int) -> None:
        """Free the memory of the message about a group, once it is read."""
        self._parts.pop(group, None)


def _head(part: Buffer) -> tuple[int, int, int]:
    """Return a part's group, number and kind; arbitrary numbers if the record is corrupt."""
    head = bytes(memoryview(part)[: _HEAD.size])
    about, number, follows = _HEAD.unpack(head.ljust(_HEAD.size, b"\xff"))
    return about, number, follows
