"""Waits: never early, release the GIL, end on Ctrl-C and dead peers, one waiter at a time."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from fork_server_in_tests import wait_until
from interrupts import handler, signal_later

from pysampler import _core, errors, sync

# Each makes a function that waits, with a timeout, for something that never happens.
WAITS = {
    "flag": lambda: sync.Flag().wait,
    "doorbell": lambda: functools.partial(sync.Doorbell(2).wait, 2),
    "ring": lambda: functools.partial(sync.Ring(2).pop_many, 1),
    "shared ring": lambda: functools.partial(sync.SharedRing(2).pop_many, 1),
    "byte ring": lambda: sync.ByteRing(1 << 16).recv,
    "board": lambda: functools.partial(sync.Board({"a": np.zeros(1)}).wait, 0),
    "watch": lambda: sync.Watch().wait,
    "sleep": lambda: lambda timeout: sync.sleep_until(sync.now() + int(timeout * 1e9)),
    "timed return": lambda: functools.partial(hold, _core.TimedReturn()),
}


def hold(timed_return, timeout):
    deadline = sync.now() + int(timeout * 1e9)
    assert timed_return.wait_until(deadline) == deadline - timed_return.margin_ns
    timed_return.hold_until(deadline)


@pytest.mark.parametrize("name", WAITS)
def test_no_wait_ends_before_its_deadline(name):
    wait = WAITS[name]()
    start = sync.now()
    try:
        wait(timeout=0.003)
    except errors.WaitTimeoutError as error:
        assert isinstance(error, TimeoutError)
    assert sync.now() >= start + 3_000_000


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_every_wait(name):
    main = threading.get_ident()
    entered = threading.Event()
    wait = WAITS[name]()  # outside of ``raises``: finalizers may swallow a KeyboardInterrupt

    def interrupt():
        entered.wait()
        # The signal may come before the wait sleeps; it must end the wait anyway.
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        entered.set()
        wait(timeout=1e6)


@pytest.mark.parametrize("kind", [sync.Ring, sync.SharedRing])
def test_ctrl_c_loses_no_record(kind):
    ring = kind(8, np.int64)
    ring.push_many([1, 2])
    signal_later(0.02, signal.SIGINT).start()
    with pytest.raises(KeyboardInterrupt):
        ring.pop_many(4, least=4)
    assert ring.pop_many(4).tolist() == [1, 2]


def test_ctrl_c_ends_a_wait_for_a_dead_producer():
    ring = sync.SharedRing(4, np.int64, producers=2)
    ring.push(1)
    child = os.fork()
    if child == 0:
        ring.claim()
        os._exit(0)
    os.waitpid(child, 0)
    signal_later(0.02, signal.SIGINT).start()
    with pytest.raises(KeyboardInterrupt):
        ring.peek(2, 2, timeout=1)
    assert ring.peek(2).tolist() == [1]


@pytest.mark.parametrize("kind", [sync.Ring, sync.SharedRing])
def test_consumer_gets_available_records_if_the_producer_is_blocked(kind):
    ring = kind(8, np.int64, high=4, low=1)
    producer = threading.Thread(target=lambda: kind.push_many(ring, np.arange(8)))
    producer.start()
    got = []
    while len(got) < 8:
        got += ring.pop_many(8, least=8).tolist()
    assert got == list(range(8))
    producer.join()


def test_wait_drained_can_be_repeated_until_the_ring_is_drained():
    ring = sync.SharedRing(8, np.int64, high=4, low=1)
    ring.push_many(np.arange(4))
    for _ in range(3):
        assert not ring.wait_drained(timeout=0)
        ring.pop_many(1)
    assert ring.wait_drained(timeout=0)


def test_other_threads_run_while_one_waits():
    flag = sync.Flag()
    threading.Thread(target=lambda: flag.set()).start()
    assert flag.wait()


def test_second_waiter_raises_busy_error_and_the_first_continues():
    flag = sync.Flag()
    got = []
    first = threading.Thread(target=lambda: got.append(flag.wait()))
    first.start()
    wait_until(lambda: "waiter" in repr(flag))
    with pytest.raises(errors.BusyError, match=rf"cannot wait on flag: pid {os.getpid()} thread"):
        flag.wait(1)
    flag.set()
    first.join()
    assert got == [True]


def test_record_pushed_after_a_timeout_goes_to_the_next_wait():
    ring = sync.Ring(2, np.int64)
    assert ring.pop_many(1, timeout=0).tolist() == []
    ring.push(7)
    assert ring.pop() == 7


def test_push_to_a_full_ring_raises_and_keeps_its_records():
    ring = sync.Ring(2, np.int64)
    assert ring.push_many([1, 2, 3], timeout=0.001) == 2
    with pytest.raises(errors.WaitTimeoutError, match="cannot push to ring: it stayed full"):
        ring.push(3, timeout=0.001)
    assert ring.pop_many(4).tolist() == [1, 2]


DEAD_PEER = {
    "flag": (lambda: sync.Flag(), lambda f: f.poster(), lambda f: f.wait()),
    "ring": (lambda: sync.Ring(2), lambda r: r.producer(), lambda r: r.pop()),
    "shared ring": (lambda: sync.SharedRing(2), lambda r: r.producer(), None),
    "byte ring": (lambda: sync.ByteRing(1 << 16), lambda r: r.producer(), lambda r: r.recv()),
    "board": (lambda: sync.Board({"a": np.zeros(1)}), lambda b: b.writer(), lambda b: b.wait()),
    "full ring": (
        lambda: sync.Ring(1),
        lambda r: r.consumer(),
        lambda r: r.push_many([1.0, 2.0]),
    ),
    "doorbell": (lambda: sync.Doorbell(2), lambda b: b.member(1), lambda b: b.wait()),
}


@pytest.mark.parametrize("name", [name for name in DEAD_PEER if DEAD_PEER[name][2]])
def test_dead_peer_ends_the_wait_for_it(name):
    make, part, wait = DEAD_PEER[name]
    thing = make()
    with sync.Watch() as watch:
        peer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        watch.add(peer, part(thing))
        threading.Timer(0.02, peer.kill).start()
        with pytest.raises(errors.LostError, match=r"lost$"):
            wait(thing)
        [loss] = watch.wait()
        assert (loss.pid, loss.signal) == (peer.pid, signal.SIGKILL)
        peer.communicate()


def test_lost_error_of_a_doorbell_lists_lost_and_ready_members():
    bell = sync.Doorbell(3)
    bell.post(2)
    with sync.Watch() as watch, subprocess.Popen([sys.executable, "-c", ""]) as peer:
        watch.add(peer, bell.member(1))
        watch.wait()
        with pytest.raises(errors.LostError, match="member 1 lost") as caught:
            bell.wait()
    assert list(caught.value.members) == [1]
    assert caught.value.ready.tolist() == [2]
    assert bell.lost == [1]
    assert bell.wait(1).tolist() == [2]  # the loss is reported once
    assert not bell.post(1)  # a post by the lost member is ignored
    bell.revive(1)
    assert bell.post(1)


def _filled(ring):
    ring.push_many(np.zeros(2))
    return ring


# The primitive, the part whose process dies, and a poll for something of that process.
REPLACED = {
    "flag": (sync.Flag, lambda flag: flag.poster(), lambda flag: flag.wait(timeout=0)),
    "ring": (lambda: sync.Ring(2), lambda ring: ring.producer(), lambda ring: ring.pop(timeout=0)),
    "full ring": (
        lambda: _filled(sync.Ring(2)),
        lambda ring: ring.consumer(),
        lambda ring: ring.push(0, timeout=0),
    ),
    "full shared ring": (
        lambda: _filled(sync.SharedRing(2)),
        lambda ring: ring.consumer(),
        lambda ring: ring.push(0, timeout=0),
    ),
    "byte ring": (
        lambda: sync.ByteRing(1 << 16),
        lambda ring: ring.producer(),
        lambda ring: ring.recv(timeout=0),
    ),
    "board": (
        lambda: sync.Board({"a": np.zeros(1)}),
        lambda board: board.writer(),
        lambda board: board.wait(timeout=0),
    ),
}


@pytest.mark.parametrize("name", REPLACED)
def test_wait_works_after_a_dead_process_was_replaced(name):
    make, part, look = REPLACED[name]
    thing = make()
    with sync.Watch() as watch, subprocess.Popen([sys.executable, "-c", ""]) as peer:
        watch.add(peer, part(thing))
        watch.wait()
    with pytest.raises(errors.LostError):
        look(thing)
    thing.replaced()
    with contextlib.suppress(errors.WaitTimeoutError):
        assert not look(thing)


def test_abandoned_slot_is_skipped():
    ring = sync.SharedRing(4, np.int64)
    ring.claim()[...] = 1
    assert ring.abandon()
    ring.push(2)
    assert ring.pop_many(4).tolist() == [2]
    with pytest.raises(ValueError, match="cannot abandon slot: none is claimed"):
        ring.abandon()


def test_post_survives_its_poster():
    flag = sync.Flag()
    flag.set()
    with sync.Watch() as watch, subprocess.Popen([sys.executable, "-c", ""]) as peer:
        watch.add(peer, flag.poster())
        watch.wait()
        assert flag.wait()
        flag.clear()
        with pytest.raises(errors.LostError):
            flag.wait()


LEAVE = """
import os, sys
from pysampler import sync
with sync.Watch() as watch:
    if os.fork() == 0:
        with sync.Watch() as mine:
            mine.leave_with()
            print(os.getpid(), flush=True)
            sync.Flag().wait()
    os.read(0, 1)
