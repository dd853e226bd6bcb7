"""``check_isolation``: whether an env gives the same results beside others as alone."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pysampler._numbers import true_or_false, whole_number
from pysampler._vector.isolation.runs import AttachNothing, RunJob, RunResult, RunServer
from pysampler._vector.registry import registered
from pysampler._vector.serving import WorkerInfo, worker_init_for
from pysampler._workers.exceptions import error_from
from pysampler._workers.pool import Pool
from pysampler._workers.processes import WorkerAssignment
from pysampler.errors import EnvTimeoutError, LostError
from pysampler.sync import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Isolation", "check_envs", "check_isolation", "may_share"]

_log = logging.getLogger("pysampler")

STEPS = 200
_ALONE, _AGAIN, _BESIDE = range(3)  # the processes
_SECONDS = 3.0  # of steps alone, after which a run ends early
_LONGEST = 60.0  # seconds of a run alone: to make the env, reset it and step it
# Envs beside others may take this many seconds, and times as long as alone.
_PATIENCE, _TIMES = 20.0, 10.0
_NAMED = 5  # results in a sentence
_UNEXPLAINED = (
    "no change of modules, files or global generators explains it: look for state in a library of "
    "the env, such as a renderer"
)


class _BatchEnvError(TypeError):
    """A function makes a BatchEnv, whose envs share a process in any case."""


@dataclass(frozen=True)
class Isolation:
    """Whether envs may share a process; print it for the reasons.

    Attributes:
        name: The name of the env.
        isolated: True if an env gave the same results beside others as alone, False if not. None if
            it is not deterministic alone, so that the check cannot tell.
        reasons: The first difference, then shared state that may explain it.
        steps: The number of steps that were compared.
        ignored: Infos that differ between two runs of the env alone, such as times, and objects
            that do not pickle. They were not compared.
    """

    name: str
    isolated: bool | None
    reasons: tuple[str, ...] = ()
    steps: int = 0
    ignored: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Whether the envs may share a process, as a sentence without its end."""
        if self.isolated:
            return (
                f"envs of {self.name} may share a process: {self.steps} steps beside others gave "
                "the same results as alone"
            )
        if self.isolated is None:
            text = (
                f"{self.name} is not deterministic alone, so the check cannot tell whether its "
                "envs may share a process"
            )
        else:
            text = f"envs of {self.name} must not share a process"
        return f"{text} ({self.steps} steps compared)"

    def __str__(self) -> str:
        """Return the verdict and the reasons, in lines."""
        lines = [self.verdict + ":" * bool(self.reasons)]
        lines += [f"- {reason}" for reason in self.reasons]
        if self.ignored:
            lines.append(
                f"not compared, since they differ alone or do not pickle: {_listed(self.ignored)}"
            )
        return "\n".join(lines)


def check_isolation(
    env_fn: Callable[[], Any],
    steps: int = STEPS,
    seed: int = 0,
    *,
    seed_globals: bool = False,
) -> Isolation:
    """Check whether envs may share a process, as they do in the workers of a ``VectorEnv``.

    It steps an env in three new processes: alone, alone again, and beside two others with other
    seeds and actions, of which one was made before it and is closed midway. Observations, rewards,
    ends of episodes, infos and pictures must be equal bit for bit. Global random generators begin
    with the same seed in each process.

    Args:
        env_fn: A function that makes an env, as for ``VectorEnv``. If envs differ, pass a list of
            functions: the first makes the env, the next two others its siblings.
        steps: The number of steps. The check takes fewer if they take longer than 3 seconds.
        seed: The seed of the env and its actions.
        seed_globals: Whether each env has its own global random generators, as with this option of
            ``VectorEnv``.

    Returns:
        The verdict, with reasons.

    Raises:
        EnvError: The env raised an exception alone.
        EnvTimeoutError: The env did not answer alone: the first run may take 60 seconds.
        WorkerLostError: The env ended its process alone.

    >>> check = check_isolation(lambda: gym.make("CartPole-v1"))
    >>> check.isolated
    True
    >>> print(check)
    envs of CartPole-v1 may share a process: 200 steps beside others gave the same results as alone
    """
    env_fns = list(env_fn) if isinstance(env_fn, (list, tuple)) else [env_fn]
    if not env_fns or not all(map(callable, env_fns)):
        raise TypeError(
            f"cannot check isolation: env_fn {env_fn!r}, expected a function that makes an env, or "
            "a list of such functions"
        )
    steps = whole_number("check isolation", "steps", steps, 1)
    seed = whole_number("check isolation", "seed", seed, 0)
    seed_globals = true_or_false("check isolation", "seed_globals", seed_globals)
    return check_envs(env_fns, steps=steps, seed=seed, seed_globals=seed_globals)


