"""Ring, SharedRing and ByteRing: queues of fixed-size records, and of messages of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._common.numbers import fitting_array, is_masked
from pysampler.errors import WaitTimeoutError
from pysampler.sync._segment import Handle, plain_dtype, whole_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler.sync._segment import Segment


class _Records:
    """Methods of ``Ring`` and ``SharedRing``, on top of ``push_many`` and ``pop_many`` in C++."""

    _record: tuple[np.dtype[Any], tuple[int, ...]]

    def push(
        self, record: npt.ArrayLike, *, timeout: float | None = None, deadline: int | None = None
    ) -> None:
        """Push one record; wait while the ring is full.

        Args:
            record: A record of the ring's dtype and shape, or an object that NumPy converts to one.
            timeout: Seconds to wait for a free slot; None: forever.
            deadline: When to stop waiting, in ns of ``now()``, instead of a timeout.

        Raises:
            WaitTimeoutError: The ring stayed full.
            LostError: The consumer is known to be dead, and the ring is full.
            ValueError: The record has another shape, or a value that the dtype cannot hold.
        """
        if self.push_many([record], timeout=timeout, deadline=deadline) == 0:  # type: ignore[arg-type]
            raise WaitTimeoutError("cannot push to ring: it stayed full")

    def push_many(
        self, records: npt.ArrayLike, *, timeout: float | None = None, deadline: int | None = None
    ) -> int:
        """Push records in order; wait while the ring is full.

        Args:
            records: An array of records of the ring's dtype and shape, or an object that NumPy
                converts to one.
            timeout: Seconds to wait for free slots; None: forever.
            deadline: When to stop waiting, in ns of ``now()``, instead of a timeout.

        Returns:
            The number of records that were pushed before the deadline.

        Raises:
            LostError: The consumer is known to be dead, and the ring is full.
            ValueError: The records have another shape, or a value that the dtype cannot hold.
        """
        many = self._as_records(records)
        return int(super().push_many(many, timeout=timeout, deadline=deadline))  # type: ignore[misc]

    def pop(
        self, timeout: float | None = None, *, deadline: int | None = None
    ) -> npt.NDArray[Any] | Any:
        """Wait for the next record, remove it, and return a copy.

        Args:
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of ``now()``, instead of a timeout.

        Raises:
            WaitTimeoutError: No record came.
            LostError: The producers are known to be dead, and the ring is empty.
        """
        records = super().pop_many(1, timeout=timeout, deadline=deadline)  # type: ignore[misc]
        if len(records) == 0:
            raise WaitTimeoutError("cannot pop from ring: nothing came in time")
        return records[0]

    def _as_records(self, records: Any) -> npt.NDArray[Any]:
        dtype, shape = self._record
        if dtype.kind in "biufc":
            records = fitting_array("push to ring", "records", records, dtype)
        elif is_masked(records):
            raise ValueError("cannot push to ring: records is masked, expected no mask")
        many = np.ascontiguousarray(records, dtype=dtype)
        if many.shape[1:] != shape or many.ndim != 1 + len(shape):
            raise ValueError(
                f"cannot push to ring: shape {many.shape}, expected (n, *{shape}), n records"
            )
        return many


class Ring(_Records, Handle, _core.Ring):
    """A queue of fixed-size records from one producer to one consumer.

    Copy records with ``push`` / ``push_many`` and ``pop`` / ``pop_many``, or use them in place:
    ``claim(n)`` gives the producer a view of up to n free slots, and ``publish()`` hands them over;
    ``peek(n)`` gives the consumer a view of up to n records, and ``release()`` frees their slots.
    A view has at least one slot, and fewer than n where the ring wraps. Do not push or pop before
    you publish or release a view, and do not use the view afterwards.

    ``pop_many(n, least)`` returns up to n records once there are ``least``, or fewer at the
    deadline. It never waits for more than ``low + 1``, since a blocked producer adds none.
    ``peek(n, least)`` does, and may then wait forever.

    Args:
        slots: The number of records that the ring holds, a power of two.
        dtype: The dtype of a record.
        shape: The shape of a record.
        segment: The segment to allocate the ring in; None: a new one.
        high: The producer blocks when this many slots are full; None: all of them.
        low: A blocked producer continues when only this many slots are full; None: one fewer than
            ``high``. Lower it so that the producer wakes less often, for more records at a time.
        policy: How to wait; None: adaptively.

    Raises:
        ValueError: ``slots``, ``high`` and ``low`` do not fit together, or records have no bytes or
            hold Python objects.

    >>> ring = Ring(8, np.float32, 3)
    >>> ring.push([1, 2, 3])
    >>> ring.push_many(np.zeros((4, 3)))
    4
    >>> ring.pop()
    array([1., 2., 3.], dtype=float32)
    >>> free = ring.claim(2)
    >>> free[:] = 7
    >>> ring.publish()
    >>> ring.pop_many(8).shape
    (6, 3)
    >>> ring
    <pysampler.sync.Ring 0 of 8 slots of 12 bytes, 7 published>
    """

    def __init__(
        self,
        slots: int,
        dtype: npt.DTypeLike = np.float64,
        shape: int | Sequence[int] = (),
        segment: Segment | None = None,
        *,
        high: int | None = None,
        low: int | None = None,
        policy: _core.WaitPolicy | None = None,
    ) -> None:
        geometry = (slots, plain_dtype(dtype, "ring"), whole_shape(shape, "ring"), high, low)
        size = _core.Ring.size_of(*geometry)
        self._init(_core.Ring, segment, geometry, size=size, policy=policy)

    @property
    def _record(self) -> tuple[np.dtype[Any], tuple[int, ...]]:  # type: ignore[override]
        return self._geometry[1], self._geometry[2]


class SharedRing(_Records, Handle, _core.SharedRing):
    """A queue of fixed-size records from several producers to one consumer.

    Use it like ``Ring``, except that a producer claims one slot at a time: ``claim()``, then
    ``publish()`` or ``abandon()``; later records wait for this slot. A process becomes a producer
    with its first claim, and stays one until ``leave()``, ``close()`` or its end.

    A producer may die at any point, even between claim and publish: its slot is skipped, and the
    consumer never reads a partial record. The consumer notices within 50 ms, or immediately with a
    ``Watch``: ``watch.add(process, ring.producer())``. It gets ``LostError`` once all producers
    have ended, at least one of them without leaving; if all have left, it waits for the next to
    join. Slots that were abandoned, or claimed by dead producers, count towards the ``least`` of
    ``pop_many``, which may then return fewer records.

    Args:
        slots: The number of records that the ring holds, a power of two.
        dtype: The dtype of a record.
        shape: The shape of a record.
        segment: The segment to allocate the ring in; None: a new one.
        producers: The largest number of producers at the same time.
        high: Producers block when this many slots are full; None: all of them.
        low: Blocked producers continue when only this many slots are full; None: one fewer than
            ``high``. Lower it so that producers wake less often, for more records at a time.
        policy: How to wait; None: adaptively.

    Raises:
        ValueError: ``slots``, ``high`` and ``low`` do not fit together, ``producers`` is not 1 to
            16384, or records have no bytes or hold Python objects.

    >>> ring = SharedRing(4, np.int64, producers=2)
    >>> slot = ring.claim()
    >>> slot[...] = 5
    >>> ring.publish()
    True
    >>> ring.push(6)
    >>> ring.pop_many(4)
    array([5, 6])
    """

    def __init__(
        self,
        slots: int,
        dtype: npt.DTypeLike = np.float64,
        shape: int | Sequence[int] = (),
        segment: Segment | None = None,
        *,
        producers: int = 64,
        high: int | None = None,
        low: int | None = None,
        policy: _core.WaitPolicy | None = None,
    ) -> None:
        record = plain_dtype(dtype, "ring"), whole_shape(shape, "ring")
        geometry = (slots, *record, producers, high, low)
        size = _core.SharedRing.size_of(*geometry)
        self._init(_core.SharedRing, segment, geometry, size=size, policy=policy)

    @property
    def _record(self) -> tuple[np.dtype[Any], tuple[int, ...]]:  # type: ignore[override]
        return self._geometry[1], self._geometry[2]


class ByteRing(Handle, _core.ByteRing):
    """A queue of messages of any size from one producer to one consumer.

    ``send(message)`` takes any object with a contiguous buffer; a message larger than the ring is
    sent in parts while the consumer receives. ``recv()`` returns the next message as ``bytes``;
    ``peek()`` returns a view of it, valid until ``release()``. A message is never received if its
    producer gave up (``WaitTimeoutError``) or died half-way.

    Args:
        capacity: The number of bytes that the ring holds: a power of two of at least a page. Larger
            messages can be sent, but only while the consumer receives.
        segment: The segment to allocate the ring in; None: a new one.
        policy: How to wait; None: adaptively.

    Raises:
        ValueError: ``capacity`` is not a power of two of whole pages, up to 2**30.

    >>> ring = ByteRing(1 << 16)
    >>> ring.send(b"hello")
    >>> ring.recv()
    b'hello'
    >>> ring
    <pysampler.sync.ByteRing 0 of 65536 bytes>
    """

    def __init__(
        self,
        capacity: int,
        segment: Segment | None = None,
        *,
        policy: _core.WaitPolicy | None = None,
    ) -> None:
        size = _core.ByteRing.size_of(capacity)
        self._init(_core.ByteRing, segment, (capacity,), size=size, policy=policy)
