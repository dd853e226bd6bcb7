"""Infos: the dicts of single envs, batched as gymnasium batches them.

A value that is a number or a plain array gets a column in the frames once it has been seen
(csrc/bindings/infos.h); what has none, or another type than its column, comes through the side
channel and is merged in here. Either way the result is that of ``VectorEnv._add_info``.
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
# Python's own numbers, numpy's, those of numpy's that gymnasium makes no array of, or arrays.
Form = Literal["python", "scalar", "object", "array"]
# Keys whose values have had so many types stay with the side channel.
ALTERNATIVES = 4
# How often a key may have a value of no such form before that is told of.
_OFTEN = 1000

_log = logging.getLogger("pysampler")


@dataclass(frozen=True)
class Column:
    """Where the values of a key lie: ``[frames, envs, ...]``, and a mask ``[frames, envs]``.

    Without a dtype, where nested dicts are.
    """

    path: Path
    mask: int
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    form: Form = "python"
    values: int = 0

    def views(self, frames: Frames) -> list[npt.NDArray[Any]]:
        """The values, if it has any, and where there are some."""

        def view(at: int, dtype: np.dtype[Any], *shape: int) -> npt.NDArray[Any]:
            shape = frames.count, frames.envs, *shape
            end = at + math.prod(shape) * dtype.itemsize
            return frames.infos[at:end].view(dtype).reshape(shape)

        mask = view(self.mask, np.dtype(np.bool_))
        return [mask] if self.dtype is None else [view(self.values, self.dtype, *self.shape), mask]


def add_columns(infos: _core.Infos, frames: Frames, columns: Sequence[Column]) -> None:
    """Tell one side of the frames about new columns."""
    for column in columns:
        *values, mask = column.views(frames)
        if values:
            infos.add_column(column.path, mask, values[0], column.form)
        else:
            infos.add_node(column.path, mask)


class Infos:
    """The parent's side: learns columns, and reads a frame's infos."""

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
        self._next = 0
        self._known: dict[tuple[Path, Any], Column] = {}
        self._types: dict[Path, int] = {}
        self._others: dict[Path, int] = {}  # how often values had no form, until that was told
        self._told = False  # that infos are slow
        self._add_info = add_info

    def merge(
        self,
        rows: Sequence[tuple[int, int]],
        infos: dict[str, Any],
        mixed: Sequence[str],
        rest: Sequence[tuple[int, dict[str, Any]]],
    ) -> dict[str, Any]:
        """The infos of (frame, env) rows, with those (env, dict) from the side channel."""
        by_env: dict[int, list[dict[str, Any]]] = {}
        again = dict.fromkeys(mixed)
        for env, info in rest:
            by_env.setdefault(env, []).append(info)
            again.update(dict.fromkeys(info))
        # What has values from both sides is put together anew, env by env: the first decides on
        # the dtype.
        again.pop("final_obs", None)
        for key in again:
            infos.pop(key, None)
            infos.pop(f"_{key}", None)
        stored = [key for key in again if isinstance(key, str)]
        for at, (frame, env) in enumerate(rows):
            for key in stored:
                value = self.core.row(frame, env, key)
                if value is not None:
                    infos = self._add_info(infos, {key: value}, at)
            for info in by_env.get(env, ()):
                infos = self._add_info(infos, info, at)
        return infos

    def learn(self, rest: Sequence[tuple[int, dict[str, Any]]]) -> list[Column]:
        """New columns for what came by the side channel, as far as there is room."""
        for _, info in rest:
            self._learn(info, ())
        # Ctrl-C may have come before the last of them were added.
        new = self.columns[self.core.count :]
        add_columns(self.core, self._frames, new)
        return new

    def _learn(self, info: dict[Any, Any], path: Path) -> None:
        for key, value in info.items():
            # "final_obs" is one object an env to gymnasium, whatever it is.
            if type(key) is not str or key == "final_obs":
                continue
            here = (*path, key)
            if isinstance(value, dict):
                if self._place(here, None) is not None:
                    self._learn(value, here)
            elif (kind := _kind(value)) is not None:
                self._place(here, kind)
            elif not self._told:
                self._others[here] = self._others.get(here, 0) + 1
                if self._others[here] == _OFTEN:
                    self._tell(here, f"{type(value).__name__}, expected a number or an array")

    def _place(
        self, path: Path, kind: tuple[np.dtype[Any], tuple[int, ...], Form] | None
    ) -> Column | None:
        known = self._known.get((path, kind))
        if known is not None:
            return known
        if kind is None:
            column = Column(path, self._next)
            end = self._next + self._rows
        else:
            if self._types.get(path, 0) == ALTERNATIVES:
                self._tell(path, f"another type than {ALTERNATIVES} before it")
                return None
            dtype, shape, form = kind
            values = _lines(self._next + self._rows)
            column = Column(path, self._next, dtype, shape, form, values)
            end = values + self._rows * math.prod(shape) * dtype.itemsize
        try:
            if end > len(self._frames.infos):
                raise MemoryError("there is no room left for infos")
            self._frames.take_infos(end)
        except MemoryError as error:
            self._tell(path, str(error))
            return None
        self._next = _lines(end)
        self.columns.append(column)
        self._types[path] = self._types.get(path, 0) + 1
        self._known[path, kind] = column
        return column

    def _tell(self, path: Path, why: str) -> None:
        """Say once that there are infos which are slow."""
        if not self._told:
            self._told = True
            place = "".join(f"[{key!r}]" for key in path)
            _log.warning("info%s is pickled with every step, which is slow: %s", place, why)


def _lines(size: int) -> int:
    return -(-size // 16) * 16


def _kind(value: Any) -> tuple[np.dtype[Any], tuple[int, ...], Form] | None:
    """Dtype and shape of the array that gymnasium makes of such values; None if of objects."""
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
