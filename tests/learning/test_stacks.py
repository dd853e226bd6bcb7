"""Stacks of frames are returned unchanged although each frame is stored once."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pysampler import ReplayBuffer

FRAME = (3, 2)


def played(random, envs, steps, depth, end, padding, still=0.0):
    """Return records of envs whose observations are stacks of the newest frames.

    Args:
        still: The probability that a frame of every second env equals the last one.
    """
    stacks = {}
    rows = []

    def frame():
        return random.integers(0, 4, FRAME, dtype=np.uint8)  # some are the same

    def begin():
        first = frame()
        before = first if padding == "reset" else np.zeros_like(first)
        return [before] * (depth - 1) + [first]

    for number in range(steps):
        env = int(random.integers(envs))
        stack = stacks.get(env) or begin()
        stays = env % 2 == 0 and random.random() < still
        after = [*stack[1:], stack[-1] if stays else frame()]
        terminated, truncated = random.random(2) < end / 2
        rows.append((np.array(stack), np.array(after), number, env, terminated, truncated))
        stacks[env] = None if terminated or truncated else after
        if random.random() < 0.02:
            stacks[env] = None  # a lost worker: the next episode begins without an end
    return rows


def columns(rows):
    """Return the arguments that add records."""
    stacks, after, numbers, env, terminated, truncated = map(np.array, zip(*rows, strict=True))
    fields = {"stack": stacks, "next_stack": after, "number": numbers}
    ends = {"terminated": terminated, "truncated": truncated}
    return {"fields": fields, "rewards": np.zeros(len(rows)), "env": env, **ends}


def make(capacity, depth, **options):
    one = np.zeros((depth, *FRAME), np.uint8)
    like = {"stack": one, "next_stack": one, "number": np.zeros((), np.int64)}
    return ReplayBuffer(capacity, like, **options)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    envs=st.integers(1, 4),
    depth=st.integers(1, 4),
    capacity=st.integers(1, 60),
    end=st.sampled_from([0.0, 0.1, 0.7]),
    padding=st.sampled_from(["reset", "zero"]),
    n_step=st.integers(1, 3),
    alpha=st.sampled_from([0.0, 0.6]),
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=5),
)
def test_batches_and_sequences_equal_whole_stacks(
    seed, envs, depth, capacity, end, padding, n_step, alpha, sizes
):
    random = np.random.default_rng(seed)
    rows = played(random, envs, sum(sizes), depth, end, padding)
    options = {"n_step": n_step, "alpha": alpha, "seed": seed, "sequences": True}
    replay = make(capacity, depth, stacks=["stack"], **options)
    done = 0
    for size in sizes:
        if size:
            replay.add(**columns(rows[done : done + size]))
        done += size
        if done == 0:
            continue
        batch = replay.sample(20)
        for i, number in enumerate(batch.fields["number"].tolist()):
            np.testing.assert_array_equal(batch.fields["stack"][i], rows[number][0])
        drawn = replay.sample_sequences(10, 3, burn_in=2)
        for i, column in itertools.product(range(10), range(5)):
            if drawn.mask[i, column]:
                number = drawn.fields["number"][i, column]
                np.testing.assert_array_equal(drawn.fields["stack"][i, column], rows[number][0])
                np.testing.assert_array_equal(
                    drawn.fields["next_stack"][i, column], rows[number][1]
                )
            else:
                assert not drawn.fields["stack"][i, column].any()


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_samples_equal_a_plain_buffers_samples(alpha):
    """With long episodes: the same records in the same order, and the same n-step ends."""
    rows = played(np.random.default_rng(1), 4, 5000, 4, 0.02, "reset")
    options = {"n_step": 3, "alpha": alpha, "seed": 1}
    buffers = make(2000, 4, **options), make(2000, 4, stacks=["stack"], **options)
    for begin in range(0, 5000, 250):
        for buffer in buffers:
            buffer.add(**columns(rows[begin : begin + 250]))
        plain, once = (buffer.sample(64) for buffer in buffers)
        for name in ("stack", "number"):
            np.testing.assert_array_equal(once.fields[name], plain.fields[name])
        np.testing.assert_array_equal(
            once.next_fields["next_stack"], plain.next_fields["next_stack"]
        )
        np.testing.assert_array_equal(once.discounts, plain.discounts)
        np.testing.assert_array_equal(once.weights, plain.weights)
        if alpha:
            for buffer, batch in zip(buffers, (plain, once), strict=True):
                buffer.update(batch.indices, batch.fields["number"] % 7 + 0.1)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    envs=st.integers(1, 12),
    depth=st.integers(1, 4),
    capacity=st.integers(1, 100),
    end=st.sampled_from([0.0, 0.02, 0.1, 0.7]),
    padding=st.sampled_from(["reset", "zero"]),
    still=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    alpha=st.sampled_from([0.0, 0.6]),
    sizes=st.lists(st.integers(1, 150), min_size=1, max_size=5),
)
def test_every_counted_record_is_drawn_unchanged(
    seed, envs, depth, capacity, end, padding, still, alpha, sizes
):
    random = np.random.default_rng(seed)
    rows = played(random, envs, sum(sizes), depth, end, padding, still)
    options = {"alpha": alpha, "seed": seed}
    whole, once = make(capacity, depth, **options), make(capacity, depth, stacks="stack", **options)
    done = 0
    for size in sizes:
        for buffer in (whole, once):
            buffer.add(**columns(rows[done : done + size]))
        done += size
        assert 1 <= len(once) <= len(whole)
        batch = once.sample(20 * len(once))
        for name, batches in (("stack", batch.fields), ("next_stack", batch.next_fields)):
            drawn = dict(zip(batch.fields["number"].tolist(), batches[name], strict=True))
            # So many draws contain nearly all counted records, and no others.
            assert len(drawn) > 0.99 * len(once) - 1
            assert min(drawn) >= done - len(once)
            for number, stack in drawn.items():
                np.testing.assert_array_equal(stack, rows[number][name == "next_stack"])
        again = ReplayBuffer.from_arrays(once.to_arrays())
        assert len(again) == len(once)
        np.testing.assert_array_equal(again.sample(9).indices, once.sample(9).indices)


@pytest.mark.parametrize("envs", [2, 4])
@pytest.mark.parametrize("still", [0.9, 1.0])
def test_repeated_frames_do_not_cost_records(envs, still):
    rows = played(np.random.default_rng(1), envs, 3000, 4, 0.0, "reset", still)
    replay = make(400, 4, stacks="stack", seed=1)
    for begin in range(0, 3000, 50):
        replay.add(**columns(rows[begin : begin + 50]))
        numbers = np.unique(replay.sample(10_000).fields["number"])
        np.testing.assert_array_equal(numbers, np.arange(begin + 50)[-400:])
    assert len(replay) == 400


def test_memory_is_little_more_than_one_copy_of_each_frame():
    one = np.zeros((4, 84, 84), np.uint8)
    like = {"observations": one, "next_observations": one, "actions": np.zeros((), np.int64)}
    replay = ReplayBuffer(1000, like, stacks=["observations"])
    assert replay.nbytes < 1.2 * 1000 * 84 * 84
    plain = ReplayBuffer(1000, like)
    assert plain.nbytes > 6.8 * replay.nbytes


def test_short_episodes_cost_only_the_oldest_records():
    """Each episode has two frames, so the oldest half of the records loses some of them."""
    rows = played(np.random.default_rng(1), 1, 400, 3, 2.0, "reset")
    replay = make(200, 3, stacks="stack", seed=1)
    replay.add(**columns(rows))
    numbers = replay.sample(500).fields["number"]
    assert numbers.min() > 200
    assert len(np.unique(numbers)) > 90


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_newest_record_keeps_its_oldest_frames(alpha):
    """An idle env continues with frames that the other env would soon overwrite."""
    rng = np.random.default_rng(1)
    replay = make(1, 4, stacks=["stack"], alpha=alpha, seed=1)
    idle = rng.integers(0, 255, (9, *FRAME), dtype=np.uint8)

    def add(stack, after, env):
        fields = {"stack": stack[None], "next_stack": after[None], "number": [env]}
        ends = {"terminated": [False], "truncated": [False]}
        replay.add(fields, rewards=[0.0], env=[env], **ends)
        np.testing.assert_array_equal(replay.sample(3).fields["stack"][2], stack)

    for other in range(12):
        add(idle[:4], idle[1:5], 0)
        for _ in range(other):
            frames = rng.integers(0, 255, (5, *FRAME), dtype=np.uint8)
            add(frames[:4], frames[1:], 1)
        add(idle[1:5], idle[2:6], 0)


def test_sampling_skips_records_that_lost_frames():
    rows = played(np.random.default_rng(1), 1, 400, 3, 2.0, "reset")
    replay = make(200, 3, stacks="stack", alpha=1.0, seed=1)
    replay.add(**columns(rows))
    batch = replay.sample(500)
    replay.update(batch.indices, np.full(500, 1e-9))  # now draws only records without frames
    assert replay.sample(500).fields["number"].min() > 200


def test_a_replay_of_stacks_round_trips(tmp_path):
    rows = played(np.random.default_rng(1), 3, 300, 4, 0.05, "zero")
    replay = make(100, 4, stacks=["stack"], n_step=2, alpha=0.6, seed=1)
    for begin in range(0, 200, 50):
        replay.add(**columns(rows[begin : begin + 50]))
    replay.save(tmp_path / "replay.npz")
    again = ReplayBuffer.load(tmp_path / "replay.npz")
    for buffer in (replay, again):
        buffer.add(**columns(rows[200:]))
    one, other = replay.sample(50), again.sample(50)
    np.testing.assert_array_equal(one.fields["stack"], other.fields["stack"])
    np.testing.assert_array_equal(one.next_fields["next_stack"], other.next_fields["next_stack"])
    assert replay._stores["stack"].added == again._stores["stack"].added


def test_an_empty_replay_of_stacks_round_trips(tmp_path):
    make(10, 4, stacks=["stack"]).save(tmp_path / "replay.npz")
    assert len(ReplayBuffer.load(tmp_path / "replay.npz")) == 0


@pytest.mark.parametrize("stacks", [["other"], ["number"], ["next_stack"], "stacks", ["stack", 3]])
def test_bad_stacks_are_refused(stacks):
    with pytest.raises(ValueError, match="expected a field of an array of frames"):
        make(10, 4, stacks=stacks)


def test_an_interrupted_add_loses_no_records():
    """The addition resumes after any interrupt; no frames are stored without their records."""
    rows = played(np.random.default_rng(1), 2, 260, 4, 0.05, "reset")
    first = columns(rows[:200])
    whole = make(100, 4, stacks=["stack"], seed=1)
    whole.add(**first)
    more = columns(rows[200:])
    for place in range(1, 200, 17):
        replay = make(100, 4, stacks=["stack"], seed=1)
        replay.add(**first)
        store, calls = replay._stores["stack"], itertools.count(1)
        numbers_of = store._numbers_of

        def interrupted(*args, numbers_of=numbers_of, calls=calls, place=place):
            if next(calls) == place:
                raise KeyboardInterrupt
            return numbers_of(*args)

        store._numbers_of = interrupted
        try:
            replay.add(**more)
        except KeyboardInterrupt:
            assert place <= 120
        assert replay.added == 260
        drawn = replay.sample(300).fields
        assert drawn["number"].min() < 180
        for stack, number in zip(drawn["stack"], drawn["number"].tolist(), strict=True):
            np.testing.assert_array_equal(stack, rows[number][0])


@pytest.mark.parametrize(("end", "full"), [(0.0, True), (0.7, False)])
def test_arrays_without_oldest_frames_are_loaded(end, full):
    rows = played(np.random.default_rng(1), 2, 300, 4, end, "zero")
    replay = make(100, 4, stacks=["stack"], seed=1)
    replay.add(**columns(rows))
    arrays = replay.to_arrays()
    del arrays["oldest 0"]
    again = ReplayBuffer.from_arrays(arrays)
    assert len(replay) <= len(again) <= 100
    assert (len(again) == 100) == full
    drawn = again.sample(500).fields
    for stack, number in zip(drawn["stack"], drawn["number"].tolist(), strict=True):
        np.testing.assert_array_equal(stack, rows[number][0])


def test_damaged_oldest_frames_are_refused():
    replay = make(10, 3, stacks="stack", seed=1)
    replay.add(**columns(played(np.random.default_rng(1), 1, 30, 3, 0.0, "reset")))
    arrays = replay.to_arrays()
    for damage in (1000, -np.arange(10) * 1000):
        with pytest.raises(ValueError, match="older than their oldest"):
            ReplayBuffer.from_arrays({**arrays, "oldest 0": arrays["oldest 0"] + damage})
