"""What was experienced comes back as it was: at the ends of episodes, after the ring came round."""

import itertools
import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import at_each_point

from pysampler import ReplayBuffer
from pysampler.errors import LayoutError


class Interrupted(BaseException):
    """What a signal handler raises."""


def make(capacity, **options):
    like = {"number": np.zeros((), np.int64), "next_number": np.zeros((), np.int64)}
    return ReplayBuffer(capacity, like, **options)


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
        replay.update(np.arange(70, 120), random.random(50) + 0.1)
    replay.sample(10)
    path = tmp_path / "replay.npz"
    replay.save(path)
    loaded = ReplayBuffer.load(path)
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
            ReplayBuffer.load(path)
        except LayoutError as error:
            assert "is damaged, or no file of a replay" in str(error)
            refused += 1
    assert refused > 20
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LayoutError):
        ReplayBuffer.load(path)
    np.savez(path, about=np.zeros(3))
    with pytest.raises(LayoutError):
        ReplayBuffer.load(path)
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("module", "name"),
    [(np.lib.format, "write_array"), (os, "fsync"), (Path, "replace")],
)
def test_a_file_that_cannot_be_written_leaves_the_old_one(module, name, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise Interrupted

    replay = make(5)
    add(replay, history(np.random.default_rng(0), 1, 3))
    path = tmp_path / "replay.npz"
    replay.save(path)
    monkeypatch.setattr(module, name, interrupt)
    with pytest.raises(Interrupted):
        replay.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["replay.npz"]
    assert len(ReplayBuffer.load(path)) == 3


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
        ({"like": {"x": np.array(None)}}, "x holds object, expected numbers"),
        ({"like": {3: np.zeros(1)}}, "field 3, expected a name"),
        ({"like": {"x": np.ma.zeros(1)}}, "x is masked"),
        ({"alpha": float("inf")}, "alpha inf"),
        ({"alpha": float("nan")}, "alpha nan"),
    ],
)
def test_bad_arguments(options, text):
    given = {"capacity": 5, "like": {"x": np.zeros(2)}, **options}
    with pytest.raises(ValueError, match=text):
        ReplayBuffer(given.pop("capacity"), given.pop("like"), **given)


def test_bad_records():
    replay = ReplayBuffer(5, {"x": np.zeros(2)})
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
    replay = ReplayBuffer(5, {"x": np.zeros(2)}, alpha=1.0)
    replay.add({"x": np.zeros((1, 2))}, **rest)
    for wrong in ([0.0], [np.nan], [np.inf], [1.0, 2.0]):
        with pytest.raises(ValueError, match="expected a positive number for each"):
            replay.update(np.array([0]), wrong)


def test_steps_are_joined_only_where_none_is_missing():
    """By the numbers in the life of the env, and where an episode begins without an end."""
    replay = ReplayBuffer(100, {"next_x": np.zeros(())}, n_step=2, gamma=1.0)

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


# -- values ----------------------------------------------------------------------------------------


def one(x, **rest):
    """Arguments of one record."""
    own = {"rewards": [1.0], "terminated": [False], "truncated": [False], "env": [0]}
    return {"fields": {"x": x}, **own, **rest}


NAN = float("nan")


@pytest.mark.parametrize(
    ("dtype", "fits", "others"),
    [
        ("u1", [0, 255, 7.0, True], [-1, 256, 300.7, 0.5, NAN, 1e300, float("inf"), 1j, "1", None]),
        ("i8", [-(2**63), 2**63 - 1, -(2.0**63)], [2.0**63, 2**63, 2**64, NAN]),
        ("u8", [2**64 - 1, 0], [-1, 2.0**64]),
        ("?", [0, 1.0, False], [2, -1, 0.5, NAN, "x"]),
        ("f2", [0.1, 65504, NAN, -float("inf"), True], [70000, -1e300, 1j]),
        ("f4", [0.1, 2**24 + 1, NAN, float("inf")], [1e39, "nan"]),
        ("c8", [1, 0.5j, NAN], [1e300, 1e300j]),
        ("U3", ["abc", ""], ["abcd", 1, b"abc"]),
        ("S3", [b"abc"], [b"abcd", "abc"]),
        ("M8[s]", [np.datetime64("2020-01-01"), np.datetime64("NaT")], [5, "2020-01-01"]),
    ],
)
def test_what_does_not_fit_is_refused(dtype, fits, others):
    replay = ReplayBuffer(5, {"x": np.zeros((), dtype)})
    for value in fits:
        replay.add(**one([value]))
        got = replay._ring.fields["x"][(replay.added - 1) % 5]
        np.testing.assert_array_equal(got, np.array(value).astype(dtype))
    for value in others:
        with pytest.raises(ValueError, match=r"^cannot add to replay: x (of|is|cannot be made)"):
            replay.add(**one([value]))
    assert replay.added == len(fits)


