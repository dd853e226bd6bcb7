"""Acting on a GPU: where the policy of rollouts and actors should act, and what copies cost.

All samplers of a case live in one process and take turns; those that wait are parked.

    python benchmarks/gpu.py --out benchmarks/results
    python benchmarks/gpu.py --device cpu --envs 8 --slices 2          # a short look, without a GPU
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from envs import Busy, Linear, mlp
from running import Options, in_turn, quartiles, repeated, say, study, table
from torch import nn

import pysampler

HORIZON = 32


class Mlp(nn.Module):
    """Means of actions, by two hidden layers."""

    def __init__(self, inputs: int = 17, actions: int = 6, width: int = 256) -> None:
        super().__init__()
        self.layers = mlp([inputs, width, width, actions], "Tanh")

    def forward(self, observations: Any) -> Any:
        return self.layers(observations.float())


class Pixels(nn.Module):
    """Discrete actions for pictures, by the network of Mnih et al."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
        self.layers = nn.Sequential(
            *(part for one in convolutions for part in (one, nn.ReLU())),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 2)),
        )

    def forward(self, observations: Any) -> Any:
        pictures = observations["image"].permute(0, 3, 1, 2).float() / 255
        return self.layers(pictures).argmax(1)


CASES: dict[str, tuple[Any, Callable[[], nn.Module]]] = {
    "HalfCheetah-v5, 2 x 256": ("HalfCheetah-v5", Mlp),
    "HalfCheetah-v5, 2 x 1024": ("HalfCheetah-v5", functools.partial(Mlp, width=1024)),
    "50 us and an image, convolutions": (functools.partial(Busy, 50, image=True), Pixels),
}


def samplers(
    case: str, envs: int, workers: int, device: str
) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Yield name, starter and mover of the steps of each way to act."""
    env, network = CASES[case]
    make = [functools.partial(_make, env)] * envs

    def rollouts(on: str, **options: Any) -> Any:
        return pysampler.Rollouts(make, network().to(on), HORIZON, num_workers=workers, **options)

    yield "main, CPU, 1 thread", lambda: rollouts("cpu"), next
    yield "main, CPU, all threads", lambda: rollouts("cpu", threads=os.cpu_count()), next
    yield "workers, CPU", lambda: rollouts("cpu", policy_in="workers"), next
    yield f"main, {device}", lambda: rollouts(device), next
    yield f"main, {device}, groups=2", lambda: rollouts(device, groups=2), next

    def actors(on: str, **options: Any) -> Any:
        shape = {"steps": HORIZON, "high": 4 * envs, "num_workers": workers}
        return pysampler.Actors(make, network().to(on), **shape, **options)

    def take(made: Any) -> Any:
        return made.take(envs, min_records=envs)

    yield "actors in workers, CPU", lambda: actors("cpu"), take
    yield f"actors, {device}", lambda: actors(device, device=device), take
    yield f"actors, {device}, groups=2", lambda: actors(device, device=device, groups=2), take


def _make(env: Any) -> Any:
    import gymnasium

    return gymnasium.make(env) if isinstance(env, str) else env()


def measured(case: str, envs: int, options: Any) -> dict[str, list[float]]:
    """Return steps per second of each way, slice by slice."""
    sampling: dict[str, Callable[[], Any]] = {}

    def rate(name: str, _: int) -> float:
        def batch() -> int:
            sampling[name]()
            return envs * HORIZON

        batch()  # what was sampled meanwhile
        return repeated(batch)({"seconds": options.seconds})["rate"]

    with contextlib.ExitStack() as stack:
        for name, start, move in samplers(case, envs, options.workers, options.device):
            try:
                sample = functools.partial(move, stack.enter_context(start()))
                sample()
                sampling[name] = sample
            except Exception as error:  # one way that fails must not end the others
                say(f"  {name}: {type(error).__name__}: {error}")
        return in_turn(sampling, range(options.slices), rate)


def copies(device: str) -> dict[str, list[float]]:
    """Return GB/s of the copy of a rollout of pictures to the device, by each way."""
    found: dict[str, list[float]] = {"rollout.torch": [], "torch.from_numpy().to()": []}
    make = [functools.partial(Busy, 0, image=True)] * 16
    with pysampler.Rollouts(make, Linear(""), 64, num_workers=4) as rollouts:
        rollout = next(rollouts)
        pictures = rollout.observations["image"]
        for _ in range(20):
            for name, rates in found.items():
                start = time.perf_counter()
                if name == "rollout.torch":
                    rollout.torch(device).observations["image"]
                else:
                    torch.from_numpy(np.ascontiguousarray(pictures)).to(device)
                if device != "cpu":
                    torch.cuda.synchronize()
                rates.append(pictures.nbytes / (time.perf_counter() - start) / 1e9)
    return found


def report(results: dict[str, Any]) -> list[str]:
    names = list(dict.fromkeys(n for row in results["rows"] for n in row["rates"]))
    rows = []
    for row in results["rows"]:
        found = [[rate / 1e3 for rate in row["rates"].get(name, [])] for name in names]
        rows.append([f"{row['case']}, {row['envs']}", *(quartiles(one, 1) for one in found)])
    about = (
        f"{results['device']}; {results['workers']} workers; thousands of steps per second, "
        f"median [quartiles] of slices of {results['slice_seconds']:g} s in turn.\n"
    )
    found = "; ".join(f"`{name}` {quartiles(r, 1)} GB/s" for name, r in results["copies"].items())
    copied = f"Copies of a rollout of pictures to the device: {found}.\n"
    return [about, table(["policy, envs", *names], rows), copied]


def measure(options: Options) -> dict[str, Any]:
    rows = []
    copied = copies(options.device)
    for case in options.cases:
        for envs in options.envs:
            say(f"{case}, {envs}")
            rates = measured(case, envs, options)
            rows.append({"case": case, "envs": envs, "rates": rates})
            say("; ".join(f"{n} {statistics.median(r):,.0f}" for n, r in rates.items()))
    return {
        "device": "CPU" if options.device == "cpu" else torch.cuda.get_device_name(),
        "workers": options.workers,
        "slice_seconds": options.seconds,
        "copies": copied,
        "rows": rows,
    }


if __name__ == "__main__":
    study(
        *("Acting on a GPU", measure, report),
        device="cuda",
        workers=len(os.sched_getaffinity(0)),
        envs=[64, 512],
        cases=CASES,
        slices=8,
        seconds=0.3,
    )
