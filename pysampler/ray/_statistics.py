"""A normalizer over many hosts: each counts its own envs, and the driver merges the statistics.

A request carries the driver's statistics and the last of the host's rollouts that they include; the
host adds its later rollouts. An answer carries the statistics of its rollout alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pysampler._frames.spec import spec_of
from pysampler._policies.normalize import (
    arrays_of_moments,
    merged,
    moments_of_arrays,
    normalization_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler._policies.normalize import Normalization, Normalizer

    Arrays = Mapping[str, npt.NDArray[Any]]

__all__ = ["CommonStatistics", "DriverStatistics", "HostStatistics"]


@dataclass(frozen=True)
class CommonStatistics:
    """The statistics that the driver sends a host before a rollout.

    Attributes:
        moments: The statistics, as arrays by name.
        update: Whether the normalizer updates its statistics.
        number: The number of the rollout.
        included: The number of the last rollout of this host that the statistics include, or -1.
    """

    moments: Arrays
    update: bool
    number: int
    included: int


class DriverStatistics:
    """The driver's side.

    Args:
        normalizer: The user's normalizer.
        observation_space: The observation space of an env.
        action_space: The action space of an env.
        doing: The verb of the sampler, for errors.
    """

    def __init__(
        self,
        normalizer: Normalizer,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        doing: str,
    ) -> None:
        spec = spec_of(observation_space, action_space).shaped
        normalization = normalization_of(normalizer, spec, doing)
        assert normalization is not None
        self._statistics = normalization.statistics
        self._included: dict[int, int] = {}  # by host

    def for_host(self, host: int, number: int) -> CommonStatistics:
        """Return the statistics for a host before the rollout of this number."""
        common = self._statistics
        included = self._included.get(host, -1)
        return CommonStatistics(arrays_of_moments(common.moments), common.update, number, included)

    def add(self, host: int, number: int, seen: Arrays) -> None:
        """Merge the statistics of a host's rollout, once."""
        if number <= self._included.get(host, -1):
            return
        moments = merged(self._statistics.moments, moments_of_arrays(seen))
        # One statement without a call: after an interrupt, the next call continues from here.
        self._statistics.moments, self._included[host] = moments, number


class HostStatistics:
    """A host's side.

    Args:
        normalization: The normalization of the host's sampler.
    """

    def __init__(self, normalization: Normalization) -> None:
        self._normalization = normalization
        # Numbers and moments of rollouts that the driver's statistics do not include yet.
        self._pending: deque[tuple[int, dict[str, Any]]] = deque()

    def before(self, common: CommonStatistics) -> None:
        """Adopt the driver's statistics, and add this host's later rollouts to them."""
        own, pending = self._normalization, self._pending
        while pending and pending[0][0] <= common.included:
            pending.popleft()
        own.seen = None
        own.statistics.moments = moments_of_arrays(common.moments)
        own.statistics.update = common.update
        for _, seen in pending:
            own.add(seen)
        own.seen = own.nothing_seen()

    def after(self, number: int) -> Arrays:
        """Return the statistics of a rollout."""
        seen = self._normalization.seen
        assert seen is not None
        self._pending.append((number, seen))
        return arrays_of_moments(seen)