def check_envs(
    env_fns: Sequence[Callable[[], Any]],
    *,
    steps: int = STEPS,
    seed: int = 0,
    worker_init: Callable[[], Any] | None = None,
    context: str = "spawn",
    seed_globals: bool = False,
) -> Isolation:
    """Check the env of the first function, beside envs of the next two different ones.

    Args:
        env_fns: One or more functions.
        steps: The number of steps.
        seed: The seed of the env and its actions.
        worker_init: The function that workers run before they make envs.
        context: How to start the processes: "spawn", or "fork" for functions that cannot be sent.
        seed_globals: Whether each env has its own global random generators.
    """
    worker_init = worker_init_for(worker_init, WorkerInfo(0, 1, range(1)))
    first, *others = {id(function): function for function in env_fns}.values()
    siblings = [*others[:2], *others, first, first][:2]
    arguments = [first, *siblings], b"" if context == "fork" else registered(), worker_init
    pool = Pool(
        [WorkerAssignment(i, (1,)) for i in range(3)],
        lambda _: (RunServer, arguments),
        context=context,
    )
    try:
        pool.lay_out(Segment(1), AttachNothing())
        job = RunJob(steps, steps, seed, seconds=_SECONDS, seed_globals=seed_globals)
        alone = _run(pool, _ALONE, job, _LONGEST)
        if alone is None:
            raise _timeout("alone", _LONGEST)
        if alone.batch:
            raise _BatchEnvError(
                f"cannot check isolation: env_fn made a {alone.batch}, a BatchEnv, expected one env"
            )
        if alone.failed is not None:
            doing, raised = alone.failed
            text = f"cannot check isolation: the env raised {raised.kind} {doing}"
            raise error_from(raised, text)
        job = replace(job, most=alone.steps, second=alone.second, seconds=None)
        longest = _LONGEST + _TIMES * alone.seconds
        again = _run(pool, _AGAIN, replace(job, slowly=True), longest)
        if again is None:
            raise _timeout("alone again", longest)
        patience = _PATIENCE + _TIMES * max(alone.seconds, again.seconds)
        try:
            beside = _run(pool, _BESIDE, replace(job, beside=True), patience)
        except LostError as error:
            text = f"beside others, the process of the envs ended: {error}"
            return _found(alone, text, isolated=False)
        if beside is None:
            text = f"beside others, the envs did not answer within {patience:.0f} seconds"
            return _found(alone, text, isolated=False)
    finally:
        pool.kill()
    return _verdict(alone, again, beside)


def may_share(
    env_fns: Sequence[Callable[[], Any]],
    worker_init: Callable[[], Any] | None,
    context: str,
    *,
    seed_globals: bool,
) -> bool:
    """Check the envs of a vector env; log a warning unless they may share a process."""
    try:
        found = check_envs(
            env_fns,
            worker_init=worker_init,
            context="fork" if context == "fork" else "spawn",
            seed_globals=seed_globals,
        )
    except _BatchEnvError:
        _log.info("pysampler: isolate='check' does not check BatchEnvs: their envs share a process")
        return True
    if not found.isolated:
        reasons = "; ".join(found.reasons)
        _log.warning(
            "pysampler: %s: %s; isolate='check' starts %d workers, one for each",
            *(found.verdict, reasons, len(env_fns)),
        )
    return found.isolated is True


def _run(pool: Pool, process: int, job: RunJob, timeout: float | None = None) -> RunResult | None:
    """Let a process make a run; return its result, or None if it takes too long."""
    pool.request([(process, 0)], {process: job})
    answers = pool.wait(timeout)
    if answers is None:
        return None
    pool.take_all()
    result = answers[0].result
    if not isinstance(result, RunResult):
        raise pool.error_of(process, result)
    return result


def _timeout(where: str, seconds: float) -> EnvTimeoutError:
    return EnvTimeoutError(
        f"cannot check isolation: {where}, the env did not answer within {seconds:.0f} seconds"
    )


def _found(
    alone: RunResult, *reasons: str, isolated: bool | None, ignored: Sequence[str] = ()
) -> Isolation:
    return Isolation(alone.name, isolated, reasons, alone.steps, tuple(ignored))


def _verdict(alone: RunResult, again: RunResult, beside: RunResult) -> Isolation:
    if beside.failed is not None:
        doing, raised = beside.failed
        text = f"beside others, an env raised {raised.kind} {doing}: {raised.text}"
        return _found(alone, text, *beside.causes, isolated=False)
    if again.failed is not None:
        doing, raised = again.failed
        text = f"run again alone, it raised {raised.kind} {doing}: {raised.text}"
        return _found(alone, text, isolated=None)
    unsteady = list(_differences(alone, again))
    opaque = {path for _, values in alone.records for path, one in values.items() if one.opaque}
    ignored = sorted(opaque | {path for _, path, _ in unsteady if path.startswith("infos")})
    if different := [one for one in unsteady if one[1] not in ignored]:
        return _found(alone, _described(different, "run again alone"), isolated=None)
    different = [one for one in _differences(alone, beside) if one[1] not in ignored]
    if not different:
        return _found(alone, isolated=True, ignored=ignored)
    causes = beside.causes or [_UNEXPLAINED]
    text = _described(different, "beside others")
    first = [call for call, _ in beside.records].index(different[0][0])
    if 0 < beside.closed <= first:
        text += "; this begins when one of the others is closed"
    return _found(alone, text, *causes, isolated=False, ignored=ignored)


# A call, the path of a result of it that differs, and the two values, if they are short.
_Difference = tuple[str, str, str]


def _differences(one: RunResult, other: RunResult) -> Iterator[_Difference]:
    """Yield the differences between two runs."""
    for (call, ours), (other_call, theirs) in zip(one.records, other.records, strict=False):
        if call != other_call:
            yield other_call, "ends of episodes", ""
            return
        if ours == theirs:
            continue
        for path in [*ours, *(path for path in theirs if path not in ours)]:
            a, b = ours.get(path), theirs.get(path)
            if a != b:
                yield call, path, f"{b.text}, not {a.text}" if a and b and a.text and b.text else ""


def _described(different: Sequence[_Difference], where: str) -> str:
    """Return a sentence on the first difference, with the names of all results that differ."""
    call, path, values = different[0]
    text = f"{where}, {path} of {call} differ" + (f" ({values})" if values else "")
    others = list(dict.fromkeys(p for _, p, _ in different if p != path))
    return f"{text}; later also {_listed(others)}" if others else text


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
