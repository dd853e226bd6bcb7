"""Infos: the info dicts of single envs, batched exactly like gymnasium's ``VectorEnv._add_info``.

A key gets a column in the frames (csrc/bindings/infos.h) when it first has a number, a plain array
or a small object as its value, since mail in every step is slow. Values without a column, or of
another type than their column, come by mail and are merged in here.
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
# Kinds of values: a Python number, a NumPy number, a np.bool_ (which gymnasium batches in arrays of
# objects), an array, or a small object, which is written as a pickle.
Form = Literal["python", "scalar", "object", "array", "pickle"]
# Most columns of a key, one for each type of its values; further types come by mail.
_MAX_TYPES = 4
# Most columns of a vector env: keys could change with each step. Further ones come by mail.
_MAX_COLUMNS = 512
# Bytes of a small object in a column: its pickle and the pickle's length.
_PICKLE_BYTES = 128
# Log a warning once a key has had this many values that do not fit into a column.
_WARN_AFTER = 1000

# Dtype and shape of an element, its form, and the type of small objects.
_Kind = tuple[np.dtype[Any], tuple[int, ...], Form, type | None]

_log = logging.getLogger("pysampler")
_logged: set[Path] = set()  # keys that this process has logged a warning for


@dataclass(frozen=True)
class Column:
    """The place of a key's values, ``[frames, envs, ...]``, and their mask, ``[frames, envs]``.

    A nested dict has only a mask, and no dtype. Small objects are rows of bytes.
    """

    path: Path  # the keys that lead to the value
    mask: int  # offset of the mask in the infos of the frames
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    form: Form = "python"
    values: int = 0  # offset of the values
    of: type | None = None  # the type of small objects

    def views(self, frames: Frames) -> list[npt.NDArray[Any]]:
        """Return the values, unless this is a nested dict, and the mask of envs that have one."""

        def view(offset: int, dtype: np.dtype[Any], *shape: int) -> npt.NDArray[Any]:
            shape = frames.count, frames.envs, *shape
            end = offset + math.prod(shape) * dtype.itemsize
            return frames.infos[offset:end].view(dtype).reshape(shape)

        mask = view(self.mask, np.dtype(np.bool_))
        return [mask] if self.dtype is None else [view(self.values, self.dtype, *self.shape), mask]


def add_columns(infos: _core.Infos, frames: Frames, columns: Sequence[Column]) -> None:
    """Add new columns to the C++ object through which this process reads or writes infos."""
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
        add_info: gymnasium's ``_add_info``, which adds an env's info to the batch.
        pickled: Whether values without a column are pickled, as they are if envs are in workers.
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
        self._end = 0  # end of the columns, in the infos of the frames
        self._column_of: dict[tuple[Path, Any], Column] = {}
        self._names: dict[str, int] = {}  # order of the top-level keys that have columns
        self._types: dict[Path, int] = {}  # number of columns of each path
        self._unfit: dict[Path, int] = {}  # number of values that did not fit into a column
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

        ``mixed`` are keys whose values in these rows do not fit into one array.
        """
        by_env: dict[int, list[dict[str, Any]]] = {}
        rebuilt = dict.fromkeys(mixed)
        for env, info in mailed:
            by_env.setdefault(env, []).append(info)
            rebuilt.update(dict.fromkeys(info))
        # A key with values from both sources is batched again, env by env, because the first value
        # decides the dtype.
        rebuilt.pop("final_obs", None)
        # A key "_a" collides with the mask of "a", and "__a" with that of "_a": all of them are
        # batched again.
        bare = {key.lstrip("_") for key in rebuilt if isinstance(key, str)}
        stored = [name for name in self._names if name.lstrip("_") in bare]
        for key in list(infos):
            if key in rebuilt or (isinstance(key, str) and key.lstrip("_") in bare):
                del infos[key]
        for at, (frame, env) in enumerate(rows):
            for key in stored:
                infos = self._add_info(infos, self.core.row(frame, env, key), at)
            for info in by_env.get(env, ()):
                infos = self._add_info(infos, info, at)
        return infos

    def clear(self, frame: int, envs: Sequence[int]) -> None:
        """Drop the infos of some envs in a frame."""
        for column in self.columns:
            column.views(self._frames)[-1][frame, envs] = False  # the mask

    def learn(self, mailed: Sequence[tuple[int, dict[str, Any]]]) -> list[Column]:
        """Make columns for values that came by mail, as far as space lasts; return the new ones."""
        for _, info in mailed:
            self._learn(info, ())
        return self.catch_up()

    def catch_up(self) -> list[Column]:
        """Read with all columns; return those that are new to the C++ object.

        Ctrl-C may have prevented an earlier call from adding its columns.
        """
        new = self.columns[self.core.count :]
        add_columns(self.core, self._frames, new)
        return new

    def _learn(self, info: dict[Any, Any], path: Path) -> None:
        """Make columns for the values of the info dict at ``path``."""
        for key, value in info.items():
            # gymnasium keeps "final_obs" as one object per env, whatever its type.
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
        """Return the column for values of a kind, made if need be; None if there cannot be one.

        ``kind`` is None for a nested dict.
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
                self._warn(path, f"it has values of more than {_MAX_TYPES} types")
                return None
            dtype, shape, form, of = kind
            values = _aligned(self._end + self._rows)
            column = Column(path, self._end, dtype, shape, form, values, of)
            end = values + self._rows * math.prod(shape) * dtype.itemsize
        try:
            if end > len(self._frames.infos):
                raise MemoryError("no space left for infos")
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
        """Log that a key is slow, once per key and process."""
        if not self._pickled or path in _logged or len(_logged) == _MAX_COLUMNS:
            return
        _logged.add(path)
        place = "[...]" if path == ("...",) else "".join(f"[{key!r}]" for key in path)
        _log.warning("pysampler: info%s is pickled with every step, which is slow: %s", place, why)


def _aligned(offset: int) -> int:
    """Round an offset up to a multiple of 16, which aligns it for any dtype."""
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
