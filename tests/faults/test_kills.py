"""Processes killed at random points cause no hang, no torn record and no leak.

PYSAMPLER_FAULT_ROUNDS sets the number of kills, and PYSAMPLER_FAULT_SEED the seed.
"""

import gc
import multiprocessing
import os
import random
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from interrupts import SEED

from pysampler import errors, sync

ROUNDS = int(os.environ.get("PYSAMPLER_FAULT_ROUNDS", "15"))
FORK = multiprocessing.get_context("fork")
WORDS = 16

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
def dice():
    print(f"PYSAMPLER_FAULT_SEED={SEED}")
    return random.Random(SEED)


@pytest.fixture(autouse=True)
def nothing_is_left():
    def left():
        me = psutil.Process()
        return me.num_fds(), len(me.children()), me.num_threads()

    # Resources that the first such process starts for good are not a leak.
    first = FORK.Process(target=int)
    first.start()
    first.join()
    first.close()
    gc.collect()  # garbage of earlier tests would disappear at any moment
    before = left(), Path("/proc/self/maps").read_text().count("memfd:pysampler")
    yield
    after = left(), Path("/proc/self/maps").read_text().count("memfd:pysampler")
    assert after == before


def kill(process):
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    process.close()


def produce(ring, name):
    sequence = 0
    while True:
        record = np.full(WORDS, sequence, np.int64)
        record[0] = name
        if sequence % 3 == 0:
            slot = ring.claim()
            slot[:] = record
            ring.publish()
        else:
            ring.push_many([record])
        sequence += 1


def test_killed_producers_leave_no_torn_or_missing_records(dice):
    with sync.SharedRing(64, np.int64, WORDS) as ring, sync.Watch() as watch:

        def start(name):
            process = FORK.Process(target=produce, args=(ring, name))
            process.start()
            watch.add(process, ring.producer())
            return process

        def popped(most):
            while True:
                try:
                    return ring.pop_many(most)
                except errors.LostError:
                    # The ring knows a producer only once it has published: with all CPUs busy, the
                    # running ones may not have come so far.
                    assert not seen.keys() & running.keys()
                    os.sched_yield()

        names = iter(range(1 << 30))
        running = {name: start(name) for name in (next(names) for _ in range(3))}
        seen = {}
        for _ in range(ROUNDS):
            for _ in range(dice.randrange(1, 40)):
                for record in popped(dice.randrange(1, 64)):
                    name, sequence = int(record[0]), int(record[1])
                    assert (record[1:] == sequence).all(), "torn"
                    assert sequence == seen.get(name, -1) + 1, "lost or out of order"
                    seen[name] = sequence
            kill(running.pop(dice.choice(list(running))))
            name = next(names)
            running[name] = start(name)
        for process in running.values():
            kill(process)
        watch.wait(known=ROUNDS + 2)
        # Published records are still returned, then all producers are known to be lost.
        with pytest.raises(errors.LostError):
            while True:
                ring.pop_many(64)


def wait_and_answer(flag, bell, member):
    while True:
        flag.wait()
        flag.clear()
        bell.post(member)


def test_killed_members_are_reported_once_and_replaced(dice):
    members = 3
    with sync.Doorbell(members) as bell, sync.Watch() as watch:
        flags = [sync.Flag() for _ in range(members)]

        def start(member):
            process = FORK.Process(target=wait_and_answer, args=(flags[member], bell, member))
            process.start()
            watch.add(process, bell.member(member))
            return process

        running = [start(member) for member in range(members)]
        for _ in range(ROUNDS):
            for flag in flags:
                flag.set()
            victim = dice.randrange(members)
            for _ in range(dice.randrange(200)):
                pass
            kill(running[victim])
            try:
                while len(bell.wait()) < members:
                    pass
                with pytest.raises(errors.LostError):  # it had posted; the loss comes later
                    bell.take_ready()
                    bell.wait()
            except errors.LostError as lost:
                assert list(lost.members) == [victim]
                while len(set(bell.wait(members - 1)) - {victim}) < members - 1:
                    pass
            bell.take_ready()
            bell.revive(victim)
            flags[victim].clear()
            running[victim] = start(victim)
        for process in running:
            kill(process)
        for flag in flags:
            flag.close()


def publish(board):
    version = 0
    while True:
        version += 1
        board.publish({"a": np.full(1000, version), "b": np.full(3, version)})


def test_killed_writer_leaves_a_consistent_board(dice):
    with sync.Board({"a": np.zeros(1000, np.int64), "b": np.zeros(3, np.int64)}) as board:
        out = None
        for _ in range(ROUNDS):
            before = board.version
            writer = FORK.Process(target=publish, args=(board,))
            writer.start()
            board.wait(newer_than=before + dice.randrange(1, 200))
            kill(writer)
            _, out = board.read(out)
            values = {int(out["b"][0]), *out["a"].tolist(), *out["b"].tolist()}
            assert len(values) == 1, "torn"
