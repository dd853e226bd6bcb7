"""Columns of infos in the frames, written for many envs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from pysampler import _core
    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column

    Array = npt.NDArray[Any]

__all__ = ["InfoColumns", "row_of"]

# Forms of columns that hold objects. Tasks do not write these.
_OBJECTS = "object", "pickle"


class InfoColumns:
    """Writes infos of some envs, given as one array per key, to the columns of the frames.

    Args:
        frames: The frames.
        rows: Writes the infos of steps of a whole block in C++, and gets the same columns; None if
            there is no such writer.
    """

    def __init__(self, frames: Frames, rows: _core.BatchRows | None = None) -> None:
        self._frames = frames
        self._rows = rows
        self._masks: list[Array] = []
        self._nodes: dict[str, Array] = {}  # masks of nested dicts
        # By key, or by keys if nested: the dtype and shape of a value, the values and their mask.
        self._columns: dict[Any, dict[Any, tuple[Array, Array]]] = {}

    def add(self, columns: Sequence[Column]) -> None:
        """Write to these columns too, from now on."""
        for column in columns:
            *values, mask = column.views(self._frames)
            self._masks.append(mask)
            if not values:
                self._nodes[column.path[0]] = mask
            if self._rows is None:
                pass
            elif not values or column.form in _OBJECTS or len(column.path) > 1:
                self._rows.add_mask(mask)
            else:
                self._rows.add_column(column.path[0], values[0], mask)
            if values and column.form not in _OBJECTS:
                key = column.path if len(column.path) > 1 else column.path[0]
                kind = values[0].dtype, values[0].shape[2:]
                self._columns.setdefault(key, {})[kind] = values[0], mask

    def clear(self, frame: int, rows: Any) -> None:
        """Clear the infos of these envs."""
        for mask in self._masks:
            mask[frame, rows] = False

    def write(self, frame: int, rows: Any, infos: Mapping[str, Array]) -> dict[str, Array]:
        """Write the infos of the envs in some rows; return the infos that have no column."""
        rest = {}
        for key, array in infos.items():
            columns = self._columns.get(key)
            found = columns and columns.get((array.dtype, array.shape[1:]))
            if found:
                values, mask = found
                values[frame, rows] = array
                mask[frame, rows] = True
            else:
                rest[key] = array
        return rest

    def write_final(
        self, frame: int, rows: Array, infos: Mapping[str, Array]
    ) -> dict[str, Array] | None:
        """Write infos of steps that ended episodes under ``final_info``.

        Returns:
            The infos without a column; None if all have one.
        """
        if "final_info" not in self._nodes:
            return dict(infos)
        self._nodes["final_info"][frame, rows] = True
        nested = {("final_info", key): array for key, array in infos.items()}
        rest = self.write(frame, rows, nested)  # type: ignore[arg-type]
        return {key[1]: array for key, array in rest.items()} or None


def row_of(infos: Mapping[str, Array], row: int) -> dict[str, Any]:
    """Return the infos of one env as a dict of numbers and arrays."""
    return {
        key: array[row].copy() if array.ndim > 1 else array[row] for key, array in infos.items()
    }
