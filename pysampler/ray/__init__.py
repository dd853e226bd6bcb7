"""Sample on many machines: hosts sample independently, and the driver collects the results.

A host is a Ray actor with an ordinary pysampler sampler and its workers. Rollouts, records and
weights travel between hosts and driver, never single steps. ``_host.py`` runs on the hosts, all
other modules in the driver, the process of the user. ``_fleet.py`` handles hosts, calls and losses
without reading the answers; ``_rollouts.py`` and ``_actors.py`` read them and handle no losses.
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

__all__ = ["Actors", "HostRollout", "HostRollouts", "HostStats", "Rollouts", "Stats"]
