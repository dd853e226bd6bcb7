"""Descriptors are closed, replaced by other files, or used up while envs step.

    python tests/faults/descriptors.py --seconds 300 --out benchmarks/results

The seed of a case decides the program, and the attack on its descriptors: one of ours is closed or
becomes a file of the program, all are closed, as daemons do, or no more can be opened for a while.
Calls may raise errors that say why. No call may hang or return steps that were not made, and
``close()`` must not close descriptors of the program.
"""

import contextlib
import os
import random
import re
import resource
import sys
import warnings
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import pysampler
from pysampler.errors import PysamplerError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from campaigns import Wrong

HANG = 60.0  # seconds that a case may take at most
ENVS = 4
LARGE = 100_000  # bytes of text, too large for the ring


class Counting(gym.Env):
    """Observes its step count; can return long texts."""

    observation_space = spaces.Box(0, 2.0**40, (1,), np.float64)
    action_space = spaces.Discrete(2)
    steps = 0

    def _observe(self):
        return np.array([self.steps], np.float64)

    def reset(self, *, seed=None, options=None):
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        return self._observe(), 0.0, False, False, {"n": self.steps} if action else {}

    def text(self):
        return f"{self.steps:>{LARGE}}"

    def count(self):
        return self.steps


def policy(observations):
    return np.zeros(len(observations), np.int64)


# -- programs: each yields after a call ------------------------------------------------------------


def stepping(dice):
    with contextlib.ExitStack() as stack:
        envs = pysampler.VectorEnv([Counting] * ENVS, num_workers=2, on_worker_loss="restart")
        stack.push(lambda *_: envs.close(terminate=True))
        envs.reset()
        last = np.zeros(ENVS)
        while True:
            yield
            kind = dice.choice(["step", "step", "step", "count", "text"])
            if kind == "step":
                steps, _, _, truncated, _ = envs.step(np.full(ENVS, dice.randrange(2)))
                steps = steps[:, 0]
                if not ((steps == last + 1) | (steps == 0) | truncated).all():
                    raise Wrong(f"steps {steps}, after {last}")
                last = steps
            else:
                answers = np.array([int(one) for one in envs.call(kind)])
                if not ((answers == last) | (answers == 0)).all():
                    raise Wrong(f"answers {answers}, after {last}")


def sampling(dice):
    policy_in = dice.choice(["main", "workers"])
    with pysampler.Rollouts(
        Counting, policy, 4, num_envs=ENVS, num_workers=2, policy_in=policy_in
    ) as rollouts:
        last = 0.0
        while True:
            yield
            one = next(rollouts)
            if (one.observations[:, :, 0] != last + np.arange(5)[:, None]).any():
                raise Wrong(f"a rollout that begins with {one.observations[0]}, after {last}")
            last += 4


def making(dice):
    while True:
        yield
        with pysampler.VectorEnv([Counting] * ENVS, num_workers=2) as envs:
            envs.reset()
            if (envs.step(np.zeros(ENVS, int))[0] != 1).any():
                raise Wrong("another step than the first")


KINDS = {one.__name__: one for one in (stepping, sampling, making)}


# -- attacks on descriptors ------------------------------------------------------------------------


def open_now():
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()}


def identity(fd):
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Descriptors:
    """Attacks our descriptors, and knows those of the program, which must stay."""

    def __init__(self, dice):
        self._dice = dice
        self._kept = {fd: identity(fd) for fd in open_now() if identity(fd)}
        self._limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    def ours(self):
        return sorted(fd for fd in open_now() if identity(fd) and fd not in self._kept)

    def close_one(self):
        if ours := self.ours():
            os.close(self._dice.choice(ours))

    def steal_one(self):
        if ours := self.ours():
            fd, (mine, other) = self._dice.choice(ours), os.pipe()
            os.dup2(mine, fd)
            os.close(mine)
            os.close(other)
            self._kept[fd] = identity(fd)

    def close_all(self):
        """Close all of ours, as daemons do; then open some files of the program."""
        ours = self.ours()
        for fd in ours:
            os.close(fd)
        for _ in ours[: self._dice.randrange(len(ours) + 1)]:
            fd = os.open("/proc/self/stat", os.O_RDONLY)
            self._kept[fd] = identity(fd)

    def use_up(self):
        left = max(open_now()) + 1 + self._dice.randrange(3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (left, self._limit[1]))

    def free(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limit)

    def lost(self):
        """Return the program's descriptors that were closed or replaced."""
        return [fd for fd, before in self._kept.items() if identity(fd) != before]


ATTACKS = ["close_one", "steal_one", "close_all", "use_up"]


def run(kind, attack, dice):
    """Run a program under an attack; return the errors that it raised."""
    program = KINDS[kind](dice)
    descriptors = Descriptors(dice)
    raised = []
    at = dice.randrange(1, 6)
    try:
        for n in range(at + 6):
            if n == at:
                getattr(descriptors, attack)()
            next(program)
            if n == at + 3:
                descriptors.free()
    except (PysamplerError, OSError, MemoryError, RuntimeError, EOFError) as error:
        raised.append(f"{type(error).__name__}: {error}")
    descriptors.free()
    try:
        program.close()
    except (PysamplerError, OSError) as error:
        raised.append(f"closing: {type(error).__name__}: {error}")
    del program
    if lost := descriptors.lost():
        raise Wrong(f"closed descriptors of the program: {lost}")
    return raised


def case(seed, report):
    """Return what went wrong, or None."""
    dice = random.Random(seed)
    kind, attack = dice.choice([*KINDS]), dice.choice(ATTACKS)
    report[kind] += 1
    report[attack] += 1
    answers, out = os.pipe()
    if (child := os.fork()) == 0:
        os.close(answers)
        campaigns.answer(out, HANG, lambda: {"raised": run(kind, attack, dice)})
    os.close(out)
    answer = campaigns.answer_of(answers)
    os.waitpid(child, 0)
    raised = answer.get("raised", [])
    report["raised"] += bool(raised)
    for line in raised:
        report["raised: " + re.sub("[0-9]+", "0", line)[:100]] += 1
    return answer["wrong"] and f"{kind}, {attack}: {answer['wrong']}"


def main():
    args = campaigns.parser(__doc__, 300).parse_args()
    warnings.simplefilter("ignore")
    report = Counter()
    for seed in campaigns.seeds(args):
        if wrong := case(seed, report):
            report["wrong"] += 1
            campaigns.say_wrong(seed, wrong)
    rows = [*KINDS, *ATTACKS, "raised", "wrong"]
    text = campaigns.table([(row.replace("_", " "), f"{report[row]:,}") for row in rows])
    print(text)
    for name, count in report.items():
        if name.startswith("raised: "):
            print(f"{count:5} {name[8:]}")
    title = "Lost descriptors at random points"
    campaigns.write(args.out, "descriptors", campaigns.headed(title, text))
    return report["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
