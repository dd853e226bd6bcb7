"""Settings: numeric keyword arguments of a policy, shared with the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._policies.signatures import GENERATORS, STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["Settings", "setting_arrays"]


def setting_arrays(doing: str, settings: Any, num_envs: int) -> dict[str, npt.NDArray[np.float64]]:
    """Return the user's settings as arrays, or raise ValueError."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ValueError(
            f"cannot {doing}: settings {settings!r}, expected a dict of numbers by name"
        )
    if reserved := [name for name in settings if name in (STATE, GENERATORS)]:
        raise ValueError(
            f"cannot {doing}: settings {settings!r}, expected names other than {reserved[0]!r}"
        )
    return {name: setting_array(doing, name, value, num_envs) for name, value in settings.items()}


def setting_array(doing: str, name: str, value: Any, num_envs: int) -> npt.NDArray[np.float64]:
    """Return a setting as an array with a number for each env, or raise ValueError."""
    expected = (
        f"cannot {doing}: setting {name!r} {value!r}, expected a number, or one for each of "
        f"{num_envs} envs"
    )
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise ValueError(expected) from None
    if array.dtype.kind not in "biuf" or array.shape not in ((), (num_envs,)):
        raise ValueError(expected)
    return np.broadcast_to(array, num_envs).astype(np.float64)


class Settings(Mapping[str, "npt.NDArray[Any]"]):
    """Arrays by name that the workers read while they act.

    Assigning to a name or to a part of its array changes the setting at once.
    """

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], num_envs: int) -> None:
        self._arrays = arrays
        self._num_envs = num_envs

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        if name not in self._arrays:
            raise KeyError(f"unknown setting {name!r}, expected one of {sorted(self._arrays)}")
        self._change(name, setting_array("change setting", name, value, self._num_envs))

    def _change(self, name: str, array: npt.NDArray[np.float64]) -> None:
        self._arrays[name][:] = array

    def move_to(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Keep the numbers in these arrays from now on."""
        for name, array in arrays.items():
            array[:] = self._arrays[name]
        self._arrays = arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<pysampler settings {self._arrays}>"
