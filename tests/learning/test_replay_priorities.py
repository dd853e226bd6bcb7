"""Priorities, many steps and files of a replay buffer."""

import json
import os
import re

import numpy as np
import pytest
from replay_in_tests import NAN, add, add_alone, expected, filled, history, make

from pysampler import ReplayBuffer
from pysampler.errors import LayoutError


def prioritized(capacity, count, **options):
    return filled(capacity, 1, count, **{"alpha": 1.0, "seed": 1, **options})


def leaves(replay):
    return replay._tree.leaves[: len(replay)].tolist()


def test_parts_of_a_batch_are_random():
    """The first half of each batch has old and new records alike."""
    replay = prioritized(1000, 1000)
    older = [int((replay.sample(32).indices[:16] < 500).sum()) for _ in range(200)]
    assert 7 < np.mean(older) < 9


def test_updates_skip_records_replaced_since_sampling():
    replay = prioritized(4, 4)
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


def test_indices_are_never_reused():
    for alpha in (0.0, 1.0):
        replay = prioritized(3, 8, alpha=alpha)
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
    replay = prioritized(8, 5)
    with pytest.raises(error, match=text):
        replay.update(indices, [3.0])
    with pytest.raises(error):
        replay.update([*indices, *indices], [3.0, 3.0])
    assert leaves(replay) == [1.0] * 5
    assert replay._tree._sums[1] == 5.0
    assert {*replay.sample(1000).indices.tolist()} == {*range(5)}


def test_an_empty_update_is_allowed():
    replay = prioritized(8, 5)
    for nothing in ([], np.zeros(0, np.int64), np.zeros(0)):
        replay.update(nothing, [])
    assert leaves(replay) == [1.0] * 5


@pytest.mark.parametrize(
    ("alpha", "priority"), [(1.0, 1e308), (2.0, 1e200), (2.0, 1e-200), (1e308, 2.0), (1e308, 0.5)]
)
def test_priorities_that_overflow_or_vanish_are_refused(alpha, priority):
    replay = prioritized(8, 5, alpha=alpha)
    with pytest.raises(ValueError, match=re.escape(f"{priority} to the power of alpha, {alpha},")):
        replay.update([0, 1], [1.0, priority])
    assert leaves(replay) == [1.0] * 5


def test_extreme_priorities_give_finite_weights():
    replay = prioritized(4, 4)
    replay.update([0, 1, 2, 3], [1e100, 1e-100, 1e100, 1e-100])
    for beta in (0, 0.4, 1):
        batch = replay.sample(100, beta=beta)
        assert {*batch.indices.tolist()} == {0, 2}
        assert (batch.weights == 1).all()
    replay.update([0, 1, 2, 3], [1e-100] * 4)
    assert {*replay.sample(100).indices.tolist()} == {0, 1, 2, 3}


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_bad_counts_and_betas_are_refused(alpha):
    replay = prioritized(8, 5, alpha=alpha)
    for count in (0, -1, 2.5, None, True):
        with pytest.raises(ValueError, match=f"count {count}, expected a whole number of at least"):
            replay.sample(count)
    for beta in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match=f"beta {beta}, expected 0 to 1"):
            replay.sample(3, beta=beta)


# -- many steps ------------------------------------------------------------------------------------


@pytest.mark.timeout(30)  # a loop over 10**15 steps would exceed it
@pytest.mark.parametrize("end", [0.0, 0.05])
def test_n_step_beyond_the_records_uses_available_steps(end):
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
def test_save_replaces_only_regular_files(what, tmp_path):
    replay = prioritized(8, 5)
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
def test_load_accepts_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name, kind in (("pipe", "pipe"), ("link", "device"), (".", "directory")):
        with pytest.raises(
            LayoutError, match=f"cannot load replay: .* is a {kind}, expected a reg"
        ):
            ReplayBuffer.load(tmp_path / name)


def test_new_records_keep_the_highest_priority_after_a_load(tmp_path):
    replay = prioritized(4, 4)
    replay.update([0], [50.0])
    add(replay, history(np.random.default_rng(0), 1, 4))
    replay.update([4, 5, 6, 7], [1.0] * 4)
    replay.save(tmp_path / "replay")
    loaded = ReplayBuffer.load(tmp_path / "replay")
    for both in (replay, loaded):
        add(both, history(np.random.default_rng(0), 1, 1))
        assert leaves(both) == [50.0, 1.0, 1.0, 1.0]


def test_fields_of_any_name_and_dtype_round_trip(tmp_path):
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
    add_alone(replay, values)
    replay.save(tmp_path / "replay")
    loaded = ReplayBuffer.load(tmp_path / "replay")
    assert [*loaded._ring.fields] == [*replay._ring.fields]
    for name, array in replay._ring.fields.items():
        kept = loaded._ring.fields[name]
        assert kept.dtype == array.dtype
        for part in array.dtype.names or [...]:  # NumPy 2.5 does not copy the padding between parts
            assert kept[part].tobytes() == array[part].tobytes()


def rewritten(path, **changes):
    """Rewrite a file with some of its metadata changed."""
    with np.load(path) as arrays:
        parts = dict(arrays)
    about = json.loads(parts["about"].tobytes())
    for name, value in changes.items():
        if isinstance(value, np.ndarray):
            parts[name] = value
        else:
            about[name] = value
    parts["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **parts)


@pytest.mark.parametrize(
    "changes",
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
def test_an_inconsistent_file_is_refused(changes, tmp_path):
    path = tmp_path / "replay"
    prioritized(8, 5, n_step=3).save(path)
    rewritten(path)
    assert len(ReplayBuffer.load(path)) == 5
    rewritten(path, **changes)
    with pytest.raises(LayoutError, match="is damaged, or not a replay buffer file"):
        ReplayBuffer.load(path)


def test_a_replay_too_large_for_memory_raises_memory_error(tmp_path):
    path = tmp_path / "replay"
    prioritized(8, 5).save(path)
    rewritten(path, capacity=10**13)
    with pytest.raises(MemoryError):
        ReplayBuffer.load(path)


def test_new_records_after_an_interrupted_update_get_its_highest_priority():
    replay = prioritized(8, 4)
    replay._tree._unfinished = np.arange(1), np.full(1, 5.0)  # as a signal leaves it
    add(replay, history(np.random.default_rng(0), 1, 1))
    assert leaves(replay) == [5.0, 1.0, 1.0, 1.0, 5.0]


def test_a_buffer_whose_update_was_interrupted_is_saved_with_it(tmp_path):
    replay = prioritized(8, 4)
    replay._tree._unfinished = np.arange(4), np.full(4, 5.0)  # as a signal leaves it
    replay.save(tmp_path / "replay.npz")
    assert leaves(ReplayBuffer.load(tmp_path / "replay.npz")) == [5.0] * 4
