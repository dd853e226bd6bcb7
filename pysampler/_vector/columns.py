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

# Forms of columns that hold objects, which ``BatchRows`` does not write.
_OBJECTS = "object", "pickle"


class InfoColumns:
    """Tells ``BatchRows`` the columns of infos.

    Args:
        frames: The frames.
        rows: Writes the infos, given as one array per key.
    """

    def __init__(self, frames: Frames, rows: _core.BatchRows) -> None:
        self._frames = frames
        self._rows = rows

    def add(self, columns: Sequence[Column]) -> None:
        """Write to these columns too, from now on."""
        for column in columns:
            *values, mask = column.views(self._frames)
            *above, key = column.path
            if values and column.form not in _OBJECTS and above in ([], ["final_info"]):
                self._rows.add_column(key, values[0], mask, final=bool(above))
            else:
                self._rows.add_mask(mask, final_info=not values and column.path == ("final_info",))


def row_of(infos: Mapping[str, Array], row: int) -> dict[str, Any]:
    """Return the infos of one env as a dict of numbers and arrays."""
    return {
        key: array[row].copy() if array.ndim > 1 else array[row] for key, array in infos.items()
    }
