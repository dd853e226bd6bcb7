"""Rollouts on many hosts: each samples independently; the learner takes several at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler._common.numbers import whole_number
from pysampler._common.torch import is_module
from pysampler._policies.normalize import expect_normalizer
from pysampler._policies.seeds import seed_policy
from pysampler._rollouts.options import RolloutOptions
from pysampler._rollouts.rollouts import Rollouts as LocalRollouts
from pysampler._vector import arguments
from pysampler._vector.make import vector_options
from pysampler._vector.vector_env import core_of
from pysampler._workers.seeds import seed_globals
from pysampler.ray._host import HostedSampler
from pysampler.ray._host_memory import HostMemory
from pysampler.ray._host_rollouts import (
    HostRollout,
    HostRollouts,
    InfoShapes,
    of_host,
    packed,
    side_by_side,
)
from pysampler.ray._options import FleetOptions
from pysampler.ray._policy_states import policy_on_host, update_policy
from pysampler.ray._sampler import RemoteSampler
from pysampler.ray._statistics import DriverStatistics, HostStatistics
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from pysampler._policies.normalize import Normalizer
    from pysampler._rollouts.options import PolicyIn
    from pysampler._rollouts.rollout import Rollout
    from pysampler._vector.options import HostedOptions
    from pysampler.ray._host import HostSetup
    from pysampler.ray._host_rollouts import Packed
    from pysampler.ray._hosts import Call, Host
    from pysampler.ray._options import OnHostLoss, Spread
    from pysampler.ray._statistics import CommonStatistics

__all__ = ["HostedRollouts", "Rollouts"]


@dataclass(frozen=True)
class Request:
    """The driver's request for a rollout.

    Attributes:
        number: The number of requests sent to the host before.
        oldest: The number of the oldest rollout that the driver has not copied yet.
        maps_memory: Whether the driver has mapped the memory of the host's frames.
        statistics: The driver's statistics; None without a normalizer.
    """

    number: int
    oldest: int
    maps_memory: bool
    statistics: CommonStatistics | None


class HostedRollouts(HostedSampler):
    """The rollouts of one host."""

    def begin(self, setup: HostSetup, version: int, state: Any) -> LocalRollouts:
        """Return a sampler with this version of the policy."""
        self._setup = setup
        self._version = self._version_before = version
        self.policy, self._device = policy_on_host(self.policy), self.kwargs["device"]
        seeds = np.random.SeedSequence(setup.entropy)
        seed_globals(seeds)
        if state is not None:
            update_policy(self.policy, state, setup.entropy)
        if is_module(self.policy) and self._device is not None:  # it came on the CPU
            self.policy.to(self._device)
        seed_policy(self.policy, seeds, own_process=True)
        self._sampler = LocalRollouts(self.envs, self.policy, seed=setup.seed, **self.kwargs)
        normalization = self._sampler.normalization
        self._statistics = None if normalization is None else HostStatistics(normalization)
        # Numbers and rollouts that the driver may still read in the memory of this host.
        self._lent: deque[tuple[int, Rollout]] = deque()
        return self._sampler

    def use(self, version: int, state: Any) -> None:
        """Act with another version of the policy from the next rollout on."""
        update_policy(self.policy, state, (*self._setup.entropy, version), self._device)
        self._version = version

    def call(self, request: Request) -> Packed:
        """Return the next rollout."""
        while self._lent and self._lent[0][0] < request.oldest:
            self._lent.popleft()
        seen = None
        if self._statistics is not None and request.statistics is not None:
            self._statistics.before(request.statistics)
            rollout = next(self._sampler)
            seen = self._statistics.after(request.number)
        else:
            rollout = next(self._sampler)
        if request.maps_memory:
            self._lent.append((request.number, rollout))
        # With overlap the rollout began before this call changed the policy.
        version = self._version_before if rollout.lag else self._version
        self._version_before = self._version
        memory = HostMemory.of(core_of(self._sampler.envs))
        return packed(rollout, version, seen).sent_from(
            memory, mapped_by_driver=request.maps_memory
        )


class Rollouts(RemoteSampler):
    """Sample rollouts on many machines: each host is a Ray actor with its own workers.

    Each host samples like :class:`pysampler.Rollouts`. ``take`` waits for as many hosts as you ask
    for and returns their next rollouts; iterating yields one host's rollout at a time. ``take``
    sends the policy to the hosts whenever it has changed since the last call.

    If Ray is not initialised, ``ray.init()`` is called: to use a cluster, set ``RAY_ADDRESS`` or
    call it yourself. pysampler must be installed on all nodes. The hosts end when the driver (this
    process) ends, even if it crashes.

    Args:
        envs: An env id, an ``EnvSpec``, a function that makes an env, or a list of such functions,
            one for each env of a host. Each host makes its own envs.
        policy: A callable or a torch module: see :class:`pysampler.Rollouts`. Each host has a copy.
            Random numbers that it does not draw from ``generators`` differ between hosts: their
            seeds come from ``seed`` and the index of the host.
        horizon: The number of steps of each env in a rollout.
        hosts: The number of hosts to start. "auto" starts one on each node that has enough CPUs,
            including nodes that join later.
        num_envs: The number of envs of each host.
        vector_kwargs: Options of each host's :class:`pysampler.VectorEnv` in a dict. By default
            ``num_workers`` is the number of CPUs of the host.
        max_hosts: With ``hosts="auto"``, start at most this many hosts, and ask Ray's autoscaler
            for nodes for them. None: one per node, without asking for nodes.
        cpus_per_host: The number of CPUs that Ray reserves for each host. By default, all CPUs of
            the smallest node that is needed; with ``hosts="auto"``, all CPUs of the node. Lower it
            to place several hosts on a node.
        spread: How Ray places hosts on nodes: "STRICT_SPREAD" puts each on a different node;
            "SPREAD" does so where possible; "PACK" uses few nodes, as you need it to try several
            hosts on one machine; "STRICT_PACK" uses one node.
        in_flight: The number of rollouts of each host that may be pending or ready. With 2, a host
            begins the next one, with its current policy, while you learn from the last: ``lag`` is
            1 or more. With 1, it begins when you call ``take``, with the policy as it is then:
            ``lag`` is 0, but hosts wait while you learn.
        max_lag: Drop rollouts if their policy is more than this many versions old, and count them
            in ``stats().dropped``. None drops none.
        on_host_loss: What to do if a host dies, hangs, or loses a worker. "raise" raises
            :class:`pysampler.HostLostError` once, and the other hosts continue. "restart" restarts
            it with new envs and other seeds; ``take`` does not wait for it meanwhile.
        max_restarts: With "restart", raise nevertheless if one host is lost more often than this
            within ``restart_window``.
        restart_window: Seconds in which losses are counted; see ``max_restarts``.
        host_timeout: Kill a host, and count it as lost, if it has not answered a call for this many
            seconds. Set it well above the time of a rollout. None waits forever.
        start_timeout: Raise if hosts take longer than this many seconds to start, including the
            wait for nodes. None waits forever.
        actor_options: Further options of Ray's actors, such as ``{"num_gpus": 1}`` or
            ``{"resources": {"sampler": 1}}``.
        policy_in: Where the policy acts on a host: in its process ("main") or its "workers"; see
            :class:`pysampler.Rollouts`, as for the following options.
        overlap: On each host, sample the next rollout while the last one is being sent.
        min_envs: On each host, act as soon as this many envs are ready, instead of all.
        timeout: On each host, act after this many seconds for the envs that are ready.
        timeout_from: Count ``timeout`` from the last "call" of the policy, or from the moment the
            "first" env is ready.
        allow_partial: End a host's rollout as soon as its first envs have made all their steps.
        reset_each: Reset all envs at the beginning of each rollout.
        info_keys: Keys of infos to put into ``rollout.infos``.
        normalize: A :class:`pysampler.Normalizer` of observations and rewards. Each host normalises
            with the statistics of all rollouts taken so far, plus its own later ones.
        leave_out: Names of the parts of observations without a fixed shape.
        threads: Threads that torch may use on a host while a policy in "main" acts.
        device: The torch device on the hosts of a policy in "main".
        warm_up: Before the first rollout, each env makes up to this many random steps.
        chunk: The number of steps that the policy acts for at once.
        seed: The seed; None: a random one. Together, the envs of all hosts get the seeds of one
            vector env: those of host i start at ``seed + i * num_envs``.
        options: Options of each host's :class:`pysampler.VectorEnv`, such as ``num_workers``.
            ``max_restarts`` and ``restart_window`` are those of hosts: give a worker's in
            ``vector_kwargs``.

    Attributes:
        policy: The policy.
        horizon: The number of steps of each env in a rollout.
        num_envs: The number of envs of each host.
        normalizer: The ``normalize`` argument.
        single_observation_space: The observation space of an env.
        single_action_space: The action space of an env.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> with Rollouts("CartPole-v1", policy, 32, hosts=2, num_envs=4) as rollouts:  # doctest: +SKIP
    ...     taken = rollouts.take(min_hosts=1, timeout=60)
    ...     taken.hosts, taken.joined.rewards.shape
    ([0, 1], (32, 8))
    """

    def __init__(
        self,
        envs: Any,
        policy: Any,
        horizon: int,
        *,
        hosts: int | Literal["auto"],
        num_envs: int | None = None,
        vector_kwargs: dict[str, Any] | None = None,
        max_hosts: int | None = None,
        cpus_per_host: int | None = None,
        spread: Spread = "STRICT_SPREAD",
        in_flight: int = 2,
        max_lag: int | None = None,
        on_host_loss: OnHostLoss = "raise",
        max_restarts: int = 3,
        restart_window: float = 300.0,
        host_timeout: float | None = 600.0,
        start_timeout: float | None = 300.0,
        actor_options: Mapping[str, Any] | None = None,
        policy_in: PolicyIn = "main",
        overlap: bool = False,
        min_envs: int | Literal["auto"] | None = None,
        timeout: float | Literal["auto"] | None = None,
        timeout_from: Literal["call", "first"] = "call",
        allow_partial: bool = False,
        reset_each: bool = False,
        info_keys: Iterable[str] = (),
        normalize: Normalizer | None = None,
        leave_out: Sequence[str] = (),
        threads: int | None = 1,
        device: Any = None,
        warm_up: int = 0,
        chunk: int | None = None,
        seed: int | None = None,
        **options: Unpack[HostedOptions],
    ) -> None:
        vector_kwargs = vector_options(self._doing, vector_kwargs, options, Rollouts)
        fleet_options = FleetOptions(
            *(self._doing, hosts, max_hosts, cpus_per_host, spread, in_flight, max_lag),
            *(on_host_loss, max_restarts, restart_window, host_timeout, start_timeout),
            actor_options,
        )
        each = RolloutOptions(
            *(horizon, policy_in, overlap, 1, min_envs, timeout, timeout_from),
            *(allow_partial, reset_each, info_keys, threads, warm_up, device, chunk),
        )
        kwargs = {
            **vars(each),
            # Those that the driver may still read, beside the one being sampled.
            "keep_last": max(1, fleet_options.in_flight - 1),
            "normalize": normalize,
            "leave_out": leave_out,
        }
        if normalize is not None:
            expect_normalizer(normalize, self._doing)
            normalize.expect_unused(self._doing)
            if each.overlap:
                raise ValueError(
                    "cannot sample rollouts: normalize with overlap=True, expected overlap=False: "
                    "a rollout would begin before the statistics of other hosts are known"
                )
        self.normalizer = normalize
        self._statistics: DriverStatistics | None = None
        self.horizon = each.horizon
        super().__init__(
            *(fleet_options, HostedRollouts, envs, policy, num_envs, vector_kwargs, kwargs, seed)
        )
        # Rollouts on their way to the caller, and the calls whose answers were copied to them.
        self._returning: tuple[HostRollouts, list[tuple[Host, Call]]] | None = None
        self._info_shapes = InfoShapes()
        self._publish()
        self._begin()
        if normalize is not None:
            self._statistics = DriverStatistics(
                *(normalize, self.single_observation_space, self.single_action_space, self._doing)
            )
            normalize.claim(self)

    def _request(self, host: Host) -> Request:
        statistics = None
        if self._statistics is not None:
            statistics = self._statistics.for_host(host.index, host.sent)
        oldest = host.calls[0].number if host.calls else host.sent
        return Request(host.sent, oldest, host.memory is not None, statistics)

    def _publish(self) -> None:
        began = now()
        before = self._versions.version
        self._versions.publish_if_changed(self.policy)
        if self._options.in_flight > 1 and self._versions.version > before > 0:
            self._fleet.announce()
        self._publishing_ns += now() - began

    def take(self, min_hosts: int | None = None, timeout: float | None = None) -> HostRollouts:
        """Wait for hosts, and return the next rollout of each host that has one.

        Args:
            min_hosts: Wait until this many hosts have a rollout; None: all that sample at present.
            timeout: Return the rollouts that are ready, perhaps none, after this many seconds. None
                waits forever.

        Returns:
            Copies of the rollouts. The host that has waited for longest comes first.
        """
        if min_hosts is not None:
            min_hosts = whole_number("take rollouts", "min_hosts", min_hosts, 1)
            if self._options.hosts != "auto" and min_hosts > self._options.hosts:
                raise ValueError(
                    f"cannot take rollouts: min_hosts {min_hosts}, expected at most hosts, "
                    f"{self._options.hosts}"
                )
        deadline = arguments.deadline(timeout, "take rollouts")
        return self._take(min_hosts, deadline, most=None)

    def __iter__(self) -> Rollouts:
        return self

    def __next__(self) -> HostRollout:
        """Wait for the next rollout of any host and return it."""
        return self._take(1, None, most=1)[0]

    def _take(self, min_hosts: int | None, deadline: int | None, most: int | None) -> HostRollouts:
        with self._enter("take rollouts"):
            self._finish_interrupted()
            taken = None if self._returning is None else self._returning[0]
            if taken is None:
                self._publish()
                taken = self._received(self._choose(min_hosts, deadline)[:most])
            self._finish_interrupted()
            rest = None
            if self._returning is not None and most is not None and len(taken) > most:
                taken, others = taken.parted()  # from an interrupted call
                rest = others, self._returning[1]
        self._returning = rest  # no signal handler runs between here and the caller
        return taken

    def _choose(self, min_hosts: int | None, deadline: int | None) -> list[Host]:
        """Return hosts whose oldest rollout is legible and within ``max_lag``; drop others."""
        max_lag = self._options.max_lag
        while True:
            began = now()
            answered = self._fleet.wait(min_hosts, deadline)
            self._waiting_ns += now() - began
            dropped = [
                host
                for host in answered
                if not self._legible(host)
                or (max_lag is not None and self._lag_of(host.answer.content.version) > max_lag)
            ]
            if not dropped:
                return answered
            for host in dropped:
                self._dropped += 1
                self._release(host)

    def _legible(self, host: Host) -> bool:
        """Map the memory that a host's oldest rollout is in; return False if that is impossible.

        It was possible for an earlier rollout, but the host may have died, or have moved its envs.
        """
        packed: Packed = host.answer.content
        if packed.memory is None:
            return True
        memory = host.memory
        if memory is None or memory.id != packed.memory.id:
            memory = packed.memory.map()
            host.memory = None if host.gone else memory  # a signal handler may have closed this
        if packed.in_memory:
            if memory is None:
                return False
            packed = packed.read_in(memory)
        host.calls[0].answer = replace(host.answer, content=replace(packed, memory=None))
        return True

    def _received(self, chosen: list[Host]) -> HostRollouts:
        """Copy the rollouts of these hosts."""
        if not chosen:
            return HostRollouts([], {}, self.num_envs)
        began = now()
        parts: list[Packed] = [host.answer.content for host in chosen]
        fields = side_by_side(list(map(self._info_shapes.fitting, (one.fields for one in parts))))
        rollouts = []
        for position, (host, part) in enumerate(zip(chosen, parts, strict=True)):
            lengths, ended = part.own()
            rollouts.append(
                HostRollout(
                    **of_host(fields, position, self.num_envs),
                    lengths=lengths,
                    ended=ended,
                    version=part.version,
                    lag=self._lag_of(part.version),
                    seconds=part.seconds,
                    memory=np.zeros(0, np.uint8),
                    host=host.index,
                    node=host.node,
                    restarts=host.generation,
                    number=host.calls[0].number,
                    host_seconds=host.answer.seconds,
                )
            )
        taken = HostRollouts(rollouts, fields, self.num_envs)
        calls = [(host, host.calls[0]) for host in chosen]
        # All at once: after an interrupt, the next call finds the rollouts either in the store, not
        # yet counted, or here.
        vars(self).update(
            _returning=(taken, calls),
            _took=self._took + len(rollouts),
            _bytes=self._bytes + sum(part.nbytes for part in parts),
            _lag=float(np.mean([one.lag for one in rollouts])),
        )
        self._receiving_ns += now() - began
        return taken

    def _finish_interrupted(self) -> None:
        """Release the answers of the rollouts that are about to be returned to the caller."""
        if self._returning is not None:
            for host, call in self._returning[1]:
                if host.calls and host.calls[0] is call:
                    self._release(host)

    def _release(self, host: Host) -> None:
        """Release a host's oldest answer, so that the host is called again."""
        seen = host.answer.content.seen
        if self._statistics is not None and seen is not None:
            self._statistics.add(host.index, host.calls[0].number, seen)
        self._fleet.take(host)

    def __repr__(self) -> str:
        return (
            f"<pysampler.ray.Rollouts of {len(self.hosts)} hosts with {self.num_envs} envs each, "
            f"horizon {self.horizon}{', closed' * self._closed}>"
        )
