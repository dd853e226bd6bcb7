"""Slow resets: env steps per second with and without spare envs.

32 envs whose steps sleep 1 ms and whose resets sleep 200 ms, with episodes of 200 steps on average:
half of each env's time is a reset, and most steps of all envs wait for one. Contenders are
gymnasium's AsyncVectorEnv, TorchRL's collector on a ParallelEnv, and pysampler without and with
spare envs; the limit is what the same envs step if resets take no time.

    python benchmarks/slow_resets.py
    python benchmarks/slow_resets.py --quick

Each contender is a process of its own, measured in turn.
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

import numpy as np
import running
from envs import Skewed
from running import Options

ENVS, STEP, RESET, LENGTH = 32, 0.001, 0.2, 200
NAMES = ["AsyncVectorEnv", "TorchRL", "pysampler"]
NAMES += [*(f"pysampler {spares}" for spares in (8, 16, 32, 48)), "no resets"]
ACTIONS = np.zeros((1, ENVS), np.int64)


def make_env(reset_seconds: float = RESET) -> Skewed:
    return Skewed(STEP, reset_seconds, 1 / LENGTH)


# -- in a contender's process ----------------------------------------------------------------------


def pysampler(spares: int, reset_seconds: float = RESET) -> Any:
    import pysampler

    envs = pysampler.VectorEnv(
        [functools.partial(make_env, reset_seconds)] * ENVS,
        num_workers=ENVS + spares,
        spare_envs=spares,
        autoreset_mode="SameStep",
    )
    envs.reset(seed=1)
    measure = running.rate_of_steps(envs, ACTIONS)

    def measured(cell: dict[str, Any]) -> dict[str, Any]:
        running.say(str(envs.stats().spares or ""))
        return measure(cell)

    return measured


def asynchronous() -> Any:
    from gymnasium.vector import AsyncVectorEnv

    envs = AsyncVectorEnv([make_env] * ENVS, autoreset_mode="SameStep")
    envs.reset(seed=1)
    return running.rate_of_steps(envs, ACTIONS)


def _torchrl_env() -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(make_env())


def torchrl() -> Any:
    from torchrl.collectors import Collector
    from torchrl.envs import ParallelEnv

    batch = 10 * ENVS
    envs = ParallelEnv(ENVS, _torchrl_env, mp_start_method="fork")
    collector = iter(Collector(envs, None, frames_per_batch=batch, total_frames=-1))

    def batch_of_all() -> int:
        next(collector)
        return batch

    return running.warmed(running.repeated(batch_of_all))


def contender(name: str) -> Any:
    if name == "AsyncVectorEnv":
        return asynchronous()
    if name == "TorchRL":
        return torchrl()
    if name == "no resets":
        return pysampler(0, 0.0)
    return pysampler(int(name.split()[1]) if " " in name else 0)


# -- in the benchmark ------------------------------------------------------------------------------


def measure(options: Options) -> dict[str, Any]:
    return {"rates": running.rates_in_turn(__file__, NAMES, (), options)}


def report(results: dict[str, Any]) -> list[str]:
    rates = results["rates"]
    limit = statistics.median(rates["no resets"])
    rows = [
        [name, running.spread(each, 0), f"{statistics.median(each) / limit:.2f}"]
        for name, each in rates.items()
    ]
    about = (
        f"{ENVS} envs whose steps sleep {STEP * 1e3:.0f} ms and whose resets sleep "
        f"{RESET * 1e3:.0f} ms, with episodes of {LENGTH} steps on average; the "
        "number is that of spare envs. Env steps per second, and as shares of what the envs step "
        "if resets take no time:\n"
    )
    return [about, running.table(["", "steps/s", "of the limit"], rows)]


if __name__ == "__main__":
    running.study(
        *("Slow resets", measure, report),
        contender=contender,
        quick={"seconds": 2.0, "repetitions": 2},
        seconds=5.0,
        repetitions=5,
    )
