"""Suspensions: programs, their parent processes or workers are stopped at random points.

    python tests/faults/suspensions.py --seconds 300 --out benchmarks/results

The seed of a case decides the program, and which processes are stopped when and for how long. No
worker may be lost while the whole program or its parent process is stopped for any time, nor while
workers are stopped for less than ``step_timeout``. A worker stopped alone for longer is lost once.
The envs count their steps: none may be missing or repeated.
"""

import functools
import os
import random
import select
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import pysampler

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from campaigns import Wrong
from suspended import continue_, family, stop, suspend

HANG = 120.0  # seconds that a case may take at most
LIMIT = 1.5  # step_timeout
WORKERS, ENVS = 2, 4


class Counting(gym.Env):
    """Observes its number and step count; each step works for about a millisecond."""

    observation_space = spaces.Box(0, 2.0**40, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, number, folder):
        self.number, self.steps = number, 0
        new = folder / f"new-{number}"
        new.write_text(str(os.getpid()))
        new.rename(folder / str(number))  # atomic

    def _observe(self):
        return np.array([self.number, self.steps], np.float64)

    def reset(self, *, seed=None, options=None):
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        end = time.process_time() + 0.001
        while time.process_time() < end:
            pass
        return self._observe(), 0.0, False, False, {}


def makers(folder):
    return [functools.partial(Counting, number, folder) for number in range(ENVS)]


def policy(observations):
    return np.zeros(len(observations), np.int64)


# -- programs: each yields once it has begun, and after each call ----------------------------------


class Follower:
    """Checks that each env's steps come in order; a new env begins at 0.

    The step in which an env is lost is truncated, and repeats the last observation.
    """

    def __init__(self):
        self.last = {}

    def see(self, rows, truncated=()):
        lost = {number for (number, _), end in zip(rows, truncated, strict=False) if end}
        for number, steps in rows:
            before = self.last.get(number, -1)
            if steps not in (before + 1, 0, before if number in lost else 0):
                raise Wrong(f"env {number} has made {steps:.0f} steps, after {before:.0f}")
            self.last[number] = steps


def stepping(envs, dice):
    seen, actions = Follower(), np.zeros(ENVS, np.int64)
    seen.see(envs.reset()[0])
    while True:
        yield
        observations, _, _, truncated, _ = envs.step(actions)
        seen.see(observations, truncated)


def receiving(envs, dice):
    seen, least = Follower(), dice.choice([1, 2, "auto"])
    envs.async_reset()
    while True:
        yield
        observations, _, _, truncated, infos = envs.recv(min_envs=least)
        seen.see(observations, truncated)
        ids = infos["env_id"]
        envs.send(np.zeros(len(ids), np.int64), ids)


def sampling(envs, dice, policy_in="main"):
    seen, overlap = Follower(), dice.random() < 0.3
    with pysampler.Rollouts(envs, policy, 8, policy_in=policy_in, overlap=overlap) as rollouts:
        while True:
            one = next(rollouts)
            # The first row repeats the last one of the previous rollout.
            for observations in one.observations[0 if not seen.last else 1 :]:
                seen.see(observations)
            yield


def sampling_in_workers(envs, dice):
    yield from sampling(envs, dice, "workers")


def acting(envs, dice):
    with pysampler.Actors(envs, policy, high=64) as actors:
        while True:
            if not len(actors.take(8, min_records=8).rows):
                raise Wrong("actors have ended")
            yield


KINDS = {one.__name__: one for one in (stepping, receiving, sampling, sampling_in_workers, acting)}
# Their workers may be stopped between two steps, since they wait for more than actions.
FREE = {"sampling_in_workers", "acting"}


def program(kind, folder, dice, go, out):
    """Run a program until the controller closes its end of ``go``; return the losses of workers."""
    options = {"num_workers": WORKERS, "step_timeout": LIMIT, "on_hang": "restart"}
    options["groups"] = dice.choice([1, 2])
    # The controller counts the restarts.
    options["max_restarts"] = 1000
    with pysampler.VectorEnv(makers(folder), **options) as envs:
        work = KINDS[kind](envs, dice)
        next(work)
        os.write(out, b"\n")
        while not select.select([go], [], [], 0)[0]:
            next(work)
        losses = envs.stats().losses.tolist()
        work.close()
    return {"losses": losses}


