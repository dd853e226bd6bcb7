"""Settings of actors on Ray: numbers that policies on all hosts are called with by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.settings import setting_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from pysampler._actors.actors import Actors

__all__ = ["HostSettings"]


class HostSettings(Mapping[str, "npt.NDArray[np.float64]"]):
    """Arrays by name, with a number for each env. Assigning to a name sends it to the hosts.

    Args:
        given: The numbers, or arrays of them, by name.
        num_envs: The number of envs of a host.
        hosts: The number of hosts; 1 if it is not known, and each of them is given the same.
        tell: Calls a function with the actors of a host, given the index of that: of all hosts.
    """

    def __init__(
        self,
        given: Mapping[str, npt.ArrayLike],
        num_envs: int,
        hosts: int,
        tell: Callable[[Callable[[int], Callable[[Actors], None]]], None],
    ) -> None:
        self._num_envs = num_envs
        self._hosts = hosts
        self._tell = tell
        self._arrays = {name: self._checked("act", name, value) for name, value in given.items()}

    def _checked(self, doing: str, name: str, value: Any) -> npt.NDArray[np.float64]:
        """Return the value as an array with a number for each env of all hosts."""
        count = self._hosts * self._num_envs
        return np.broadcast_to(setting_array(doing, name, value, count), count).astype(np.float64)

    def of_host(self, index: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return the settings for the envs of a host."""
        return {name: self._rows(array, index) for name, array in self._arrays.items()}

    def setter_of_host(self, index: int) -> Callable[[Actors], None]:
        """Return a function that gives the actors of a host all settings as they are now."""
        return functools.partial(_set, self.of_host(index))

    def _rows(self, array: npt.NDArray[np.float64], index: int) -> npt.NDArray[np.float64]:
        first = index % self._hosts * self._num_envs
        return array[first : first + self._num_envs]

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        return self._arrays[name].copy()

    def __setitem__(self, name: str, value: npt.ArrayLike) -> None:
        if name not in self._arrays:
            raise KeyError(f"no setting {name!r}, expected one of {sorted(self._arrays)}")
        array = self._arrays[name] = self._checked("change setting", name, value)
        self._tell(lambda index: functools.partial(_set, {name: self._rows(array, index)}))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<pysampler settings {self._arrays}>"


def _set(rows: dict[str, npt.NDArray[np.float64]], actors: Actors) -> None:
    for name, array in rows.items():
        actors.settings[name] = array
