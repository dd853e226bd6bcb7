"""Traces as Perfetto reads them: a file of TracePackets, in the encoding of protocol buffers.

Whole arrays of slices are encoded at once: numbers take as many bytes as the largest may need, so
that all events of an array have the same length. That is a valid encoding of a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from pysampler._cli.trace_file import TraceFile

__all__ = ["PerfettoWriter"]

# Numbers of fields (perfetto/trace/trace_packet.proto and what it includes).
_PACKET = 1  # of Trace
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DEFAULTS, _TRACK = 8, 10, 11, 12, 13, 59, 60
_CLOCK, _EVENT_DEFAULTS = 58, 11  # of TracePacketDefaults
_TYPE, _NAME, _TRACK_UUID, _FLOW, _VALUE = 9, 10, 11, 47, 44  # of TrackEvent
_BEGIN, _END, _COUNTER = 1, 2, 4  # its types
_MONOTONIC = 3  # the clock of now()
_CLEARED, _NEEDED = 1, 2  # flags: the names of a sequence begin anew, or are needed
_ROWS = 1000  # events that are written together
_IDS = 1 << 23  # names of one kind; 32 kinds make numbers of four groups of seven bits


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _field(number: int, value: int | str | bytes) -> bytes:
    """Return a field: a number, or text, or a message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _padded(values: npt.NDArray[Any], size: int) -> npt.NDArray[np.uint8]:
    """Return rows of bytes, each a number in ``size`` groups of seven bits."""
    shifted = values.astype(np.uint64)[:, None] >> (np.arange(size, dtype=np.uint64) * np.uint64(7))
    found = (shifted & np.uint64(0x7F)).astype(np.uint8)
    found[:, :-1] |= 0x80
    return found


