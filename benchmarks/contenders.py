"""Vector envs to compare: each runs in a process of its own, and steps for a while on request.

Run as a program, this is that process (running.py): its answers have steps, seconds and more.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from envs import CASES, Case
from running import answer

if TYPE_CHECKING:
    from collections.abc import Callable


def stepped(step: Callable[[], Any], envs: int, seconds: float) -> dict[str, float]:
    """Step for some seconds; return the number of env steps and the time they took."""
    begun = time.perf_counter()
    end, rounds = begun + seconds, 0
    while time.perf_counter() < end:
        step()
        rounds += 1
    return {"steps": rounds * envs, "seconds": time.perf_counter() - begun}


def ideal(case: Case, seconds: float) -> Callable[[], dict[str, float]]:
    """Prepare processes that step their envs and never communicate: the ideal."""
    context = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(case.workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=_alone, args=(case, theirs, seconds), daemon=True)
        process.start()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()

    def measure() -> dict[str, float]:
        for pipe in pipes:
            pipe.send("go")
        parts = [pipe.recv() for pipe in pipes]
        rate = sum(part["steps"] / part["seconds"] for part in parts)
        return {"steps": rate * seconds, "seconds": seconds}

    return measure


def _alone(case: Case, pipe: Any, seconds: float) -> None:
    envs = [case.make() for _ in range(case.envs // case.workers)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = [[env.action_space.sample() for env in envs] for _ in range(64)]
    at = 0

    def step() -> None:
        nonlocal at
        at += 1
        for env, action in zip(envs, actions[at % 64], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    pipe.send("ready")
    while pipe.recv():
        pipe.send(stepped(step, len(envs), seconds))


def gymnasium_like(make: Callable[..., Any], case: Case, seconds: float, **kwargs: Any) -> Any:
    """Prepare a vector env with the interface of gymnasium."""
    envs = make([case.make] * case.envs, autoreset_mode="SameStep", **kwargs)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(64)]
    at = 0

    def step() -> None:
        nonlocal at
        at += 1
        envs.step(actions[at % 64])

    return envs, functools.partial(stepped, step, case.envs, seconds)


def sync(case: Case, seconds: float) -> Any:
    from gymnasium.vector import SyncVectorEnv

    return gymnasium_like(SyncVectorEnv, case, seconds)[1]


def asynchronous(case: Case, seconds: float) -> Any:
    from gymnasium.vector import AsyncVectorEnv

    return gymnasium_like(AsyncVectorEnv, case, seconds)[1]


def pysampler(case: Case, seconds: float, **kwargs: Any) -> Any:
    from pysampler import VectorEnv

    envs, measure = gymnasium_like(VectorEnv, case, seconds, num_workers=case.workers, **kwargs)

    def measure_and_tell() -> dict[str, Any]:
        return {**measure(), "where": where_time_goes(envs, rounds=100)}

    return measure_and_tell


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
        busy = [int(spent[list(share.members)].sum()) for share in pool.shares]
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


def sb3(case: Case, seconds: float) -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([case.make] * case.envs, start_method="fork")
    envs.reset()
    actions = [[envs.action_space.sample() for _ in range(case.envs)] for _ in range(64)]
    return _cycle(lambda a: envs.step(np.asarray(a)), actions, case, seconds)


def tianshou(case: Case, seconds: float) -> Any:
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

    return _cycle(step, actions, case, seconds)


def envpool(case: Case, seconds: float) -> Any:
    """Prepare EnvPool, whose envs are in C++: not the same envs, and a bound for Python."""
    import envpool as package

    ids = {"CartPole-v1": "CartPole-v1", "HalfCheetah-v5": "HalfCheetah-v5"}
    envs = package.make(ids[case.env], "gymnasium", num_envs=case.envs, num_threads=case.workers)
    envs.reset()
    space = envs.action_space
    actions = [np.asarray([space.sample() for _ in range(case.envs)]) for _ in range(64)]
    return _cycle(envs.step, actions, case, seconds)


def _cycle(step: Callable[[Any], Any], actions: list[Any], case: Case, seconds: float) -> Any:
    at = 0

    def one() -> None:
        nonlocal at
        at += 1
        step(actions[at % 64])

    return functools.partial(stepped, one, case.envs, seconds)


CONTENDERS: dict[str, Callable[[Case, float], Callable[[], dict[str, Any]]]] = {
    "ideal": ideal,
    "pysampler": pysampler,
    "pysampler, copy=False": functools.partial(pysampler, copy=False),
    'pysampler, infos="none"': functools.partial(pysampler, infos="none"),
    'pysampler, wait="yield"': functools.partial(pysampler, wait="yield"),
    'pysampler, wait="park"': functools.partial(pysampler, wait="park"),
    "gymnasium SyncVectorEnv": sync,
    "gymnasium AsyncVectorEnv": asynchronous,
    "SB3 SubprocVecEnv": sb3,
    "Tianshou ShmemVectorEnv": tianshou,
    "EnvPool (its own C++ envs)": envpool,
}


def main() -> None:
    name, case, seconds = sys.argv[1], CASES[sys.argv[2]], float(sys.argv[3])
    if len(sys.argv) > 4:
        case = dataclasses.replace(case, workers=int(sys.argv[4]))

    def make() -> Callable[[dict[str, Any]], dict[str, Any]]:
        measure = CONTENDERS[name](case, seconds)
        measure()  # warm
        return lambda _: measure()

    answer(make)


if __name__ == "__main__":
    main()
