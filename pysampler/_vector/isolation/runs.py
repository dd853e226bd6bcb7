"""Runs of an env, alone or beside siblings, each in a fresh process.

A run makes the same calls of the env with the same seeds and actions, and records the results, so
that the parent can compare runs. Large arrays are recorded as digests.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import pickle
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler._torch import is_tensor, to_array
from pysampler._vector.env_calls import autoreset_of, expect_env, expect_whole, is_several
from pysampler._vector.env_globals import GlobalsOf
from pysampler._vector.env_server import prepare
from pysampler._vector.isolation.known import interfering
from pysampler._vector.isolation.shared import SharedState
from pysampler._vector.native.known import name_of
from pysampler._workers.exceptions import Report, report
from pysampler._workers.jobs import Job
from pysampler._workers.seeds import seed_globals
from pysampler.envs.batch import BatchEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pysampler._workers.gauges import WorkerGauges
    from pysampler.sync import Segment

__all__ = ["AttachNothing", "RunJob", "RunResult", "RunServer", "Value"]

_SHOWN = 64  # the largest number of bytes of an array that is recorded as it is
_DEPTH = 8  # of nested infos
_SECOND = 0.75  # of a run, after which the env is reset once more
_FRAMES = 20  # of a run: rendering may be slow


@dataclass(frozen=True)
class Value:
    """A recorded value: its type, its bytes or a digest of them, and its text if it is short."""

    kind: str
    content: bytes
    text: str = ""
    opaque: bool = False  # its contents cannot be compared


@dataclass
class RunResult:
    """The results of a run.

    Attributes:
        name: The name of the env.
        records: For each call of the env, its name, and the values that it returned by their path,
            such as "infos['speed']".
        steps: How many steps the env made.
        second: The number of the step before which the env was reset once more.
        seconds: How long the run took.
        failed: What raised an exception, and the exception; None if nothing did.
        batch: The name of the class, if the function made a BatchEnv.
        causes: Shared state that the envs changed, as sentences.
        closed: How many records there were when the first sibling was closed.
    """

    name: str = ""
    records: list[tuple[str, dict[str, Value]]] = field(default_factory=list)
    steps: int = 0
    second: int | None = None
    seconds: float = 0.0
    failed: tuple[str, Report] | None = None
    batch: str = ""
    causes: list[str] = field(default_factory=list)
    closed: int = 0


@dataclass(frozen=True)
class RunDescription:
    """What the pool needs to know about a process of a check."""

    name: str = "isolation"
    sizes: tuple[int, ...] = (1,)


class RunServer:
    """The env server of a process that makes one run. It has one group, which is never stepped.

    Args:
        env_fns: The function that makes the env, and those that make its siblings.
        specs: The env specs that the parent registered.
        init: The user's ``worker_init``.
    """

    here = False

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        specs: bytes,
        init: Callable[[], Any] | None,
    ) -> None:
        self.blocks: list[Any] = [None]
        self.env_fns = env_fns
        prepare(specs, init)

    def describe(self) -> RunDescription:
        """Return a description: the envs are made by the job."""
        return RunDescription()

    def count_with(self, meter: Any, gauges: WorkerGauges, first: int) -> None:
        """Do nothing: a run measures its own time."""

    def take_overflow(self, block: int) -> None:
        """Return nothing: there are no steps."""

    peek_overflow = take_overflow

    def replace(self, seeds: Sequence[int]) -> None:
        """Do nothing: lost processes are not replaced."""

    def close(self) -> None:
        """Do nothing: a run closes its envs."""


@dataclass(frozen=True)
class AttachNothing:
    """Attaches no frames."""

    def attach(self, server: RunServer, segment: Segment) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class RunJob(Job):
    """Job: make a run.

    Attributes:
        steps: The number of steps for which pictures are planned.
        most: The number of steps to make; siblings are reset and closed within them.
        seed: The seed of the env and its actions; siblings get others.
        second: The number of the step before which the env is reset once more; None: after three
            quarters of the steps, or of the seconds.
        beside: Whether the env has siblings.
        slowly: Whether to pause after each step for as long as siblings would take. Results that
            depend on the time then differ from those of a quick run.
        seconds: Seconds of stepping after which the run ends early.
        seed_globals: Whether each env has its own global random generators.
    """

    steps: int
    most: int
    seed: int
    second: int | None = None
    beside: bool = False
    slowly: bool = False
    seconds: float | None = None
    seed_globals: bool = False
    doing = "being checked"

    def run(self, server: RunServer, block: int, frame: int) -> RunResult:  # noqa: ARG002
        """Make the run, in a process where no env was made before."""
        return _Run(self, server.env_fns).result


class _BatchMadeError(Exception):
    """The function made a BatchEnv, which a run cannot step."""


class _Run:
    """One run of an env. Siblings are made before and after it, and the first closes midway."""

    def __init__(self, job: RunJob, env_fns: Sequence[Callable[[], Any]]) -> None:
        self._job = job
        self._makes = env_fns
        seed_globals(np.random.SeedSequence(job.seed))
        self._shared = SharedState(env_fns[0])
        self.result = RunResult()
        self._doing = "being made"
        self._members: list[_Member] = []
        begun = time.perf_counter()
        try:
            self._run()
        except _BatchMadeError as error:
            self.result.batch = str(error)
        except BaseException as error:
            self.result.failed = self._doing, report(error)
        self.result.seconds = time.perf_counter() - begun
        self._shared.look()
        self.result.causes = self._shared.causes()
        self.result.causes += interfering(member.env for member in self._members)
        for member in self._members:
            member.close()

    def _run(self) -> None:
        job = self._job
        make, *others = self._makes
        if job.beside:
            self._add(others[0], job.seed + 1)
        env = self._add(make, job.seed, self.result)
        if job.beside:
            self._add(others[1], job.seed + 2)
        self._doing = "being reset"
        self._each(lambda one: one.reset("the reset", one.seed))
        self._shared.look()
        # The run alone may have made fewer steps than planned: the siblings' part fits into them.
        closes, resets = job.most // 2, job.most // 4
        every = max(1, job.steps // _FRAMES)
        begun = time.perf_counter()
        for step in range(job.most):
            self._doing = "being reset"
            if step == resets and job.beside:
                self._with(self._members[-1], lambda one: one.reset("a reset"))
            if step == closes and job.beside:
                self.result.closed = len(self.result.records)
                self._with(self._members.pop(0), _Member.close)
            if self._is_second(step, time.perf_counter() - begun):
                self.result.second = step
                self._with(env, lambda one: one.reset("the second reset"))
            stepped = time.perf_counter()
            self._doing = "being stepped"
            name = f"step {step}"
            self._each(lambda one: one.step(name))  # noqa: B023 - called at once
            if step % every == 0:
                self._each(lambda one: one.render(f"render() after {name}"))  # noqa: B023
            self.result.steps = step + 1
            if job.slowly:
                time.sleep(2 * (time.perf_counter() - stepped))
            late = job.seconds is not None and time.perf_counter() - begun > job.seconds
            if late and self.result.second is not None:
                break

    def _is_second(self, step: int, seconds: float) -> bool:
        """Return whether the second reset belongs before this step."""
        job = self._job
        if job.second is not None or self.result.second is not None:
            return step == job.second
        late = job.seconds is not None and seconds > job.seconds * _SECOND
        return step > 0 and (late or step >= job.steps * _SECOND)

    def _add(self, make: Callable[[], Any], seed: int, result: RunResult | None = None) -> _Member:
        with self._shared.of(len(self._members)):
            member = _Member(make, seed, len(self._members), result)
            if self._job.seed_globals:
                member.calls = GlobalsOf(member.env)
        self._members.append(member)
        self._shared.look(member.env)
        return member

    def _each(self, call: Callable[[_Member], None]) -> None:
        for member in self._members:
            self._with(member, call)

    def _with(self, member: _Member, call: Callable[[_Member], None]) -> None:
        with self._shared.of(member.number):
            call(member)


class _Member:
    """An env of a run, with its actions.

    Args:
        make: Makes the env.
        seed: The seed of its first reset, and of its actions.
        number: Its number in the run.
        result: Where its results are recorded; None for a sibling.
    """

    def __init__(
        self, make: Callable[[], Any], seed: int, number: int, result: RunResult | None
    ) -> None:
        env = make()
        if isinstance(env, BatchEnv):
            raise _BatchMadeError(type(env).__name__)
        self.env = self.calls = env  # the second may swap generators around calls
        self.seed, self.number, self._result = seed, number, result
        (expect_whole if is_several(env) else expect_env)(env, 0)
        if result is not None:
            result.name = name_of(env)
        # Envs may share the space, such as an attribute of their class.
        self._actions = copy.deepcopy(env.action_space)
        self._actions.seed(seed)
        # A vector env resets its envs itself, unless it leaves this to its caller.
        self._resets = not isinstance(env, GymVectorEnv) or (
            autoreset_of(env) is AutoresetMode.DISABLED
        )
        self._draws = env.render_mode not in (None, "human")

    def reset(self, name: str, seed: int | None = None) -> None:
        observation, info = self.calls.reset(seed=seed)
        self._record(name, observations=observation, infos=info)

    def step(self, name: str) -> None:
        results = self.calls.step(self._actions.sample())
        names = "observations", "rewards", "terminated", "truncated", "infos"
        self._record(name, **dict(zip(names, results, strict=True)))
        if self._resets and (np.any(results[2]) or np.any(results[3])):
            self.reset(f"the reset after {name}")

    def render(self, name: str) -> None:
        if not self._draws:
            return
        try:
            frames = self.env.render()
        except Exception as error:  # it may do so alone too: many machines cannot render
            frames = f"raised {type(error).__name__}: {error}"
        self._record(name, frames=frames)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it may close what a sibling has closed before
            self.env.close()

    def _record(self, name: str, **results: Any) -> None:
        if self._result is not None:
            values = {path: one for k, v in results.items() for path, one in _values(k, v)}
            self._result.records.append((name, values))


def _values(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Value]]:
    """Yield the parts of a result, each with its path."""
    if depth < _DEPTH and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _values(f"{path}[{key!r}]", part, depth + 1)
    elif depth < _DEPTH and isinstance(value, (list, tuple, deque)):
        yield path, Value(f"{type(value).__name__} of {len(value)}", b"")
        for i, part in enumerate(value):
            yield from _values(f"{path}[{i}]", part, depth + 1)
    elif depth < _DEPTH and isinstance(value, np.ndarray) and value.dtype == object:
        yield path, Value(f"array of objects {value.shape}", b"")
        for i, part in enumerate(value.flat):
            yield from _values(f"{path}[{i}]", part, depth + 1)
    elif isinstance(value, (set, frozenset)):
        yield path, Value(type(value).__name__, repr(sorted(map(repr, value))).encode())
    else:
        yield path, _value(value)


def _value(value: Any) -> Value:
    kind = type(value).__qualname__
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        text = repr(value)
        return Value(kind, text.encode(), text if len(text) <= _SHOWN else "")
    if is_tensor(value):
        value = to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.hasobject:
        try:
            return Value(kind, pickle.dumps(value))
        except Exception:  # an object may raise any
            return Value(kind, b"", opaque=True)
    array = np.asarray(value)
    kind = f"{kind} {array.dtype} {array.shape}"
    if array.nbytes <= _SHOWN:
        text = " ".join(np.array2string(array, threshold=8).split())
        return Value(kind, array.tobytes(), text)
    return Value(kind, hashlib.blake2b(array.tobytes(), digest_size=16).digest())
