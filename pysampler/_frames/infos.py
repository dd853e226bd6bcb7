"""Infos: the info dicts of single envs, batched as gymnasium batches them.

A number, a plain array or a small object gets a column in the frames once it has been seen
(csrc/bindings/infos.h). Values without a column, or of another type than their column, come by
mail and are merged in here. Either way the result is that of gymnasium's ``VectorEnv._add_info``.
"""

from __future__ import annotations

import logging
import math
import pickle
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
# arrays of objects), an array, or a small object, which is written as a pickle.
Form = Literal["python", "scalar", "object", "array", "pickle"]
# The columns that a key may have, one for each type of its values; other types come by mail.
_MAX_TYPES = 4
# The columns of a vector env: keys that change with each step come by mail when these are used up.
_MAX_COLUMNS = 512
# Bytes of a small object in a column: its pickle, and the length of that.
_PICKLE_BYTES = 128
# How often a key may have a value that cannot have a column before a warning is logged.
_WARN_AFTER = 1000

# Dtype and shape of an element, its form, and the type of small objects.
_Kind = tuple[np.dtype[Any], tuple[int, ...], Form, type | None]

_log = logging.getLogger("pysampler")
_logged: set[Path] = set()  # keys of this program that a warning was logged for


@dataclass(frozen=True)
class Column:
    """Where the values of a key lie: ``[frames, envs, ...]``, and a mask ``[frames, envs]``.

    A nested dict has a mask only, and no dtype. Small objects are rows of bytes.
    """

    path: Path  # the keys that lead to the value
    mask: int  # offset of the mask in the infos of the frames
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    form: Form = "python"
    values: int = 0  # offset of the values
    of: type | None = None  # the type of small objects

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
        if column.of is not None:
            infos.add_pickles(column.path, mask, values[0], column.of)
        elif values:
            infos.add_column(column.path, mask, values[0], column.form)
        else:
            infos.add_node(column.path, mask)