def making(folder, dice, go, out):
    """Make and close envs repeatedly; none of the workers may be lost."""
    os.write(out, b"\n")
    while not select.select([go], [], [], 0)[0]:
        options = {"num_workers": WORKERS, "step_timeout": LIMIT}
        with pysampler.VectorEnv(makers(folder), **options) as envs:
            stepping_on = stepping(envs, dice)
            next(stepping_on)
            next(stepping_on)
    return {"losses": [0] * WORKERS}


# -- attacks ---------------------------------------------------------------------------------------


def worker_of(folder, number):
    return int((folder / str(number)).read_text())


def attack(child, kind, folder, dice, report, expected):
    """Stop the program, its parent process or workers for a while."""
    who = dice.choice(["all", "all", "parent", "workers for a moment", "a worker"])
    if (kind in FREE and who == "a worker") or (kind == "making" and "worker" in who):
        who = "all"
    report[who] += 1
    if who == "all":
        suspend(family(child), dice.uniform(0.01, 3 * LIMIT))
    elif who == "parent":
        suspend([child], dice.uniform(0.01, 3 * LIMIT))
    elif who == "workers for a moment":
        firsts = [n * ENVS // WORKERS for n in range(WORKERS)]
        chosen = dice.sample(firsts, dice.randint(1, WORKERS))
        suspend([worker_of(folder, n) for n in chosen], dice.uniform(0, LIMIT / 3))
    else:
        worker = dice.randrange(WORKERS)
        first = worker * ENVS // WORKERS
        pid = worker_of(folder, first)
        stop([pid])
        # Continue it once all its envs were made again by its replacement.
        for number in range(first, first + ENVS // WORKERS):
            while worker_of(folder, number) == pid:
                time.sleep(0.01)
        continue_([pid])
        expected[worker] += 1


def case(seed, report):
    """Return what went wrong, or None."""
    dice = random.Random(seed)
    kind = dice.choice([*KINDS, "making"])
    report[kind] += 1
    wait, go = os.pipe()
    answers, out = os.pipe()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if (child := os.fork()) == 0:
            os.close(go)
            run = making if kind == "making" else functools.partial(program, kind)
            campaigns.answer(out, HANG, lambda: run(folder, dice, wait, out))
        os.close(wait)
        os.close(out)
        expected = [0] * WORKERS
        begun = os.read(answers, 1)
        if begun == b"\n":
            for _ in range(dice.randint(1, 4)):
                time.sleep(dice.uniform(0, 0.3))
                attack(child, kind, folder, dice, report, expected)
            time.sleep(dice.uniform(0, 0.3))
        os.close(go)
        answer = campaigns.answer_of(answers, begun)
        left = family(child)[1:] if Path(f"/proc/{child}").exists() else []
        os.waitpid(child, 0)
        for pid in left:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
    if answer["wrong"]:
        return answer["wrong"]
    if answer["losses"] != expected:
        return f"losses {answer['losses']}, expected {expected}"
    return None


def main():
    args = campaigns.parser(__doc__, 300).parse_args()
    warnings.simplefilter("ignore")
    report = Counter()
    for seed in campaigns.seeds(args):
        if wrong := case(seed, report):
            report["wrong"] += 1
            campaigns.say_wrong(seed, wrong)
    attacks = ["all", "parent", "workers for a moment", "a worker"]
    labels = {name: f"stopped: {name}" for name in attacks}
    rows = [*KINDS, "making", *attacks, "wrong"]
    text = campaigns.table([(labels.get(row, row), f"{report[row]:,}") for row in rows])
    print(text)
    campaigns.write(args.out, "suspensions", campaigns.headed("Suspensions at random points", text))
    return report["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
