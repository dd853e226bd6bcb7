"""What travels: records of one dtype and shape, or messages of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler.errors import WaitTimeoutError
from pysampler.sync._segment import Handle, plain_dtype, whole_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler.sync._segment import Segment


class _Records:
    """What both rings of fixed slots do with records, on top of ``push_many`` and ``pop_many``."""

    _record: tuple[np.dtype[Any], tuple[int, ...]]

    def push(
        self, record: npt.ArrayLike, *, timeout: float | None = None, deadline: int | None = None
    ) -> None:
        """One record, or ``WaitTimeoutError`` if the ring stayed full."""
        one = self._as_records([record])
        pushed = super().push_many(one, timeout=timeout, deadline=deadline)  # type: ignore[misc]
        if pushed == 0:
            raise WaitTimeoutError("cannot push to ring: it stayed full")

    def push_many(
        self, records: npt.ArrayLike, *, timeout: float | None = None, deadline: int | None = None
    ) -> int:
        """All of them, in order; returns how many went before the deadline."""
        many = self._as_records(records)
        pushed = super().push_many(many, timeout=timeout, deadline=deadline)  # type: ignore[misc]
        return int(pushed)

    def pop(
        self, timeout: float | None = None, *, deadline: int | None = None
    ) -> npt.NDArray[Any] | Any:
        """A copy of the next record, or ``WaitTimeoutError`` if none came."""
        records = super().pop_many(1, timeout=timeout, deadline=deadline)  # type: ignore[misc]
        if len(records) == 0:
            raise WaitTimeoutError("cannot pop from ring: nothing came in time")
        return records[0]

    def _as_records(self, records: Any) -> npt.NDArray[Any]:
        dtype, shape = self._record
        many = np.ascontiguousarray(records, dtype=dtype)
        if many.shape[1:] != shape or many.ndim != 1 + len(shape):
            raise ValueError(
                f"cannot push to ring: shape {many.shape}, expected (n, *{shape}), n records"
            )
        return many


class Ring(_Records, Handle, _core.Ring):
    """Records from one producer to one consumer.

    ``slots`` is a power of two; a record is an array of ``dtype`` and ``shape``. Either copy
    records, with ``push`` / ``push_many`` and ``pop`` / ``pop_many``, or work on them where they
    lie: ``claim(n)`` gives the producer a view of up to n free slots, which ``publish()`` hands
    over; ``peek(n)`` gives the consumer a view of up to n records, whose slots ``release()``
    hands back. A view is of at least one slot, and shorter where the ring comes round. Do not
    touch it afterwards; and until then neither push nor pop.

    A producer that finds ``high`` slots full (all, by default) blocks until they are ``low`` (one
    fewer). ``pop_many(n, least)`` returns up to n records once there are ``least`` (never more than
    ``low + 1``: a blocked producer brings no others), or what there is at the deadline.

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
    """Records from up to ``producers`` producers to one consumer.

    Used like ``Ring``, but that a producer claims one slot at a time (``claim()``, then
    ``publish()`` or ``abandon()``): what comes later waits for it. A process takes its place as a
    producer with its first claim and keeps it until ``leave()``, ``close()`` or its end.

    A producer may die at any point, also between claim and publish: its slot is skipped, nothing
    half-written is ever read, and the consumer is not held up. The consumer finds out by itself
    within 50 ms, or at once with a ``Watch``: ``watch.add(process, ring.producer())``. Once all
    who joined have ended, and not all by leaving, it gets ``LostError``; if all have left, it
    waits for the next to join. Slots abandoned or left by the dead count towards the ``least`` of
    ``pop_many``: it may then return fewer.

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
    """Messages of any size from one producer to one consumer.

    ``capacity`` is a power of two of whole pages. ``send(message)`` takes anything with a
    contiguous buffer; what does not fit at once goes in parts, while the other side receives.
    ``recv()`` returns the next message as ``bytes``; ``peek()`` a view of it where it lies, until
    ``release()``. ``limit`` is the largest message the receiver will take: a larger one is
    dropped, with a ``ValueError``.

    A message whose sender gave up (``WaitTimeoutError``) or died half-way is never seen.

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
