"""Settings of actors on Ray: numbers that the policies on all hosts get as keyword arguments."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pysampler._actors.settings import Settings, setting_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

    from pysampler._actors.actors import Actors

__all__ = ["HostSettings"]


class HostSettings(Settings):
    """Read-only arrays by name, with a number for each env.

    Assigning to a name sends a new array to the hosts.

    Args:
        given: The numbers, or arrays of them, by name.
        num_envs: The number of envs of a host.
        hosts: The number of hosts; 1 if it is unknown, and all hosts get the same numbers.
        tell: Calls a function on the actors of each host. Its argument returns this function, given
            the index of the host.
    """

    def __init__(
        self,
        given: Mapping[str, npt.ArrayLike] | None,
        num_envs: int,
        hosts: int,
        tell: Callable[[Callable[[int], Callable[[Actors], None]]], None],
    ) -> None:
        count = hosts * num_envs
        super().__init__(setting_arrays("act", given, count), count)
        self._envs_of_host = num_envs
        self._tell = tell

    def of_host(self, index: int) -> dict[str, npt.NDArray[np.float64]]:
        """Return the settings for the envs of a host."""
        return {name: self._rows(array, index) for name, array in self._arrays.items()}

    def setter_of_host(self, index: int) -> Callable[[Actors], None]:
        """Return a function that sets all current settings on the actors of a host."""
        return functools.partial(_set, self.of_host(index))

    def _rows(self, array: npt.NDArray[np.float64], index: int) -> npt.NDArray[np.float64]:
        first = index * self._envs_of_host % self._num_envs
        return array[first : first + self._envs_of_host]

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        array = self._arrays[name].view()
        array.flags.writeable = False
        return array

    def _change(self, name: str, array: npt.NDArray[np.float64]) -> None:
        self._arrays[name] = array
        self._tell(lambda index: functools.partial(_set, {name: self._rows(array, index)}))


def _set(rows: dict[str, npt.NDArray[np.float64]], actors: Actors) -> None:
    for name, array in rows.items():
        actors.settings[name] = array
