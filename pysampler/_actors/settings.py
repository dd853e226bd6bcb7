"""Settings: numbers that a policy is called with by name, shared with the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._policies.signatures import GENERATORS, STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["Settings", "expect_settings", "setting_array"]


def expect_settings(doing: str, settings: Any) -> Mapping[str, Any]:
    """Return the settings that a user gave, or raise ValueError unless they are a dict by name."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise ValueError(
            f"cannot {doing}: settings {settings!r}, expected a dict of numbers by name"
        )
    if reserved := [name for name in settings if name in (STATE, GENERATORS)]:
        raise ValueError(
            f"cannot {doing}: settings {settings!r}, expected other names than {reserved[0]!r}"
        )
    return settings


def setting_array(doing: str, name: str, value: Any, num_envs: int) -> npt.NDArray[Any]:
    """Return the value of a setting as an array: one number, or one for each env."""
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
    return array


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
            raise KeyError(f"no setting {name!r}, expected one of {sorted(self._arrays)}")
        self._arrays[name][:] = setting_array("change setting", name, value, self._num_envs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<pysampler settings {self._arrays}>"
