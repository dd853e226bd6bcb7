"""Actors on many hosts: each host records on its own; the learner takes batches of records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler._actors.actors import Actors as LocalActors
from pysampler._actors.options import counts_to_take, default_high, share_of_time, watermarks
from pysampler._actors.records import BatchMemory, Records
from pysampler._common.numbers import is_real, whole_number
from pysampler._policies.weights import chosen_weights, has_weights, weights_of, without_weights
from pysampler._vector import arguments
from pysampler._vector.make import vector_options
from pysampler._workers.seeds import seed_globals
from pysampler.ray._host import HostedSampler
from pysampler.ray._options import FleetOptions
from pysampler.ray._policy_states import update_policy
from pysampler.ray._sampler import RemoteSampler, weakly
from pysampler.ray._settings import HostSettings
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    import numpy.typing as npt

    from pysampler._actors.records import RecordLayout
    from pysampler._vector.options import HostedOptions
    from pysampler.ray._host import Description, HostSetup
    from pysampler.ray._hosts import Call, Host
    from pysampler.ray._options import OnHostLoss, Spread

__all__ = ["Actors", "HostedActors"]


@dataclass(frozen=True)
class Message:
    """Records sent by a host.

    Attributes:
        rows: The records.
        versions: The driver's version of the policy of each record.
    """

    rows: npt.NDArray[Any]
    versions: npt.NDArray[np.int64]


class HostedActors(HostedSampler):
    """The actors of one host."""

    takes_policy_at_once = True

    def begin(self, setup: HostSetup, version: int, state: Any) -> LocalActors:
        """Return actors with this version of the policy."""
        seed_globals(np.random.SeedSequence(setup.entropy))
        if state is not None:
            update_policy(self.policy, state, setup.entropy)
        # The driver's version of each of the local versions, which begin at 1.
        self._versions = np.full(1024, version)
        self._local_version = 1
        self._actors = LocalActors(
            *(self.envs, self.policy), seed=setup.seed, settings=setup.settings, **self.kwargs
        )
        return self._actors

    def describe(self, sampler: LocalActors) -> Description:
        """Return the spaces of the envs and the layout of records; this starts the actors."""
        return replace(super().describe(sampler), layout=sampler.layout)

    def use(self, version: int, state: Any) -> None:
        """Publish weights to the actors of this host."""
        local = self._local_version + 1
        if local >= len(self._versions):
            self._versions = np.concatenate([self._versions, np.zeros_like(self._versions)])
        self._versions[local] = version  # before any record can have it
        self._actors.publish({name: array.copy() for name, array in state.items()})
        self._local_version = local

    def call(self, request: tuple[int, float]) -> Message | None:
        """Return the records of the next ``seconds``; None once all actors have stopped."""
        count, seconds = request
        records = self._actors.take(count, seconds, min_records=count)
        if records is None:
            return None
        rows = records.rows
        return Message(rows, self._versions[rows["version"]])


class Actors(RemoteSampler):
    """Run actors on many machines: each host is a Ray actor with its own workers.

    On each host the workers act independently, like those of :class:`pysampler.Actors`, and the
    host sends their records. ``take`` returns records of all hosts as :class:`pysampler.Records`
    with the field ``host``; ``env`` counts envs over all hosts: it is ``host * num_envs`` plus the
    index of the env on its host. After a restart of a host, ``number`` goes on with a gap.

    If an env or a policy raises, ``take`` raises an ``EnvError``, and the actors of that host end.
    If it raises :class:`pysampler.StopActors`, the actors of all hosts stop.

    Args:
        envs: An env id, an ``EnvSpec``, a function that makes an env, or a list of such functions,
            one for each env of a host. Each host makes its own envs.
        policy: A function of observations, or a torch module: see :class:`pysampler.Actors`.
            ``publish`` sends its weights.
        hosts: The number of hosts to start, or "auto": see :class:`pysampler.ray.Rollouts`.
        num_envs: The number of envs of each host.
        vector_kwargs: Options of each host's :class:`pysampler.VectorEnv` in a dict.
        steps: Record trajectories of this many steps; None records single transitions.
        high: On each host, block the actors while this many records wait to be sent.
        low: On each host, let blocked actors resume when only this many records are left.
        send_every: Let each host gather records for this many seconds, but at most ``high`` of
            them, before it sends them together. Lower it for newer records, raise it for fewer
            messages.
        max_hosts: With ``hosts="auto"``, the largest number of hosts: see
            :class:`pysampler.ray.Rollouts`.
        cpus_per_host: The number of CPUs that Ray reserves for each host: see
            :class:`pysampler.ray.Rollouts`.
        spread: How Ray places hosts on nodes: see :class:`pysampler.ray.Rollouts`.
        in_flight: The number of messages with records of each host that may be pending or ready.
        max_lag: Drop records if their weights are more than this many versions old, and count them
            in ``stats().dropped``. None drops none.
        on_host_loss: What to do if a host dies, hangs, or loses a worker. "raise" raises
            :class:`pysampler.HostLostError` once, and the other hosts continue. "restart" restarts
            it with new envs: ``lengths`` is 1 in their first records.
        max_restarts: With "restart", raise nevertheless if one host is lost more often than this
            within ``restart_window``.
        restart_window: Seconds in which losses are counted; see ``max_restarts``.
        host_timeout: Kill a host, and count it as lost, if it has not answered for this many
            seconds. A host whose env hangs still answers, without records; to detect it, pass a
            ``step_timeout`` in ``vector_kwargs``.
        start_timeout: Raise if hosts take longer than this many seconds to start.
        actor_options: Further options of Ray's actors: see :class:`pysampler.ray.Rollouts`.
        settings: Keyword arguments for the policy: one number for all envs, or one for each env of
            all hosts (with ``hosts="auto"``, for each env of a host). ``actors.settings["epsilon"]
            = ...`` sends new ones to the hosts.
        leave_out: Names of the parts of observations without a fixed shape.
        refresh_share: The largest share of its time that an actor spends loading weights: see
            :class:`pysampler.Actors`.
        warm_up: Each env begins with a random number of random steps, up to this many.
        seed: The seed; None: a random one. Together, the envs of all hosts get the seeds of one
            vector env.
        options: Options of each host's :class:`pysampler.VectorEnv`, such as ``num_workers``.
            ``max_restarts`` and ``restart_window`` are those of hosts: give a worker's in
            ``vector_kwargs``.

    Attributes:
        policy: The policy.
        settings: The current settings, in read-only arrays: assign whole entries to send them to
            the hosts.
        num_envs: The number of envs of each host.
        single_observation_space: The observation space of an env.
        single_action_space: The action space of an env.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> with Actors("CartPole-v1", policy, hosts=2, num_envs=4) as actors:  # doctest: +SKIP
    ...     records = actors.take(100, min_records=100)
    ...     records.observations.shape, np.unique(records.host)
    ((100, 4), array([0, 1]))
    """

    _doing = "act"
    _name = "actors"

    def __init__(
        self,
        envs: Any,
        policy: Any,
        *,
        hosts: int | Literal["auto"],
        num_envs: int | None = None,
        vector_kwargs: dict[str, Any] | None = None,
        steps: int | None = None,
        high: int | None = None,
        low: int | None = None,
        send_every: float = 0.05,
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
        settings: Mapping[str, npt.ArrayLike] | None = None,
        leave_out: Sequence[str] = (),
        refresh_share: float = 0.01,
        warm_up: int = 0,
        seed: int | None = None,
        **options: Unpack[HostedOptions],
    ) -> None:
        vector_kwargs = vector_options(self._doing, vector_kwargs, options, Actors)
        fleet = FleetOptions(
            *(self._doing, hosts, max_hosts, cpus_per_host, spread, in_flight, max_lag),
            *(on_host_loss, max_restarts, restart_window, host_timeout, start_timeout),
            actor_options,
        )
        steps = None if steps is None else whole_number("act", "steps", steps, 1)
        count = self._count_envs(envs, num_envs)
        self._high, low = watermarks(default_high(count, steps) if high is None else high, low)
        if not (is_real(send_every, 0) and send_every < 1e6):
            raise ValueError(f"cannot act: send_every {send_every!r}, expected seconds >= 0")
        self._send_every = float(send_every)
        self.settings = HostSettings(
            settings,
            count,
            1 if fleet.hosts == "auto" else fleet.hosts,
            weakly(self._tell),
        )
        kwargs = {
            "steps": steps,
            "high": self._high,
            "low": low,
            "leave_out": leave_out,
            "refresh_share": share_of_time(refresh_share),
            "warm_up": whole_number("act", "warm_up", warm_up, 0),
        }
        self._memory = BatchMemory()
        self._filled = 0
        # By host: its generation, the number of that generation's first record, and the next one.
        self._numbers: dict[int, tuple[int, int, int]] = {}
        super().__init__(
            *(fleet, HostedActors, envs, policy, num_envs, vector_kwargs, kwargs, seed),
            settings=self.settings,
        )
        if has_weights(policy) and (weights := weights_of(policy)):
            self._versions.publish(weights)
        self._begin()
        layout = self._description.layout
        assert layout is not None
        self._layout: RecordLayout = replace(layout, further=("host",))
        self._rows = np.empty(0, self._layout.dtype)  # a batch

    def _setup_of(self, index: int, generation: int) -> HostSetup:
        return replace(super()._setup_of(index, generation), settings=self.settings.of_host(index))

    def _request(self, host: Host) -> tuple[int, float]:  # noqa: ARG002 - all are alike
        return self._high, self._send_every

    def _greeting(self, index: int) -> Callable[[Any], Any] | None:
        # The settings may have changed since ``begin`` was sent to the host.
        return self.settings.setter_of_host(index) if len(self.settings) > 0 else None

    def _tell(self, function_for: Callable[[int], Callable[[Any], Any]]) -> None:
        self._fleet.tell(function_for)

    # -- the learner -----------------------------------------------------------------------------

    def take(
        self, count: int, timeout: float | None = None, *, min_records: int = 1
    ) -> Records | None:
        """Wait for records and take them, starting with the hosts that have waited for longest.

        Later calls do not overwrite records that you hold.

        Args:
            count: The largest number of records to take.
            timeout: Return the records that exist, perhaps none, after this many seconds. None
                waits forever.
            min_records: Wait until there are this many records.

        Returns:
            The records; None once all actors have stopped and no records are left.
        """
        count, min_records = counts_to_take(count, min_records)
        deadline = arguments.deadline(timeout, "take records")
        with self._enter("take records"):
            over = self._fill(count, min_records, deadline)
            records, rows, left, took = None, self._rows, 0, self._took
            if self._filled > 0 or not over:
                records, rows, left = self._filled_records(count)
                took += len(records)
        # No signal handler runs between here and the caller.
        self._rows, self._filled, self._took = rows, left, took
        return records

    def batches(self, count: int, *, min_records: int | None = None) -> Iterator[Records]:
        """Yield batches from ``take`` until all actors have stopped.

        Args:
            count: The largest number of records of a batch.
            min_records: The smallest number of records of a batch, except the last; None:
                ``count``.
        """
        min_records = count if min_records is None else min_records
        while (records := self.take(count, min_records=min_records)) is not None:
            yield records

    def _fill(self, count: int, min_records: int, deadline: int | None) -> bool:
        """Fill the batch; return whether all actors have stopped and no records are left."""
        while True:
            began = now()
            # With enough records, still take those that are ready, without waiting.
            until = began if self._filled >= min_records else deadline
            answered = self._fleet.wait(1, until)
            waited = now()
            self._waiting_ns += waited - began
            for host in answered:
                self._read(host, count)
            self._receiving_ns += now() - waited
            over = self._fleet.over
            late = deadline is not None and now() >= deadline
            if self._filled >= min_records or over or late:
                return over

    def _read(self, host: Host, count: int) -> None:
        """Copy as many records of a host's oldest message to the batch as fit."""
        call = host.calls[0]
        message: Message | None = host.answer.content
        if message is None:
            self._fleet.end_host(host)
            self.stop()
            return
        if self._filled < count:
            self._copy(host, call, message, count)
        if call.read == len(message.rows):
            self._fleet.take(host)

    def _copy(self, host: Host, call: Call, message: Message, count: int) -> None:
        target = self._room_for(count)
        end = min(len(message.rows), call.read + count - self._filled)
        rows, versions = message.rows[call.read : end], message.versions[call.read : end]
        if self._options.max_lag is not None:
            new_enough = versions >= self.version - self._options.max_lag
            rows, versions = rows[new_enough], versions[new_enough]
        part = target[self._filled : self._filled + len(rows)]
        for name in rows.dtype.names or ():
            part[name] = rows[name]
        part["version"] = versions
        part["env"] += host.index * self.num_envs
        part["host"] = host.index
        # A restarted host counts from 0 again: go on, after a gap for the records that were lost.
        generation, first, following = self._numbers.get(host.index, (0, 0, 0))
        if generation != host.generation:
            first = following + 1
        part["number"] += first
        following = int(part["number"].max(initial=following - 1)) + 1
        numbers = {**self._numbers, host.index: (host.generation, first, following)}
        dropped = self._dropped + end - call.read - len(rows)
        received = self._bytes + (end - call.read) * message.rows.itemsize
        after = end, self._filled + len(rows), dropped, received, numbers
        # One statement without a call: after an interrupt, the next call continues from here.
        call.read, self._filled, self._dropped, self._bytes, self._numbers = after

    def _room_for(self, count: int) -> npt.NDArray[Any]:
        """Return the batch, with room for ``count`` records."""
        if len(self._rows) < count:
            self._rows = self._memory.copy_of(self._rows[: self._filled], count)
        return self._rows

    def _filled_records(self, count: int) -> tuple[Records, npt.NDArray[Any], int]:
        """Return the records of the batch, the rows of the next one, and how many it has."""
        # There are more if an interrupted call asked for more.
        rows, rest = self._rows[: min(count, self._filled)], self._rows[count : self._filled]
        if len(rows) > 0:
            self._lag = self.version - float(rows["version"].mean())
        return Records(rows, self._layout), rest.copy(), len(rest)

    @property
    def like(self) -> dict[str, npt.NDArray[Any]]:
        """Pass this as ``like`` to a :class:`pysampler.ReplayBuffer` for these records."""
        return self._layout.like

    def publish(self, weights: Any = None) -> int:
        """Send new weights to the actors of all hosts.

        Args:
            weights: A module or another object with ``state_dict()``, or a dict of arrays or
                tensors. None: the current weights of the policy.

        Returns:
            The version of the weights.

        Raises:
            TypeError: The policy has no weights, or ``weights`` has another type.
        """
        with self._enter("publish weights"):
            began = now()
            if self._versions.newest is None:
                raise without_weights(self.policy)
            self._versions.publish(chosen_weights(weights, self.policy))
            self._fleet.announce()
            self._publishing_ns += now() - began
        return self._versions.version

    def stop(self) -> None:
        """Ask the actors of all hosts to stop and send their last records to ``take``.

        A signal handler may call it.
        """
        if not self._closed and self._guard.mine and not self._fleet.stopped:
            self._fleet.stop(LocalActors.stop)

    @property
    def stopped(self) -> bool:
        """Whether the actors have been asked to stop."""
        return self._fleet.stopped

    def __repr__(self) -> str:
        return (
            f"<pysampler.ray.Actors of {len(self.hosts)} hosts with {self.num_envs} envs each"
            f"{', closed' * self._closed}>"
        )
