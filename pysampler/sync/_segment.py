"""Segments, handles to their parts, and the pickling of both.

A segment is sent as a file descriptor, a handle as its segment and offset. Each process maps a
segment once, however often it is received.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._common.closing import Closing
from pysampler.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt


class Segment(Closing, _core.Segment):
    """A block of shared memory, in which primitives and arrays are allocated.

    It is a sealed memfd without a name: only processes that received it can map it, and the system
    frees it when the last of them ends. Only the process that made a segment can allocate in it.
    Parts are freed together with the segment.

    Args:
        size: The number of bytes to allocate, at least 1.
        room: The number of further bytes to reserve; ``take()`` allocates memory for them later.

    Raises:
        MemoryError: The machine or a limit has too little memory left.
        ValueError: ``size`` is not a whole number of at least 1.

    >>> with Segment(1 << 16) as segment:
    ...     flag = Flag(segment)
    ...     positions = Array((4, 3), np.float32, segment)
    ...     positions.view[0] = 1, 2, 3
    >>> segment
    <pysampler.sync.Segment closed>
    """

    def __init__(self, size: int, room: int = 0) -> None:
        super().__init__(size, room)
        _mapped_here[self.id] = self

    @classmethod
    def from_fd(cls, fd: int) -> Segment:
        """Return the segment of a file descriptor, mapping it if necessary.

        Args:
            fd: The descriptor of a segment's memfd. You still own it and must close it.

        Returns:
            The segment: the same object for all descriptors of one segment.

        Raises:
            ValueError: ``fd`` is not a number of a file descriptor.
            OSError: No file is open with this number.
            LayoutError: ``fd`` is not the descriptor of a segment that this version can use.
        """
        if not isinstance(fd, int) or not 0 <= fd < 2**31:
            raise ValueError(f"cannot attach segment: fd {fd!r}, expected a file descriptor")
        core = _core.Segment.attach(fd)
        known = _mapped_here.get(core.id)
        if known is not None and not known.closed:
            return known
        segment = cls.__new__(cls)
        _core.Segment.__init__(segment, core)
        _mapped_here[segment.id] = segment
        return segment

    def __reduce__(self) -> tuple[Callable[[Any], Segment], tuple[Any]]:
        # DupFd chooses how to send a descriptor: by inheritance if a child is being started, by
        # a socket if the process is already running.
        return _receive, (reduction.DupFd(self.fd),)


# The segments that this process has mapped, by id.
_mapped_here: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()
# A fork maps received segments again: in its inherited mapping, private pages replace the parts on
# loan (csrc/loan.h).
os.register_at_fork(after_in_child=_mapped_here.clear)


def _receive(sent: Any) -> Segment:
    """Return the segment whose descriptor another process sent."""
    fd = sent.detach()
    try:
        return Segment.from_fd(fd)
    finally:
        os.close(fd)


class Handle(Closing):
    """Base class of handles: they pickle, close in a ``with`` block, and know their segment.

    A subclass, except ``Array``, also derives from a class of ``_core``. ``_geometry`` holds the
    constructor arguments of that class, besides segment and offset, for attaching elsewhere.
    """

    _segment: Segment | None = None
    _geometry: tuple[Any, ...] = ()

    def _init(
        self,
        core: Any,
        segment: Segment | None,
        geometry: tuple[Any, ...],
        *,
        size: int = 0,
        offset: int | None = None,
        policy: _core.WaitPolicy | None = None,
    ) -> None:
        """Attach at ``offset``, or allocate in the segment or in a new one of ``size`` bytes."""
        self._segment = Segment(size) if segment is None else segment
        self._geometry = geometry
        core.__init__(self, self._segment, *geometry, offset=offset, policy=policy)

    @property
    def segment(self) -> Segment:
        """The segment of this handle. Raises ClosedError once the handle is closed."""
        if self._segment is None:
            name = type(self).__name__
            raise ClosedError(f"cannot use {name}: it is closed")
        return self._segment

    def close(self) -> None:
        """Close the handle. The memory is released once no view of it or other handle is left."""
        super().close()  # type: ignore[misc]
        self._segment = None

    def __reduce__(self) -> tuple[Any, ...]:
        offset: int = self.offset  # type: ignore[attr-defined]
        return _attach, (type(self), self.segment, self._geometry, offset)

    def place(self) -> Place:
        """Return this handle's place, to send it to a process that already has the segment."""
        _, (kind, _, geometry, offset), *state = self.__reduce__()
        return Place(kind, geometry, offset, state[0] if state else {})


