"""Workloads that TorchRL measures itself by, run by TorchRL and by pysampler.

    python benchmarks/torchrl_workloads.py --out benchmarks/results
    python benchmarks/torchrl_workloads.py --quick

- dispatch (pytorch/rl#4182): 8 envs without work. The program receives the envs that are ready, at
  least one, and sends them on at once. A round is 1,024 env steps.
- slow resets (pytorch/rl#4182): the same with 32 envs whose steps sleep 1 ms, and whose resets
  sleep 200 ms, every 200 steps. A round is 2,048 env steps.
- start (pytorch/rl#4028): 20 workers, each with an env whose constructor sleeps 10 ms, until the
  first reset has returned. Each start is in a new program.

TorchRL runs its own ``CountingEnv``, as there; pysampler runs the same env written for gymnasium.
Contenders are processes, measured in turn.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import running
from gymnasium import spaces
from running import Measure, Options


class Workload(NamedTuple):
    """Envs, and how many steps a round is.

    Attributes:
        envs: How many.
        delays: Seconds that a step and a reset sleep.
        length: An episode ends when its env has counted beyond this.
        round: Env steps of a round.
        contenders: A library, what carries its results, and how many workers it has.
    """

    envs: int
    delays: tuple[float, float]
    length: int
    round: int
    contenders: list[str]


WORKLOADS = {
    "dispatch": Workload(
        8,
        (0.0, 0.0),
        10_000_000,
        1024,
        [
            *("pysampler processes 8", "pysampler processes 2", "pysampler threads 8"),
            *("TorchRL shm 8", "TorchRL shm 2", "TorchRL queue 8"),
        ],
    ),
    "slow resets": Workload(
        32,
        (0.001, 0.2),
        200,
        2048,
        [*("pysampler processes 32", "pysampler threads 32"), *("TorchRL shm 32", "TorchRL shm 2")],
    ),
}
STARTED, CONSTRUCTOR = 20, 0.01  # workers, seconds
LIMIT = 300.0  # s: 32 processes import torch on two CPUs
STARTS = [
    *("pysampler", "pysampler, workers import torch"),
    *("TorchRL, spawn", "TorchRL, spawn, metadata from workers"),
    "TorchRL, forkserver, metadata from workers",
]


# -- in a contender's process ----------------------------------------------------------------------


class Counting(gym.Env[Any, Any]):
    """Counts its actions."""

    observation_space = spaces.Box(0, np.iinfo(np.int32).max, (1,), np.int32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int, delays: tuple[float, float]) -> None:
        self._length, self._delays, self._count = length, delays, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._delays[1]:
            time.sleep(self._delays[1])
        self._count = 0
        return np.zeros(1, np.int32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._delays[0]:
            time.sleep(self._delays[0])
        self._count += int(action)
        return np.array([self._count], np.int32), 1.0, self._count > self._length, False, {}


def torchrl_env(length: int, delays: tuple[float, float]) -> Any:
    from torchrl.testing.mocking_classes import CountingEnv

    class Delayed(CountingEnv):
        def _step(self, tensors: Any) -> Any:
            if delays[0]:
                time.sleep(delays[0])
            return super()._step(tensors)

        def _reset(self, tensors: Any, **kwargs: Any) -> Any:
            if delays[1]:
                time.sleep(delays[1])
            return super()._reset(tensors, **kwargs)

    return Delayed(max_steps=length)


def pysampler(workload: Workload, way: str, workers: int) -> Callable[[], int]:
    import pysampler

    envs = pysampler.VectorEnv(
        [functools.partial(Counting, workload.length, workload.delays)] * workload.envs,
        num_workers=workers,
        groups=workload.envs // workers,
        context="threads" if way == "threads" else None,
        autoreset_mode="SameStep",
    )
    envs.reset(seed=0)
    envs.send(np.ones(workload.envs, np.int64))

    def batch() -> int:
        ids = envs.recv(min_envs=1)[4]["env_id"]
        envs.send(np.ones(len(ids), np.int64), ids)
        return len(ids)

    return batch


def torchrl(workload: Workload, way: str, workers: int) -> Callable[[], int]:
    import torch
    from tensordict import set_capture_non_tensor_stack
    from torchrl.envs import AsyncEnvPool

    torch.set_num_threads(1)
    set_capture_non_tensor_stack(False).set()
    pool = AsyncEnvPool(
        [functools.partial(torchrl_env, workload.length, workload.delays)] * workload.envs,
        backend="multiprocessing",
        exchange=way,
        envs_per_worker=workload.envs // workers,
    )
    tensors = pool.reset()
    tensors["action"] = torch.ones(workload.envs, 1)
    pool.async_step_and_maybe_reset_send(tensors)

    def batch() -> int:
        _, tensors = pool.async_step_and_maybe_reset_recv(min_get=1, max_get=workload.envs)
        count = tensors.shape[0]
        tensors["action"] = torch.ones(count, 1)
        pool.async_step_and_maybe_reset_send(tensors)
        return count

    return batch


def contender(name: str, workload: str) -> Measure:
    if workload == "start":
        return lambda cell: start(name, cell["workers"])
    library, way, workers = name.split()
    prepare = {"pysampler": pysampler, "TorchRL": torchrl}[library]
    return running.warmed(running.repeated(prepare(WORKLOADS[workload], way, int(workers))))


def constructed(make: Callable[..., Any], *modules: str) -> Any:
    for module in modules:
        importlib.import_module(module)
    time.sleep(CONSTRUCTOR)
    return make(200, (0.0, 0.0))


def start(name: str, workers: int) -> dict[str, float]:
    """Measure from the call of the constructor until all envs are reset."""
    library, *options = name.split(", ")
    if library == "pysampler":
        from pysampler import VectorEnv

        make = functools.partial(constructed, Counting, *["torch"] * len(options))
        begun = time.perf_counter()
        envs: Any = VectorEnv([make] * workers, num_workers=workers)
    else:
        from torchrl.envs import ParallelEnv

        method, *metadata = options
        begun = time.perf_counter()
        envs = ParallelEnv(
            workers,
            functools.partial(constructed, torchrl_env),
            metadata_from_workers=bool(metadata),
            mp_start_method=method,
        )
    envs.reset()
    took = time.perf_counter() - begun
    envs.close()
    return {"seconds": took}


# -- in the process that measures ------------------------------------------------------------------


def report(results: dict[str, Any]) -> list[str]:
    parts = [
        (
            "Contenders in turn; medians [quartiles]. The number is that of workers. TorchRL runs "
            "its `CountingEnv`, pysampler the same env written for gymnasium.\n"
        )
    ]
    for name, rates in results["rates"].items():
        work = WORKLOADS[name]
        step, reset = work.delays
        about = f"{work.envs} envs without work"
        if reset:
            about = (
                f"{work.envs} envs whose steps sleep {step * 1e3:g} ms and whose resets sleep "
                f"{reset * 1e3:g} ms, every {work.length} steps"
            )
        ours = next(iter(rates.values()), [])
        rows = [
            [
                each,
                running.quartiles(found, 0),
                running.quartiles([work.round / rate * 1e3 for rate in found]),
                running.multiples(ours, found),
            ]
            for each, found in rates.items()
        ]
        header = ["", "env steps/s", f"ms a round of {work.round:,}", "first row / this"]
        parts.append(f"## {about} (pytorch/rl#4182)\n\n" + running.table(header, rows))
    rows = [[name, running.quartiles(found)] for name, found in results["starts"].items()]
    parts.append(
        f"## Starting {results['started']} workers (pytorch/rl#4028)\n\nConstructors sleep "
        f"{CONSTRUCTOR * 1e3:g} ms. Until the first reset has returned, in a new program, s. "
        "Processes of TorchRL's workers import torch and TorchRL, which pysampler's do only where "
        "said.\n\n" + running.table(["", "s"], rows)
    )
    return parts


def started(name: str, workers: int) -> float | None:
    """Return the seconds that a start in a new program takes; None if it takes too long."""
    said = running.once(__file__, name, "start", limit=LIMIT, workers=workers)
    return said and said["seconds"]


def measure(options: Options) -> dict[str, Any]:
    times, workers, most = (1, 2, 2) if options.quick else (5, STARTED, 32)
    rates = {}
    for name, workload in WORKLOADS.items():
        running.say(name)
        able = {one: int(one.split()[-1]) <= most for one in workload.contenders}
        names = [one for one, few in able.items() if few or one.startswith("pysampler")]
        rates[name] = running.rates_in_turn(__file__, names, (name,), options, LIMIT)
    running.say("start")
    starts = running.in_turn(STARTS, range(times), lambda name, _: started(name, workers))
    return {"started": workers, "rates": rates, "starts": starts}


if __name__ == "__main__":
    running.study(
        *("TorchRL's own workloads", measure, report),
        contender=contender,
        quick={"repetitions": 1, "seconds": 0.5},
        repetitions=7,
        seconds=2.0,
    )
