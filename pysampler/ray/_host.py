"""What runs on a host: a Ray actor that holds a sampler and answers the driver's calls.

What raises here is returned as a value: an exception that Ray sends may lose its type and the
traceback in a worker.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import ray

import pysampler
from pysampler._vector.registry import register
from pysampler._vector.vector_env import core_of
from pysampler._workers.exceptions import report
from pysampler.errors import BusyError, LostError, PysamplerError

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium as gym

    from pysampler._actors.records import RecordLayout
    from pysampler._workers.exceptions import Report

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Answer", "Description", "HostActor", "HostSetup", "HostedSampler", "Started"]


class HostedSampler:
    """Base class of what a host does for its driver: it makes a sampler, and calls it.

    The driver makes one, pickles it, and sends it to every host.

    Args:
        envs: What makes the envs.
        policy: The policy.
        kwargs: The further arguments of the sampler, but for its seed.
    """

    # Whether a newer policy is used at once, and not from the next call on.
    takes_policy_at_once = False

    def __init__(self, envs: Any, policy: Any, kwargs: dict[str, Any]) -> None:
        self.envs = envs
        self.policy = policy
        self.kwargs = kwargs

    def begin(self, setup: HostSetup, version: int, state: Any) -> Any:
        """Return a sampler that uses this version of the policy."""
        raise NotImplementedError

    def use_cpus(self, cpus: int) -> None:
        """Let the vector env have as many workers as the host has CPUs, unless it says how many."""
        vector_kwargs = self.kwargs["vector_kwargs"]
        if vector_kwargs.get("num_workers") is None:
            vector_kwargs["num_workers"] = max(1, cpus)

    def describe(self, sampler: Any) -> Description:
        """Return what the driver must know of the sampler."""
        return Description(sampler.envs.single_observation_space, sampler.envs.single_action_space)

    def use(self, version: int, state: Any) -> None:
        """Use another version of the policy."""
        raise NotImplementedError

    def call(self, request: Any) -> Any:
        """Return what the sampler answers to a request of the driver."""
        raise NotImplementedError


@dataclass(frozen=True)
class Description:
    """What the driver must know of the samplers of hosts, which are alike.

    Attributes:
        single_observation_space: The observation space of an env.
        single_action_space: The action space of an env.
        layout: Of actors, the layout of records.
    """

    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    layout: RecordLayout | None = None


@dataclass(frozen=True)
class HostSetup:
    """What distinguishes the samplers of hosts.

    Attributes:
        index: The index of the host.
        generation: How many samplers it had made before.
        seed: The seed of the sampler.
        entropy: The seed of other random numbers of the host's process.
        settings: Settings of actors, for the envs of this host.
    """

    index: int
    generation: int
    seed: int | None
    entropy: tuple[int, ...]
    settings: dict[str, Any] | None = None


@dataclass(frozen=True)
class Started:
    """What a host returns once it has made its sampler.

    Attributes:
        failure: What making it raised.
        pid: The process id of the host.
        node: The address and the beginning of the id of its node.
        description: What the driver must know of the sampler; None if there is none.
    """

    failure: Report | None
    pid: int
    node: str
    description: Description | None


@dataclass(frozen=True)
class Answer:
    """What a host answers to a call.

    Attributes:
        content: What the sampler returned; None if it raised.
        failure: What it raised.
        lost: Whether a worker was lost, and the sampler with it.
        ended: Whether the sampler cannot be called again.
        seconds: How long the call took on the host.
    """

    content: Any
    failure: Report | None
    lost: bool = False
    ended: bool = False
    seconds: float = 0.0


# Marks methods that Ray calls in a thread of their own, beside a call that is under way.
_control: Callable[[F], F] = ray.method(concurrency_group="control")


class HostActor:
    """The Ray actor. Calls come one after another; control calls come beside them.

    The lock guards which sampler there is, and which version of the policy it uses.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosted: HostedSampler
        self._sampler: Any = None
        self._generation = -1
        self._version = 0  # in use
        self._newest: tuple[int, Any] = 0, None

    def ready(self) -> str:
        """Return the version of pysampler, once Ray has started the process."""
        return pysampler.__version__

    def begin(
        self, pickled: bytes, specs: bytes, setup: HostSetup, version: int, state: Any
    ) -> Started:
        """Make the sampler, in the place of the one that there may be."""
        self.close()
        failure = description = None
        try:
            if specs:
                register(specs)
            hosted: HostedSampler = cloudpickle.loads(pickled)
            hosted.use_cpus(_cpus())
            sampler = hosted.begin(setup, version, state)
            try:
                description = hosted.describe(sampler)
            except BaseException:
                sampler.close()
                raise
            with self._lock:
                self._hosted, self._sampler = hosted, sampler
                self._version, self._newest = version, (version, state)
                self._generation = setup.generation
        except Exception as error:
            failure = report(error)
        return Started(failure, os.getpid(), _node(), description)

    def call(self, generation: int, request: Any, version: int, state: Any) -> Answer | None:
        """Return the answer of the sampler, which uses a policy at least as new as this one.

        Returns None if Ray has started this process anew, which has no sampler yet.
        """
        if generation != self._generation:
            return None
        sampler, began = self._sampler, time.monotonic()
        try:
            self.load(generation, version, state)
            self._use_newest()
            content = self._hosted.call(request)
            answer = Answer(content, None, seconds=time.monotonic() - began)
        except Exception as error:
            lost = isinstance(error, LostError)
            answer = Answer(None, report(error), lost=lost, ended=sampler.closed)
        if self._sampler is not sampler:  # closed meanwhile
            sampler.close()
        return answer

    @_control
    def load(self, generation: int, version: int, state: Any) -> None:
        """Take a version of the policy that is perhaps newer; as a control call too."""
        with self._lock:
            if generation != self._generation or version <= self._newest[0]:
                return
            self._newest = version, state
        if self._hosted.takes_policy_at_once:
            with contextlib.suppress(PysamplerError):  # the next call raises it
                self._use_newest()

    @_control
    def control(self, generation: int, function: Callable[[Any], Any]) -> Any:
        """Call a function with the sampler; only as a control call."""
        return function(self._sampler) if generation == self._generation else None

    @_control
    def kill_workers(self) -> None:
        """Kill the workers of the sampler, one of which hangs; as a control call."""
        if (sampler := self._sampler) is not None:
            core_of(sampler.envs).pool.kill(wait=0)

    @_control
    def close(self) -> None:
        """Close the sampler, or let the call under way do that; as a control call too."""
        with self._lock:
            sampler, self._sampler, self._generation = self._sampler, None, -1
        if sampler is not None:
            with contextlib.suppress(BusyError):
                sampler.close()

    def _use_newest(self) -> None:
        with self._lock:
            version, state = self._newest
            if version > self._version:
                self._hosted.use(version, state)
                self._version = version


def _cpus() -> int:
    """Return how many CPUs Ray has reserved for this process."""
    return int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))


def _node() -> str:
    context = ray.get_runtime_context()
    return f"{ray.util.get_node_ip_address()} ({context.get_node_id()[:8]})"
