"""Numbers that a learner computes from records, against their definitions as loops."""

import functools
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scripted import Counting, Scripted, policy

import pysampler
from pysampler import ReplayBuffer
from pysampler._actors.records import Records

SCRIPTS = ["b", ".b", "..t.c", "b.tc...", "....b", "." * 50]


def taken(scripts=SCRIPTS, *, acting=policy, count=60, mode="SameStep", **options):
    """Records of envs whose episodes end as the scripts say."""
    fns = [functools.partial(Scripted, script) for script in scripts]
    with (
        closing(pysampler.VectorEnv(fns, num_workers=2, autoreset_mode=mode)) as envs,
        pysampler.Actors(envs, acting, seed=5, high=64, **options) as actors,
    ):
        like = actors.like
        batches = [actors.take(16).copy()]
        while sum(map(len, batches)) < count:
            batches.append(actors.take(16).copy())
    return batches[0].joined(batches[1:]), like


def value(observations):
    return observations[..., 2] * 1.5 + 3


def slow_gae(rewards, values, next_values, terminated, truncated, gamma, lam):
    """Return the advantages of one record: each step's error and the discounted later ones."""
    advantages = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for later in range(t, len(rewards)):
            after = 0.0 if terminated[later] else next_values[later]
            total += weight * (rewards[later] + gamma * after - values[later])
            weight *= gamma * lam
            if terminated[later] or truncated[later]:
                break
        advantages.append(total)
    return np.array(advantages)


def made_up(rewards, terminated, truncated):
    """Records with only the fields that advantages need."""
    count, steps = rewards.shape
    kinds = [
        ("rewards", "f8", (steps,)),
        ("terminated", "?", (steps,)),
        ("truncated", "?", (steps,)),
    ]
    rows = np.zeros(count, kinds)
    rows["rewards"], rows["terminated"], rows["truncated"] = rewards, terminated, truncated
    return Records(rows, SimpleNamespace(steps=steps))


@pytest.mark.slow
@given(data=st.data(), count=st.integers(1, 4), steps=st.integers(1, 8))
def test_gae_of_records_equals_its_definition(data, count, steps):
    draw, shape, numbers = data.draw, (count, steps), st.floats(-10, 10, width=32)
    rewards, values, after = (
        draw(arrays.arrays(np.float64, shape, elements=numbers)) for _ in range(3)
    )
    terminated, truncated = (draw(arrays.arrays(np.bool_, shape)) for _ in range(2))
    # Within an episode the value after a step is the value before the next one.
    goes_on = ~(terminated | truncated)[:, :-1]
    after[:, :-1][goes_on] = values[:, 1:][goes_on]
    gamma, lam = draw(st.sampled_from([(0.99, 0.95), (1.0, 1.0), (0.5, 0.0), (0.0, 1.0)]))
    records = made_up(rewards, terminated, truncated)
    advantages, returns = records.gae(values, after, gamma=gamma, gae_lambda=lam)
    for row in range(count):
        expected = slow_gae(
            *(one[row] for one in (rewards, values, after, terminated, truncated)), gamma, lam
        )
        np.testing.assert_allclose(advantages[row], expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(returns[row], expected + values[row], rtol=1e-9, atol=1e-9)


def test_gae_of_actor_records_stops_at_episode_ends():
    records, _ = taken(steps=6, count=40)
    both = records.terminated & records.truncated
    assert both.any()
    assert (records.truncated & ~both).any()
    values, after = value(records.observations), value(records.next_observations)
    advantages, returns = records.gae(values, after)
    for row in range(len(records)):
        rest = records.terminated[row], records.truncated[row]
        expected = slow_gae(records.rewards[row], values[row], after[row], *rest, 0.99, 0.95)
        np.testing.assert_allclose(advantages[row], expected, rtol=1e-9)
        np.testing.assert_allclose(returns[row], expected + values[row], rtol=1e-9)


def test_gae_refuses_bad_values():
    records = made_up(np.ones((2, 3)), np.zeros((2, 3), bool), np.zeros((2, 3), bool))
    fine = np.ones((2, 3))
    for wrong in (np.ones((3, 2)), np.ones(6), np.ones((2, 3, 1)), 1.0):
        for name in ("values", "next_values"):
            given = {"values": fine, "next_values": fine, name: wrong}
            with pytest.raises(ValueError, match=rf"{name} of shape .*, expected \(2, 3\)"):
                records.gae(**given)
    for name in ("values", "next_values"):
        given = {"values": fine, "next_values": fine, name: np.ma.array(fine, mask=True)}
        with pytest.raises(ValueError, match=f"{name} is masked"):
            records.gae(**given)
    single, _ = taken(SCRIPTS[:1], count=5)
    with pytest.raises(ValueError, match="records of single steps, expected"):
        single.gae(np.ones(len(single)), np.ones(len(single)))


@pytest.mark.parametrize("steps", [None, 1, 5])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])  # always reset at once
def test_returns_and_lengths_sum_over_the_episode(steps, mode):
    records, _ = taken(steps=steps, mode=mode)
    single = {name: records.by_step(name) for name in records.fields}
    ended = []
    for env in range(len(SCRIPTS)):
        mine = np.flatnonzero(single["env"] == env)
        total, length = 0.0, 0
        for at in mine:
            total, length = total + single["rewards"][at], length + 1
            assert (single["returns"][at], single["lengths"][at]) == (total, length)
            assert single["observations"][at][2] == length - 1
            assert single["next_observations"][at][2] == length
            if single["terminated"][at] or single["truncated"][at]:
                ended.append(total)
                total, length = 0.0, 0
    assert sorted(records.ended.tolist()) == sorted(ended)


