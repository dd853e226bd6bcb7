"""HostActor: the Ray actor on a host, which holds a sampler and answers the driver's calls.

Errors are returned as values: an exception that Ray sends may lose its type and the worker's
traceback.
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
from pysampler.errors import BusyError, EnvTimeoutError, LostError, PysamplerError

if TYPE_CHECKING:
    from collections.abc import Callable

    import gymnasium as gym

    from pysampler._actors.records import RecordLayout
    from pysampler._workers.exceptions import Report

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Answer", "Description", "HostActor", "HostSetup", "HostedSampler", "Started"]

# Seconds between two requests that a pending call stop.
_SLICE = 0.1


class HostedSampler:
    """Base class of the code that makes and calls a host's sampler.

    The driver creates one instance, pickles it, and sends it to every host.

    Args:
        envs: Makes the envs.
        policy: The policy.
        kwargs: The other arguments of the sampler, except its seed.
    """

    # Whether a newer policy is used immediately instead of from the next call on.
    takes_policy_at_once = False

    def __init__(self, envs: Any, policy: Any, kwargs: dict[str, Any]) -> None:
        self.envs = envs
        self.policy = policy
        self.kwargs = kwargs

    def begin(self, setup: HostSetup, version: int, state: Any) -> Any:
        """Return a sampler that uses this version of the policy."""
        raise NotImplementedError

    def use_cpus(self, cpus: int) -> None:
        """Give the vector env one worker per CPU of the host, unless ``num_workers`` is set."""
        vector_kwargs = self.kwargs["vector_kwargs"]
        if vector_kwargs.get("num_workers") is None:
            vector_kwargs["num_workers"] = max(1, cpus)

    def describe(self, sampler: Any) -> Description:
        """Return the parts of the sampler that the driver needs."""
        envs, expected = sampler.envs, self.kwargs["num_envs"] or len(self.envs)
        if envs.num_envs != expected:
            raise ValueError(
                f"cannot sample on hosts: the functions make {envs.num_envs} envs, expected "
                f"{expected}: one each"
            )
        return Description(envs.single_observation_space, envs.single_action_space)

    def use(self, version: int, state: Any) -> None:
        """Use another version of the policy."""
        raise NotImplementedError

    def call(self, request: Any) -> Any:
        """Return the sampler's answer to a request of the driver."""
        raise NotImplementedError


@dataclass(frozen=True)
class Description:
    """The parts of the hosts' samplers that the driver needs; the same for all hosts.

    Attributes:
        single_observation_space: The observation space of an env.
        single_action_space: The action space of an env.
        layout: The layout of records, for actors only.
    """

    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    layout: RecordLayout | None = None


@dataclass(frozen=True)
class HostSetup:
    """The arguments that differ between the hosts' samplers.

    Attributes:
        seed: The seed of the sampler.
        entropy: The seed of the other random numbers of the host's process.
        settings: The settings of actors for the envs of this host.
    """

    seed: int | None
    entropy: tuple[int, ...]
    settings: dict[str, Any] | None = None


@dataclass(frozen=True)
class Started:
    """The answer to ``begin``: the new sampler, or why it could not be made.

    Attributes:
        failure: The error that making the sampler raised.
        pid: The process id of the host.
        node: The address and the beginning of the id of its node.
        description: The description of the sampler; None after a failure.
    """

    failure: Report | None
    pid: int
    node: str
    description: Description | None


@dataclass(frozen=True)
class Answer:
    """A host's answer to a call.

    Attributes:
        content: The result of the sampler; None if it raised.
        failure: The error that it raised.
        lost: Whether a worker was lost, and the sampler with it.
        ended: Whether the sampler cannot be called again.
        seconds: The duration of the call on the host.
    """

    content: Any
    failure: Report | None
    lost: bool = False
    ended: bool = False
    seconds: float = 0.0


# Marks methods that Ray calls in a separate thread, concurrently with a pending call.
_control: Callable[[F], F] = ray.method(concurrency_group="control")


class HostActor:
    """The Ray actor. Calls run one after another; control calls run concurrently with them.

    ``_lock`` guards the current sampler and the version of the policy that it uses. A call holds
    ``_calling`` until it has closed a sampler that ``close`` has left to it.
    """

    def __init__(self) -> None:
        self._lock, self._calling = threading.Lock(), threading.Lock()
        self._hosted: HostedSampler
        self._sampler: Any = None  # until ``begin``, and after ``close``
        self._version = 0  # in use, of the policy
        self._newest: tuple[int, Any] = 0, None

    def ready(self) -> str:
        """Return the version of pysampler, once Ray has started the process."""
        return pysampler.__version__

    def begin(
        self, pickled: bytes, specs: bytes, setup: HostSetup, version: int, state: Any
    ) -> Started:
        """Make the sampler; it replaces an earlier one, if an interrupted driver calls again."""
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
        except Exception as error:
            failure = report(error)
        return Started(failure, os.getpid(), _node(), description)

    def call(self, request: Any, version: int, state: Any) -> Answer | None:
        """Call the sampler, with a policy at least as new as this one, and return its answer.

        Returns None after ``close``.
        """
        with self._calling:
            return self._call(request, version, state)

    def _call(self, request: Any, version: int, state: Any) -> Answer | None:
        if (sampler := self._sampler) is None:
            return None
        began = time.monotonic()
        try:
            self.load(version, state)
            self._use_newest()
            answer = Answer(self._hosted.call(request), None, seconds=time.monotonic() - began)
        except Exception as error:
            ended = sampler.closed  # a late env may have returned since
            lost = isinstance(error, LostError) or (ended and isinstance(error, EnvTimeoutError))
            answer = Answer(None, report(error), lost=lost, ended=ended)
        if self._sampler is not sampler:  # ``close`` was called meanwhile, or is closing it now
            with contextlib.suppress(BusyError):
                sampler.close()
        return answer

    @_control
    def load(self, version: int, state: Any) -> None:
        """Store this version of the policy if it is newer; may be a control call."""
        with self._lock:
            if self._sampler is None or version <= self._newest[0]:
                return
            self._newest = version, state
        if self._hosted.takes_policy_at_once:
            with contextlib.suppress(PysamplerError):  # the next call raises it
                self._use_newest()

    @_control
    def control(self, function: Callable[[Any], Any]) -> Any:
        """Call a function with the sampler; always a control call."""
        return None if (sampler := self._sampler) is None else function(sampler)

    @_control
    def kill_workers(self) -> None:
        """Kill the workers of the sampler, one of which hangs; always a control call."""
        if (sampler := self._sampler) is not None:
            core_of(sampler.envs).pool.kill(wait=0)

    @_control
    def close(self) -> None:
        """Close the sampler, or end the pending call, which closes it; may be a control call."""
        with self._lock:
            sampler, self._sampler = self._sampler, None
        if sampler is not None:
            try:
                sampler.close()
            except BusyError:
                core = core_of(sampler.envs)
                while True:  # a call that still resets the envs has nothing to stop yet
                    if (lease := core.lease) is not None:
                        lease.stop()
                    if self._calling.acquire(timeout=_SLICE):
                        break
                self._calling.release()

    def _use_newest(self) -> None:
        with self._lock:
            version, state = self._newest
            if version > self._version:
                self._hosted.use(version, state)
                self._version = version


def _cpus() -> int:
    """Return the number of CPUs that Ray has reserved for this process."""
    return int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))


def _node() -> str:
    return f"{ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"
