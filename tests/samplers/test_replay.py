"""What was experienced comes back as it was: at the ends of episodes, after the ring came round."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pysampler import Replay
from pysampler.errors import LayoutError


def make(capacity, **options):
    like = {"number": np.zeros((), np.int64), "next_number": np.zeros((), np.int64)}
    return Replay(capacity, like, **options)


def history(random, envs, steps, end=0.2):
    """Transitions of some envs, one after the other as they come: dicts."""
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


def expected(rows, at, n_step, gamma):
    """(sum of rewards, discount, number of the last step) of a transition, the slow way."""
    mine = [row for row in rows[at:] if row["env"] == rows[at]["env"]]
    total, discount = 0.0, 1.0
    for row in mine[:n_step]:
        total += discount * row["rewards"]
        discount *= gamma
        if row["terminated"] or row["truncated"]:
            break
    return total, 0.0 if row["terminated"] else discount, row["number"]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    envs=st.integers(1, 4),
    capacity=st.integers(1, 40),
    n_step=st.integers(1, 5),
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    alpha=st.sampled_from([0.0, 0.6]),
)
def test_n_steps_end_where_episodes_do(seed, envs, capacity, n_step, sizes, alpha):
    random = np.random.default_rng(seed)
    rows = history(random, envs, sum(sizes))
    replay = make(capacity, n_step=n_step, gamma=0.5, alpha=alpha, seed=seed)
    done = 0
    for size in sizes:
        if size:
            add(replay, rows[done : done + size])
        done += size
        assert len(replay) == min(done, capacity)
        if done == 0:
            continue
        batch = replay.sample(30)
        there = range(max(0, done - capacity), done)
        for i, number in enumerate(batch.fields["number"].tolist()):
            assert number in there
            total, discount, last = expected(rows[:done], number, n_step, 0.5)
            assert batch.rewards[i] == total
            assert batch.discounts[i] == discount
            assert batch.next_fields["next_number"][i] == last + 1_000_000


def test_all_are_as_likely():
    replay = make(8, seed=1)
    add(replay, history(np.random.default_rng(0), 2, 20))
    counts = np.bincount(replay.sample(80_000).fields["number"], minlength=20)
    assert (counts[:12] == 0).all()
    assert (abs(counts[12:] - 10_000) < 500).all()


@pytest.mark.parametrize("capacity", [1, 5, 8, 100])
def test_priorities_are_followed_and_made_up_for(capacity):
    replay = make(capacity, alpha=0.5, seed=1)
    count = min(capacity, 5)
    add(replay, history(np.random.default_rng(0), 1, count))
    first = replay.sample(10_000)
    assert (abs(np.bincount(first.indices) - 10_000 / count) < 10).all()  # evenly spread
    priorities = np.arange(1.0, count + 1) ** 2
    replay.update(np.arange(count), priorities)
    batch = replay.sample(100_000, beta=1.0)
    shares = np.bincount(batch.indices, minlength=count) / 100_000
    np.testing.assert_allclose(
        shares, np.arange(1, count + 1) / (count * (count + 1) / 2), atol=0.01
    )
    # With beta 1 the weighted counts are all the same.
    weights = np.array([batch.weights[batch.indices == i].mean() for i in range(count)])
    np.testing.assert_allclose(weights * shares, weights[0] * shares[0], rtol=0.05)
    assert batch.weights.max() == 1.0
    # New ones have the highest priority there is.
    if capacity == 8:
        add(replay, history(np.random.default_rng(1), 1, 1))
        assert replay.sample(1000).indices.tolist().count(5) > 150


def test_tensors():
    import torch

    replay = make(8)
    add(replay, history(np.random.default_rng(0), 2, 20))
    batch = replay.sample(4).torch()
    assert batch.fields["number"].dtype == torch.int64
    assert batch.rewards.dtype == batch.discounts.dtype == batch.weights.dtype == torch.float32


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_it_goes_on_from_a_file_as_if_it_had_never_stopped(alpha, tmp_path):
    random = np.random.default_rng(0)
    rows = history(random, 3, 200)
    replay = make(50, n_step=3, alpha=alpha, seed=4)
    add(replay, rows[:120])
    if alpha:
        replay.update(np.arange(50), random.random(50) + 0.1)
    replay.sample(10)
    path = tmp_path / "replay.npz"
    replay.save(path)
    loaded = Replay.load(path)
    for one in (replay, loaded):
        add(one, rows[120:140])
    for _ in range(3):
        ours, theirs = replay.sample(64), loaded.sample(64)
        for name in ("rewards", "discounts", "weights", "indices"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_array_equal(ours.fields["number"], theirs.fields["number"])
    assert [p.name for p in tmp_path.iterdir()] == ["replay.npz"]


def test_a_damaged_file_is_refused(tmp_path):
    replay = make(50)
    add(replay, history(np.random.default_rng(0), 2, 60))
    path = tmp_path / "replay.npz"
    replay.save(path)
    whole = path.read_bytes()
    refused = 0
    for damaged in (
        *(whole[: len(whole) // 2], b"", b"not a file of ours", whole[:-30]),
        *(
            whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
            for at in range(100, len(whole) - 100, 97)
        ),
    ):
        path.write_bytes(damaged)
        try:
            Replay.load(path)
        except LayoutError as error:
            assert "is damaged, or no file of a replay" in str(error)
            refused += 1
    assert refused > 20
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LayoutError):
        Replay.load(path)
    np.savez(path, about=np.zeros(3))
    with pytest.raises(LayoutError):
        Replay.load(path)
    with pytest.raises(FileNotFoundError):
        Replay.load(tmp_path / "nothing")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    replay = make(5)
    add(replay, history(np.random.default_rng(0), 1, 3))
    path = tmp_path / "replay.npz"
    replay.save(path)
    monkeypatch.setattr(np, "savez", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replay.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["replay.npz"]
    assert len(Replay.load(path)) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": 0}, "capacity 0"),
        ({"capacity": 2.5}, "capacity 2.5"),
        ({"n_step": 0}, "n_step 0"),
        ({"gamma": 1.5}, "gamma 1.5"),
        ({"alpha": -1}, "alpha -1"),
        ({"like": {}}, "fields {}"),
        ({"like": {"rewards": np.zeros(1)}}, "none of them"),
        ({"like": {"x": np.array(None)}}, "x holds Python objects"),
    ],
)
def test_bad_arguments(options, text):
    given = {"capacity": 5, "like": {"x": np.zeros(2)}, **options}
    with pytest.raises(ValueError, match=text):
        Replay(given.pop("capacity"), given.pop("like"), **given)


def test_bad_records():
    replay = Replay(5, {"x": np.zeros(2)})
    rest = {"rewards": [1.0], "terminated": [False], "truncated": [False], "env": [0]}
    with pytest.raises(ValueError, match="it is empty"):
        replay.sample(3)
    with pytest.raises(ValueError, match=r"fields \['y'\], expected \['x'\]"):
        replay.add({"y": np.zeros((1, 2))}, **rest)
    with pytest.raises(ValueError, match=r"x of shape \(1, 3\), expected \(1, 2\)"):
        replay.add({"x": np.zeros((1, 3))}, **rest)
    with pytest.raises(ValueError, match=r"env of shape \(2,\), expected \(1,\)"):
        replay.add({"x": np.zeros((1, 2))}, **{**rest, "env": [0, 1]})
    assert len(replay) == 0
    replay.add({"x": np.zeros((1, 2))}, **rest)
    with pytest.raises(ValueError, match="alpha is 0"):
        replay.update(np.array([0]), [1.0])
    replay = Replay(5, {"x": np.zeros(2)}, alpha=1.0)
    replay.add({"x": np.zeros((1, 2))}, **rest)
    for wrong in ([0.0], [np.nan], [np.inf], [1.0, 2.0]):
        with pytest.raises(ValueError, match="expected a positive number for each"):
            replay.update(np.array([0]), wrong)


def test_steps_are_joined_only_where_none_is_missing():
    """By the numbers in the life of the env, and where an episode begins without an end."""
    replay = Replay(100, {"next_x": np.zeros(())}, n_step=2, gamma=1.0)

    def add(numbers, begins):
        count = len(numbers)
        zeros = np.zeros(count)
        replay.add(
            {"next_x": np.array(numbers, float)},
            rewards=np.ones(count),
            terminated=zeros,
            truncated=zeros,
            env=zeros,
            numbers=numbers,
            begins=begins,
        )

    add([0, 1, 5, 6], [1, 0, 0, 0])
    add([7, 8], [0, 1])
    add([9], [0])
    add([15], [0])
    batch = replay._batch(np.arange(8), np.ones(8))
    assert batch.next_fields["next_x"].tolist() == [1, 1, 6, 7, 7, 9, 9, 15]
    assert batch.rewards.tolist() == [2, 1, 2, 2, 1, 2, 1, 1]
    with pytest.raises(ValueError, match="numbers of shape"):
        replay.add(
            {"next_x": np.zeros(2)},
            **{name: np.zeros(2) for name in ("rewards", "terminated", "truncated", "env")},
            numbers=[1],
        )
