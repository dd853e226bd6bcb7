"""Replay buffers return records unchanged, at episode ends and after the ring wraps."""

import os
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from forks_in_tests import Fork
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import at_each_point
from replay_in_tests import NAN, add, add_alone, expected, filled, history, make, one

from pysampler import ReplayBuffer
from pysampler.errors import LayoutError


class Interrupted(BaseException):
    """Raised by a signal handler."""


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    envs=st.integers(1, 4),
    capacity=st.integers(1, 40),
    n_step=st.integers(1, 5),
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    alpha=st.sampled_from([0.0, 0.6]),
)
def test_n_step_returns_stop_at_episode_ends(seed, envs, capacity, n_step, sizes, alpha):
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


def test_uniform_sampling_is_uniform():
    replay = filled(8, 2, 20, seed=1)
    counts = np.bincount(replay.sample(80_000).fields["number"], minlength=20)
    assert (counts[:12] == 0).all()
    assert (abs(counts[12:] - 10_000) < 500).all()


@pytest.mark.parametrize("capacity", [1, 5, 8, 100])
def test_priorities_set_frequencies_and_weights_correct_them(capacity):
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
    # New records get the highest priority so far.
    if capacity == 8:
        add(replay, history(np.random.default_rng(1), 1, 1))
        assert replay.sample(1000).indices.tolist().count(5) > 150


def test_batches_convert_to_tensors():
    torch = pytest.importorskip("torch")
    replay = filled(8, 2, 20)
    batch = replay.sample(4).torch()
    assert batch.fields["number"].dtype == torch.int64
    assert batch.rewards.dtype == batch.discounts.dtype == batch.weights.dtype == torch.float32


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_loaded_replay_continues_like_the_saved_one(alpha, tmp_path):
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
    for buffer in (replay, loaded):
        add(buffer, rows[120:140])
    for _ in range(3):
        ours, theirs = replay.sample(64), loaded.sample(64)
        for name in ("rewards", "discounts", "weights", "indices"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_array_equal(ours.fields["number"], theirs.fields["number"])
    assert [p.name for p in tmp_path.iterdir()] == ["replay.npz"]


def test_a_damaged_file_is_refused(tmp_path):
    replay = filled(50, 2, 60)
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
            assert "is damaged, or not a replay buffer file" in str(error)
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
def test_a_failed_save_keeps_the_old_file(module, name, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise Interrupted

    replay = filled(5, 1, 3)
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
        ({"like": {"env": np.zeros(1)}}, "none of them"),
        ({"like": {"x": np.array(None)}}, "x holds object, expected numbers"),
        (
            {"like": {"x": {"a": {"b": np.zeros(1)}}}},
            r"x is a dict; its parts are fields \"x\['a'\]\['b'\]\"$",
        ),
        (
            {"like": {"x": {"a": np.zeros(1), "b": np.zeros(1)}}},
            r"parts are fields \"x\['a'\]\", \"x\['b'\]\"$",
        ),
        ({"like": {3: np.zeros(1)}}, "field 3, expected a str"),
        ({"like": {"x": np.ma.zeros(1)}}, "x is masked"),
        ({"alpha": float("inf")}, "alpha inf"),
        ({"alpha": float("nan")}, "alpha nan"),
    ],
)
def test_bad_arguments_are_refused(options, text):
    given = {"capacity": 5, "like": {"x": np.zeros(2)}, **options}
    with pytest.raises(ValueError, match=text):
        ReplayBuffer(given.pop("capacity"), given.pop("like"), **given)


def test_bad_records_are_refused():
    replay = ReplayBuffer(5, {"x": np.zeros(2)})
    rest = {"rewards": [1.0], "terminated": [False], "truncated": [False], "env": [0]}
    with pytest.raises(ValueError, match="the buffer is empty"):
        replay.sample(3)
    with pytest.raises(ValueError, match=r"fields \['y'\], expected \['x'\]"):
        replay.add({"y": np.zeros((1, 2))}, **rest)
    with pytest.raises(ValueError, match=r"add to replay: y is a dict; .* \"y\['a'\]\"$"):
        replay.add({"y": {"a": np.zeros((1, 2))}}, **rest)
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


def test_steps_with_gaps_are_not_joined():
    """n-step chains stop at gaps in an env's numbers and at episodes begun without an end."""
    replay = ReplayBuffer(100, {"next_x": np.zeros(())}, n_step=2, gamma=1.0)

    def add(numbers, begins):
        fields, ones = {"next_x": np.array(numbers, float)}, np.ones(len(numbers))
        add_alone(replay, fields, rewards=ones, numbers=numbers, begins=begins)

    add([0, 1, 5, 6], [1, 0, 0, 0])
    add([7, 8], [0, 1])
    add([9], [0])
    add([15], [0])
    batch = replay._batch(np.arange(8), np.ones(8))
    assert batch.next_fields["next_x"].tolist() == [1, 1, 6, 7, 7, 9, 9, 15]
    assert batch.rewards.tolist() == [2, 1, 2, 2, 1, 2, 1, 1]
    with pytest.raises(ValueError, match="numbers of shape"):
        add_alone(replay, {"next_x": np.zeros(2)}, numbers=[1])


# -- values ----------------------------------------------------------------------------------------


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
        ("M8[s]", [np.datetime64("2020-01-01"), np.datetime64("NaT", "s")], [5, "2020-01-01"]),
    ],
)
def test_values_that_do_not_fit_the_dtype_are_refused(dtype, fits, others):
    replay = ReplayBuffer(5, {"x": np.zeros((), dtype)})
    for value in fits:
        replay.add(**one([value]))
        got = replay._ring.fields["x"][(replay.added - 1) % 5]
        np.testing.assert_array_equal(got, np.array(value).astype(dtype))
    for value in others:
        with pytest.raises(ValueError, match=r"^cannot add to replay: x (of|is|cannot be made)"):
            replay.add(**one([value]))
    assert replay.added == len(fits)


def test_errors_name_the_value_that_does_not_fit():
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


def test_masked_arrays_are_refused():
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
def test_records_are_added_all_or_none(name, count, n_step):
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
    """Return the state that the next call depends on."""
    length, added = len(replay), replay.added
    replay._tree.leaves  # noqa: B018 - finishes an interrupted update
    arrays = [
        *(array[:length] for array in replay._ring.fields.values()),
        replay._ring.newest,
        replay._tree._sums,
    ]
    return added, [array.tolist() for array in arrays]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["add", "update"])
@pytest.mark.parametrize("count", [3, 11])
def test_an_interrupted_call_applies_fully_or_not_at_all(what, count):
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


def test_len_in_another_thread_changes_nothing():
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


def test_a_forked_child_samples_its_own_records():
    fields = {"observations": np.zeros(512), "next_observations": np.zeros(512)}
    replay = ReplayBuffer(64, fields, seed=1)

    def fill(value):
        rows = np.full((64, 512), float(value))
        fields = {"observations": rows, "next_observations": rows}
        add_alone(replay, fields, rewards=rows[:, 0])

    def look(wait):
        wait()
        batch = replay.sample(256)
        return {
            *np.unique(batch.fields["observations"]).tolist(),
            *np.unique(batch.rewards).tolist(),
        }

    fill(1)
    fork = Fork(look)
    fill(2)
    assert fork.result() == {1.0}


def test_pickling_a_replay_buffer_says_who_owns_it():
    replay = ReplayBuffer(4, {"x": np.zeros(1)})
    with pytest.raises(TypeError, match=r"cannot pickle ReplayBuffer: it belongs to .* save\(\)"):
        pickle.dumps(replay)
