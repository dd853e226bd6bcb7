"""Helpers for tests of the replay buffer."""

import itertools

import numpy as np

from pysampler import ReplayBuffer


def make(capacity, **options):
    like = {"number": np.zeros((), np.int64), "next_number": np.zeros((), np.int64)}
    return ReplayBuffer(capacity, like, **options)


def history(random, envs, steps, end=0.2):
    """Return random transitions of several envs, as dicts in the order they arrive."""
    rows, numbers = [], itertools.count()
    for _ in range(steps):
        number = next(numbers)
        rows.append(
            {
                "env": int(random.integers(envs)),
                "number": number,
                "rewards": float(random.integers(-5, 6)),
                "terminated": bool(random.random() < end),
                "truncated": bool(random.random() < end),
            }
        )
    return rows


def add(replay, rows):
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    fields = {"number": columns.pop("number")}
    fields["next_number"] = fields["number"] + 1_000_000
    replay.add(fields, **columns)


def filled(capacity, envs, count, **options):
    """Return a buffer with random transitions."""
    replay = make(capacity, **options)
    add(replay, history(np.random.default_rng(0), envs, count))
    return replay


def add_alone(replay, fields, **columns):
    """Add records of one env; all but the given columns are zeros."""
    zeros = np.zeros(len(next(iter(fields.values()))), int)
    own = dict.fromkeys(("rewards", "terminated", "truncated", "env"), zeros)
    replay.add(fields, **{**own, **columns})


def expected(rows, at, n_step, gamma):
    """Return (sum of rewards, discount, last step's number) of a transition, by a plain loop."""
    mine = [row for row in rows[at:] if row["env"] == rows[at]["env"]]
    total, discount = 0.0, 1.0
    for row in mine[:n_step]:
        total += discount * row["rewards"]
        discount *= gamma
        if row["terminated"] or row["truncated"]:
            break
    return total, 0.0 if row["terminated"] else discount, row["number"]


def one(x, **rest):
    """Return the arguments that add one record."""
    own = {"rewards": [1.0], "terminated": [False], "truncated": [False], "env": [0]}
    return {"fields": {"x": x}, **own, **rest}


NAN = float("nan")
