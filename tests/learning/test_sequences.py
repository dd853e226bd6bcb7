"""Sequences: consecutive records of one env."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_in_tests import add, add_alone, filled, history, make

import pysampler
from pysampler import ReplayBuffer


def around(rows, kept, at, burn_in, length, *, beyond_ends):
    """Return the step numbers of a sequence by a plain loop, None for padding."""
    mine = [number for number in kept if rows[number]["env"] == rows[at]["env"]]
    here = mine.index(at)

    def over(number):
        return rows[number]["terminated"] or rows[number]["truncated"]

    after, before = [at], []
    for number in mine[here + 1 : here + length]:
        if over(after[-1]) and not beyond_ends:
            break
        after.append(number)
    for number in reversed(mine[max(0, here - burn_in) : here]):
        if over(number) and not beyond_ends:
            break
        before.insert(0, number)
    return [None] * (burn_in - len(before)) + before + after + [None] * (length - len(after))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    envs=st.integers(1, 4),
    capacity=st.integers(1, 40),
    burn_in=st.integers(0, 5),
    length=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    beyond_ends=st.booleans(),
    alpha=st.sampled_from([0.0, 0.6]),
    n_step=st.integers(1, 3),
)
def test_sequences_are_consecutive_steps_of_one_env(
    seed, envs, capacity, burn_in, length, sizes, beyond_ends, alpha, n_step
):
    rows = history(np.random.default_rng(seed), envs, sum(sizes))
    options = {"sequences": True, "alpha": alpha, "n_step": n_step}
    replay = make(capacity, seed=seed, **options)
    done = 0
    for size in sizes:
        if size:
            add(replay, rows[done : done + size])
        done += size
        if done == 0:
            continue
        kept = range(max(0, done - capacity), done)
        drawn = replay.sample_sequences(20, length, burn_in=burn_in, beyond_ends=beyond_ends)
        for i, at in enumerate(drawn.indices.tolist()):
            expected = around(rows, kept, at, burn_in, length, beyond_ends=beyond_ends)
            assert drawn.mask[i].tolist() == [number is not None for number in expected]
            assert drawn.fields["number"][i].tolist() == [number or 0 for number in expected]
            assert drawn.first[i] == next(k for k, n in enumerate(expected) if n is not None)
            for name in ("rewards", "terminated", "truncated"):
                wanted = [0 if n is None else rows[n][name] for n in expected]
                assert drawn.fields[name][i].tolist() == wanted
    if done:
        again = ReplayBuffer.from_arrays(replay.to_arrays())
        one, other = (
            buffer.sample_sequences(9, length, burn_in=burn_in, beyond_ends=beyond_ends)
            for buffer in (replay, again)
        )
        np.testing.assert_array_equal(one.fields["number"], other.fields["number"])
        np.testing.assert_array_equal(one.mask, other.mask)


def n_step_return(rewards, terminated, truncated, mask, column, n_step, gamma):
    """Return the reward, discount and last column of one step by a plain loop."""
    total, discount, last = 0.0, 1.0, column
    for at in range(column, min(column + n_step, len(mask))):
        if not mask[at]:
            break
        total, discount, last = total + discount * rewards[at], discount * gamma, at
        if terminated[at]:
            return total, 0.0, last
        if truncated[at]:
            break
    return total, discount if mask[column] else 0.0, last


@pytest.mark.slow
@pytest.mark.parametrize("beyond_ends", [False, True])
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), n_step=st.integers(1, 6), length=st.integers(1, 6))
def test_returns_in_sequences_stop_at_ends_of_episodes_and_sequences(
    seed, n_step, length, beyond_ends
):
    replay = make(60, seed=seed, sequences=True, n_step=n_step, gamma=0.9)
    add(replay, history(np.random.default_rng(seed), 2, 80))
    drawn = replay.sample_sequences(8, length, burn_in=3, beyond_ends=beyond_ends)
    names = "rewards", "terminated", "truncated"
    for row in range(8):
        step_fields = [drawn.fields[name][row] for name in names]
        for column in range(3 + length):
            found = [getattr(drawn, one)[row, column] for one in ("rewards", "discounts", "last")]
            expected = n_step_return(*step_fields, drawn.mask[row], column, n_step, 0.9)
            assert found == pytest.approx(expected, abs=1e-4)


def test_returns_of_the_first_steps_equal_those_of_batches():
    """A sequence that is long enough has the same returns as transitions."""
    replays = [make(60, seed=3, sequences=True, n_step=4, gamma=0.9) for _ in range(2)]
    for replay in replays:
        add(replay, history(np.random.default_rng(3), 2, 80))
    batch, drawn = replays[0].sample(50), replays[1].sample_sequences(50, 4)
    assert (batch.indices == drawn.indices).all()
    rows = range(50)
    np.testing.assert_array_equal(batch.rewards, drawn.rewards[:, 0])
    np.testing.assert_array_equal(batch.discounts, drawn.discounts[:, 0])
    after = drawn.fields["next_number"][rows, drawn.last[:, 0]]
    np.testing.assert_array_equal(batch.next_fields["next_number"], after)


def test_returns_of_rewards_of_several_numbers_are_summed_for_each():
    replay = ReplayBuffer(
        9, {"number": np.zeros(()), "rewards": np.zeros(2)}, n_step=3, gamma=0.5, sequences=True
    )
    rewards = np.column_stack((np.arange(5), np.full(5, 8)))
    add_alone(replay, {"number": np.arange(5)}, rewards=rewards, terminated=np.arange(5) == 4)
    drawn = replay.sample_sequences(40, 5)
    whole = drawn.rewards[drawn.indices == 0][0]
    assert whole[:, 0].tolist() == [1, 2.75, 4.5, 5, 4]
    assert whole[:, 1].tolist() == [14, 14, 14, 12, 8]


def test_sequences_stop_at_episodes_begun_without_an_end():
    """After a lost worker, sequences do not cross into the new episode even with beyond_ends."""
    replay = make(20, sequences=True)
    fields = {"number": np.arange(6), "next_number": np.arange(6)}
    add_alone(replay, fields, begins=np.arange(6) == 3)
    drawn = replay.sample_sequences(50, 6, burn_in=6, beyond_ends=True)
    for row, mask in zip(drawn.fields["number"], drawn.mask, strict=True):
        assert {tuple(row[mask])} <= {(0, 1, 2), (3, 4, 5)}


def test_sequences_stop_at_missing_records():
    replay = make(20, sequences=True)
    fields = {"number": np.arange(4), "next_number": np.arange(4)}
    add_alone(replay, fields, numbers=[5, 6, 8, 9])
    drawn = replay.sample_sequences(50, 4, burn_in=4)
    for row, mask in zip(drawn.fields["number"], drawn.mask, strict=True):
        assert tuple(row[mask]) in {(0, 1), (2, 3)}


@pytest.mark.slow
def test_state_returns_the_stored_state_of_the_first_step():
    """Also the state of a recurrent policy that returns it under another name."""

    def policy(observations, state=None):
        state = np.zeros((len(observations), 2)) if state is None else state
        steps = state + 1
        actions = (steps[:, 0] % 2).astype(int)
        return actions, {"state": steps, "before": state}

    with pysampler.Actors("CartPole-v1", policy, num_envs=3, seed=1) as actors:
        replay = ReplayBuffer(3000, actors.like, sequences=True, seed=1)
        for records in actors.batches(200, min_records=50):
            replay.extend(records)
            if replay.added > 1000:
                break
    drawn = replay.sample_sequences(64, 8, burn_in=4).torch()
    assert isinstance(drawn.mask, torch.Tensor)
    states = drawn.state("before")
    assert states.shape == (64, 2)
    # The policy counts the steps of an episode.
    expected = states[:, None, 0] + torch.arange(12) - drawn.first[:, None]
    assert torch.equal(drawn.fields["before"][..., 0][drawn.mask], expected[drawn.mask])
    whole = replay.sample_sequences(64, 8, burn_in=4, beyond_ends=True)
    assert whole.mask.mean() > drawn.mask.float().mean()
    assert "64 of 8 steps after 4 of burn-in" in repr(whole)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda replay: replay.sample_sequences(3, 0), "length"),
        (lambda replay: replay.sample_sequences(3, 2, burn_in=-1), "burn_in"),
        (lambda replay: replay.sample_sequences(0, 2), "count"),
        (lambda replay: replay.sample_sequences(3, 2, beta=2), "beta 2"),
        (lambda replay: make(4).sample_sequences(3, 2), "make the buffer with sequences=True"),
        (lambda replay: make(4, sequences=True).sample_sequences(3, 2), "is empty"),
    ],
)
def test_bad_sequence_arguments_are_refused(call, message):
    replay = filled(8, 1, 5, sequences=True)
    with pytest.raises(ValueError, match=message):
        call(replay)
