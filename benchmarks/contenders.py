"""Vector envs to compare: each runs in a process of its own, and steps for a while on request.

Run as a program, this is that process (running.py): its answers have steps, seconds and more.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from envs import CASES, Case
from running import Measure, answer, asked_at_once, literal, repeated, warmed

from pysampler._cli.contenders import plain_loop


def rounds_of(step: Callable[[], Any], seconds: float) -> list[float]:
    """Step for some seconds; return the durations of the rounds."""
    times = [time.perf_counter()]
    end = times[0] + seconds
    while times[-1] < end:
        step()
        times.append(time.perf_counter())
    return np.diff(times).tolist()


def rounds_alone(case: Case) -> Callable[[float], list[list[float]]]:
    """Prepare processes that step their envs and never communicate.

    Returns:
        A function that lets them step for some seconds, and returns how long their rounds took.
    """
    rounds_in = asked_at_once(_alone, case.workers, case)
    rounds_in(0.0)  # until they are ready
    return rounds_in


def _alone(case: Case) -> Callable[[float], list[float]]:
    return functools.partial(rounds_of, stepper(case))


def ideal(case: Case) -> Measure:
    """Prepare processes that step their envs and never communicate: the ideal.

    Answers have the time of the same rounds at a barrier too: each takes as long as that of the
    slowest process, for which the others wait at no cost.
    """
    rounds_in = rounds_alone(case)

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        seconds = cell["seconds"]
        parts = rounds_in(seconds)
        rate = sum(len(rounds) / sum(rounds) for rounds in parts) * case.envs / len(parts)
        # The faster process makes more rounds, which have no counterpart.
        together = [max(rounds) for rounds in zip(*parts, strict=False)]
        barrier = case.envs * len(together) / sum(together)
        return {"steps": rate * seconds, "seconds": seconds, "barrier": barrier}

    return measure


def stepper(case: Case) -> Callable[[], int]:
    """Return a function that steps the envs of one worker, as a plain loop."""
    return plain_loop([case.make() for _ in range(case.envs // case.workers)])


def gymnasium_like(make: Callable[..., Any], case: Case, **kwargs: Any) -> tuple[Any, Measure]:
    """Prepare a vector env with the interface of gymnasium."""
    envs = make([case.make] * case.envs, autoreset_mode="SameStep", **kwargs)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(64)]
    return envs, _cycle(envs.step, actions, case)


def gymnasium(case: Case, *, kind: str) -> Measure:
    from gymnasium import vector

    return gymnasium_like(getattr(vector, kind), case)[1]


def pysampler(case: Case, *, fewer: int = 0, **kwargs: Any) -> Measure:
    """Prepare pysampler, with fewer workers than processes in the ideal if asked to."""
    from pysampler import VectorEnv

    # native=False: peers step the same envs in Python, one by one.
    kwargs = {"num_workers": max(case.workers - fewer, 1), "native": False, **kwargs}
    envs, measure = gymnasium_like(VectorEnv, case, **kwargs)
    return lambda cell: where_time_goes(envs, cell["where"]) if "where" in cell else measure(cell)


def pysampler_pinned(case: Case, fewer: int = 0) -> Measure:
    """Prepare pysampler with each worker, and the parent, on a CPU of its own."""
    from pysampler import VectorEnv

    workers = max(case.workers - fewer, 1)
    envs, measure = gymnasium_like(VectorEnv, case, num_workers=workers, native=False)
    cpus = sorted(os.sched_getaffinity(0), reverse=True)
    for index, pid in enumerate(envs._pool.pids):
        os.sched_setaffinity(pid, {cpus[index % len(cpus)]})
    if workers < len(cpus):
        os.sched_setaffinity(0, set(cpus[workers:]))
    return measure


def pysampler_here_too(case: Case) -> Measure:
    """Prepare pysampler with a worker less, whose envs live in the parent."""
    return pysampler(case, num_workers=case.workers - 1, main_envs="auto")


def where_time_goes(envs: Any, rounds: int) -> dict[str, float]:
    """Return the median duration of each part of a round, in us, by the workers' own counters."""
    from pysampler.sync import now

    pool, actions = envs._pool, envs.action_space.sample()
    counters, rows = pool._links.counters, []
    for _ in range(rounds):
        before = counters.envs["steps"]["total_ns"] + counters.envs["resets"]["total_ns"]
        begin = now()
        envs.step_async(actions)
        sent = now()
        messages = pool.wait()
        seen = now()
        pool.wait = lambda _=None, messages=messages: messages
        envs.step_wait()
        del pool.wait
        read = now()
        spent = counters.envs["steps"]["total_ns"] + counters.envs["resets"]["total_ns"] - before
        busy = [int(spent[list(one.envs)].sum()) for one in pool.assignments]
        ended = counters.at_work()[1]  # since when each worker has had nothing to do
        began = [int(end) - ns for end, ns in zip(ended, busy, strict=True)]
        rows.append(
            {
                "send": sent - begin,
                "wake": max(began) - begin,
                "step": sum(busy) / len(busy),
                "slowest": max(busy) - sum(busy) / len(busy),
                "notice": seen - int(ended.max()),
                "read": read - seen,
            }
        )
    return {key: float(np.median([row[key] for row in rows])) / 1e3 for key in rows[0]}


