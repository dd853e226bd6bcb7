"""A multi-task sampler built by hand on queues and RawArrays, and MultiTaskSampler beside it.

The sampler by hand is the one of an article on meta-RL: each worker steps its envs one by one and
puts its number into a queue; the parent waits for the first number without limit, then a time-out
for each further one, calls the policy for the workers that are back and keeps copies of their
arrays. Both sample HalfCheetahDir-v5 with the same policy; each takes the better of the article's
two time-outs, 0.1 ms and 0.1 s.

    python benchmarks/queued_sampler.py --out benchmarks/results
    python benchmarks/queued_sampler.py --quick --out build/bench-smoke
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np
import running
from running import Measure, Options
from timeout_study import network

HAND, PYTHON, NATIVE = "by hand", "MultiTaskSampler, native=False", "MultiTaskSampler"
NAMES = [HAND, PYTHON, NATIVE]
TIMEOUTS = [1e-4, 0.1]
ENV = "HalfCheetahDir-v5"
LIMIT = 900.0  # seconds for a sample
ENV_MB = 1.0  # memory of an env in Python
FIELDS = {  # of a worker's arrays: dtype, and numbers for each env
    "actions": ("f4", 6),
    "observations": ("f8", 17),
    "final_observations": ("f8", 17),
    "rewards": ("f8", 1),
    "terminated": ("?", 1),
    "truncated": ("?", 1),
}


class QueuedSampler:
    """Workers with ``per_worker`` envs each, a queue of commands for each, and one of answers."""

    def __init__(self, workers: int, per_worker: int) -> None:
        self.per_worker = per_worker
        context = multiprocessing.get_context("forkserver")
        self.answers: Any = context.Queue()
        self.commands: list[Any] = [context.Queue() for _ in range(workers)]
        raw = [
            {
                name: RawArray("b", per_worker * count * np.dtype(dtype).itemsize)
                for name, (dtype, count) in FIELDS.items()
            }
            for _ in range(workers)
        ]
        self.arrays = [views(one, per_worker) for one in raw]
        for index, (commands, memory) in enumerate(zip(self.commands, raw, strict=True)):
            arguments = index, per_worker, memory, commands, self.answers
            context.Process(target=work, args=arguments, daemon=True).start()
        for _ in self.commands:
            self.answers.get()

    def begin(self, command: tuple[Any, ...]) -> list[int]:
        """Send all workers a command, and return them once all have answered."""
        for commands in self.commands:
            commands.put(command)
        return [self.answers.get() for _ in self.commands]

    def receive(self, timeout: float) -> list[int]:
        """Return the workers that answer, each within the time-out after the one before."""
        back = [self.answers.get()]
        while len(back) < len(self.commands):
            try:
                back.append(self.answers.get(timeout=timeout))
            except queue.Empty:
                break
        return back

    def sample(self, length: int, timeout: float, policy: Callable[[Any], Any]) -> int:
        """Make ``length`` steps of each env; return how many were recorded."""
        records: list[list[dict[str, Any]]] = [[] for _ in self.commands]
        ready = list(range(len(self.commands)))
        at_work = 0
        while ready or at_work:
            if ready:
                seen = np.concatenate([self.arrays[one]["observations"] for one in ready])
                actions = np.split(policy(seen), len(ready))
                for one, chosen in zip(ready, actions, strict=True):
                    self.arrays[one]["actions"][:] = chosen
                    self.commands[one].put(("step",))
                at_work += len(ready)
            back = self.receive(timeout)
            at_work -= len(back)
            for one in back:
                copies = {name: array.copy() for name, array in self.arrays[one].items()}
                records[one].append(copies)
            ready = [one for one in back if len(records[one]) < length]
        return sum(len(own) for own in records) * self.per_worker


def views(memory: dict[str, Any], count: int) -> dict[str, Any]:
    return {
        name: np.frombuffer(memory[name], dtype).reshape(count, *([numbers] * (numbers > 1)))
        for name, (dtype, numbers) in FIELDS.items()
    }


def work(index: int, count: int, memory: dict[str, Any], commands: Any, answers: Any) -> None:
    """Step ``count`` envs whenever a command says so."""
    import gymnasium as gym

    import pysampler.envs.meta  # noqa: F401 - registers the env

    envs = [gym.make(ENV) for _ in range(count)]
    arrays = views(memory, count)
    answers.put(index)
    while True:
        what, *arguments = commands.get()
        for row, env in enumerate(envs):
            if what == "reset":
                options = {"task": arguments[0][index]}
                arrays["observations"][row], _ = env.reset(
                    seed=index * count + row, options=options
                )
                continue
            step = env.step(arrays["actions"][row])
            observation, arrays["rewards"][row], terminated, truncated, _ = step
            arrays["terminated"][row], arrays["truncated"][row] = terminated, truncated
            if terminated or truncated:
                arrays["final_observations"][row] = observation
                observation, _ = env.reset()
            arrays["observations"][row] = observation
        answers.put(index)


def sampling(name: str, workers: int, per_worker: int) -> Measure:
    import pysampler
    import pysampler.envs.meta  # registers the env

    act = network("small")
    tasks = [{"direction": 1.0 if at % 2 else -1.0} for at in range(workers)]
    begun = 0.0

    def policy(observations: Any, *_: Any) -> Any:
        nonlocal begun
        begun = begun or time.perf_counter()
        return act(observations)

    if name == HAND:
        by_hand = QueuedSampler(workers, per_worker)
    else:
        native: Any = "auto" if name == NATIVE else False
        envs = pysampler.make_vec(ENV, workers * per_worker, num_workers=workers, native=native)

    def measure(cell: dict[str, Any]) -> dict[str, Any]:
        nonlocal begun
        if name == HAND:
            by_hand.begin(("reset", tasks))
            begun = 0.0
            steps = by_hand.sample(cell["length"], cell["timeout"], policy)
            return {"rate": steps / (time.perf_counter() - begun)}
        waits = {"timeout": cell["timeout"], "timeout_from": "first"}
        with pysampler.MultiTaskSampler(envs, policy, seed=0, **waits) as sampler:
            sampler.sample(1, tasks=tasks)
            begun = 0.0
            rollout = sampler.sample(cell["length"])
            return {"rate": rollout.steps / (time.perf_counter() - begun)}

    return measure


def measured(per_worker: int, options: Options) -> dict[str, Any]:
    """Let the samplers sample in turn; return their rates by name and time-out."""
    rates: dict[str, Any] = {name: {timeout: [] for timeout in TIMEOUTS} for name in NAMES}
    length = max(4, int(options.steps / (options.workers * per_worker)))
    arguments = {name: (name, options.workers, per_worker) for name in NAMES}
    with running.started(__file__, arguments, LIMIT) as contenders:
        for name, one in running.turns(contenders, options.repetitions):
            for timeout in TIMEOUTS:
                if (said := one.measure(length=length, timeout=timeout)) is not None:
                    rates[name][timeout].append(said["rate"])
    running.drop_those_in_trouble(contenders, rates)
    best = {
        name: max(each.items(), key=lambda item: statistics.median(item[1]))
        for name, each in rates.items()
    }
    return {"per_worker": per_worker, "length": length, "best": best}


def report(results: dict[str, Any]) -> list[str]:
    rows = []
    for case in results["cases"]:
        best = case["best"]
        by_hand = best[HAND][1]
        row = [f"{results['workers']} x {case['per_worker']:,}", f"{case['length']:,}"]
        for name in NAMES:
            timeout, rates = best[name]
            row.append(f"{statistics.median(rates):,.0f} ({timeout * 1e3:g} ms)")
            if name != HAND:
                row.append(running.multiples(rates, by_hand))
        rows.append(row)
    header = ["workers x envs", "steps of each env", f"{HAND}, steps/s"]
    for name in NAMES[1:]:
        header += [f"{name}, steps/s", "/ by hand"]
    about = (
        f"{ENV}, a policy of two hidden layers of 64 on the CPU. The sampler by hand is "
        "that of an article: queues, RawArrays and a copy of each record. Each sampler "
        "takes the better of two time-outs from the first answer, in brackets; ratios are "
        "medians [quartiles] of samples in turn.\n"
    )
    return [about, running.table(header, rows)]


def measure(options: Options) -> dict[str, Any]:
    needed = 2 * ENV_MB * options.workers * max(options.per_worker) / 1e3  # two step in Python
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if needed > free:
        raise SystemExit(f"the envs need {needed:.0f} GB, but {free:.0f} GB are free")
    cases = []
    for per_worker in options.per_worker:
        running.say(f"{options.workers} workers of {per_worker} envs")
        cases.append(measured(per_worker, options))
    return {"workers": options.workers, "cases": cases}


if __name__ == "__main__":
    running.study(
        *("A sampler by hand, and MultiTaskSampler", measure, report),
        contender=sampling,
        quick={"per_worker": [2, 8], "steps": 2_000, "repetitions": 1},
        workers=8,
        per_worker=[20, 400],
        steps=200_000,
        repetitions=5,
    )
