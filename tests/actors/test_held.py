"""Records that the caller keeps: actors continue and write later batches elsewhere."""

import numpy as np
from forks_in_tests import Fork

import pysampler


def right(observations):
    return np.ones(len(observations), np.int64)


def test_held_records_are_not_overwritten():
    with pysampler.Actors("CartPole-v1", right, num_envs=2, high=8, seed=1) as actors:
        held, copies = [], []
        for _ in range(20):
            held.append(actors.take(4, min_records=4))
            copies.append(held[-1].rows.copy())
        for records, before in zip(held, copies, strict=True):
            assert (records.rows == before).all()
        assert len({(int(r["env"]), int(r["number"])) for one in held for r in one.rows}) == 80


def test_a_plain_loop_reuses_the_memory_of_two_batches():
    with pysampler.Actors("CartPole-v1", right, num_envs=2, high=8, seed=1) as actors:
        addresses = set()
        for _ in range(20):
            records = actors.take(4, min_records=4)
            addresses.add(records.rows.ctypes.data)
        assert len(addresses) == 2


def test_a_forked_child_keeps_its_records():
    with pysampler.Actors("CartPole-v1", right, num_envs=2, high=8, seed=1) as actors:
        records = actors.take(4, min_records=4)
        expected = records.rows.tobytes()

        def look(wait):
            wait()
            kept = records.rows.tobytes()
            records.rows["rewards"] = -1
            return kept

        fork = Fork(look)
        for _ in range(20):
            actors.take(4, min_records=4)
        assert fork.result() == expected
        assert records.rows.tobytes() == expected
