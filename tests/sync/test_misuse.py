"""Misuse: closing during a wait, threads that share a side, processes that vanish."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from fork_server_in_tests import wait_until
from programs import completed

from pysampler import _core, errors, sync

FORK = multiprocessing.get_context("fork")


def run(script):
    """Run a script in a new process, to detect crashes; return its stdout."""
    done = completed("-X", "faulthandler", "-c", script)
    assert done.stderr == ""
    return done.stdout


def second_handle(first, core):
    """Return another handle to the same memory, like another process has."""
    handle = type(first).__new__(type(first))
    handle._init(core, first.segment, first._geometry, offset=first.offset)
    return handle


VIEWS = {
    "array": (lambda: sync.Array(3, np.uint8), lambda a: a.view),
    "claimed": (lambda: sync.Ring(4, np.uint8, 3), lambda r: r.claim()),
    "peeked": (lambda: sync.Ring(4, np.uint8, 3), lambda r: (r.push([1, 2, 3]), r.peek())[1]),
    "shared, claimed": (lambda: sync.SharedRing(4, np.uint8, 3), lambda r: r.claim()),
    "message": (
        lambda: sync.ByteRing(1 << 12),
        lambda r: (r.send(b"abc"), np.frombuffer(r.peek(), np.uint8))[1],
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_outlives_its_handle(name):
    make, look = VIEWS[name]
    thing = make()
    view = look(thing)
    before = view.tolist()
    thing.close()
    del thing
    assert view.tolist() == before


def test_message_received_in_parts_outlives_the_next():
    ring = sync.ByteRing(1 << 12)
    first, second = (bytes([i]) * (1 << 14) for i in (1, 2))
    sender = threading.Thread(target=lambda: [ring.send(m) for m in (first, second)])
    sender.start()
    view = ring.peek()
    ring.release()
    assert ring.recv() == second
    assert view == first
    sender.join()


CLOSE = """
import threading
import numpy as np
from pysampler import errors, sync

def pop_of_shared():
    ring = sync.SharedRing(2)
    return ring, lambda: ring.pop_many(1, timeout=0.03)

full = sync.Ring(2)
full.push_many([1, 2])
full_shared = sync.SharedRing(2)
full_shared.push_many([1, 2])
full_bytes = sync.ByteRing(4096)
full_bytes.send(bytes(4000))
WAITS = [
    (lambda f: (f, lambda: f.wait(0.03)))(sync.Flag()),
    (lambda b: (b, lambda: b.wait(2, timeout=0.03)))(sync.Doorbell(2)),
    (lambda r: (r, lambda: r.pop_many(1, timeout=0.03)))(sync.Ring(2)),
    (lambda r: (r, lambda: r.peek(timeout=0.03)))(sync.Ring(2)),
    (full, lambda: full.push_many([3], timeout=0.03)),
    pop_of_shared(),
    (lambda r: (r, lambda: r.peek(timeout=0.03)))(sync.SharedRing(2)),
    (full_shared, lambda: full_shared.push_many([3], timeout=0.03)),
    (lambda r: (r, lambda: r.recv(timeout=0.03)))(sync.ByteRing(4096)),
    (full_bytes, lambda: full_bytes.send(bytes(4000), timeout=0.03)),
    (lambda b: (b, lambda: b.wait(timeout=0.03)))(sync.Board({"a": np.zeros(1)})),
]
for thing, wait in WAITS:
    begun = threading.Event()

    def body(wait=wait):
        begun.set()
        try:
            wait()
        except (errors.WaitTimeoutError, errors.ClosedError):
            pass

    thread = threading.Thread(target=body)
    thread.start()
    begun.wait()
    thing.close()
    thread.join()
print("well")
"""


@pytest.mark.slow
def test_closing_during_a_wait_does_not_crash():
    assert run(CLOSE) == "well\n"


CONVERT = """
import sys
import numpy as np
from pysampler import _core, errors, sync