def test_what_does_not_fit_is_told():
    replay = ReplayBuffer(5, {"x": np.zeros((2,), np.uint8)})
    text = r"x of float64 from 0.5 to 300.7, expected whole numbers from 0 to 255"
    with pytest.raises(ValueError, match=text):
        replay.add(**one([[0.5, 300.7]]))
    for name in ("terminated", "truncated"):
        with pytest.raises(
            ValueError, match=f"{name} of int64 from 2 to 2, expected whole numbers"
        ):
            replay.add(**one([[1, 2]], **{name: [2]}))
    for ragged in ([[1], [1, 2]], [[1, None]], [[1, "x"]], [object()]):
        with pytest.raises(ValueError, match="cannot add to replay: x"):
            replay.add(**one(ragged))
    for fields in (None, [], {"x": [[1, 2]], 3: 4}):
        with pytest.raises(ValueError, match="cannot add to replay: fields|expected"):
            replay.add(**{**one(0), "fields": fields})
    for rewards in (1.0, [[1.0]], [], ["x"], None):
        with pytest.raises(ValueError, match="cannot add to replay: "):
            replay.add(**one([[1, 2]], rewards=rewards))
    assert replay.added == 0


def test_a_mask_is_not_lost_in_silence():
    replay = ReplayBuffer(5, {"x": np.zeros(())}, alpha=1.0)
    masked = np.ma.array([1.0], mask=[True])
    replay.add(**one([1.0]))
    given = {"rewards": masked, "env": masked, "numbers": masked, "begins": masked}
    for name, value in given.items():
        with pytest.raises(ValueError, match=f"{name} is masked"):
            replay.add(**one([1.0], **{name: value}))
    for x in (masked, [masked[0]], [np.ma.masked], (masked[0],)):
        with pytest.raises(ValueError, match="x is masked"):
            replay.add(**one(x))
    with pytest.raises(ValueError, match="priorities is masked"):
        replay.update([0], masked)
    with pytest.raises(ValueError, match="indices is masked"):
        replay.update(np.ma.array([0]), [1.0])
    assert replay.added == 1


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", ["x", "y", "rewards", "terminated", "env", "numbers", "begins"])
@pytest.mark.parametrize("count", [3, 20])
def test_records_are_added_together_or_not_at_all(name, count, n_step):
    replay = ReplayBuffer(8, {"x": np.zeros((), np.int32), "y": np.zeros(2)}, n_step=n_step, seed=1)

    def rows(value):
        return {
            "fields": {"x": np.full(count, value), "y": np.full((count, 2), value)},
            **{key: np.zeros(count) for key in ("terminated", "truncated", "env", "begins")},
            "rewards": np.full(count, value),
            "numbers": np.arange(count) + value * count,
        }

    replay.add(**rows(1))
    before = {key: array.copy() for key, array in replay._ring.fields.items()}
    bad = rows(2)
    where = bad["fields"] if name in "xy" else bad
    where[name] = where[name].astype(object)
    where[name][-1] = "not a number"
    with pytest.raises(ValueError, match=f"cannot add to replay: {name} "):
        replay.add(**bad)
    assert replay.added == count
    for key, array in replay._ring.fields.items():
        np.testing.assert_array_equal(array, before[key])
    replay.add(**rows(2))
    assert replay.added == 2 * count


