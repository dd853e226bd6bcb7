"""Infos: the info dicts of single envs, batched as gymnasium batches them.

A number or a plain array gets a column in the frames once it has been seen
(csrc/bindings/infos.h). Values without a column, or of another type than their column, come by
mail and are merged in here. Either way the result is that of gymnasium's ``VectorEnv._add_info``.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames

__all__ = ["Column", "Infos", "add_columns"]

Path = tuple[str, ...]
# What a value is: a number of Python's, a number of NumPy's, a np.bool_ (of which gymnasium makes
# arrays of objects), or an array.
Form = Literal["python", "scalar", "object", "array"]
# The columns that a key may have, one for each type of its values; other types come by mail.
_MAX_TYPES = 4
# How often a key may have a value that cannot have a column before a warning is logged.
_WARN_AFTER = 1000

_log = logging.getLogger("pysampler")


@dataclass(frozen=True)
class Column:
    """Where the values of a key lie: ``[frames, envs, ...]``, and a mask ``[frames, envs]``.

    A nested dict has a mask only, and no dtype.
    """

    path: Path  # the keys that lead to the value
    mask: int  # offset of the mask in the infos of the frames
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    form: Form = "python"
    values: int = 0  # offset of the values

    def views(self, frames: Frames) -> list[npt.NDArray[Any]]:
        """Return the values, if it is no nested dict, and the mask of the envs that have one."""

        def view(offset: int, dtype: np.dtype[Any], *shape: int) -> npt.NDArray[Any]:
            shape = frames.count, frames.envs, *shape
            end = offset + math.prod(shape) * dtype.itemsize
            return frames.infos[offset:end].view(dtype).reshape(shape)

        mask = view(self.mask, np.dtype(np.bool_))
        return [mask] if self.dtype is None else [view(self.values, self.dtype, *self.shape), mask]


def add_columns(infos: _core.Infos, frames: Frames, columns: Sequence[Column]) -> None:
    """Add new columns to the C++ object with which this process reads or writes infos."""
    for column in columns:
        *values, mask = column.views(frames)
        if values:
            infos.add_column(column.path, mask, values[0], column.form)
        else:
            infos.add_node(column.path, mask)


class Infos:
    """The infos of a vector env: decides which values get columns, and merges infos by mail."""

    def __init__(
        self,
        frames: Frames,
        columns: list[Column],
        add_info: Callable[[Any, Any, int], dict[str, Any]],
    ) -> None:
        self.core = _core.Infos()
        self.columns = columns  # grows
        self._frames = frames
        self._rows = frames.count * frames.envs
        self._end = 0  # of the columns, in the infos of the frames
        self._column_of: dict[tuple[Path, Any], Column] = {}
        self._types: dict[Path, int] = {}  # how many columns a path has
        self._unfit: dict[Path, int] = {}  # how often a value could not have a column
        self._warned = False  # that infos are slow
        self._add_info = add_info

    def merge(
        self,
        rows: Sequence[tuple[int, int]],
        infos: dict[str, Any],
        mixed: Sequence[str],
        mailed: Sequence[tuple[int, dict[str, Any]]],
    ) -> dict[str, Any]:
        """Return ``infos`` of (frame, env) rows with the ``mailed`` (env, info) merged in.

        ``mixed`` are keys that have several columns with values in these rows.
        """
        by_env: dict[int, list[dict[str, Any]]] = {}
        rebuilt = dict.fromkeys(mixed)
        for env, info in mailed:
            by_env.setdefault(env, []).append(info)
            rebuilt.update(dict.fromkeys(info))
        # A key with values from both sources is batched anew, env by env: the first value decides
        # on the dtype.
        rebuilt.pop("final_obs", None)
        for key in rebuilt:
            infos.pop(key, None)
            infos.pop(f"_{key}", None)
        stored = [key for key in rebuilt if isinstance(key, str)]
        for at, (frame, env) in enumerate(rows):
            for key in stored:
                value = self.core.row(frame, env, key)
                if value is not None:
                    infos = self._add_info(infos, {key: value}, at)
            for info in by_env.get(env, ()):
                infos = self._add_info(infos, info, at)
        return infos

    def learn(self, mailed: Sequence[tuple[int, dict[str, Any]]]) -> list[Column]:
        """Return new columns for values that came by mail, as far as their bytes suffice."""
        for _, info in mailed:
            self._learn(info, ())
        # From the count: Ctrl-C may have come before the last columns were added.
        new = self.columns[self.core.count :]
        add_columns(self.core, self._frames, new)
        return new

    def _learn(self, info: dict[Any, Any], path: Path) -> None:
        """Make columns for the values of an info dict, which lies at ``path``."""
        for key, value in info.items():
            # gymnasium keeps "final_obs" as one object for each env, whatever its type.
            if type(key) is not str or key == "final_obs":
                continue
            here = (*path, key)
            if isinstance(value, dict):
                if self._column(here, None) is not None:
                    self._learn(value, here)
            elif (kind := _kind(value)) is not None:
                self._column(here, kind)
            elif not self._warned:
                self._unfit[here] = self._unfit.get(here, 0) + 1
                if self._unfit[here] == _WARN_AFTER:
                    self._warn_once(here, f"{type(value).__name__}, expected a number or an array")

    def _column(
        self, path: Path, kind: tuple[np.dtype[Any], tuple[int, ...], Form] | None
    ) -> Column | None:
        """Return the column for such values, made now if need be; None if it cannot have one.

        A nested dict has no ``kind``.
        """
        known = self._column_of.get((path, kind))
        if known is not None:
            return known
        if kind is None:
            column = Column(path, self._end)
            end = self._end + self._rows
        else:
            if self._types.get(path, 0) == _MAX_TYPES:
                self._warn_once(path, f"another type than {_MAX_TYPES} before it")
                return None
            dtype, shape, form = kind
            values = _aligned(self._end + self._rows)
            column = Column(path, self._end, dtype, shape, form, values)
            end = values + self._rows * math.prod(shape) * dtype.itemsize
        try:
            if end > len(self._frames.infos):
                raise MemoryError("there is no room left for infos")
            self._frames.take_infos(end)
        except MemoryError as error:
            self._warn_once(path, str(error))
            return None
        self._end = _aligned(end)
        self.columns.append(column)
        self._types[path] = self._types.get(path, 0) + 1
        self._column_of[path, kind] = column
        return column

    def _warn_once(self, path: Path, why: str) -> None:
        """Log that infos are slow, unless that was logged before."""
        if not self._warned:
            self._warned = True
            place = "".join(f"[{key!r}]" for key in path)
            _log.warning("info%s is pickled with every step, which is slow: %s", place, why)


def _aligned(offset: int) -> int:
    """Round an offset up to a multiple of 16, to which any dtype is aligned."""
    return -(-offset // 16) * 16


def _kind(value: Any) -> tuple[np.dtype[Any], tuple[int, ...], Form] | None:
    """Return dtype and shape of an element and its form, or None if it cannot have a column."""
    cls = type(value)
    if cls in (int, float, bool):
        return np.dtype(cls), (), "python"
    if cls is np.ndarray:
        plain = value.dtype.isnative and value.dtype.kind in "biufc"
        return (value.dtype, value.shape, "array") if plain else None
    if cls is np.bool_:
        return np.dtype(cls), (), "object"
    if issubclass(cls, np.number):
        dtype = np.dtype(cls)
        return (dtype, (), "scalar") if dtype.kind in "iufc" else None
    return None