class Closes:
    "Closes a handle when it is converted, then yields a valid value."

    def __init__(self, handle, value):
        self.handle, self.value = handle, value

    def closed(self, *_, **__):
        self.handle.close()
        return self.value

    __index__ = __array__ = closed

    def __float__(self):
        return float(self.closed())

    def __iter__(self):
        return iter([self.closed()])

def board():
    return sync.Board({"a": np.zeros(1)})

CALLS = [
    (sync.Flag, lambda f: f.wait(Closes(f, 0.0001))),
    (sync.Flag, lambda f: f.wait(deadline=Closes(f, 1))),
    (lambda: sync.Doorbell(2), lambda b: b.post(Closes(b, 1))),
    (lambda: sync.Doorbell(2), lambda b: b.take(Closes(b, 1))),
    (lambda: sync.Doorbell(2), lambda b: b.take([0, Closes(b, 1)])),
    (lambda: sync.Doorbell(2), lambda b: b.revive(Closes(b, 1))),
    (lambda: sync.Doorbell(2), lambda b: b.member(Closes(b, 1))),
    (lambda: sync.Doorbell(2), lambda b: b.wait(Closes(b, 1), timeout=0)),
    (board, lambda b: b.wait(0, timeout=Closes(b, 0.0001))),
    (board, lambda b: b.wait(Closes(b, 0), timeout=0)),
    (board, lambda b: b.publish({"a": Closes(b, np.zeros(1))})),
    (lambda: sync.Ring(4), lambda r: r.push_many(Closes(r, np.zeros(1)))),
    (lambda: sync.Ring(4), lambda r: r.push(1.0, timeout=Closes(r, 1))),
    (lambda: sync.Ring(4), lambda r: r.claim(Closes(r, 1))),
    (lambda: sync.Ring(4), lambda r: r.publish(Closes(r, 0))),
    (lambda: sync.Ring(4), lambda r: r.pop_many(Closes(r, 1), 0)),
    (lambda: sync.Ring(4), lambda r: r.release(Closes(r, 0))),
    (lambda: sync.SharedRing(4), lambda r: r.push(1.0, timeout=Closes(r, 1))),
    (lambda: sync.SharedRing(4), lambda r: r.claim(timeout=Closes(r, 1))),
    (lambda: sync.SharedRing(4), lambda r: r.peek(Closes(r, 1))),
    (lambda: sync.SharedRing(4), lambda r: r.wait_drained(timeout=Closes(r, 1))),
    (lambda: sync.ByteRing(4096), lambda r: r.send(b"x", Closes(r, 1))),
    (lambda: sync.ByteRing(4096), lambda r: r.recv(Closes(r, 1))),
    (lambda: sync.ByteRing(4096), lambda r: r.recv(0, limit=Closes(r, 1))),
    (sync.Watch, lambda w: w.wait(known=Closes(w, 0), timeout=0)),
    (sync.Watch, lambda w: w.wait(timeout=Closes(w, 0))),
    (lambda: sync.Segment(64), lambda s: s.array((1,), np.dtype(np.uint8), Closes(s, 128))),
    (lambda: sync.Segment(640), lambda s: _core.Flag(s, Closes(s, 128))),
]
for n, (make, call) in enumerate(CALLS):
    print(n, file=sys.stderr)
    try:
        print(n, call(make()))
    except errors.ClosedError:
        pass
print("well")
"""


@pytest.mark.slow
def test_closing_during_argument_conversion_does_not_crash():
    assert completed("-c", CONVERT).stdout == "well\n"


TWO_SIZES = """
from pysampler import _core, sync

class Grows:
    "Converts to another number each time."

    def __init__(self, *sizes):
        self.sizes = list(sizes)

    def __index__(self):
        return self.sizes.pop(0)

segment = sync.Segment(1 << 20)
bell = _core.Doorbell(segment, Grows(1, 1000))
assert bell.members == 1
ring = _core.ByteRing(segment, Grows(4096, 65536))
assert ring.capacity == 4096
"""


@pytest.mark.slow
def test_arguments_are_converted_once():
    completed("-c", TWO_SIZES)


EXIT = """
import threading
from pysampler import sync

