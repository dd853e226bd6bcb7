"""The base class of rollouts and actors on many hosts."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler import _core
from pysampler._common.closing import Interruptible, Uncopyable, ends_by_signal
from pysampler._common.numbers import whole_number
from pysampler._policies.sampler import makes_envs
from pysampler._policies.seeds import entropy_from
from pysampler._policies.signatures import signature_of
from pysampler._policies.weights import portable
from pysampler._vector import arguments
from pysampler._vector.make import OPTIONS, vector_options
from pysampler._vector.registry import registered
from pysampler._workers.remote import dumps_by_value
from pysampler._workers.seeds import number_from
from pysampler.errors import ClosedError
from pysampler.ray._fleet import Fleet
from pysampler.ray._host import HostSetup
from pysampler.ray._placement import placement_for
from pysampler.ray._policy_states import PolicyVersions
from pysampler.ray._stats import HostStats, Stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pysampler.ray._host import HostedSampler
    from pysampler.ray._hosts import Host
    from pysampler.ray._options import FleetOptions

__all__ = ["RemoteSampler", "weakly"]


class RemoteSampler(Uncopyable, Interruptible):
    """Base class of samplers whose hosts are Ray actors.

    Args:
        options: The number of hosts, and how to react to a lost one.
        hosted: The class that makes and calls the sampler on each host.
        envs: Makes the envs of a host.
        policy: The policy.
        num_envs: The number of envs of a host, if ``envs`` can make any number.
        vector_kwargs: Further arguments of each host's vector env.
        kwargs: Further arguments of each host's sampler.
        seed: The seed.
        settings: The names of the keyword arguments that the policy is called with.

    Attributes:
        policy: The policy.
        num_envs: The number of envs of each host.
        single_observation_space: The observation space of an env.
        single_action_space: The action space of an env.
    """

    _doing = "sample rollouts"
    _name = "rollouts"

    _closed = True  # until __init__ has opened it

    def __init__(
        self,
        options: FleetOptions,
        hosted: type[HostedSampler],
        envs: Any,
        policy: Any,
        num_envs: int | None,
        vector_kwargs: dict[str, Any] | None,
        kwargs: dict[str, Any],
        seed: int | None,
        settings: Iterable[str] = (),
    ) -> None:
        self._options = options
        self.policy = policy
        self.num_envs = self._count_envs(envs, num_envs)
        self._seed = None if seed is None else whole_number(self._doing, "seed", seed, 0)
        self._entropy = entropy_from(self._seed)
        self._guard = _core.Guard(
            f"these {self._name}", f"cannot {self._doing}: they are closed", ClosedError
        )
        self._versions = PolicyVersions()
        self._took = self._dropped = self._bytes = 0
        self._lag = 0.0
        self._waiting_ns = self._receiving_ns = self._publishing_ns = 0
        signature_of(policy, ("observations",), settings)  # only checks the argument
        vector_kwargs = vector_options(self._doing, vector_kwargs)
        if unknown := sorted(vector_kwargs.keys() - OPTIONS):
            raise TypeError(
                f"cannot {self._doing}: vector_kwargs has {unknown[0]!r}, expected arguments of "
                "VectorEnv"
            )
        if not ray.is_initialized():
            ray.init()
        placement = placement_for(options)
        try:
            kwargs = {
                **kwargs,
                "num_envs": self.num_envs if makes_envs(envs) else None,
                "vector_kwargs": vector_kwargs,
            }
            pickled = self._pickled(hosted(envs, portable(policy), kwargs))
            self._fleet = Fleet(
                *(options, placement, ray.put(pickled), ray.put(registered())),
                *(weakly(self._setup_of), self._versions, weakly(self._request)),
                weakly(self._greeting),
            )
        except BaseException:
            placement.end()
            raise
        self._closed = False

    def _begin(self) -> None:
        """Start the hosts and wait for them; close if that fails."""
        try:
            self._fleet.begin()
            description = self._fleet.serving[0].description
            assert description is not None
            self._description = description
            self.single_observation_space = description.single_observation_space
            self.single_action_space = description.single_action_space
        except BaseException as error:
            self._interrupted = ends_by_signal(type(error))
            self.close()
            raise

    def _count_envs(self, envs: Any, num_envs: int | None) -> int:
        if isinstance(envs, GymVectorEnv):
            raise TypeError(
                f"cannot {self._doing}: {envs} is in this process, and each host makes its own "
                "envs; expected an env id, an EnvSpec, a function that makes an env, or a list of "
                "such functions"
            )
        if makes_envs(envs):
            if not (isinstance(envs, (str, EnvSpec)) or callable(envs)):
                raise TypeError(
                    f"cannot {self._doing}: envs {envs!r}, expected an env id, an EnvSpec, a "
                    "function that makes an env, or a list of such functions"
                )
            if num_envs is None:
                raise ValueError(
                    f"cannot {self._doing}: num_envs is missing, expected the number of envs "
                    "of each host"
                )
            return whole_number(self._doing, "num_envs", num_envs, 1)
        if num_envs is not None:
            raise ValueError(
                f"cannot {self._doing}: num_envs requires an env id or function, not a list of them"
            )
        return len(arguments.env_fns(envs))

    def _pickled(self, hosted: HostedSampler) -> bytes:
        try:
            return dumps_by_value(hosted)
        except Exception as error:
            raise TypeError(
                f"cannot send envs and policy to the hosts: {type(error).__name__}: {error}; "
                "create what they need inside the functions"
            ) from error

    # -- hosts -----------------------------------------------------------------------------------

    def _setup_of(self, index: int, generation: int) -> HostSetup:
        """Return the seeds of a host's sampler, given the number of its earlier processes.

        The first generation of all hosts has the seeds of one vector env with all their envs.
        """
        own = self._entropy if isinstance(self._entropy, list) else [self._entropy]
        entropy = (*own, index, generation)
        seed = None if self._seed is None else self._seed + index * self.num_envs
        if seed is not None and generation > 0:
            seed = number_from(np.random.SeedSequence(entropy))
        return HostSetup(seed, entropy)

    def _request(self, host: Host) -> Any:
        raise NotImplementedError

    def _greeting(self, index: int) -> Callable[[Any], Any] | None:  # noqa: ARG002
        """Return a function to call with the sampler of a host that has just started, or None."""
        return None

    def _lag_of(self, version: int) -> int:
        return self._versions.version - version

    @property
    def version(self) -> int:
        """The newest version of the policy, from 1 on; 0 for actors whose policy has no weights."""
        return self._versions.version

    @property
    def hosts(self) -> list[int]:
        """The indices of the hosts that are sampling."""
        return [host.index for host in self._fleet.serving]

    def stats(self) -> Stats:
        """Return counters of the hosts and the learner so far."""
        fleet = self._fleet
        hosts = tuple(
            HostStats(
                *(host.index, host.pid, host.node, host.serves, host.gone),
                *(host.generation, host.served),
            )
            for host in fleet.hosts
        )
        return Stats(
            *(hosts, self._took, self._dropped, fleet.lost, self.version, self._lag, fleet.calls),
            *(self._bytes, self._versions.bytes_put, self._waiting_ns / 1e9),
            *(self._receiving_ns / 1e9, self._publishing_ns / 1e9),
        )

    # -- ending ----------------------------------------------------------------------------------

    def _enter(self, what: str) -> _core.Entry:
        """Return a context that admits one thread; raise ClosedError if the sampler is closed."""
        if not self._guard.mine:
            raise ClosedError(f"cannot {self._doing}: made by another process, this is a fork")
        return self._guard.entry(what)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def close(self) -> None:
        """Close the envs of all hosts, end the hosts, and free their CPUs on the cluster."""
        fleet: Fleet | None = getattr(self, "_fleet", None)
        if fleet is None or fleet.ended or not self._guard.mine:
            return
        if self._closed:  # an earlier call was interrupted
            fleet.close(at_once=True)
            return
        entry = self._guard.closing(f"close {self._name}")
        with entry:
            self._closed = True
            self._guard.close()
            fleet.close(at_once=self._interrupted or entry.nested)

    def __del__(self) -> None:
        # Nothing refers to the actors any more, so Ray ends them.
        if not self._closed and self._guard.mine:
            with contextlib.suppress(Exception):
                self._fleet.close(at_once=True)


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method without keeping its object alive.

    A dropped sampler then ends immediately, and not at the next garbage collection.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = reference()
        assert bound is not None
        return bound(*args)

    return call
