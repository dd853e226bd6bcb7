"""Performance cliffs: common uses that were once slow, next to a peer or to the fast variant.

Each figure is measured in an interpreter of its own, in turn with those it is compared to.

    python benchmarks/cliffs.py --out benchmarks/results
"""

from __future__ import annotations

import operator
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from running import Options, in_interpreter, say, spread, study, table

import pysampler

SECONDS = 0.25  # of repeated calls for one figure


class Env(gym.Env[Any, Any]):
    """An env that returns the same values in each step."""

    action_space = gym.spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(
        self, observation: Any = None, reward: Any = 0.0, info: Any = None, size: int = 0
    ) -> None:
        space = gym.spaces.Box(-1, 1, (8,), np.float32)
        self.observation_space = space
        self.observation = space.low if observation is None else observation
        self.results = self.observation, reward, False, False, info or {}
        self.image = np.ones(size, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation, self.results[4]

    def step(self, action: Any) -> Any:
        return self.results

    def render(self) -> Any:
        return self.image


class Wide(Env):
    """An env whose space, four images, is an object of its own."""

    def __init__(self) -> None:
        super().__init__(np.zeros((4, 84, 84), np.uint8))
        self.observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)


def micros(envs: Any, method: str, *arguments: Any) -> float:
    """Return the median duration of calls of a method, in us; close the envs."""
    envs.reset()
    call = operator.methodcaller(method, *arguments)
    taken, end = [], time.perf_counter() + SECONDS
    for _ in range(3):
        call(envs)
    while not taken or time.perf_counter() < end:
        begun = time.perf_counter()
        call(envs)
        taken.append(time.perf_counter() - begun)
    envs.close()
    return statistics.median(taken) * 1e6


def render(megabytes: int, *, ours: bool) -> float:
    """Return the duration of render() of 16 envs, in ms."""
    env_fns = [lambda: Env(size=megabytes << 20)] * 16
    envs: Any
    if ours:
        envs = pysampler.VectorEnv(env_fns, num_workers=2)
    else:
        envs = gym.vector.AsyncVectorEnv(env_fns, context="fork")
    return micros(envs, "render") / 1e3


def step(**values: Any) -> float:
    """Return the overhead of a step of one env in this process, in us."""
    envs = pysampler.VectorEnv([lambda: Env(**values)] * 64, num_workers=0)
    return micros(envs, "step", np.zeros(64, np.int64)) / 64


def acting(actions: Any) -> float:
    """Return the duration of a step of 64 envs in two workers, in us."""
    return micros(pysampler.VectorEnv([Env] * 64, num_workers=2), "step", actions)


def grown(make: Callable[[], Any]) -> float:
    """Return by how many MB a vector env makes this process grow."""
    pysampler.VectorEnv([Env] * 2, num_workers=2).close()
    before = psutil.Process().memory_info().rss
    envs = make()
    after = psutil.Process().memory_info().rss
    envs.close()
    return (after - before) / 1e6


def holding(**options: Any) -> float:
    """Return the growth in MB with a 48 MB array in the closure of the env_fns of four workers."""
    held = np.ones(6_000_000)

    def make() -> Env:
        return Env(info={"first": held[0]})

    return grown(lambda: pysampler.VectorEnv([make] * 4, num_workers=4, **options))


def rollout_memory(*names: str) -> float:
    """Return the size of the frames of a rollout of 64 envs, 1,024 steps, in MB."""
    envs = pysampler.VectorEnv([lambda: Env(info={"x": 1.0})] * 64, num_workers=2)
    policy = lambda o: np.zeros(len(o), np.int64)  # noqa: E731
    with pysampler.Rollouts(envs, policy, 1024, info_keys=names) as rollouts:
        for _ in range(2):
            next(rollouts)
        taken = os.fstat(envs._pool._frames_segment.fd).st_blocks * 512  # type: ignore[union-attr]
    envs.close()
    return taken / 1e6


