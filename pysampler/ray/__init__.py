"""Samplers on many machines: each host samples on its own, and the driver takes what they made.

A host is a Ray actor with an ordinary sampler of pysampler and its workers. What travels is
rollouts, records and weights, never single steps. ``_host.py`` runs on the hosts; everything else
runs in the driver, the process of the user. ``_fleet.py`` knows hosts, calls and losses, but not
what the answers hold; ``_rollouts.py`` and ``_actors.py`` know that, but not how a host is lost.
"""

try:
    import ray  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ModuleNotFoundError(
        "pysampler.ray needs Ray: pip install 'pysampler[ray]'", name="ray"
    ) from None

from pysampler.ray._actors import Actors
from pysampler.ray._host_rollouts import HostRollout, HostRollouts
from pysampler.ray._rollouts import Rollouts
from pysampler.ray._stats import HostStats, Stats

__all__ = [
    "Actors",
    "HostRollout",
    "HostRollouts",
    "HostStats",
    "Rollouts",
    "Stats",
]