def poll(flag):
    while True:
        flag.wait(0.0005)

for _ in range(4):
    threading.Thread(target=poll, args=(sync.Flag(),), daemon=True).start()
threading.Thread(target=sync.Flag().wait, daemon=True).start()
threading.Thread(target=sync.Watch().wait, daemon=True).start()
"""


@pytest.mark.slow
def test_waiting_daemon_threads_do_not_disturb_the_exit():
    assert run(EXIT) == ""


@pytest.mark.parametrize("policy", ["spin", "yield"])
def test_ctrl_c_ends_a_wait_that_never_parks(policy):
    flag = sync.Flag(policy=sync.WaitPolicy.fixed(**{f"{policy}_ns": 1 << 62}))
    main = threading.get_ident()
    threading.Timer(0.02, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        flag.wait()


def test_waiter_keeps_its_place_during_a_long_wait():
    flag = sync.Flag()
    same = second_handle(flag, _core.Flag)
    got = []
    first = threading.Thread(target=lambda: got.append(flag.wait()))
    first.start()
    wait_until(lambda: "waiter" in repr(flag))
    end = sync.now() + 200_000_000  # several slices
    while sync.now() < end:
        with pytest.raises(errors.BusyError):
            same.wait(0.0005)
    flag.set()
    first.join()
    assert got == [True]


@pytest.mark.parametrize("kind", [sync.Ring, sync.SharedRing])
def test_threads_sharing_one_side_get_whole_records_or_an_error(kind):
    ring = kind(64, np.int64, 4096)  # large, so that copies without the GIL take a while
    total = 2_000
    got = []

    def consume():
        while len(got) < total:
            with contextlib.suppress(errors.BusyError):
                got.extend(
                    int(record[0]) if (record == record[0]).all() else -1
                    for record in ring.pop_many(16, timeout=0.001)
                )

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(0, total, 20):
        records = np.repeat(np.arange(i, i + 20), 4096).reshape(20, 4096)
        assert ring.push_many(records) == 20
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(total))


def test_push_and_pop_refuse_claimed_or_peeked_slots():
    ring = sync.Ring(8, np.int64)
    ring.claim(2)
    with pytest.raises(ValueError, match="cannot push to ring: 2 slots are claimed and not"):
        ring.push(1)
    ring.publish(0)
    ring.push_many([1, 2])
    ring.peek(2)
    with pytest.raises(ValueError, match="cannot pop from ring: 2 slots are peeked at and not"):
        ring.pop()


@pytest.mark.parametrize("kind", [sync.Ring, sync.SharedRing])
@pytest.mark.parametrize("garbage", [1, 1 << 40, (1 << 62) - 1])
def test_garbage_in_positions_does_not_loop_forever(kind, garbage):
    segment = sync.Segment(1 << 16)
    ring = kind(8, np.int64, segment=segment)
    ring.push_many([1, 2, 3])
    _, words = segment.array((160,), np.dtype(np.uint64), ring.offset)
    for word in range(0, 160, 16):  # each position in turn
        before = words[word]
        words[word] = garbage << 2
        try:
            assert ring.push_many(np.arange(20), timeout=0.01) <= 20
            assert len(ring.pop_many(8, timeout=0.01)) <= 8
        except (errors.LayoutError, errors.LostError, errors.BusyError, errors.WaitTimeoutError):
            pass
        words[word] = before


def push_and_go(ring):
    ring.push(1)
    os._exit(0)  # skips all cleanup, as multiprocessing does in children


def test_place_of_a_producer_that_died_unnoticed_is_reused():
    ring = sync.SharedRing(16, np.int64, producers=2)
    for _ in range(5):
        child = FORK.Process(target=push_and_go, args=(ring,))
        child.start()
        child.join()
        assert ring.pop() == 1
    ring.push(1)
    with pytest.raises(errors.BusyError, match="all its 2 places"):
        one, two = (second_handle(ring, _core.SharedRing) for _ in range(2))
        one.push(1)
        two.push(1)


def test_take_of_no_members_takes_none():
    bell = sync.Doorbell(2)
    assert bell.take(bell.wait(timeout=0)) == bell.take([]) == 0
    bell.post(1)
    assert bell.take(np.uint32(1)) == 1
    bell.post(1)
    assert bell.take(np.array(1)) == 1


@pytest.mark.slow
def test_doorbell_does_not_wait_for_more_members_than_are_left():
    bell = sync.Doorbell(3)
    bell.post(0)
    with sync.Watch() as watch, subprocess.Popen([sys.executable, "-c", ""]) as peer:
        watch.add(peer, bell.member(1), bell.member(0))
        watch.wait()
        for _ in range(3):
            with pytest.raises(errors.LostError) as caught:
                bell.wait()
        assert list(caught.value.members) == [1]  # the post of member 0 is kept
        assert bell.wait(1).tolist() == [0]
        bell.take([0])
        with pytest.raises(errors.LostError, match="members 0, 1 lost"):
            bell.wait(2)


def test_board_larger_than_its_segment_raises():
    large = np.broadcast_to(np.zeros(1, "u1"), 1 << 62)
    with pytest.raises(ValueError, match="cannot make board: .* are too large"):
        sync.Board(dict.fromkeys("abcd", large))
    words = (1 << 61) // 3 + 1
    with pytest.raises(ValueError, match="are too large"):
        _core.Board(sync.Segment(64), words, 24)


def test_pool_rejects_unknown_indices_and_use_after_close():
    pool = _core.Pool(sync.Segment(1 << 20), [1, 1], [1, 1], 4096)
    of_a_group = [pool.in_flight, pool.is_ready]
    for call in (*of_a_group, pool.frame_of, pool.number_of, lambda group: pool.take([group])):
        with pytest.raises(IndexError, match="group 2, expected one below 2"):
            call(2)
    for call in (pool.inbox, pool.worker, pool.renew, lambda n: pool.note([(n, b"")])):
        with pytest.raises(IndexError, match="worker 2, expected one below 2"):
            call(2)
    pool.close()
    for call in (pool.worker, pool.is_ready, pool.renew, pool.step):
        with pytest.raises(errors.ClosedError):
            call(0)
    for call in (pool.wait, pool.flush, pool.take_all, lambda: pool.ready_weight):
        with pytest.raises(errors.ClosedError):
            call()


def test_closing_a_watch_ends_its_waits():
    watch = sync.Watch()
    raised = []

    def wait():
        try:
            watch.wait()
        except errors.ClosedError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    watch.close()
    thread.join()
    assert len(raised) == 1


def test_writes_beyond_a_board_raise():
    board = sync.Board({"a": np.zeros(4)})
    for at in (1, 4, (1 << 64) - 1):
        with pytest.raises(ValueError, match="does not fit"):
            board._publish([(at, np.ones(4))])
    with pytest.raises(ValueError, match="buffer of"):
        board._read_words(np.zeros(8, np.uint64)[::2])


def test_array_view_cannot_be_replaced():
    array = sync.Array(3, np.int64)
    array.view += 2
    with pytest.raises(AttributeError, match=r"assign to array\.view"):
        array.view = np.zeros(3)
    assert np.asarray(array).tolist() == [2, 2, 2]
    with array:
        pass
    with pytest.raises(errors.ClosedError):
        array.view[0] = 1


def test_release_without_a_message_keeps_the_parts_that_came():
    ring = sync.ByteRing(4096)
    message = bytes(range(250)) * 40  # comes in parts
    child = os.fork()
    if child == 0:
        try:
            ring.send(message)
        finally:
            os._exit(0)
    wait_until(lambda: len(ring) > 2000)
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    with pytest.raises(errors.WaitTimeoutError):
        ring.peek(timeout=0.01)
    ring.release()
    os.kill(child, signal.SIGCONT)
    assert ring.recv() == message
    os.waitpid(child, 0)
