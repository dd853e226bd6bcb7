"""A wrong argument raises one clear sentence, and leaks nothing."""

import gc
import os
import re
from pathlib import Path

import numpy as np
import pytest

from pysampler import errors, sync

NAN = float("nan")

# By name: the call, the type of its error, and the start of the error's text.
BAD = {
    "segment of no size": (
        lambda: sync.Segment(0),
        ValueError,
        "cannot make segment: size 0, expected",
    ),
    "segment of negative size": (
        lambda: sync.Segment(-1),
        ValueError,
        "cannot make segment: size -1",
    ),
    "segment of half a byte": (
        lambda: sync.Segment(0.5),
        ValueError,
        "cannot make segment: size 0.5",
    ),
    "segment larger than memory": (
        lambda: sync.Segment(1 << 50),
        MemoryError,
        "cannot make segment of",
    ),
    "segment of a foreign fd": (
        lambda: sync.Segment.from_fd(0),
        errors.LayoutError,
        "cannot attach segment: the file descriptor is not a pysampler segment",
    ),
    "array of objects": (
        lambda: sync.Array(3, object),
        ValueError,
        "cannot make array: dtype object",
    ),
    "array of negative length": (lambda: sync.Array(-3), ValueError, "cannot make array: shape -3"),
    "doorbell without members": (
        lambda: sync.Doorbell(0),
        ValueError,
        "cannot make doorbell: members 0",
    ),
    "doorbell with 1.5": (
        lambda: sync.Doorbell(1.5),
        ValueError,
        "cannot make doorbell: members 1.5",
    ),
    "post by an unknown member": (
        lambda: sync.Doorbell(2).post(2),
        IndexError,
        "cannot post to doorbell: member 2",
    ),
    "wait for too many": (
        lambda: sync.Doorbell(2).wait(3),
        ValueError,
        "cannot wait on doorbell: count 3",
    ),
    "timeout NaN": (
        lambda: sync.Flag().wait(NAN),
        ValueError,
        "cannot wait: timeout nan, expected",
    ),
    "timeout negative": (
        lambda: sync.Flag().wait(-1),
        ValueError,
        "cannot wait: timeout -1, expected",
    ),
    "timeout and deadline": (
        lambda: sync.Flag().wait(1, deadline=1),
        ValueError,
        "cannot wait: both timeout and deadline given",
    ),
    "deadline negative": (
        lambda: sync.Flag().wait(deadline=-1),
        ValueError,
        "cannot wait: deadline -1",
    ),
    "deadline NaN": (lambda: sync.sleep_until(NAN), ValueError, "cannot sleep: deadline nan"),
    "set with an argument": (lambda: sync.Flag().set(1), TypeError, "set(): incompatible"),
    "wait with an unknown keyword": (
        lambda: sync.Flag().wait(colour="red"),
        TypeError,
        "wait(): incompatible",
    ),
    "flag without __init__": (
        lambda: sync.Flag.__new__(sync.Flag).set(),
        TypeError,
        "cannot use Flag: its __init__",
    ),
    "timeout a word": (lambda: sync.Flag().wait("soon"), TypeError, "must be real number"),
    "ring of 3 slots": (
        lambda: sync.Ring(3),
        ValueError,
        "cannot make ring: slots 3, expected a power of two",
    ),
    "ring of no slots": (lambda: sync.Ring(0), ValueError, "cannot make ring: slots 0"),
    "ring of objects": (lambda: sync.Ring(4, object), ValueError, "cannot make ring: dtype object"),
    "ring of empty records": (
        lambda: sync.Ring(4, "f4", (0,)),
        ValueError,
        "cannot make ring: records of 0",
    ),
    "ring with low >= high": (
        lambda: sync.Ring(4, high=2, low=2),
        ValueError,
        "cannot make ring: low 2, high 2, slots 4, expected low < high <= slots",
    ),
    "records of another shape": (
        lambda: sync.Ring(4, "f4", 3).push_many(np.zeros((2, 2))),
        ValueError,
        r"cannot push to ring: shape (2, 2), expected (n, *(3,))",
    ),
    "publish without claim": (
        lambda: sync.Ring(4).publish(1),
        ValueError,
        "cannot publish slots: 1",
    ),
    "release without peek": (
        lambda: sync.Ring(4).release(1),
        ValueError,
        "cannot release slots: 1",
    ),
    "claim of nothing": (
        lambda: sync.Ring(4).claim(0),
        ValueError,
        "cannot claim in ring: count 0",
    ),
    "shared publish without claim": (
        lambda: sync.SharedRing(4).publish(),
        ValueError,
        "cannot publish slot: none is claimed",
    ),
    "shared ring without producers": (
        lambda: sync.SharedRing(4, producers=0),
        ValueError,
        "cannot make ring: producers 0",
    ),
    "byte ring of half a page": (
        lambda: sync.ByteRing(2048),
        ValueError,
        "cannot make byte ring: capacity 2048, expected a power of two of whole pages",
    ),
    "message over the limit": (
        lambda: (ring := sync.ByteRing(1 << 16)).send(b"12345") or ring.recv(limit=4),
        ValueError,
        "cannot receive from byte ring: a message of over 4 bytes",
    ),
    "board without fields": (
        lambda: sync.Board({}),
        ValueError,
        "cannot make board: fields {}, expected",
    ),
    "board of objects": (
        lambda: sync.Board({"a": np.zeros(1, object)}),
        ValueError,
        "cannot make board: dtype object",
    ),
    "board with other fields": (
        lambda: sync.Board({"a": np.zeros(1)}).publish({"b": np.zeros(1)}),
        ValueError,
        "cannot publish to board: fields ['b'], expected ['a']",
    ),
    "board of another shape": (
        lambda: sync.Board({"a": np.zeros(1)}).publish({"a": np.zeros(2)}),
        ValueError,
        "cannot publish to board: a has shape (2,), expected (1,)",
    ),
    "board of whole numbers": (
        lambda: sync.Board({"a": np.zeros(1, int)}).publish({"a": np.array([1.7])}),
        ValueError,
        "cannot publish to board: a of float64 from 1.7 to 1.7, expected whole numbers",
    ),
    "board of real numbers": (
        lambda: sync.Board({"a": np.zeros(1)}).publish({"a": np.array([1j])}),
        ValueError,
        "cannot publish to board: a of complex128",
    ),
    "array of 2**64": (
        lambda: sync.Array((1 << 64,)),
        ValueError,
        "cannot make array: shape (18446744073709551616,), expected whole numbers of at least 0",
    ),
    "array whose size overflows": (
        lambda: sync.Array((1 << 40, 1 << 40), np.uint8, sync.Segment(64)),
        ValueError,
        "cannot make array: shape [1099511627776, 1099511627776] is negative or too large",
    ),
    "array in an int": (
        lambda: sync.Array(3, np.uint8, 5),
        TypeError,
        "cannot make array: segment 5, expected a Segment",
    ),
    "ring of 2**64 slots": (
        lambda: sync.Ring(1 << 64),
        ValueError,
        "cannot make ring: slots 18446744073709551616, expected a whole number below 2**63",
    ),
    "ring of huge records": (
        lambda: sync.Ring(4, shape=1 << 64),
        ValueError,
        "cannot make ring: shape 18446744073709551616, expected whole numbers of at least 0",
    ),
    "board read into a number": (
        lambda: sync.Board({"a": np.zeros(1)}).read(5),
        ValueError,
        "cannot read board: out is not the result of an earlier read",
    ),
    "board read into numbers": (
        lambda: sync.Board({"a": np.zeros(1)}).read({"a": 1}),
        ValueError,
        "cannot read board: out is not the result of an earlier read",
    ),
    "board read into read-only arrays": (
        lambda: (
            (board := sync.Board({"a": np.zeros(1)})),
            (out := board.read()[1])["a"].base.setflags(write=False),
            board.read(out),
        ),
        ValueError,
        "cannot read board: buffer of 1 words, expected 1, contiguous and writeable",
    ),
    "board published nothing": (
        lambda: sync.Board({"a": np.zeros(1)}).publish(None),
        TypeError,
        "cannot publish to board: fields None, expected a mapping",
    ),
    "board published names that do not sort": (
        lambda: sync.Board({"a": np.zeros(1)}).publish({1: 1, "b": 2}),
        ValueError,
        "cannot publish to board: fields [1, 'b'], expected ['a']",
    ),
    "wait for a version given as text": (
        lambda: sync.Board({"a": np.zeros(1)}).wait("new"),
        ValueError,
        "cannot wait on board: newer_than 'new', expected a whole number of at least 0",
    ),
    "wait for a version that never comes": (
        lambda: sync.Board({"a": np.zeros(1)}).wait(1 << 61),
        ValueError,
        "cannot wait on board: newer_than 2305843009213693952, expected one below 2**60",
    ),
    "watch of a huge pid": (
        lambda: sync.Watch().add(1 << 64),
        ValueError,
        "cannot watch 18446744073709551616: expected a pid",
    ),
    "watch with known=-1": (
        lambda: sync.Watch().wait(known=-1),
        ValueError,
        "cannot wait on watch: known -1, expected a whole number of at least 0",
    ),
    "leave with a huge exit code": (
        lambda: sync.Watch().leave_with(1, 1 << 64),
        ValueError,
        "cannot leave: code 18446744073709551616, expected 0 to 255",
    ),
    "segment of a huge fd": (
        lambda: sync.Segment.from_fd(1 << 64),
        ValueError,
        "cannot attach segment: fd 18446744073709551616, expected a file descriptor",
    ),
    "watch of pid 0": (
        lambda: sync.Watch().add(0),
        ValueError,
        "cannot watch 0: expected a pid",
    ),
    "segment too small": (
        lambda: sync.Ring(1024, segment=sync.Segment(1)),
        MemoryError,
        "cannot allocate in segment: ",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_argument_error_is_one_clear_sentence(name):
    call, error, sentence = BAD[name]
    with pytest.raises(error, match="^" + re.escape(sentence)):
        call()


@pytest.mark.slow
def test_wrong_arguments_leak_no_descriptor_or_mapping():
    def count():
        gc.collect()  # includes cycles of earlier tests
        fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no Path for each
        return fds, Path("/proc/self/maps").read_text().count("memfd:pysampler")

    def all_of_them():
        for call, error, _ in BAD.values():
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
