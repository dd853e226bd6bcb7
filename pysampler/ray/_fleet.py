"""Fleet: the driver's calls of a sampler's hosts, their losses and restarts.

A host *starts* (Ray starts its process, which then makes its sampler), *serves* (up to
``in_flight`` calls are on their way to it), and is *gone* once it will not come back. If
``on_host_loss`` is "restart", a lost host starts again as a new Ray actor: Ray restarts none. The
fleet does not look into requests and answers.

A signal handler may raise after any line: an answer stays with its host until it has been taken,
and an error until it has been raised. Only a call that is interrupted while Ray sends it is lost
with its answer; its number is then missing.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

import pysampler
from pysampler._vector import arguments
from pysampler._workers.exceptions import error_from
from pysampler.errors import ClosedError, HostLostError
from pysampler.ray._hosts import Call, Host
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pysampler.ray._host import Answer, HostSetup, Started
    from pysampler.ray._options import FleetOptions
    from pysampler.ray._placement import Placement
    from pysampler.ray._policy_states import PolicyVersions

__all__ = ["Fleet"]

log = logging.getLogger("pysampler.ray")

_SECOND = 1_000_000_000
# The longest single wait for answers, after which the states of all hosts are checked.
_LOOK_NS = _SECOND // 2
# Seconds to wait for an answer that has arrived to be read, or for a host to close its envs.
_PATIENCE = 5.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Time for Ray to report the answer of a host that seems to hang, in ns.
_REPORT_NS = 5 * _SECOND


class Fleet:
    """Starts, calls and restarts hosts.

    Args:
        options: The number of hosts, and how to react to a lost one.
        placement: Starts their processes.
        setup: The pickled HostedSampler, in Ray's store.
        specs: The specs of envs that the program has registered, pickled, in Ray's store.
        setup_of: Returns the setup of a host's sampler, given the host's index and generation.
        policies: The versions of the policy.
        request: Returns the next request to a host.
        greeting: Returns a function to call with the sampler of a host that has just started, or
            None, given the index of the host.

    Attributes:
        hosts: All hosts, past and present, by index.
        closed: Whether ``close`` has begun.
        ended: Whether ``close`` has finished.
        stopped: Whether the samplers were asked to stop.
        calls: The number of calls made, control calls included.
    """

    def __init__(
        self,
        options: FleetOptions,
        placement: Placement,
        setup: Any,
        specs: Any,
        setup_of: Callable[[int, int], HostSetup],
        policies: PolicyVersions,
        request: Callable[[Host], Any],
        greeting: Callable[[int], Callable[[Any], Any] | None],
    ) -> None:
        self._options = options
        self._placement = placement
        self._setup, self._specs = setup, specs
        self._setup_of = setup_of
        self._policies = policies
        self._request = request
        self._greeting = greeting
        self._doing = options.doing
        self._taken = 0
        self._unserved_since: int | None = None  # since when no host has served, in ns
        self.hosts: list[Host] = []
        self.closed = self.ended = self.stopped = False
        self.calls = 0

    @property
    def serving(self) -> list[Host]:
        """The hosts that have a sampler."""
        return [host for host in self.hosts if host.serves]

    @property
    def present(self) -> list[Host]:
        """The hosts that serve or start."""
        return [host for host in self.hosts if not host.gone]

    @property
    def lost(self) -> int:
        """The number of host losses."""
        return sum(host.lost for host in self.hosts)

    @property
    def over(self) -> bool:
        """Whether the samplers of all hosts have ended."""
        present = self.present
        return bool(present or self.stopped) and all(host.ended for host in present)

    # -- beginning -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the hosts and wait until all of them serve."""
        seconds = self._options.start_timeout
        deadline = arguments.deadline(seconds, self._doing)
        for place in self._placement.begin(deadline):
            self._add(place)
        while not self.serving or any(not host.serves for host in self.present):
            self._raise_errors()
            self._look_after_hosts()
            self._raise_errors()
            if deadline is not None and now() >= deadline:
                late = [host for host in self.present if not host.serves]
                which = f"{len(late)} of {len(self.present)} hosts" if self.present else "hosts"
                raise HostLostError(
                    f"cannot {self._doing}: {which} have not started within start_timeout, "
                    f"{seconds} s: {self._placement.describe()}"
                )
            self._wait(self._starting(), 1, deadline)

    def _add(self, place: Any) -> None:
        if (actor := self._placement.actor(place)) is not None:
            host = Host(len(self.hosts), place, actor, starting=actor.ready.remote())
            self.hosts.append(host)
            self.calls += 1
            if self.closed:  # by a signal handler
                _kill(host)

    def _begin(self, host: Host) -> None:
        setup = self._setup_of(host.index, host.generation)
        version, state = self._policies.version, self._policies.newest
        answer = host.actor.begin.remote(self._setup, self._specs, setup, version, state)
        host.become(loaded=version, starting=answer, begins=True, started_at=now())
        self.calls += 1

    def _starting(self) -> list[Any]:
        return [host.starting for host in self.present if host.starting is not None]

    # -- calls -----------------------------------------------------------------------------------

    def send(self) -> None:
        """Send calls to each serving host, up to ``in_flight``."""
        version, state = self._policies.version, self._policies.newest
        for host in self.serving:
            while not host.ended and len(host.calls) < self._options.in_flight:
                request, number = self._request(host), host.sent
                host.sent, self.calls = number + 1, self.calls + 1
                ref = host.actor.call.remote(request, version, state)
                host.calls.append(Call(ref, now(), number))

    def announce(self) -> None:
        """Send hosts the newest policy, ahead of pending calls and one version at a time."""
        version, state = self._policies.version, self._policies.newest
        behind = [host for host in self.serving if host.loaded < version]
        busy = [host.loading for host in behind if host.loading is not None]
        done = set(_ready(busy, len(busy), 0.0))
        for host in behind:
            if host.loading is None or host.loading in done:
                host.loading = host.actor.load.remote(version, state)
                host.loaded = version
                self.calls += 1

    def take(self, host: Host) -> Answer:
        """Take the oldest answer of a host that ``wait`` has returned."""
        answer = host.answer
        self._taken += 1
        host.taken_at = self._taken
        host.served += 1
        host.calls.popleft()
        return answer

    def wait(self, min_hosts: int | None, deadline: int | None) -> list[Host]:
        """Wait until some hosts have answered; return them, the least recently taken first.

        An error of a host is raised once; the answers of others stay for the next wait.

        Args:
            min_hosts: The number of hosts to wait for; None for all that serve.
            deadline: When to stop waiting, in ns.
        """
        began = now()
        for host in self.hosts:
            host.errors = [error for error in host.errors if error.__traceback__ is None]
        while True:
            self._raise_errors()
            self._look_after_hosts()
            self.send()
            answered = self._receive()
            self._raise_errors()
            self._expect_return(began)
            busy = [host for host in self.serving if host.calls]
            needed = len(busy) if min_hosts is None else min(min_hosts, len(busy))
            late = deadline is not None and now() >= deadline
            if late or self.over or (busy and len(answered) >= needed):
                return sorted(answered, key=lambda host: host.taken_at)
            heads = [host.calls[0].ref for host in busy if host.calls[0].answer is None]
            self._wait(heads + self._starting(), max(1, needed - len(answered)), deadline)

    def _wait(self, refs: list[Any], count: int, deadline: int | None) -> None:
        """Wait until ``count`` of these have arrived, at most until the next look at the hosts."""
        until = now() + _LOOK_NS
        if deadline is not None:
            until = min(until, deadline)
        seconds = max(0, until - now()) / _SECOND
        if refs:
            _ready(refs, min(count, len(refs)), seconds)
        else:
            time.sleep(seconds)

    def _receive(self) -> list[Host]:
        """Receive the answers that have arrived; return hosts whose oldest call is answered."""
        waiting = {
            host.calls[0].ref: host
            for host in self.serving
            if host.calls and host.calls[0].answer is None
        }
        refs = list(waiting)
        for ref in _ready(refs, len(refs), 0.0):
            self._receive_one(waiting[ref])
        self._look_for_hung(waiting.values())
        return [host for host in self.serving if host.calls and host.calls[0].answer is not None]

    def _receive_one(self, host: Host) -> None:
        call = host.calls[0]
        try:
            answer = ray.get(call.ref, timeout=_PATIENCE)
        except GetTimeoutError:
            return
        except RayTaskError as error:  # raised by our code on the host, or by Ray's around it
            self._give_up(host, error.with_traceback(None))
            return
        except RayError as error:
            self._lose(host, _text_of(error))
            return
        host.answered_at = now()
        if answer.failure is None:
            call.answer = answer
        elif answer.lost:
            self._lose(host, answer.failure.text)
        else:
            raised = error_from(answer.failure, f"{host}")
            if answer.ended:
                self._give_up(host, raised)
            else:
                host.become(errors=[*host.errors, raised], calls=deque(list(host.calls)[1:]))

    # -- losses ----------------------------------------------------------------------------------

    def _look_after_hosts(self) -> None:
        """Continue the start of hosts, add new ones, and lose those that start for too long."""
        if self.stopped:
            for host in self.present:
                if not host.serves:
                    self._give_up(host, None)
        else:
            for place in self._placement.joining({host.place for host in self.hosts}):
                self._add(place)
        asked = {host.starting: host for host in self.present if host.starting is not None}
        refs = list(asked)
        for ref in _ready(refs, len(refs), 0.0):
            self._continue_start(asked[ref])
        for host in self.present:
            seconds = self._options.start_timeout
            if host.begins and seconds is not None and now() - host.started_at > seconds * _SECOND:
                self._kill_workers(host)
                self._lose(host, f"has not made its sampler for {seconds} s (start_timeout)")

    def _continue_start(self, host: Host) -> None:
        """Process the answer of a starting host: to ``ready``, then to ``begin``."""
        try:
            answer = ray.get(host.starting, timeout=_PATIENCE)
        except GetTimeoutError:
            return
        except RayTaskError as error:
            self._give_up(host, error.with_traceback(None))
        except RayError as error:
            if getattr(error, "actor_init_failed", False):  # another one would fail, too
                self._give_up(
                    host,
                    HostLostError(
                        f"cannot {self._doing}: host {host.index} cannot be created: "
                        f"{_lines(error)[-1]}; expected pysampler and its dependencies on each node"
                    ),
                )
            else:
                self._lose(host, f"while it started, {_text_of(error)}")
        else:
            started: Started = answer
            if not host.begins:
                if answer != pysampler.__version__:
                    self._give_up(
                        host,
                        HostLostError(
                            f"cannot {self._doing}: host {host.index} has pysampler {answer}, "
                            f"expected the driver's version, {pysampler.__version__}"
                        ),
                    )
                    return
                self._begin(host)
            elif started.failure is not None:
                raised = error_from(started.failure, f"host {host.index}")
                if isinstance(raised, ModuleNotFoundError):
                    raised.add_note(
                        "ray.init(runtime_env={'working_dir': '.'}) sends the modules of your "
                        "program to the nodes; install packages on each node"
                    )
                self._give_up(host, raised)
            else:
                if (function := self._greeting(host.index)) is not None:
                    host.actor.control.remote(function)
                host.become(
                    pid=started.pid,
                    node=started.node,
                    description=started.description,
                    starting=None,
                    loading=None,
                    begins=False,
                    answered_at=now(),
                    serves=True,
                )
                if host.generation > 0:
                    log.warning("pysampler: %s is back, with new envs", host)

    def _lose(self, host: Host, why: str) -> None:
        """Drop the calls of a lost host; replace it, or give it up with an error.

        Args:
            host: The host.
            why: The cause, for the message.
        """
        if self.closed:  # by a signal handler
            return
        options, at = self._options, now()
        losses = [*(one for one in host.losses if at - one <= options.restart_window * _SECOND), at]
        message = f"{host} lost: {why}"
        too_often = len(losses) > options.max_restarts
        if options.on_host_loss == "restart" and not too_often:
            _kill(host)
            if (actor := self._placement.actor(host.place)) is None:
                # A process that had not begun replaced one whose loss has been counted.
                self._give_up(host, None, lost=host.lost + (host.serves or host.begins))
                log.warning("pysampler: %s; its node is gone", message)
                return
            host.become(
                actor=actor,
                generation=host.generation + 1,
                serves=False,
                begins=False,
                starting=actor.ready.remote(),
                calls=deque(),
                losses=losses,
                lost=host.lost + 1,
                memory=None,
            )
            self.calls += 1
            if self.closed:  # by a signal handler
                _kill(host)
            log.warning("pysampler: %s; restarting it", message)
            return
        if too_often:
            message += f"; {len(losses)} times in {options.restart_window} s"
        error = HostLostError(message)
        error.host = host.index
        self._give_up(host, error, lost=host.lost + 1)

    def _look_for_hung(self, hosts: Iterable[Host]) -> None:
        """Kill hosts that have not answered for longer than ``host_timeout``.

        The learner may not have called for so long that an answer waits unseen on the host's node.
        The first check that finds it overdue lets Ray fetch it, and a later check decides. Hosts
        whose answers Ray is still fetching are spared.
        """
        seconds = self._options.host_timeout
        if seconds is None:
            return
        longest = seconds * _SECOND
        for host in hosts:
            if not host.serves or not host.calls or host.calls[0].answer is not None:
                continue
            call, at = host.calls[0], now()
            if at - max(call.sent_at, host.answered_at) <= longest:
                continue
            if call.overdue_at is None:
                call.overdue_at = at
            elif at - call.overdue_at > min(_REPORT_NS, longest) and not _exists(call.ref):
                self._kill_workers(host)
                self._lose(host, f"no answer for {seconds} s (host_timeout)")

    def _kill_workers(self, host: Host) -> None:
        """Kill the workers of a host, if its process runs: a stopped one would outlive it."""
        with contextlib.suppress(RayError):
            _ready([host.actor.kill_workers.remote()], 1, 1.0)

    def _give_up(self, host: Host, error: Exception | None, **values: Any) -> None:
        """Mark a host as gone and kill it.

        Args:
            host: The host.
            error: An error to raise once.
            values: Other attributes of the host to set.
        """
        errors = [*host.errors, *([] if error is None else [error])]
        host.become(
            serves=False,
            gone=True,
            starting=None,
            memory=None,
            calls=deque(),
            errors=errors,
            **values,
        )
        _kill(host)

    def _raise_errors(self) -> None:
        if self.closed:  # closed by a signal handler during a wait
            raise ClosedError(f"cannot {self._doing}: they are closed")
        for host in self.hosts:
            for error in host.errors:
                if error.__traceback__ is None:
                    raise error
        if not (self.present or self.stopped or self._placement.grows):
            raise HostLostError(f"cannot {self._doing}: all hosts are gone")

    def _expect_return(self, began: int) -> None:
        """Raise if no host has served for too long during a wait that began at ``began``."""
        seconds = self._options.start_timeout
        if self.serving:
            self._unserved_since = None
        elif self._unserved_since is None:
            self._unserved_since = now()
        elif seconds is not None and now() - max(began, self._unserved_since) > seconds * _SECOND:
            raise HostLostError(
                f"cannot {self._doing}: no host has come back within start_timeout, {seconds} s: "
                f"{self._placement.describe()}"
            )

    # -- control and ending ----------------------------------------------------------------------

    def tell(self, function_for: Callable[[int], Callable[[Any], Any]]) -> None:
        """Call a function with the sampler of each serving host, without waiting for it.

        Args:
            function_for: Returns the function for a host, given the host's index.
        """
        for host in self.serving:
            host.actor.control.remote(function_for(host.index))
            self.calls += 1

    def end_host(self, host: Host) -> None:
        """Stop calling a host whose sampler has ended."""
        host.ended = True
        host.calls.clear()

    def stop(self, function: Callable[[Any], Any]) -> None:
        """Stop the samplers of all hosts with a function; give up hosts that are starting."""
        self.stopped = True
        self.tell(lambda _: function)

    def close(self, *, at_once: bool) -> None:
        """End all hosts; let them close their envs first, unless ``at_once``."""
        self.closed = True
        connected = ray.is_initialized()
        if connected and not at_once:
            with contextlib.suppress(RayError):
                refs = [host.actor.close.remote() for host in self.serving]
                _ready(refs, len(refs), _PATIENCE)
        for host in self.hosts:
            host.become(serves=False, gone=True, memory=None)
            if not at_once:  # else an interrupted call may still read the answers
                host.calls.clear()
            if connected:
                _kill(host)
        if connected:
            self._placement.end()
        self.ended = True


def _kill(host: Host) -> None:
    with contextlib.suppress(RayError):
        ray.kill(host.actor)


def _ready(refs: Sequence[Any], count: int, seconds: float) -> list[Any]:
    """Return the refs that are ready, once ``count`` of them are or the time is up."""
    if not refs:
        return []
    ready, _ = ray.wait(list(refs), num_returns=count, timeout=seconds)
    return list(ready)


def _exists(ref: Any) -> bool:
    """Return whether there is a result, on any node."""
    ready, _ = ray.wait([ref], timeout=0, fetch_local=False)
    return len(ready) > 0


def _text_of(error: Exception) -> str:
    lines = _lines(error)
    detail = lines[0] if len(lines) < 2 else f"{lines[0]} ... {lines[-1]}"
    return f"its process or its node died ({detail[:500]})"


def _lines(error: Exception) -> list[str]:
    """Return the message of Ray's error, or the name of the error if it has none."""
    message = _COLOURS.sub("", str(getattr(error, "error_msg", None) or error))
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines or [type(error).__name__]