def state_of(replay):
    """All that the next call depends on."""
    length, added = len(replay), replay.added
    replay._tree.leaves  # noqa: B018 - which goes through with what was interrupted
    arrays = [
        *(array[:length] for array in replay._ring.fields.values()),
        replay._ring.newest,
        replay._tree._sums,
    ]
    return added, [array.tolist() for array in arrays]


@pytest.mark.parametrize("what", ["add", "update"])
@pytest.mark.parametrize("count", [3, 11])
def test_an_interrupted_call_is_made_as_a_whole_or_not_at_all(what, count):
    rows = history(np.random.default_rng(3), 3, 5 + 3 * count)

    def begun():
        replay = make(8, n_step=3, alpha=1.0, seed=1)
        add(replay, rows[:5])
        return replay

    def call(replay):
        if what == "add":
            add(replay, rows[5 : 5 + count])
        else:
            replay.update(np.arange(5), np.arange(5) + 2.0)

    before = state_of(begun())
    whole = begun()
    call(whole)
    outcomes = set()
    replay = begun()

    def program():
        call(replay)
        return True

    def check(result, where):
        nonlocal replay
        now = state_of(replay)
        assert now in (before, state_of(whole)), where
        outcomes.add(now == before)
        assert result is None or now != before
        replay = begun()

    at_each_point(program, check)
    assert outcomes == {False, True}


def test_looking_at_it_in_another_thread_changes_nothing():
    replay = make(100, n_step=3, alpha=1.0)
    rows = history(np.random.default_rng(3), 3, 64)
    stop = threading.Event()

    def look():
        while not stop.is_set():
            assert 0 <= len(replay) <= 100

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(500):
        add(replay, rows)
    stop.set()
    thread.join()
    sys.setswitchinterval(interval)
    assert replay.added == 500 * 64


# -- priorities ------------------------------------------------------------------------------------


def prioritised(capacity, count, **options):
    replay = make(capacity, **{"alpha": 1.0, "seed": 1, **options})
    add(replay, history(np.random.default_rng(0), 1, count))
    return replay


def leaves(replay):
    return replay._tree.leaves[: len(replay)].tolist()


def test_parts_of_a_batch_are_as_random_as_all_of_it():
    """The first half of each batch is of old and new records alike."""
    replay = prioritised(1000, 1000)
    older = [int((replay.sample(32).indices[:16] < 500).sum()) for _ in range(200)]
    assert 7 < np.mean(older) < 9


def test_an_update_reaches_the_records_that_were_sampled_or_none():
    replay = prioritised(4, 4)
    batch = replay.sample(100)
    add(replay, history(np.random.default_rng(0), 1, 2))  # over records 0 and 1
    replay.update(batch.indices, batch.indices + 10.0)
    assert leaves(replay) == [1.0, 1.0, 12.0, 13.0]
    assert {*replay.sample(100).indices.tolist()} == {2, 3, 4, 5}
    replay.update([4, 3, 5, 4], [1.0, 2.0, 3.0, 4.0])
    assert leaves(replay) == [4.0, 3.0, 12.0, 2.0]
    add(replay, history(np.random.default_rng(0), 1, 100))
    replay.update(batch.indices, batch.indices + 10.0)
    assert leaves(replay) == [13.0] * 4


def test_numbers_of_sampled_records_are_never_reused():
    for alpha in (0.0, 1.0):
        replay = prioritised(3, 8, alpha=alpha)
        for added in range(8, 20):
            assert {*replay.sample(100).indices.tolist()} == {*range(added - 3, added)}
            add(replay, history(np.random.default_rng(0), 1, 1))


@pytest.mark.parametrize(
    ("indices", "error", "text"),
    [
        ([-1], IndexError, "index -1, expected those of 5 records"),
        ([5], IndexError, "index 5, expected those of 5 records"),
        ([1 << 40], IndexError, "index 1099511627776"),
        ([0.0], TypeError, "indices of float64"),
        ([True], TypeError, "indices of bool"),
        (["0"], TypeError, "indices of <U1"),
        ([None], TypeError, "indices of object"),
        ([0, 1], ValueError, "expected a positive number for each of 2 indices"),
        ([[0]], ValueError, "expected a positive number for each of 1 indices"),
    ],
)
def test_bad_indices_change_nothing(indices, error, text):
    replay = prioritised(8, 5)
    with pytest.raises(error, match=text):
        replay.update(indices, [3.0])
    with pytest.raises(error):
        replay.update([*indices, *indices], [3.0, 3.0])
    assert leaves(replay) == [1.0] * 5
    assert replay._tree._sums[1] == 5.0
    assert {*replay.sample(1000).indices.tolist()} == {*range(5)}


