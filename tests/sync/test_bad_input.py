"""A wrong argument raises one clear sentence, and leaks nothing."""

import gc
import os
import re
from pathlib import Path

import numpy as np
import pytest

from pysampler import errors, sync

NAN = float("nan")

# A call, the start of its error's text, and the type of the error unless it is a ValueError.
BAD = [
    (lambda: sync.Segment(0), "cannot make segment: size 0, expected"),
    (lambda: sync.Segment(-1), "cannot make segment: size -1"),
    (lambda: sync.Segment(0.5), "cannot make segment: size 0.5"),
    (lambda: sync.Segment(1 << 50), "cannot make segment of", MemoryError),
    (
        lambda: sync.Segment.from_fd(0),
        "cannot attach segment: the file descriptor is not a pysampler segment",
        errors.LayoutError,
    ),
    (lambda: sync.Array(3, object), "cannot make array: dtype object"),
    (lambda: sync.Array(-3), "cannot make array: shape -3"),
    (lambda: sync.Doorbell(0), "cannot make doorbell: members 0"),
    (lambda: sync.Doorbell(1.5), "cannot make doorbell: members 1.5"),
    (lambda: sync.Doorbell(2).post(2), "cannot post to doorbell: member 2", IndexError),
    (lambda: sync.Doorbell(2).wait(3), "cannot wait on doorbell: count 3"),
    (lambda: sync.Flag().wait(NAN), "cannot wait: timeout nan, expected"),
    (lambda: sync.Flag().wait(-1), "cannot wait: timeout -1, expected"),
    (lambda: sync.Flag().wait(1, deadline=1), "cannot wait: both timeout and deadline given"),
    (lambda: sync.Flag().wait(deadline=-1), "cannot wait: deadline -1"),
    (lambda: sync.sleep_until(NAN), "cannot sleep: deadline nan"),
    (lambda: sync.Flag().set(1), "set(): incompatible", TypeError),
    (lambda: sync.Flag().wait(colour="red"), "wait(): incompatible", TypeError),
    (lambda: sync.Flag.__new__(sync.Flag).set(), "cannot use Flag: its __init__", TypeError),
    (lambda: sync.Flag().wait("soon"), "must be real number", TypeError),
    (lambda: sync.Ring(3), "cannot make ring: slots 3, expected a power of two"),
    (lambda: sync.Ring(0), "cannot make ring: slots 0"),
    (lambda: sync.Ring(4, object), "cannot make ring: dtype object"),
    (lambda: sync.Ring(4, "f4", (0,)), "cannot make ring: records of 0"),
    (
        lambda: sync.Ring(4, high=2, low=2),
        "cannot make ring: low 2, high 2, slots 4, expected low < high <= slots",
    ),
    (
        lambda: sync.Ring(4, "f4", 3).push_many(np.zeros((2, 2))),
        r"cannot push to ring: shape (2, 2), expected (n, *(3,))",
    ),
    (lambda: sync.Ring(4).publish(1), "cannot publish slots: 1"),
    (lambda: sync.Ring(4).release(1), "cannot release slots: 1"),
    (lambda: sync.Ring(4).claim(0), "cannot claim in ring: count 0"),
    (lambda: sync.SharedRing(4).publish(), "cannot publish slot: none is claimed"),
    (lambda: sync.SharedRing(4, producers=0), "cannot make ring: producers 0"),
    (
        lambda: sync.ByteRing(2048),
        "cannot make byte ring: capacity 2048, expected a power of two of whole pages",
    ),
    (
        lambda: (ring := sync.ByteRing(1 << 16)).send(b"12345") or ring.recv(limit=4),
        "cannot receive from byte ring: a message of over 4 bytes",
    ),
    (lambda: sync.Board({}), "cannot make board: fields {}, expected"),
    (lambda: sync.Board({"a": np.zeros(1, object)}), "cannot make board: dtype object"),
    (
        lambda: sync.Board({"a": np.zeros(1)}).publish({"b": np.zeros(1)}),
        "cannot publish to board: fields ['b'], expected ['a']",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).publish({"a": np.zeros(2)}),
        "cannot publish to board: a has shape (2,), expected (1,)",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1, int)}).publish({"a": np.array([1.7])}),
        "cannot publish to board: a of float64 from 1.7 to 1.7, expected whole numbers",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).publish({"a": np.ma.array([1.0], mask=True)}),
        "cannot publish to board: a is masked",
    ),
    (
        lambda: sync.Ring(4, "u1").push(300),
        "cannot push to ring: records of int64 from 300 to 300, expected whole numbers from 0",
    ),
    (
        lambda: sync.SharedRing(4).push_many(np.ma.array([1.0], mask=True)),
        "cannot push to ring: records is masked",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).publish({"a": np.array([1j])}),
        "cannot publish to board: a of complex128",
    ),
    (
        lambda: sync.Array((1 << 64,)),
        "cannot make array: shape (18446744073709551616,), expected whole numbers of at least 0",
    ),
    (
        lambda: sync.Array((1 << 40, 1 << 40), np.uint8, sync.Segment(64)),
        "cannot make array: shape [1099511627776, 1099511627776] is negative or too large",
    ),
    (
        lambda: sync.Array(3, np.uint8, 5),
        "cannot make array: segment 5, expected a Segment",
        TypeError,
    ),
    (
        lambda: sync.Ring(1 << 64),
        "cannot make ring: slots 18446744073709551616, expected a whole number below 2**63",
    ),
    (
        lambda: sync.Ring(4, shape=1 << 64),
        "cannot make ring: shape 18446744073709551616, expected whole numbers of at least 0",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).read(5),
        "cannot read board: out is not the result of an earlier read",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).read({"a": 1}),
        "cannot read board: out is not the result of an earlier read",
    ),
    (
        lambda: (
            (board := sync.Board({"a": np.zeros(1)})),
            (out := board.read()[1])["a"].base.setflags(write=False),
            board.read(out),
        ),
        "cannot read board: buffer of 1 words, expected 1, contiguous and writeable",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).publish(None),
        "cannot publish to board: fields None, expected a mapping",
        TypeError,
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).publish({1: 1, "b": 2}),
        "cannot publish to board: fields [1, 'b'], expected ['a']",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).wait("new"),
        "cannot wait on board: newer_than 'new', expected a whole number of at least 0",
    ),
    (
        lambda: sync.Board({"a": np.zeros(1)}).wait(1 << 61),
        "cannot wait on board: newer_than 2305843009213693952, expected one below 2**60",
    ),
    (lambda: sync.Watch().add(1 << 64), "cannot watch 18446744073709551616: expected a pid"),
    (
        lambda: sync.Watch().wait(known=-1),
        "cannot wait on watch: known -1, expected a whole number of at least 0",
    ),
    (
        lambda: sync.Watch().leave_with(1, 1 << 64),
        "cannot leave: code 18446744073709551616, expected 0 to 255",
    ),
    (
        lambda: sync.Segment.from_fd(1 << 64),
        "cannot attach segment: fd 18446744073709551616, expected a file descriptor",
    ),
    (lambda: sync.Watch().add(0), "cannot watch 0: expected a pid"),
    (lambda: sync.Ring(1024, segment=sync.Segment(1)), "cannot allocate in segment: ", MemoryError),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[1])