def slow_steps(single, order, at, n_step, gamma):
    """Return (sum of rewards, discount, last) of up to ``n_step`` steps of an env from ``at``."""
    total, discount = 0.0, 1.0
    mine = order[single["env"][at]]
    for step in mine[mine.index(at) :][:n_step]:
        total += discount * single["rewards"][step]
        discount *= gamma
        last = step
        if single["terminated"][step] or single["truncated"][step]:
            break
    return total, 0.0 if single["terminated"][last] else discount, last


@pytest.mark.parametrize("steps", [None, 1, 5])
@pytest.mark.parametrize("n_step", [1, 3, 100])
@pytest.mark.parametrize("acting", [policy, Counting()])
def test_a_replay_keeps_the_steps_of_actor_records(steps, n_step, acting):
    records, like = taken(steps=steps, acting=acting)
    replay = ReplayBuffer(10_000, like, n_step=n_step, gamma=0.5, seed=1)
    for begin in range(0, len(records), 7):
        replay.extend(records[begin : begin + 7])
    single = {name: records.by_step(name) for name in records.fields}
    assert replay.added == len(single["env"]) == records.rewards.size
    order = {env: np.flatnonzero(single["env"] == env).tolist() for env in range(len(SCRIPTS))}
    batch = replay.sample(300)
    assert set(batch.fields) | set(batch.next_fields) == set(like)
    for i, at in enumerate(batch.indices.tolist()):
        total, discount, last = slow_steps(single, order, at, n_step, 0.5)
        np.testing.assert_allclose(batch.rewards[i], total, rtol=1e-6)
        assert batch.discounts[i] == np.float32(discount)
        for name, values in batch.fields.items():
            np.testing.assert_array_equal(values[i], single[name][at])
        for name, values in batch.next_fields.items():
            np.testing.assert_array_equal(values[i], single[name][last])


@pytest.mark.parametrize("steps", [None, 4])
def test_like_describes_single_steps(steps):
    records, like = taken(SCRIPTS[:1], acting=Counting(), steps=steps, count=5)
    shapes = {name: (one.shape, one.dtype) for name, one in like.items()}
    expected = {
        "observations": ((4,), np.float64),
        "next_observations": ((4,), np.float64),
        "actions": ((2,), np.float32),
        "value": ((), np.float64),
    }
    if steps is None:  # records store no states of the steps within
        expected |= {"state0": ((), np.int64), "state1": ((2,), np.float64)}
    assert shapes == expected
    replay = ReplayBuffer(10, {**like, "more": np.zeros(())})
    with pytest.raises(ValueError, match=r"records have no \['more'\], got \['env', 'version'"):
        replay.extend(records)


def test_a_state_of_the_records_length_is_repeated_for_each_step():
    records, like = taken(
        SCRIPTS[:1], acting=Counting(), steps=2, count=5
    )  # one part of its state has shape [2]
    replay = ReplayBuffer(100, {**like, "state1": np.zeros(2)})
    replay.extend(records)
    np.testing.assert_array_equal(
        replay._ring.fields["state1"][: len(replay)], np.repeat(records.rows["state1"], 2, axis=0)
    )


@pytest.mark.parametrize("which", [0, -1, "rewards", None, (0, 1)])
def test_indexing_records_requires_a_slice_or_indices(which):
    records, _ = taken(count=16)
    assert len(records[:3]) == len(records[[0, 1, 2]]) == 3
    with pytest.raises(TypeError, match="cannot choose records: .*fields are attributes"):
        records[which]
