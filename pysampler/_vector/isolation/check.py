"""``check_isolation``: whether an env gives the same results beside others as alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pysampler._common.numbers import true_or_false, whole_number
from pysampler._vector import arguments
from pysampler._vector.isolation.members import RunResult
from pysampler._vector.isolation.runs import RunJob, RunServer
from pysampler._vector.isolation.verdict import Isolation, judged
from pysampler._vector.registry import registered
from pysampler._vector.serving import WorkerInfo, worker_init_for
from pysampler._workers.exceptions import error_from
from pysampler._workers.jobs import Attach
from pysampler._workers.pool import Pool
from pysampler._workers.processes import WorkerAssignment
from pysampler._workers.setup import UnpicklableError
from pysampler.errors import EnvTimeoutError, LostError
from pysampler.sync import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["check_envs", "check_isolation", "may_share"]

_log = logging.getLogger("pysampler")

STEPS = 200
_ALONE, _AGAIN, _BESIDE = range(3)  # the processes; others follow for further runs beside siblings
_SECONDS = 3.0  # of steps alone, after which a run ends early
_LONGEST = 60.0  # seconds of a run alone: to make the env, reset it and step it
# Envs beside others may take this many seconds, and times as long as alone.
_PATIENCE, _TIMES = 20.0, 10.0


class _BatchEnvError(TypeError):
    """A function makes a BatchEnv, whose envs share a process in any case."""


def check_isolation(
    env_fn: Callable[[], Any],
    steps: int = STEPS,
    seed: int = 0,
    *,
    seed_globals: bool = False,
    context: str | None = None,
) -> Isolation:
    """Check whether envs may share a process, as they do in the workers of a ``VectorEnv``.

    It steps an env in three new processes: alone, alone again, and beside two others with other
    seeds and actions, of which one was made before it and is closed midway. Observations, rewards,
    ends of episodes, infos and pictures must be equal bit for bit. Global random generators begin
    with the same seed in each process.

    With ``context="threads"``, each of the three envs steps in a thread, at the same time as the
    others. Threads share more than envs that take turns, so state that they change counts even if
    all results are equal. These are threads of a new process too, so ``env_fn`` must pickle.

    Args:
        env_fn: A function that makes an env, as for ``VectorEnv``. If envs differ, pass a list of
            functions: the first makes the env, the next two others its siblings.
        steps: The number of steps. The check takes fewer if they take longer than 3 seconds.
        seed: The seed of the env and its actions.
        seed_globals: Whether each env has its own global random generators, as with this option of
            ``VectorEnv``.
        context: That of the vector env: "threads" checks threads, anything else worker processes.

    Returns:
        The verdict, with reasons.

    Raises:
        EnvError: The env raised an exception alone.
        EnvTimeoutError: The env did not answer alone: the first run may take 60 seconds.
        WorkerLostError: The env ended its process alone.
        TypeError: A function cannot be pickled.

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
    way = arguments.context(context, "check isolation")
    threads = way == "threads"
    if threads:
        arguments.refuse("context 'threads'", {"seed_globals": seed_globals}, "check isolation")
    return check_envs(
        env_fns,
        threads=[threads],
        steps=steps,
        seed=seed,
        seed_globals=seed_globals,
        context="fork" if way == "fork" else "spawn",
    )[0]


def check_envs(
    env_fns: Sequence[Callable[[], Any]],
    *,
    threads: Sequence[bool] = (False,),
    steps: int = STEPS,
    seed: int = 0,
    worker_init: Callable[[], Any] | None = None,
    context: str = "spawn",
    seed_globals: bool = False,
) -> list[Isolation]:
    """Check the env of the first function, beside envs of the next two different ones.

    Args:
        env_fns: One or more functions.
        threads: For each check, whether the envs step in threads instead of in turn.
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
    try:
        pool = Pool(
            [WorkerAssignment(i, (1,)) for i in range(_BESIDE + len(threads))],
            lambda _: (RunServer, arguments),
            context=context,
        )
    except UnpicklableError as error:
        if not any(threads):
            raise
        # No forks instead: they inherit locks that other threads hold, and state of libraries.
        cause = error.__cause__
        raise TypeError(
            "cannot check isolation: env_fn cannot be pickled for the processes of the check: "
            f"{type(cause).__name__}: {cause}; define env_fn and its env in a module that your "
            "script imports, where these processes find them by name"
        ) from cause
    try:
        pool.lay_out(Segment(1), Attach())
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
        found = []
        for process, one in enumerate(threads, _BESIDE):
            beside = _beside(pool, process, replace(job, beside=True, threads=one), patience)
            found.append(judged(alone, again, beside, threads=one))
        return found
    finally:
        pool.kill()


def _beside(pool: Pool, process: int, job: RunJob, patience: float) -> RunResult | str:
    """Let a process make a run beside siblings; return its result, or why it has not ended."""
    try:
        result = _run(pool, process, job, patience)
    except LostError as error:
        return f"the process of the envs ended: {error}"
    return result or f"the envs did not answer within {patience:.0f} seconds"


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
        )[0]
    except _BatchEnvError:
        _log.info("pysampler: isolate='check' does not check BatchEnvs: their envs share a process")
        return True
    if not found.isolated:
        reasons = "; ".join(found.reasons)
        _log.warning(
            "pysampler: %s: %s; isolate='check' starts %d workers, one for each",
            found.verdict,
            reasons,
            len(env_fns),
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
