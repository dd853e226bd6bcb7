"""Does recv(min_envs="auto", timeout="auto") find the batches that give the most env steps?

python benchmarks/auto_batches.py --out benchmarks/results
python benchmarks/auto_batches.py --simulated          # the grid only; needs one CPU
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

from envs import Busy
from partial import think
from running import answer

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 2
SETUPS = {
    "constant": "16 envs of 100 us",
    "exponential": "16 envs of 100 us on average, exponential",
    "straggler": "the same, one of them ten times slower",
    "resets": "16 envs of 100 us, one step of a hundred takes 5 ms",
}


def makers(setup: str) -> list[Callable[[], Any]]:
    if setup == "constant":
        return [functools.partial(Busy, 100)] * 16
    if setup == "resets":
        return [functools.partial(Busy, 100, rare=50)] * 16
    slow = [1000 if setup == "straggler" else 100] + [100] * 15
    return [functools.partial(Busy, us, exponential=True) for us in slow]


def ideal(setup: str) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Prepare processes that step the envs, and never wait for one another."""
    fns = makers(setup)
    each = len(fns) // WORKERS
    context = multiprocessing.get_context("fork")
    pipes = []
    for first in range(0, len(fns), each):
        ours, theirs = context.Pipe()
        chosen = fns[first : first + each]
        context.Process(target=_alone, args=(chosen, theirs), daemon=True).start()
        pipes.append(ours)

    def measure(cell: dict[str, Any]) -> dict[str, float]:
        for pipe in pipes:
            pipe.send(cell["seconds"])
        return {"rate": sum(pipe.recv() for pipe in pipes)}

    return measure


def _alone(fns: list[Callable[[], Any]], pipe: Any) -> None:
    envs = [fn() for fn in fns]
    for env in envs:
        env.reset()
    while True:
        seconds = pipe.recv()
        steps, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + seconds:
            for env in envs:
                env.step(0)
            steps += len(envs)
        pipe.send(steps / (time.perf_counter() - begun))


def pysampler(setup: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    from pysampler import VectorEnv

    fns = makers(setup)
    envs = VectorEnv(fns, num_workers=WORKERS, groups=len(fns) // WORKERS)
    envs.reset()
    actions = envs.action_space.sample()

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        policy, row, steps = cell.get("policy", 0), cell.get("row", 0), 0
        begun = time.perf_counter()
        end = begun + cell["seconds"]
        if cell["least"] == "step":
            while time.perf_counter() < end:
                think(policy + row * len(fns))
                envs.step(actions)
                steps += len(fns)
            return {"rate": steps / (time.perf_counter() - begun)}
        least, timeout = cell["least"], cell["timeout"]
        envs.send(actions)
        while time.perf_counter() < end:
            ids = envs.recv(least, timeout=timeout)[4]["env_id"]
            if len(ids):
                think(policy + row * len(ids))
                steps += len(ids)
                envs.send(actions[ids], ids)
        elapsed = time.perf_counter() - begun
        envs.recv()
        return {"rate": steps / elapsed, "choice": str(envs.stats().batches)}

    return measure


def child(name: str, setup: str) -> None:
    answer(lambda: ideal(setup) if name == "ideal" else pysampler(setup))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return


if __name__ == "__main__":
    main()
