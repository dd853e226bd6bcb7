"""Threads that share an object get a refusal or a whole result, with Python's lock and without."""

import functools
import threading

import numpy as np
import pytest
from hammers import calling, together

from pysampler import _core, errors, sync

REFUSED = (errors.BusyError, errors.ClosedError, errors.WaitTimeoutError)
ROUNDS = 20
INIT = 1  # the pid of a process that does not end


def test_a_guard_admits_one_thread_at_a_time():
    guard = _core.Guard("this", "closed", errors.ClosedError)
    shared = guard.entry("use it")  # by all threads, as a vector env does
    inside, most, admitted = 0, 0, [0] * 4

    def use(thread):
        nonlocal inside, most
        for k in range(5_000):
            entry = shared if k % 2 else guard.entry("use it")
            try:
                with entry:
                    inside += 1
                    most = max(most, inside)
                    inside -= 1
                    admitted[thread] += 1
            except errors.BusyError:
                pass

    together(*(functools.partial(use, thread) for thread in range(4)))
    assert (inside, most) == (0, 1)
    assert not guard.busy
    assert sum(admitted) > 0


def flag():
    one = sync.Flag()
    return one, [one.set, one.clear, lambda: one.wait(0.0), lambda: one.stats]


def doorbell():
    one = sync.Doorbell(4)
    calls = [lambda: one.post(1), lambda: one.wait(1, timeout=0.0), one.take_ready]
    return one, [*calls, lambda: one.take([0, 1]), lambda: one.revive(2), lambda: one.stats]


def ring():
    one = sync.Ring(8, np.int64)
    return one, [lambda: one.push(1, timeout=0.0), lambda: one.pop(0.0), lambda: len(one)]


def shared_ring():
    one = sync.SharedRing(8, np.int64, producers=4)
    calls = [lambda: one.push(1, timeout=0.0), lambda: one.pop(0.0), one.leave]
    return one, [*calls, one.producer]


def byte_ring():
    one = sync.ByteRing(4096)
    return one, [lambda: one.send(b"abc", 0.0), lambda: one.recv(0.0), lambda: len(one)]


def board():
    like = {"a": np.zeros(9)}
    one = sync.Board(like)
    return one, [lambda: one.publish(like), one.read, lambda: one.wait(1, timeout=0.0)]


def segment():
    one = sync.Segment(1 << 16)
    return one, [lambda: one.left, lambda: one.fd, lambda: sync.Flag(one)]


KINDS = {make.__name__: make for make in (flag, doorbell, ring, shared_ring, byte_ring, board)}
KINDS["segment"] = segment


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_handles_may_be_closed_and_shown_while_other_threads_use_them(name):
    for _ in range(ROUNDS):
        thing, calls = KINDS[name]()
        closed = threading.Event()
        refused = (*REFUSED, MemoryError)
        use = [calling(*calls, until=closed, refused=refused) for _ in range(2)]

        def close(thing=thing, closed=closed):
            for _ in range(20):
                repr(thing)
            thing.close()
            closed.set()

        together(*use, calling(lambda thing=thing: repr(thing), until=closed), close, close)
        assert thing.closed
        assert "closed" in repr(thing)


@pytest.mark.slow
def test_threads_allocate_disjoint_parts_of_a_segment():
    segment = sync.Segment(1 << 18)
    parts = [[], [], []]

    def allocate(mine):
        mine.extend(sync.Array(16, np.int64, segment) for _ in range(500))

    together(*(functools.partial(allocate, mine) for mine in parts))
    offsets = [array.offset for mine in parts for array in mine]
    assert len(set(offsets)) == len(offsets) == 1_500


@pytest.mark.slow
def test_a_board_of_several_writers_never_shows_a_mixture():
    board = sync.Board({"a": np.zeros(500)}, buffers=8)
    done, published, mixed = threading.Event(), [0, 0], []

    def write(thread):
        for k in range(2_000):
            try:
                board.publish({"a": np.full(500, 2.0 * k + thread)})
                published[thread] += 1
            except errors.BusyError:
                pass
        done.set()

    def read():
        while not done.is_set():
            values = board.read()[1]["a"]
            mixed.extend(values[values != values[0]])

    together(functools.partial(write, 0), functools.partial(write, 1), read)
    assert not mixed
    assert board.version == sum(published)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "shared ring", "byte ring"])
def test_rings_give_each_record_to_one_of_several_threads(kind):
    """More threads than a side may have: each call is refused, or passes whole records."""
    total, got, sent, over = 3_000, [], [], threading.Event()
    ring = {
        "ring": lambda: sync.Ring(16, np.int64),
        "shared ring": lambda: sync.SharedRing(16, np.int64),
        "byte ring": lambda: sync.ByteRing(4096),
    }[kind]()
    numbers = iter(range(total))
    taking = threading.Lock()

    def produce():
        while True:
            with taking:
                number = next(numbers, None)
            if number is None:
                return
            while True:
                try:
                    if kind == "byte ring":
                        ring.send(number.to_bytes(8, "little"), timeout=1.0)
                    else:
                        ring.push(number, timeout=1.0)
                except (errors.BusyError, errors.WaitTimeoutError):
                    continue
                sent.append(number)
                break

    def consume():
        while len(got) < total:
            try:
                if kind == "byte ring":
                    got.append(int.from_bytes(ring.recv(0.001), "little"))
                else:
                    got.extend(map(int, ring.pop_many(4, timeout=0.001)))
            except (errors.BusyError, errors.WaitTimeoutError):
                continue
        over.set()

    look = calling(lambda: (repr(ring), len(ring)), until=over)
    together(produce, produce, consume, consume, look)
    assert sorted(got) == sorted(sent) == list(range(total))


@pytest.mark.slow
def test_a_watch_may_be_used_and_closed_by_several_threads():
    flag = sync.Flag()
    for _ in range(20):
        watch, closed = sync.Watch(), threading.Event()
        calls = [
            lambda w=watch: w.add(INIT, flag.poster()),
            lambda w=watch: w.forget(INIT),
            lambda w=watch: w.losses,
            lambda w=watch: w.watched,
            lambda w=watch: w.wait(timeout=0.0),
        ]
        use = [calling(*calls, until=closed, refused=REFUSED) for _ in range(2)]

        def close(watch=watch, closed=closed):
            for _ in range(50):
                repr(watch)
            watch.close()
            closed.set()

        together(*use, close, close)
        assert watch.closed


@pytest.mark.slow
def test_memory_on_loan_is_held_as_long_as_any_thread_has_a_view():
    lent = _core.Lent(np.zeros(8))
    done, lost = threading.Event(), []
    boxes = [[lent.view()], [lent.view()]]

    def hand_over(mine, other):
        while not done.is_set():
            mine[0] = other[0][:]  # a view of the other thread's view, which replaces that

    def look():
        lost.extend(not lent.held for _ in range(50_000))
        done.set()

    together(
        functools.partial(hand_over, boxes[0], boxes[1]),
        functools.partial(hand_over, boxes[1], boxes[0]),
        look,
    )
    assert not any(lost)
    boxes.clear()
    assert not lent.held