class Infos:
    """The infos of a vector env: decides which values get columns, and merges infos by mail.

    Args:
        frames: The frames that the columns lie in.
        columns: A list to which new columns are added.
        add_info: gymnasium's way of adding the info of an env to those of others.
        pickled: Whether values without a column are pickled, since the envs are in workers.
    """

    def __init__(
        self,
        frames: Frames,
        columns: list[Column],
        add_info: Callable[[Any, Any, int], dict[str, Any]],
        *,
        pickled: bool = True,
    ) -> None:
        self.core = _core.Infos()
        self.columns = columns  # grows
        self._frames = frames
        self._rows = frames.count * frames.envs
        self._end = 0  # of the columns, in the infos of the frames
        self._column_of: dict[tuple[Path, Any], Column] = {}
        self._names: dict[str, int] = {}  # of columns at the top, in order
        self._types: dict[Path, int] = {}  # how many columns a path has
        self._unfit: dict[Path, int] = {}  # how often a value could not have a column
        self._pickled = pickled
        self._add_info = add_info

    def merge(
        self,
        rows: Sequence[tuple[int, int]],
        infos: dict[str, Any],
        mixed: Sequence[str],
        mailed: Sequence[tuple[int, dict[str, Any]]],
    ) -> dict[str, Any]:
        """Return ``infos`` of (frame, env) rows with the ``mailed`` (env, info) merged in.

        ``mixed`` are keys whose values in these rows do not go into one array.
        """
        by_env: dict[int, list[dict[str, Any]]] = {}
        rebuilt = dict.fromkeys(mixed)
        for env, info in mailed:
            by_env.setdefault(env, []).append(info)
            rebuilt.update(dict.fromkeys(info))
        # A key with values from both sources is batched anew, env by env: the first value decides
        # on the dtype.
        rebuilt.pop("final_obs", None)
        stored = [key for key in rebuilt if isinstance(key, str)]
        # A key "_a" uses the place of the mask of "a", so that both are batched anew.
        for key in stored:
            rebuilt.update(dict.fromkeys([f"_{key}", *([key[1:]] * key.startswith("_"))]))
        stored = sorted(self._names.keys() & rebuilt.keys(), key=self._names.__getitem__)
        for key in rebuilt:
            infos.pop(key, None)
            infos.pop(f"_{key}", None)
        for at, (frame, env) in enumerate(rows):
            for key in stored:
                infos = self._add_info(infos, self.core.row(frame, env, key), at)
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
            elif (kind := _kind(value) or self._small(here, value)) is not None:
                self._column(here, kind)

    def _small(self, path: Path, value: Any) -> _Kind | None:
        """Return the kind of a small object, or None if it cannot have a column."""
        tries = self._unfit.get(path, 0)
        if tries >= _WARN_AFTER or not self._pickled:
            return None
        if not isinstance(value, (np.ndarray, np.number)) and _fits(value):
            return np.dtype(np.uint8), (_PICKLE_BYTES,), "pickle", type(value)
        if path in self._unfit or len(self._unfit) < _MAX_COLUMNS:
            self._unfit[path] = tries + 1
        if tries + 1 == _WARN_AFTER:
            self._warn(
                path,
                f"{type(value).__name__}, expected a number, an array, or something "
                f"whose pickle has fewer than {_PICKLE_BYTES} bytes",
            )
        return None

    def _column(self, path: Path, kind: _Kind | None) -> Column | None:
        """Return the column for such values, made now if need be; None if it cannot have one.

        A nested dict has no ``kind``.
        """
        known = self._column_of.get((path, kind))
        if known is not None:
            return known
        if len(self.columns) == _MAX_COLUMNS:
            self._warn(("...",), f"more than {_MAX_COLUMNS} names, such as {path[-1]!r}")
            return None
        if kind is None:
            column = Column(path, self._end)
            end = self._end + self._rows
        else:
            if self._types.get(path, 0) == _MAX_TYPES:
                self._warn(path, f"another type than {_MAX_TYPES} before it")
                return None
            dtype, shape, form, of = kind
            values = _aligned(self._end + self._rows)
            column = Column(path, self._end, dtype, shape, form, values, of)
            end = values + self._rows * math.prod(shape) * dtype.itemsize
        try:
            if end > len(self._frames.infos):
                raise MemoryError("there is no room left for infos")
            self._frames.take_infos(end)
        except MemoryError as error:
            self._warn(path, str(error))
            return None
        self._end = _aligned(end)
        self.columns.append(column)
        self._names.setdefault(path[0], len(self._names))
        self._types[path] = self._types.get(path, 0) + 1
        self._column_of[path, kind] = column
        return column

    def _warn(self, path: Path, why: str) -> None:
        """Log that a key is slow, once for each key of a program."""
        if not self._pickled or path in _logged or len(_logged) == _MAX_COLUMNS:
            return
        _logged.add(path)
        place = "[...]" if path == ("...",) else "".join(f"[{key!r}]" for key in path)
        _log.warning("info%s is pickled with every step, which is slow: %s", place, why)


def _aligned(offset: int) -> int:
    """Round an offset up to a multiple of 16, to which any dtype is aligned."""
    return -(-offset // 16) * 16


def _kind(value: Any) -> _Kind | None:
    """Return the kind of a number or an array, or None if it is neither."""
    cls = type(value)
    if cls in (int, float, bool):
        return np.dtype(cls), (), "python", None
    if cls is np.ndarray:
        plain = value.dtype.isnative and value.dtype.kind in "biufc"
        return (value.dtype, value.shape, "array", None) if plain else None
    if cls is np.bool_:
        return np.dtype(cls), (), "object", None
    if issubclass(cls, np.number):
        dtype = np.dtype(cls)
        return (dtype, (), "scalar", None) if dtype.kind in "iufc" else None
    return None


def _fits(value: Any) -> bool:
    """Return whether the pickle of an object fits into a column."""
    if isinstance(value, str) and len(value) >= _PICKLE_BYTES:
        return False
    try:
        return len(pickle.dumps(value, protocol=5)) < _PICKLE_BYTES
    except Exception:
        return False