def test_nothing_to_update_is_no_mistake():
    replay = prioritised(8, 5)
    for nothing in ([], np.zeros(0, np.int64), np.zeros(0)):
        replay.update(nothing, [])
    assert leaves(replay) == [1.0] * 5


@pytest.mark.parametrize(
    ("alpha", "priority"), [(1.0, 1e308), (2.0, 1e200), (2.0, 1e-200), (1e308, 2.0), (1e308, 0.5)]
)
def test_priorities_beyond_all_reason_are_refused(alpha, priority):
    replay = prioritised(8, 5, alpha=alpha)
    with pytest.raises(ValueError, match=re.escape(f"{priority} to the power of alpha, {alpha},")):
        replay.update([0, 1], [1.0, priority])
    assert leaves(replay) == [1.0] * 5


def test_the_most_unequal_priorities_make_numbers():
    replay = prioritised(4, 4)
    replay.update([0, 1, 2, 3], [1e100, 1e-100, 1e100, 1e-100])
    for beta in (0, 0.4, 1):
        batch = replay.sample(100, beta=beta)
        assert {*batch.indices.tolist()} == {0, 2}
        assert (batch.weights == 1).all()
    replay.update([0, 1, 2, 3], [1e-100] * 4)
    assert {*replay.sample(100).indices.tolist()} == {0, 1, 2, 3}


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_bad_requests_for_samples(alpha):
    replay = prioritised(8, 5, alpha=alpha)
    for count in (0, -1, 2.5, None, True):
        with pytest.raises(ValueError, match=f"count {count}, expected a whole number of at least"):
            replay.sample(count)
    for beta in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match=f"beta {beta}, expected 0 to 1"):
            replay.sample(3, beta=beta)


# -- many steps ------------------------------------------------------------------------------------


@pytest.mark.timeout(30)  # which 10**15 turns of a loop would not keep
@pytest.mark.parametrize("end", [0.0, 0.05])
def test_more_steps_than_there_are_records_are_those_there_are(end):
    rows = history(np.random.default_rng(0), 2, 300, end)
    replay = make(200, n_step=10**15, gamma=0.9, seed=1)
    add(replay, rows)
    batch = replay.sample(100)
    for i, number in enumerate(batch.fields["number"].tolist()):
        total, discount, last = expected(rows, number, 300, 0.9)
        np.testing.assert_allclose(batch.rewards[i], total, rtol=1e-6)
        np.testing.assert_allclose(batch.discounts[i], discount, rtol=1e-6)
        assert batch.next_fields["next_number"][i] == last + 1_000_000


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["link", "directory", "pipe"])
def test_nothing_but_a_file_is_replaced(what, tmp_path):
    replay = prioritised(8, 5)
    path, other = tmp_path / "replay", tmp_path / "other"
    replay.save(other)
    if what == "link":
        path.symlink_to(other)
        assert len(ReplayBuffer.load(path)) == 5
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = other.read_bytes(), path.lstat()
    with pytest.raises(
        ValueError, match=rf"cannot save replay: {path} is a .*{what}, expected a reg"
    ):
        replay.save(path)
    assert (other.read_bytes(), path.lstat()) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "replay"]