@dataclass(frozen=True)
class Place:
    """A handle without its segment, which any pickler can send."""

    kind: type[Handle]
    geometry: tuple[Any, ...]
    offset: int
    state: dict[str, Any]

    def attach(self, segment: Segment) -> Any:
        """Return the handle to this place of a segment."""
        handle = _attach(self.kind, segment, self.geometry, self.offset)
        handle.__dict__.update(self.state)
        return handle


def _attach(cls: type[Handle], segment: Segment, geometry: tuple[Any, ...], offset: int) -> Handle:
    """Return a handle to the part at ``offset`` of a segment."""
    handle = cls.__new__(cls)
    core = next(base for base in cls.__mro__ if base.__module__ == _core.__name__)
    handle._init(core, segment, geometry, offset=offset)
    return handle


def plain_dtype(dtype: npt.DTypeLike, what: str) -> np.dtype[Any]:
    """Return ``dtype`` as a dtype, or raise ValueError if it holds Python objects."""
    plain = np.dtype(dtype)
    if plain.hasobject:
        raise ValueError(
            f"cannot make {what}: dtype {plain} holds Python objects, expected plain numbers"
        )
    return plain


def whole_shape(shape: int | Sequence[int], what: str) -> tuple[int, ...]:
    """Return ``shape`` as a tuple of ints of at least 0, or raise ValueError."""
    lengths: tuple[Any, ...] = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    for n in lengths:
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 0 <= n < 2**63:
            raise ValueError(
                f"cannot make {what}: shape {shape!r}, expected whole numbers of at least 0"
            )
    return tuple(int(n) for n in lengths)


class Array(Handle):
    """A NumPy array in shared memory.

    Args:
        shape: The shape of the array.
        dtype: The dtype of its elements.
        segment: The segment to allocate the array in; None: a new one.

    Raises:
        ValueError: The shape is invalid, or the dtype holds Python objects.

    >>> counts = Array(3, np.int64)
    >>> counts.view[:] = 1, 2, 3
    >>> counts.view += 1
    >>> counts, np.asarray(counts)
    (<pysampler.sync.Array (3,) int64>, array([2, 3, 4]))
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: npt.DTypeLike = np.float64,
        segment: Segment | None = None,
    ) -> None:
        plain = plain_dtype(dtype, "array")
        lengths = whole_shape(shape, "array")
        size = plain.itemsize
        for n in lengths:
            size *= n
        self._place(Segment(max(size, 1)) if segment is None else segment, lengths, plain)

    def _place(
        self,
        segment: Segment,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int | None = None,
    ) -> None:
        if not isinstance(segment, Segment):
            raise TypeError(f"cannot make array: segment {segment!r}, expected a Segment")
        self._segment = segment
        self.offset, self._view = segment.array(shape, dtype, offset)

    @property
    def view(self) -> npt.NDArray[Any]:
        """The NumPy array; assign to its elements. Raises ClosedError after ``close()``."""
        if self._segment is None:
            raise ClosedError("cannot use Array: it is closed")
        return self._view

    @view.setter
    def view(self, value: npt.NDArray[Any]) -> None:
        if value is not self._view:  # ``array.view += 1`` assigns the same object
            raise AttributeError("cannot replace the view of an array: assign to array.view[:]")

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._segment is None

    def close(self) -> None:
        """Close the array. The memory is released once no view of it is left."""
        self._segment = None
        self._view = np.empty(0)

    def __array__(
        self,
        dtype: npt.DTypeLike | None = None,
        copy: bool | None = None,  # noqa: FBT001 - as NumPy calls it
    ) -> npt.NDArray[Any]:
        if copy:
            return np.array(self.view, dtype=dtype)
        return np.asarray(self.view, dtype=dtype)

    def __reduce__(self) -> tuple[Callable[..., Array], tuple[Any, ...]]:
        return _attach_array, (self.segment, self.view.shape, self.view.dtype, self.offset)

    def __repr__(self) -> str:
        if self.closed:
            return "<pysampler.sync.Array closed>"
        return f"<pysampler.sync.Array {self.view.shape} {self.view.dtype}>"


def _attach_array(
    segment: Segment, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int
) -> Array:
    array = Array.__new__(Array)
    array._place(segment, shape, dtype, offset)
    return array
