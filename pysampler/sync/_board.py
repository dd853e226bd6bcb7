"""Board: versioned arrays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._common.numbers import fitting_array
from pysampler.sync._segment import Handle, plain_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler.sync._segment import Segment

_WORD = 8  # bytes; each field begins on one


class Board(Handle, _core.Board):
    """Named arrays, such as policy weights, that one writer publishes and many readers copy.

    Readers never block the writer or each other, and never get a mixture of two versions. Any
    number of readers can call ``wait(newer_than=v)``, which waits for a version above v. A wait
    raises ``LostError`` if a ``Watch`` knows that the writer has died: ``watch.add(process,
    board.writer())``.

    Args:
        like: By name, an example array with the dtype and the shape of the field. The values are
            not copied.
        segment: The segment to allocate the board in; None: a new one.
        buffers: The number of versions in memory. A reader starts over if the writer overwrites the
            version that it copies: with 3 buffers, only after two more ``publish``. Raise it if the
            writer publishes often.
        policy: How to wait; None: adaptively.

    Raises:
        ValueError: A field is not an array of plain numbers, or ``buffers`` is not 2 to 1024.

    >>> board = Board({"weight": np.zeros((2, 2), np.float32), "bias": np.zeros(2, np.float32)})
    >>> board.publish({"weight": np.eye(2), "bias": [1, 2]})
    1
    >>> version, fields = board.read()
    >>> version, fields["bias"]
    (1, array([1., 2.], dtype=float32))
    >>> board.wait(newer_than=version, timeout=0.001)
    False
    """

    def __init__(
        self,
        like: Mapping[str, npt.NDArray[Any]],
        segment: Segment | None = None,
        *,
        buffers: int = 3,
        policy: _core.WaitPolicy | None = None,
    ) -> None:
        if not isinstance(like, Mapping) or not like:
            raise ValueError(f"cannot make board: fields {like!r}, expected names and arrays")
        fields = {}
        for name, array in like.items():
            if not isinstance(array, (np.ndarray, np.generic)):
                raise ValueError(f"cannot make board: {name} is {array!r}, expected an array")
            fields[name] = plain_dtype(array.dtype, "board"), array.shape
        if not isinstance(buffers, int) or not 2 <= buffers <= 1024:
            raise ValueError(f"cannot make board: buffers {buffers!r}, expected 2 to 1024")
        words = sum(_words(*field) for field in fields.values())
        size = _core.Board.size_of(words, buffers)
        self._fields = fields
        self._init(_core.Board, segment, (words, buffers), size=size, policy=policy)

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"_fields": self._fields}

    def publish(self, fields: Mapping[str, npt.ArrayLike]) -> int:
        """Publish all fields as a new version, and wake waiting readers.

        Args:
            fields: An array for each field, of its shape, with values that its dtype can hold.

        Returns:
            The number of the version, from 1 on.

        Raises:
            ValueError: A field is missing, unknown, or of another shape or type.
            BusyError: Another thread publishes.
        """
        arrays = fitting_fields(fields, self._fields)
        sizes = [_words(*field) for field in self._fields.values()]
        starts = itertools.accumulate(sizes, initial=0)
        return self._publish([*zip(starts, arrays, strict=False)])

    def read(
        self, out: dict[str, npt.NDArray[Any]] | None = None
    ) -> tuple[int, dict[str, npt.NDArray[Any]]]:
        """Return the newest version and a copy of its fields.

        Args:
            out: A dict that ``read`` returned before, to reuse its memory.

        Returns:
            The number of the version, and the fields by name. Before the first ``publish``, 0 and
            arrays of zeros.

        Raises:
            ValueError: ``out`` is not a result of ``read``.
        """
        if out is None:
            out = self._split(np.zeros(self._geometry[0], np.uint64))
        elif not isinstance(out, dict) or out.keys() != self._fields.keys():
            raise ValueError("cannot read board: out is not the result of an earlier read")
        words = getattr(next(iter(out.values())), "base", None)
        if not isinstance(words, np.ndarray) or words.dtype != np.uint64:
            raise ValueError("cannot read board: out is not the result of an earlier read")
        return self._read_words(words), out

    def _split(self, words: npt.NDArray[np.uint64]) -> dict[str, npt.NDArray[Any]]:
        """Return the fields as views of the words of a version."""
        out = {}
        at = 0
        for name, (dtype, shape) in self._fields.items():
            out[name] = np.ndarray(shape, dtype, words, at * _WORD)
            at += _words(dtype, shape)
        return out


def fitting_fields(
    fields: Mapping[str, npt.ArrayLike],
    expected: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
) -> list[npt.NDArray[Any]]:
    """Return fields to publish as arrays of the expected dtypes and shapes, or raise."""
    if not isinstance(fields, Mapping):
        raise TypeError(f"cannot publish to board: fields {fields!r}, expected a mapping")
    if fields.keys() != expected.keys():
        raise ValueError(
            f"cannot publish to board: fields {list(fields)}, expected {list(expected)}"
        )
    arrays = []
    for name, (dtype, shape) in expected.items():
        array = fitting_array("publish to board", name, fields[name], dtype)
        if array.shape != shape:
            raise ValueError(
                f"cannot publish to board: {name} has shape {array.shape}, expected {shape}"
            )
        arrays.append(np.asarray(array, order="C"))
    return arrays


def _words(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the number of words of a field."""
    size = dtype.itemsize
    for n in shape:
        size *= n
    return -(-size // _WORD)