@pytest.mark.timeout(30)
def test_nothing_but_a_file_is_loaded(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name, kind in (("pipe", "pipe"), ("link", "device"), (".", "directory")):
        with pytest.raises(
            LayoutError, match=f"cannot load replay: .* is a {kind}, expected a reg"
        ):
            ReplayBuffer.load(tmp_path / name)


def test_new_records_have_the_highest_priority_after_a_load_too(tmp_path):
    replay = prioritised(4, 4)
    replay.update([0], [50.0])
    add(replay, history(np.random.default_rng(0), 1, 4))
    replay.update([4, 5, 6, 7], [1.0] * 4)
    replay.save(tmp_path / "replay")
    loaded = ReplayBuffer.load(tmp_path / "replay")
    for both in (replay, loaded):
        add(both, history(np.random.default_rng(0), 1, 1))
        assert leaves(both) == [50.0, 1.0, 1.0, 1.0]


def test_any_names_and_kinds_of_fields_are_kept(tmp_path):
    like = {
        **{
            name: np.zeros(())
            for name in ("a\0b", "../x", "\u00fc", "about", "last", "0", "", "x.npy")
        },
        "\ud800": np.zeros((2, 0, 3), np.uint8),
        "text": np.array("abc"),
        "big-endian": np.zeros(3, ">i4"),
        "parts": np.zeros((2,), np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        "day": np.array("2020-01-01", "M8[D]"),
    }
    replay = ReplayBuffer(3, like, n_step=2)
    random = np.random.default_rng(1)
    values = {
        name: np.frombuffer(random.bytes(3 * one.nbytes), one.dtype).reshape(3, *one.shape)
        if one.dtype.kind != "U"
        else np.array(["x", "yz", ""], one.dtype)
        for name, one in like.items()
    }
    flags = np.zeros(3)
    replay.add(values, rewards=flags, terminated=flags, truncated=flags, env=flags)
    replay.save(tmp_path / "replay")
    loaded = ReplayBuffer.load(tmp_path / "replay")
    assert [*loaded._ring.fields] == [*replay._ring.fields]
    for name, array in replay._ring.fields.items():
        assert loaded._ring.fields[name].dtype == array.dtype
        assert loaded._ring.fields[name].tobytes() == array.tobytes()


def rewritten(path, **said):
    """The same file, but for some of what is said about it."""
    with np.load(path) as arrays:
        parts = dict(arrays)
    about = json.loads(parts["about"].tobytes())
    for name, value in said.items():
        if isinstance(value, np.ndarray):
            parts[name] = value
        else:
            about[name] = value
    parts["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **parts)


@pytest.mark.parametrize(
    "said",
    [
        *({"format": 3}, {"capacity": 2.5}, {"capacity": 0}, {"capacity": 4}, {"capacity": 10**30}),
        *({"n_step": 1.5}, {"n_step": "3"}, {"gamma": None}, {"gamma": NAN}, {"alpha": "1"}),
        *({"added": -1}, {"added": 1.5}, {"added": 3}, {"added": 10**30}, {"names": None}),
        *({"names": ["number"]}, {"names": ["number", "number"]}, {"names": [[], {}]}),
        *({"random": None}, {"random": {}}, {"random": {"bit_generator": "MT19937"}}),
        *({"highest": 0.5}, {"highest": "x"}, {"highest": 1e300}, {"highest": NAN}),
        *({"priorities": np.zeros(5)}, {"priorities": np.full(5, NAN)}, {"priorities": np.ones(4)}),
        *({"last": np.zeros(3)}, {"last": np.full((3, 1), 7)}, {"last": np.zeros((3, 2), int)}),
        *(
            {"0": np.zeros((4, 2))},
            {"0": np.array(1)},
            {"2": np.zeros(5, int)},
            {"5": np.zeros(4, int)},
        ),
        *({"6": np.full(5, 9)}, {"6": np.zeros(5, int)}, {"6": np.full(5, -2)}),
    ],
)
def test_a_file_whose_parts_contradict_each_other_is_refused(said, tmp_path):
    path = tmp_path / "replay"
    prioritised(8, 5, n_step=3).save(path)
    rewritten(path)
    assert len(ReplayBuffer.load(path)) == 5
    rewritten(path, **said)
    with pytest.raises(LayoutError, match="is damaged, or no file of a replay"):
        ReplayBuffer.load(path)


def test_a_replay_that_the_machine_has_no_room_for_is_not_damaged(tmp_path):
    path = tmp_path / "replay"
    prioritised(8, 5).save(path)
    rewritten(path, capacity=10**13)
    with pytest.raises(MemoryError):
        ReplayBuffer.load(path)