class PerfettoWriter:
    """Writes tracks of slices and of numbers.

    Args:
        file: Where it is written to.
        name_of: Returns the name of a slice of a kind and an id.

    Attributes:
        quick: Whether slices are written as quickly as they come.
        slice_bytes: How many bytes a slice takes in the file, about.
    """

    quick = True
    slice_bytes = 50

    def __init__(self, file: TraceFile, name_of: Callable[[int, int], str]) -> None:
        self._file = file
        self._name_of = name_of
        self._known: dict[int, set[int]] = {}  # names of each track

    def process(self, number: int, pid: int, name: str) -> None:
        """Add a process, which has tracks."""
        process = _field(1, pid) + _field(6, name)
        # Its tracks are shown in the order of their ranks.
        self._packet(_field(_TRACK, _field(1, number) + _field(3, process) + _field(11, 3)))

    def track(self, number: int, name: str, process: int) -> None:
        """Add a track of slices."""
        self._add_track(number, name, process, b"")

    def counter(
        self,
        number: int,
        name: str,
        process: int,
        at: npt.NDArray[np.int64],
        values: npt.NDArray[np.float64],
    ) -> None:
        """Add a track of numbers, each from a time on."""
        self._add_track(number, name, process, _field(8, b""))
        rows = self._events(number, at, _COUNTER)
        number_tag = np.frombuffer(_varint(_VALUE << 3 | 1), np.uint8)
        bits = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(-1, 8)
        self._write_events(rows, [np.broadcast_to(number_tag, (len(at), len(number_tag))), bits])

    def slices(
        self,
        number: int,
        slices: npt.NDArray[Any],
        flows: npt.NDArray[np.uint64] | None = None,
        phases: Iterable[str] | None = None,  # noqa: ARG002
    ) -> None:
        """Add slices to a track, of which none overlaps another in part.

        Args:
            number: The track.
            slices: As ``SLICE``.
            flows: [slices, n] numbers of arrows that come from or go to a slice; 0 is none.
            phases: Not used: which end of an arrow a slice is, its viewer sees by the times.
        """
        counts = np.zeros(len(slices), int) if flows is None else (flows != 0).sum(axis=1)
        for count in np.unique(counts):
            chosen = counts == count
            own = np.empty((int(chosen.sum()), 0), np.uint64)
            if flows is not None:
                own = -np.sort(-flows[chosen].astype(np.int64), axis=1)[:, :count].astype(np.uint64)
            self._add_slices(number, slices[chosen], own)

    def _add_slices(
        self, number: int, slices: npt.NDArray[Any], flows: npt.NDArray[np.uint64]
    ) -> None:
        names = slices["kind"].astype(np.int64) * _IDS + np.minimum(slices["id"], _IDS - 1)
        self._add_names(number, names)
        ends = np.maximum(slices["end"], slices["begin"] + 1)
        at = np.concatenate([slices["begin"], ends])
        is_begin = np.arange(len(at)) < len(slices)
        # What ends comes before what begins then; of what begins together, the longest first.
        order = np.lexsort([np.concatenate([-ends, -slices["begin"]]), is_begin, at])
        rows = self._events(number, at[order], np.where(is_begin, _BEGIN, _END)[order])
        tag = np.array([_NAME << 3], np.uint8)
        parts = [np.broadcast_to(tag, (len(at), 1)), _padded(np.tile(names, 2)[order], 4)]
        if flows.shape[1]:
            # Events of the same length: an end has the arrows of its beginning, which are the same.
            tags = np.frombuffer(_varint(_FLOW << 3 | 1), np.uint8)
            for column in flows.T:
                parts.append(np.broadcast_to(tags, (len(at), len(tags))))
                bits = np.tile(column, 2)[order].astype("<u8")
                parts.append(bits.view(np.uint8).reshape(-1, 8))
        self._write_events(rows, parts)

    def _events(self, number: int, at: npt.NDArray[Any], kind: Any) -> list[npt.NDArray[np.uint8]]:
        """Return the parts of rows up to the type of the event; ``at`` are its times."""
        head = b"".join([_varint(_SEQUENCE << 3), _varint(number), _field(_FLAGS, _NEEDED)])
        kinds = np.broadcast_to(np.asarray(kind, np.uint8), len(at))[:, None]
        return [
            np.full((len(at), 1), _TIMESTAMP << 3, np.uint8),
            _padded(at, 9),
            np.broadcast_to(np.frombuffer(head, np.uint8), (len(at), len(head))),
            np.concatenate([np.full((len(at), 1), _TYPE << 3, np.uint8), kinds], axis=1),
        ]

    def _write_events(
        self, rows: list[npt.NDArray[np.uint8]], more: list[npt.NDArray[np.uint8]]
    ) -> None:
        """Write packets of events: ``rows``, of which the last part is the event's, and more."""
        count = len(rows[0])
        event = np.concatenate([rows[-1], *more], axis=1)
        packet = np.concatenate([*rows[:-1], _tagged(_EVENT, event.shape[1], count), event], axis=1)
        whole = np.concatenate([_tagged(_PACKET, packet.shape[1], count), packet], axis=1)
        for at in range(0, count, _ROWS):
            self._file.write(whole[at : at + _ROWS].tobytes())

    def _add_names(self, number: int, names: npt.NDArray[np.int64]) -> None:
        known = self._known[number]
        new = [name for name in np.unique(names).tolist() if name not in known]
        known.update(new)
        interned = b"".join(
            _field(2, _field(1, name) + _field(2, self._name_of(name // _IDS, name % _IDS)))
            for name in new
        )
        if interned:
            self._packet(_field(_INTERNED, interned), number, _NEEDED)

    def _add_track(self, number: int, name: str, process: int, more: bytes) -> None:
        about = _field(1, number) + _field(5, process) + _field(2, name) + _field(12, number)
        self._packet(_field(_TRACK, about + more))
        defaults = _field(_CLOCK, _MONOTONIC)
        defaults += _field(_EVENT_DEFAULTS, _field(_TRACK_UUID, number))
        self._packet(_field(_DEFAULTS, defaults), number, _CLEARED)
        self._known[number] = set()

    def _packet(self, content: bytes, sequence: int = 1, flags: int = 0) -> None:
        head = _field(_SEQUENCE, sequence) + (_field(_FLAGS, flags) if flags else b"")
        self._file.write(_field(_PACKET, head + content))


def _tagged(field: int, length: int, count: int) -> npt.NDArray[np.uint8]:
    """Return ``count`` rows with the tag and length of a message."""
    head = np.frombuffer(_varint(field << 3 | 2) + _varint(length), np.uint8)
    return np.broadcast_to(head, (count, len(head)))
