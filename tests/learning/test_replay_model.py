"""A replay buffer equals a model that keeps a list of all records."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pysampler import ReplayBuffer

GAMMA = 0.5
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2),  # env
        st.integers(-9, 9),  # reward
        *(st.booleans(), st.booleans()),  # terminated, truncated
        st.integers(1, 2),  # distance to the env's last number: 1 unless some are missing
        st.booleans(),  # begins an episode
    ),
    max_size=12,
)
HOSTILE = st.sampled_from([[-1], [10**9], [0.5], ["x"], [None], [float("nan")], 3, [[1]], [0, 0]])


class AgainstAList(RuleBasedStateMachine):
    @initialize(
        capacity=st.integers(1, 12),
        n_step=st.sampled_from([1, 2, 5, 10**12]),
        alpha=st.sampled_from([0.0, 0.5, 2.0]),
        seed=st.integers(0, 9),
    )
    def make(self, capacity, n_step, alpha, seed):
        like = {"x": np.zeros(2, np.int16), "next_x": np.zeros((), np.int64)}
        self.replay = ReplayBuffer(
            capacity, like, n_step=n_step, gamma=GAMMA, alpha=alpha, seed=seed
        )
        self.records = []  # all records ever added, as dicts
        self.numbers = [0, 0, 0]  # the next of each env
        self.highest = 1.0
        self.seen = []  # indices of all batches

    @rule(rows=RECORDS)
    def add(self, rows):
        self.replay.add(**self._columns(rows))
        for env, reward, terminated, truncated, further, begins in rows:
            number = self.numbers[env] + further
            self.numbers[env] = number
            self.records.append(
                {
                    "env": env,
                    "reward": reward,
                    "terminated": terminated,
                    "over": terminated or truncated,
                    "number": number,
                    "next": None,
                    "priority": self.highest,
                }
            )
            at = len(self.records) - 1
            for before in reversed(self.records[:-1]):
                if before["env"] == env:
                    goes_on = not before["over"] and not begins
                    if goes_on and number == before["number"] + 1:
                        before["next"] = at
                    break

    def _columns(self, rows):
        count = len(rows)
        x = np.arange(len(self.records), len(self.records) + count)
        numbers, last = [], [*self.numbers]
        for env, *_, further, _ in rows:
            last[env] += further
            numbers.append(last[env])
        return {
            "fields": {"x": np.stack([x, -x], axis=1), "next_x": (x + 1000).tolist()},
            "env": [row[0] for row in rows],
            "rewards": [row[1] for row in rows],
            "terminated": [row[2] for row in rows],
            "truncated": [row[3] for row in rows],
            "numbers": numbers,
            "begins": [row[5] for row in rows],
        }

    @rule(
        rows=RECORDS.filter(len),
        name=st.sampled_from(["x", "next_x", "env", "terminated", "numbers", "begins"]),
        value=st.sampled_from(["x", None, float("nan"), 0.5, 1e300, [1], 2**70, np.ma.masked]),
    )
    def add_bad_records(self, rows, name, value):
        columns = self._columns(rows)
        where = columns["fields"] if "x" in name else columns
        where[name] = [*list(where[name])[:-1], value]
        with pytest.raises(ValueError, match="cannot add to replay"):
            self.replay.add(**columns)

    @precondition(lambda self: self.records)
    @rule(count=st.integers(1, 20), beta=st.sampled_from([0, 0.4, 1]))
    def sample(self, count, beta):
        batch = self.replay.sample(count, beta=beta)
        oldest = max(0, len(self.records) - self.replay.capacity)
        shares = [record["priority"] for record in self.records[oldest:]]
        weights = []
        for row, at in enumerate(batch.indices.tolist()):
            assert oldest <= at < len(self.records)
            chain = [at]
            while len(chain) < self.replay.n_step and (at := self.records[at]["next"]) is not None:
                chain.append(at)
            at, last = chain[0], chain[-1]
            total = sum(GAMMA**i * self.records[one]["reward"] for i, one in enumerate(chain))
            discount = GAMMA ** len(chain)
            assert batch.fields["x"][row].tolist() == [at, -at]
            assert batch.next_fields["next_x"][row] == last + 1000
            assert batch.rewards[row] == np.float32(total)
            ended = self.records[last]["terminated"]
            assert batch.discounts[row] == (0 if ended else np.float32(discount))
            share = self.records[at]["priority"] / sum(shares) if self.replay.alpha else 1.0
            weights.append(share**-beta)
        np.testing.assert_allclose(batch.weights, np.array(weights) / max(weights), rtol=1e-5)
        self.seen += batch.indices.tolist()

    @precondition(lambda self: self.seen and self.replay.alpha)
    @rule(data=st.data())
    def update(self, data):
        indices = data.draw(st.lists(st.sampled_from(self.seen), max_size=8))
        priorities = [data.draw(st.floats(1e-3, 1e3)) for _ in indices]
        self.replay.update(indices, priorities)
        oldest = len(self.records) - self.replay.capacity
        for at, priority in zip(indices, priorities, strict=True):
            if at >= oldest:
                self.records[at]["priority"] = power = float(
                    np.float64(priority) ** self.replay.alpha
                )
                self.highest = max(self.highest, power)

    @rule(value=HOSTILE, priority=st.sampled_from([1.0, -1.0, 0.0, float("nan"), 1e308, "x"]))
    def update_bad_priorities(self, value, priority):
        with pytest.raises((ValueError, IndexError, TypeError)):
            self.replay.update(value, [priority])

    @rule(count=st.sampled_from([0, -1, 0.5, None, "x"]))
    def sample_bad_counts(self, count):
        with pytest.raises(ValueError, match="cannot sample from replay: count"):
            self.replay.sample(count)

    @rule()
    def save_and_load(self):
        with tempfile.TemporaryDirectory() as directory:
            self.replay.save(Path(directory) / "replay")
            self.replay = ReplayBuffer.load(Path(directory) / "replay")

    @invariant()
    def records_equal_the_list(self):
        if not hasattr(self, "replay"):
            return
        replay, capacity = self.replay, self.replay.capacity
        assert (replay.added, len(replay)) == (
            len(self.records),
            min(len(self.records), capacity),
        )
        for at in range(max(0, len(self.records) - capacity), len(self.records)):
            record = self.records[at]
            assert replay._ring.fields["x"][at % capacity].tolist() == [at, -at]
            assert replay._ring.fields["rewards"][at % capacity] == record["reward"]
            if replay.alpha:
                assert replay._tree.leaves[at % capacity] == record["priority"]


AgainstAList.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
test_replay_equals_a_list = pytest.mark.slow(AgainstAList.TestCase)
