"""Placement of hosts: on nodes that Ray chooses, or one on each node of the cluster."""

from __future__ import annotations

import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from pysampler.errors import HostLostError
from pysampler.ray._host import HostActor
from pysampler.ray._keeper import Keeper
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pysampler.ray._options import FleetOptions

__all__ = ["GroupPlacement", "NodePlacement", "Placement", "placement_for"]

log = logging.getLogger("pysampler.ray")

_SECOND = 1_000_000_000
# How long hosts may wait for a place before a warning is logged.
_QUIET_NS = 5 * _SECOND
# How often to look for new nodes.
_NODES_NS = 2 * _SECOND
# Ray sends results up to this size inside a host's answer instead of through the object stores of
# two nodes, which takes four times as long for 0.2 MB, and for 4 MB about as long, with as much CPU
# time (docs/results/hosts.md). Its default is 100 KB.
_INLINE = {"RAY_max_direct_call_object_size": str(4 * 2**20)}


class Placement:
    """Base class of ways to place hosts.

    Args:
        options: The number of hosts, and of CPUs for each.
        cpus: The minimum number of CPUs of a host.
    """

    grows = False  # whether hosts may join later

    def __init__(self, options: FleetOptions, cpus: int) -> None:
        self._options = options
        further = options.actor_options or {}
        self._bundle: dict[str, float] = {"CPU": cpus, **(further.get("resources") or {})}
        if further.get("num_gpus"):
            self._bundle["GPU"] = further["num_gpus"]
        self._keeper: Keeper | None = None

    def begin(self, deadline: int | None) -> list[Any]:
        """Return the places of the first hosts, once Ray has them."""
        raise NotImplementedError

    def joining(self, taken: set[Any]) -> list[Any]:  # noqa: ARG002 - none by default
        """Return places for further hosts, other than those that are taken."""
        return []

    def actor(self, place: Any) -> Any:
        """Return a new actor at a place; None if the place is gone."""
        raise NotImplementedError

    def end(self) -> None:
        """Give the places back. May be called repeatedly."""
        if self._keeper is not None:
            self._keeper.end()

    def _actor(self, strategy: Any, cpus: int) -> Any:
        """Return a new actor; Ray starts its process once."""
        further = self._options.actor_options or {}
        runtime_env = further.get("runtime_env") or {}
        env_vars = {**_INLINE, **(runtime_env.get("env_vars") or {})}
        options = {
            "num_cpus": cpus,
            "scheduling_strategy": strategy,
            **further,
            "max_restarts": 0,
            "runtime_env": {**runtime_env, "env_vars": env_vars},
        }
        kind = ray.remote(concurrency_groups={"control": 1})(HostActor)
        return kind.options(**options).remote()

    def describe(self) -> str:
        """Describe the hosts to place and the resources of the nodes, for errors."""
        has = self._listed_nodes()
        free = self._listed(ray.available_resources())
        return f"{self._wanted}; Ray has nodes with {has}, of which {free} are free"

    def _listed_nodes(self) -> str:
        return " | ".join(self._listed(node["Resources"]) for node in _nodes()) or "nothing"

    def _room(self, node: dict[str, Any]) -> int:
        """Return the number of hosts that fit on a node if nothing else runs there."""
        has, needs = node["Resources"], {name: n for name, n in self._bundle.items() if n > 0}
        return min(int(has.get(name, 0) // count) for name, count in needs.items())

    def _listed(self, resources: Mapping[str, float]) -> str:
        """Return the amount of each resource that a host needs, as text."""
        return ", ".join(f"{resources.get(name, 0):g} {name}" for name in self._bundle)

    @property
    def _wanted(self) -> str:
        """The hosts to place, for errors."""
        raise NotImplementedError


class GroupPlacement(Placement):
    """Hosts in a placement group of Ray: on different nodes, or as ``spread`` requires."""

    def __init__(self, options: FleetOptions) -> None:
        assert options.hosts != "auto"
        sizes = sorted((_cpus(node) for node in _nodes()), reverse=True)
        # By default, the CPUs of the smallest of the ``hosts`` largest nodes.
        largest = [size for size in sizes[: options.hosts] if size >= 1] or [1]
        self._cpus = options.cpus_per_host or largest[-1]
        super().__init__(options, self._cpus)
        self._bundles = [self._bundle] * options.hosts
        # The keeper learns the name before the group exists: this process may die in between.
        self._name = f"pysampler-{uuid.uuid4().hex}"
        self._group: Any = None

    def begin(self, deadline: int | None) -> list[Any]:
        """Return the indices of the bundles, once Ray has found nodes for all of them."""
        if ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
            # Ray removes the group when the job ends, which may outlive this process.
            self._keeper = Keeper(_removal_of(self._name))
        self._group = placement_group(self._bundles, strategy=self._options.spread, name=self._name)
        began, warned = now(), False
        if shortage := self._shortage():
            log.warning("pysampler: waiting for places: %s", shortage)
            warned = True
        while not self._group.wait(0.25):
            if deadline is not None and now() >= deadline:
                raise HostLostError(
                    f"cannot {self._options.doing}: Ray has found no places within start_timeout, "
                    f"{self._options.start_timeout} s: {self.describe()}"
                )
            if not warned and now() - began > _QUIET_NS:
                log.warning("pysampler: waiting for places: %s", self.describe())
                warned = True
        return list(range(len(self._bundles)))

    def actor(self, place: Any) -> Any:
        """Return a new actor in a bundle."""
        return self._actor(PlacementGroupSchedulingStrategy(self._group, place), self._cpus)

    def describe(self) -> str:
        """Describe which nodes are missing or which resources are in use, for errors."""
        return self._shortage() or super().describe()

    def _shortage(self) -> str | None:
        """Return why the hosts cannot fit on Ray's nodes, even if nothing else runs there."""
        hosts, spread, each = len(self._bundles), self._options.spread, self._listed(self._bundle)
        rooms = [self._room(node) for node in _nodes()]
        fitting = sum(room > 0 for room in rooms)
        if spread == "STRICT_SPREAD" and hosts > 1:
            if fitting >= hosts:
                return None
            kind = "" if fitting == len(rooms) else f" with {each}"
            hint = ' On one machine pass spread="PACK", cpus_per_host=1.' if fitting else ""
            return f"{hosts} hosts need {hosts} nodes{kind}; Ray has {fitting}.{hint}"
        room = sum(rooms) if spread in ("SPREAD", "PACK") else max(rooms, default=0)
        if room >= hosts:
            return None
        need = f"1 host needs {each}" if hosts == 1 else f"{hosts} hosts need {each} each"
        hint = " Pass a smaller cpus_per_host." if self._cpus > 1 and len(self._bundle) == 1 else ""
        return f"{need}; Ray has nodes with {self._listed_nodes()}.{hint}"

    @property
    def _wanted(self) -> str:
        each = self._listed(self._bundle)
        return f"hosts={self._options.hosts} with {each} each ({self._options.spread})"

    def end(self) -> None:
        """Remove the placement group."""
        if self._group is not None:
            with contextlib.suppress(RayError, ValueError):
                remove_placement_group(self._group)
        super().end()


class NodePlacement(Placement):
    """A host on each node that has enough CPUs, including nodes that join later."""

    grows = True

    def __init__(self, options: FleetOptions) -> None:
        super().__init__(options, options.cpus_per_host or 1)
        self._look_at = 0

    def begin(self, deadline: int | None) -> list[Any]:  # noqa: ARG002 - the fleet waits
        """Return the ids of the nodes of the cluster."""
        if (most := self._options.max_hosts) is not None:
            self._keeper = Keeper(_request_of([]))
            _request_of([self._bundle] * most)()
        return self.joining(set())

    def joining(self, taken: set[Any]) -> list[Any]:
        """Return the ids of new nodes."""
        if now() < self._look_at:
            return []
        self._look_at = now() + _NODES_NS
        alive = [node["NodeID"] for node in _nodes() if self._room(node) > 0]
        most = len(alive) if self._options.max_hosts is None else self._options.max_hosts
        room = max(0, most - len(taken.intersection(alive)))
        return [node for node in alive if node not in taken][:room]

    def actor(self, place: Any) -> Any:
        """Return a new actor on a node, with all its CPUs by default; None if the node is gone."""
        for node in _nodes():
            if node["NodeID"] == place:
                strategy = NodeAffinitySchedulingStrategy(place, soft=False)
                return self._actor(strategy, self._options.cpus_per_host or _cpus(node))
        return None

    @property
    def _wanted(self) -> str:
        return f'hosts="auto" with at least {self._listed(self._bundle)} each'

    def end(self) -> None:
        """Withdraw the request for nodes."""
        if self._options.max_hosts is not None:
            with contextlib.suppress(RayError):
                _request_of([])()
        super().end()


def placement_for(options: FleetOptions) -> Placement:
    """Return the placement for these options."""
    return NodePlacement(options) if options.hosts == "auto" else GroupPlacement(options)


def _request_of(bundles: list[dict[str, float]]) -> Callable[[], None]:
    """Return a function that asks Ray's autoscaler for nodes with room for these bundles."""

    def request() -> None:
        from ray.autoscaler.sdk import request_resources  # noqa: PLC0415 - where there is one

        request_resources(bundles=bundles)

    return request


def _removal_of(name: str) -> Callable[[], None]:
    """Return a function that removes the placement group of this name, if it exists."""

    def remove() -> None:
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))

    return remove


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _cpus(node: dict[str, Any]) -> int:
    return int(node["Resources"].get("CPU", 0))