def test_wrong_argument_error_is_one_clear_sentence(case):
    call, sentence, error = (*case, ValueError)[:3]
    with pytest.raises(error, match="^" + re.escape(sentence)):
        call()


@pytest.mark.slow
def test_wrong_arguments_leak_no_descriptor_or_mapping():
    def count():
        gc.collect()  # includes cycles of earlier tests
        fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no Path for each
        return fds, Path("/proc/self/maps").read_text().count("memfd:pysampler")

    def all_of_them():
        for case in BAD:
            call, _, error = (*case, ValueError)[:3]
            with pytest.raises(error):
                call()

    all_of_them()
    before = count()
    all_of_them()
    assert count() == before


CLOSED = {
    "Segment": lambda: (sync.Segment(64), lambda s: s.size),
    "Flag": lambda: (sync.Flag(), lambda f: f.set()),
    "Doorbell": lambda: (sync.Doorbell(1), lambda b: b.wait(1)),
    "Ring": lambda: (sync.Ring(2), lambda r: r.push(1)),
    "SharedRing": lambda: (sync.SharedRing(2), lambda r: r.pop()),
    "ByteRing": lambda: (sync.ByteRing(1 << 16), lambda r: r.recv()),
    "Board": lambda: (sync.Board({"a": np.zeros(1)}), lambda b: b.read()),
    "Watch": lambda: (sync.Watch(), lambda w: w.add(1)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_use_after_close_raises_closed_error(name):
    thing, use = CLOSED[name]()
    thing.close()
    thing.close()
    assert thing.closed
    assert "closed" in repr(thing)
    with pytest.raises(errors.ClosedError, match=r"^cannot .*: it is closed$"):
        use(thing)


def test_claimed_slots_outlive_their_ring():
    ring = sync.Ring(4, np.int64)
    slots = ring.claim(4)
    ring.close()
    slots[:] = 1, 2, 3, 4
    assert slots.tolist() == [1, 2, 3, 4]


def test_wait_with_a_past_deadline_returns_at_once():
    flag = sync.Flag()
    assert not flag.wait(deadline=0)
    flag.set()
    assert flag.wait(deadline=0)
    assert sync.Doorbell(2).wait(2, timeout=0).tolist() == []
