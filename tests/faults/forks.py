"""Forks at random points of programs that hold arrays of vector envs, samplers and buffers.

    python tests/faults/forks.py --seconds 300 --out benchmarks/results

The seed of a case decides the objects, the held arrays, and the times of forks. A child checks all
arrays that it holds, waits while its parent continues, checks again, and writes to all of them.
Parent and child compare their arrays with copies made on receipt: any difference is a fault.
"""

import functools
import os
import random
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import pysampler

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns

HANG = 120.0  # seconds that a case may take at most
HELD = 6  # the most results that a case holds


class Counting(gym.Env):
    """Observes an image filled with its step count."""

    action_space = spaces.Discrete(2)

    def __init__(self, side):
        self.observation_space = spaces.Box(0, 255, (side, side), np.uint8)
        self.side, self.n = side, 0

    def _observe(self):
        return np.full((self.side, self.side), self.n % 256, np.uint8)

    def reset(self, *, seed=None, options=None):
        return self._observe(), {"n": self.n}

    def step(self, action):
        self.n += 1
        return self._observe(), float(self.n), False, self.n % 7 == 0, {"n": self.n}


def policy(observations):
    return np.zeros(len(observations), np.int64), {"seen": observations[:, 0, 0].copy()}


# -- programs: each yields a function that continues it and returns arrays to hold -----------------


def vector_env(dice):
    make, workers = functools.partial(Counting, dice.choice([16, 128])), dice.choice([0, 2])
    with pysampler.VectorEnv([make] * 4, num_workers=workers) as envs:
        envs.reset()
        actions = np.zeros(4, np.int64)
        yield lambda: envs.step(actions)[:4]


def partial(dice):
    make = functools.partial(Counting, dice.choice([16, 256]))
    with pysampler.VectorEnv([make] * 4, num_workers=2, groups=2) as envs:
        envs.async_reset()

        def received():
            *arrays, infos = envs.recv(min_envs=1)
            ids = infos["env_id"]
            envs.send(np.zeros(len(ids), np.int64), ids)
            return arrays

        yield received


def rollouts(dice):
    way = dice.choice([{}, {"policy_in": "workers"}, {"overlap": True}])
    options = {**way, "keep_last": HELD + 2, "info_keys": ["n"]}
    workers = {"num_workers": dice.choice([0, 2])}
    make = functools.partial(Counting, dice.choice([4, 64]))
    with pysampler.Rollouts(
        make, policy, 8, num_envs=4, vector_kwargs=workers, **options
    ) as sampled:

        def following():
            one = next(sampled)
            arrays = [one.observations, one.actions, one.rewards, one.truncated, one.starts]
            return [*arrays, one.valid, one.extras["seen"], *one.infos.values()]

        yield following


def actors(dice):
    make = functools.partial(Counting, dice.choice([4, 64]))
    workers = {"num_workers": 2}
    with pysampler.Actors(make, policy, num_envs=4, vector_kwargs=workers, high=32) as running:

        def taken():
            rows = running.take(8, min_records=8).rows
            return [rows[name] for name in rows.dtype.names]

        yield taken


def replay(dice):
    side = dice.choice([4, 64])
    picture = np.zeros((side, side), np.uint8)
    like = {"observations": picture, "next_observations": picture}
    buffer = pysampler.ReplayBuffer(32, like, seed=1)
    fields = buffer._ring.fields
    count = [0]

    def added():
        count[0] += 1
        rows = np.full((8, side, side), count[0] % 256, np.uint8)
        zeros = np.zeros(8)
        buffer.add(
            {"observations": rows, "next_observations": rows},
            rewards=zeros + count[0],
            terminated=zeros,
            truncated=zeros,
            env=np.zeros(8, np.int64),
        )
        return []

    # The records themselves: they change in the parent, but not in a child.
    added.of_child = lambda: [*fields.values()]
    yield added


KINDS = {one.__name__: one for one in (vector_env, partial, rollouts, actors, replay)}


# -- a case ----------------------------------------------------------------------------------------


def wrong(held):
    """Return how many arrays differ from their copies."""
    return sum(array.tobytes() != copied.tobytes() for arrays in held for array, copied in arrays)


def with_copies(arrays):
    return [(array, array.copy()) for array in arrays]


def fork(held, go_on):
    """Fork a child that checks the held arrays twice; yield 0, then its number of wrong ones."""
    wait, go = os.pipe()
    answers, out = os.pipe()
    more = getattr(go_on, "of_child", list)
    own = with_copies(more())  # more arrays, checked only in the child
    if (child := os.fork()) == 0:
        count = 255
        try:
            os.close(go)
            held = [*held, own]
            count = wrong(held)
            os.read(wait, 1)
            count += wrong(held)
            for arrays in held:
                for array, _ in arrays:
                    if array.flags.writeable:
                        array.view(np.uint8 if array.flags.c_contiguous else array.dtype)[...] = 119
        except BaseException:
            traceback.print_exc()
        os.write(out, bytes([min(count, 255)]))
        os._exit(0)
    os.close(wait)
    os.close(out)
    yield 0
    os.write(go, b"!")  # not by closing it: later children inherit this end
    os.close(go)
    count = os.read(answers, 1)[0]
    os.close(answers)
    os.waitpid(child, 0)
    yield count


def case(seed, report):
    dice = random.Random(seed)
    kind = dice.choice([*KINDS])
    report[kind] += 1
    made = KINDS[kind](dice)
    go_on = next(made)
    held, children = [], []
    for _ in range(dice.randrange(10, 40)):
        arrays = go_on()
        if dice.random() < 0.5:
            held.append(with_copies(arrays))
        if len(held) > HELD or (held and dice.random() < 0.1):
            del held[dice.randrange(len(held))]
        del arrays
        if dice.random() < 0.1 and len(children) < 3:
            child = fork(held, go_on)
            next(child)
            report["forks"] += 1
            children.append(child)
            if dice.random() < 0.5:  # only the child still holds them
                held.clear()
    for child in children:
        report["wrong in a child"] += next(child)
    report["wrong in the parent"] += wrong(held)
    made.close()


def main():
    args = campaigns.parser(__doc__, 300).parse_args()
    warnings.simplefilter("ignore")
    report, lost = Counter(), 0
    for seed in campaigns.seeds(args, hang=HANG):
        case(seed, report)
        if (now := report["wrong in a child"] + report["wrong in the parent"]) > lost:
            campaigns.say_wrong(seed, f"{now - lost} arrays")
            lost = now
    rows = [*KINDS, "forks", "wrong in a child", "wrong in the parent"]
    text = campaigns.table([(row, f"{report[row]:,}") for row in rows])
    print(text)
    campaigns.write(args.out, "forks", campaigns.headed("Forks at random points", text))
    return lost > 0


if __name__ == "__main__":
    sys.exit(main())