def descriptors() -> float:
    """Return how many files this process has open for each worker."""
    before = psutil.Process().num_fds()
    envs = pysampler.VectorEnv([Env] * 16, num_workers=16)
    each = (psutil.Process().num_fds() - before) / 16
    envs.close()
    return each


def wakeups() -> float:
    """Return how often per second a worker wakes that has been idle for two seconds."""
    envs = pysampler.VectorEnv([Env] * 2, num_workers=1)
    envs.reset()
    worker = psutil.Process(envs._pool.pids[0])
    time.sleep(2)
    before = worker.num_ctx_switches().voluntary
    time.sleep(2)
    taken = (worker.num_ctx_switches().voluntary - before) / 2
    envs.close()
    return taken


FLOATS = {f"x{i}": float(i) for i in range(300)}
# What is measured, its unit, and variants measured in turn: the first is the one to reach.
CLIFFS: dict[str, tuple[str, dict[str, Callable[[], float]]]] = {
    **{
        f"render(), 16 x {size} MB": (
            "ms",
            {
                "AsyncVectorEnv": lambda size=size: render(size, ours=False),
                "pysampler": lambda size=size: render(size, ours=True),
            },
        )
        for size in (1, 4)
    },
    "reward": (
        "us",
        {"float": lambda: step(reward=1.0), "np.float32": lambda: step(reward=np.float32(1))},
    ),
    "observation of float32": (
        "us",
        {
            "float32": step,
            "float64": lambda: step(observation=np.zeros(8)),
            "list": lambda: step(observation=[0.0] * 8),
        },
    ),
    "an info": (
        "us",
        {"bool": lambda: step(info={"x": True}), "np.bool_": lambda: step(info={"x": np.bool_(1)})},
    ),
    "300 floats of infos": ("us", {"dict of floats": lambda: step(info=FLOATS)}),
    "step(), 64 envs": (
        "us",
        {"array": lambda: acting(np.zeros(64, np.int64)), "list of ints": lambda: acting([0] * 64)},
    ),
    "48 MB in the env_fns of 4 workers": (
        "MB",
        {"pysampler": holding, "that may restart": lambda: holding(on_worker_loss="restart")},
    ),
    "512 envs with spaces of 28 KB": (
        "MB",
        {
            "SyncVectorEnv": lambda: grown(lambda: gym.vector.SyncVectorEnv([Wide] * 512)),
            "pysampler": lambda: grown(lambda: pysampler.VectorEnv([Wide] * 512, num_workers=2)),
        },
    ),
    "a rollout's frames": (
        "MB",
        {"no infos": rollout_memory, "info_keys=['x']": lambda: rollout_memory("x")},
    ),
    "a worker's open files": ("", {"in the parent": descriptors}),
    "an idle worker wakes": ("a second", {"pysampler": wakeups}),
}


def figure(cliff: str, variant: str) -> float:
    """Return one figure, measured in this interpreter."""
    return CLIFFS[cliff][1][variant]()


def measure(options: Options) -> dict[str, Any]:
    taken: dict[str, dict[str, list[float]]] = {}
    for cliff, (_, variants) in CLIFFS.items():
        if options.only not in cliff:
            continue
        say(cliff)
        figures = taken[cliff] = {variant: [] for variant in variants}
        for _ in range(options.repetitions):
            for variant in variants:
                figures[variant].append(in_interpreter(__file__, "figure", cliff, variant))
    return {"taken": taken}


def report(results: dict[str, Any]) -> list[str]:
    rows = [
        [cliff if i == 0 else "", variant, f"{spread(values)} {CLIFFS[cliff][0]}"]
        for cliff, figures in results["taken"].items()
        for i, (variant, values) in enumerate(figures.items())
    ]
    return [table(["", "way", "median [least, most]"], rows)]


if __name__ == "__main__":
    study("Cliffs", measure, report, figures={"figure": figure}, repetitions=5, only="")