def sb3(case: Case) -> Measure:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([case.make] * case.envs, start_method="fork")
    envs.reset()
    actions = [[envs.action_space.sample() for _ in range(case.envs)] for _ in range(64)]
    return _cycle(lambda a: envs.step(np.asarray(a)), actions, case)


def tianshou(case: Case) -> Measure:
    from tianshou.env import ShmemVectorEnv

    envs = ShmemVectorEnv([case.make] * case.envs)
    envs.reset()
    space = envs.action_space[0]
    actions = [np.asarray([space.sample() for _ in range(case.envs)]) for _ in range(64)]

    def step(action: Any) -> None:
        _, _, terminated, truncated, _ = envs.step(action)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            envs.reset(ended)

    return _cycle(step, actions, case)


def pufferlib(case: Case) -> Measure:
    """Prepare PufferLib: without its requirements, since it pins old releases of gymnasium."""
    try:  # the only contender that `make bench` does not install
        from pufferlib.emulation import GymnasiumPufferEnv
        from pufferlib.vector import Multiprocessing, make
    except ImportError as error:
        raise SystemExit(f"{error} (docs/benchmarks.md says how to install it)") from error

    counts = {"num_envs": case.envs, "num_workers": case.workers, "batch_size": case.envs}
    envs = make(
        lambda: GymnasiumPufferEnv(env_creator=case.make), backend=Multiprocessing, **counts
    )
    envs.reset()
    actions = [envs.action_space.sample() for _ in range(64)]
    measure = _cycle(envs.step, actions, case)

    def send(number: int) -> None:
        for process in envs.processes:
            os.kill(process.pid, number)

    def measure_alone(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure. Its workers look for actions in a loop, so they are stopped otherwise."""
        send(signal.SIGCONT)
        try:
            return measure(cell)
        finally:
            send(signal.SIGSTOP)

    return measure_alone


def envpool(case: Case) -> Measure:
    """Prepare EnvPool, whose envs are in C++: not the same envs, and a bound for Python."""
    import envpool as package

    envs = package.make(case.env, "gymnasium", num_envs=case.envs, num_threads=case.workers)
    envs.reset()
    space = envs.action_space
    actions = [np.asarray([space.sample() for _ in range(case.envs)]) for _ in range(64)]
    return _cycle(envs.step, actions, case)


def _cycle(step: Callable[[Any], Any], actions: list[Any], case: Case) -> Measure:
    rounds = itertools.cycle(actions)

    def batch() -> int:
        step(next(rounds))
        return case.envs

    return repeated(batch)


CONTENDERS: dict[str, Callable[[Case], Measure]] = {
    "ideal": ideal,
    "pysampler": pysampler,
    'pysampler, main_envs="auto"': pysampler_here_too,
    "pysampler, copy=False": functools.partial(pysampler, copy=False),
    'pysampler, infos="none"': functools.partial(pysampler, infos="none"),
    'pysampler, wait="park"': functools.partial(pysampler, wait="park"),
    "a worker less": functools.partial(pysampler, fewer=1),
    "a worker less, pinned": functools.partial(pysampler_pinned, fewer=1),
    "pysampler, pinned": pysampler_pinned,
    "pysampler, native": functools.partial(pysampler, native=True),
    "a worker less, native": functools.partial(pysampler, fewer=1, native=True),
    "gymnasium SyncVectorEnv": functools.partial(gymnasium, kind="SyncVectorEnv"),
    "gymnasium AsyncVectorEnv": functools.partial(gymnasium, kind="AsyncVectorEnv"),
    "SB3 SubprocVecEnv": sb3,
    "Tianshou ShmemVectorEnv": tianshou,
    "PufferLib": pufferlib,
    "EnvPool (its own C++ envs)": envpool,
}


def contender(name: str, case: str, workers: int, envs: int) -> Measure:
    return warmed(CONTENDERS[name](dataclasses.replace(CASES[case], workers=workers, envs=envs)))


if __name__ == "__main__":
    answer(lambda: contender(*map(literal, sys.argv[1:])))