"""


def test_leave_with_ends_a_waiting_worker_with_its_parent():
    with (
        subprocess.Popen(
            [sys.executable, "-c", LEAVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as parent,
        sync.Watch() as watch,
    ):
        worker = int(parent.stdout.readline())
        watch.add(worker)
        parent.kill()
        [loss] = watch.wait()
        assert loss.pid == worker


def _publish(board):
    board.publish({"a": np.ones(1)})


# The primitive, a wait on it, and the call by which the handler ends that wait.
MADE_READY = {
    "flag": (sync.Flag, lambda flag: flag.wait(), lambda flag: flag.set()),
    "doorbell": (
        lambda: sync.Doorbell(2),
        lambda bell: bell.wait(1),
        lambda bell: bell.post(0),
    ),
    "ring": (
        lambda: sync.Ring(4),
        lambda ring: ring.pop_many(1),
        lambda ring: ring.push_many(np.zeros(1)),
    ),
    "shared ring": (
        lambda: sync.SharedRing(4, producers=2),
        lambda ring: ring.pop_many(1),
        lambda ring: ring.push_many(np.zeros(1)),
    ),
    "byte ring": (
        lambda: sync.ByteRing(1 << 16),
        lambda ring: ring.recv(),
        lambda ring: ring.send(b"x"),
    ),
    "board": (
        lambda: sync.Board({"a": np.zeros(1)}),
        lambda board: board.wait(0),
        _publish,
    ),
}


@pytest.mark.parametrize("name", MADE_READY)
def test_exception_of_a_handler_is_raised_even_if_the_wait_is_over(name):
    """The handler ends the wait, then raises: the wait must raise, not return."""
    make, wait, satisfy = MADE_READY[name]
    waited = make()

    def handle(*_):
        satisfy(waited)
        raise ZeroDivisionError

    timer = signal_later(0.02)
    with handler(handle):
        timer.start()
        try:
            with pytest.raises(ZeroDivisionError):
                wait(waited)
            assert wait(waited) is not None  # nothing was lost
        finally:
            timer.join()
