"""Fuzzes the primitives: random operations with hostile arguments, while threads close them.

    python tests/faults/fuzz_primitives.py --seconds 600

The seed of a case decides its objects, calls, arguments and threads. It runs in a child process: a
crash, a hang, or an error that no caller can understand is reported with its seed and the last
operations.
"""

import argparse
import faulthandler
import functools
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np

from pysampler import errors, sync
from pysampler.sync._segment import Handle

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from hammers import together

HANG = 30.0  # seconds that a case may take at most
CASES = 100  # per child
OPERATIONS = 60  # per thread and case
LARGEST = 64 << 20  # bytes of a segment
SHOWN = 12  # operations that a report shows

# The errors that a primitive may raise for any argument.
EXPECTED = (
    *(errors.PysamplerError, TypeError, ValueError, OverflowError, IndexError, BufferError),
    *(MemoryError, OSError),
)
# Texts of errors that come from internals.
INTERNAL = re.compile(
    r"Unable to (cast|load|convert)|bad_alloc|std::|vector|basic_string|returned .*NULL"
    r"|error return without exception|unknown (internal )?error"
)


class Raises(Exception):  # noqa: N818
    """Raised by hostile arguments when they are converted."""


class Converted:
    """Calls ``act`` when it is converted, then yields ``value``."""

    def __init__(self, act, value):
        self.act, self.value = act, value

    def __repr__(self):
        return f"<converted to {self.value!r}>"

    def _convert(self, *_, **__):
        self.act()
        return self.value

    __index__ = __int__ = __float__ = __array__ = _convert

    def __iter__(self):
        self.act()
        return iter([self.value, self])

    def __len__(self):
        return int(self._convert())


def raises():
    raise Raises


# -- arguments -------------------------------------------------------------------------------------

NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 64, 4096, -1, -(2**31), 2**30, 2**31, 2**32, 2**53, 2**61, 2**62 - 1),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**64), 10**30, True, False),
    *(0.0, -0.0, 0.5, 1e-9, 1e300, float("nan"), float("inf"), -float("inf"), Fraction(1, 10_000)),
    *(Decimal("NaN"), Decimal("0.0001"), 1j, np.int8(-1), np.uint64(2**64 - 1), np.float32(1)),
    *(np.True_, np.array(3), np.array([1, 2]), np.array([]), np.float16("nan")),
]
OTHERS = [None, "", "abc", b"", b"abc", (), [], {}, [0], [0, 1], [None], object(), int, print, ...]


def released():
    view = memoryview(bytearray(8))
    view.release()
    return view


def read_only():
    array = np.arange(4.0)
    array.flags.writeable = False
    return array


ARRAYS = [
    lambda: np.zeros(4),
    lambda: np.zeros(0),
    lambda: np.zeros((2, 3), np.int8),
    lambda: np.arange(16.0)[::2],
    lambda: np.arange(16.0)[::-1],
    lambda: np.zeros((4, 4), order="F")[:, 1],
    lambda: np.broadcast_to(np.float32(1), (1000,)),
    lambda: np.zeros(3, object),
    lambda: np.zeros(3, "M8[ns]"),
    lambda: np.zeros(3, "V0"),
    lambda: np.zeros(3, [("a", "u1"), ("b", "f8")]),
    lambda: np.zeros(3, ">f8"),
    lambda: np.array(["abc"]),
    lambda: np.frombuffer(bytearray(33), np.uint8, 32, 1).view(np.float64),  # not aligned
    lambda: np.float64(3),
    lambda: bytearray(100),
    lambda: memoryview(b"abcdef")[::2],
    lambda: bytes(9000),
    read_only,
    released,
]


class Hostile:
    """Makes arguments; some of them close one of ``handles``."""

    def __init__(self, dice, handles):
        self.dice, self.handles = dice, handles

    def number(self):
        return self.dice.choice(NUMBERS)

    def small(self):
        return self.dice.choice([0, 1, 1, 2, 3, 8])

    def close_one(self):
        self.dice.choice([one for one in self.handles if hasattr(one, "close")]).close()

    def any(self):
        kind = self.dice.random()
        if kind < 0.35:
            return self.number()
        if kind < 0.5:
            return self.dice.choice(OTHERS)
        if kind < 0.7:
            return self.dice.choice(ARRAYS)()
        if kind < 0.8:
            act = self.dice.choice([self.close_one, self.close_one, raises, lambda: None])
            return Converted(act, self.dice.choice([0, 1, 0.0001, 2**64, "x", np.zeros(1)]))
        if kind < 0.9:
            return self.dice.choice(self.handles)
        kind = type(self.dice.choice(self.handles))
        return kind.__new__(kind) if kind.__init__ is not object.__init__ else kind

    def count(self):
        return self.small() if self.dice.random() < 0.6 else self.any()

    def records(self):
        if self.dice.random() < 0.5:
            return np.zeros(self.small())
        return self.any()

    def message(self):
        if self.dice.random() < 0.5:
            return bytes(self.dice.choice([0, 1, 100, 5000]))
        return self.any()

    def wait(self):
        """Return a short time-out or deadline, so that no wait is endless."""
        if self.dice.random() < 0.7:
            return {"timeout": self.dice.choice([0, 1e-4, 1e-3])}
        act = self.dice.choice([self.close_one, raises, lambda: None])
        name = self.dice.choice(["timeout", "deadline"])
        quick = [0, -1, float("nan"), "a", b"", [], object(), np.array([0.0, 1.0]), -(2**64)]
        quick += [Converted(act, 0), Converted(act, 0.0001), Converted(act, -1)]
        return {name: self.dice.choice(quick)}


# -- calls -----------------------------------------------------------------------------------------


def signatures(text):
    """Return (name, kinds of the positional arguments, whether it waits) of each call in a text.

    A call is written as ``name(kinds)``, with ``!`` if it waits. A name without parentheses is an
    attribute: its kinds are None.
    """
    found = re.finditer(r"(\w+)(?:\((\w*)\))?(!?)", text)
    return [(one[1], one[2], one[3] == "!") for one in found]


HANDLE = signatures(
    "close() closed offset segment place() __reduce__() __repr__() __enter__() __init__(n) "
    "__init__(aa) stats replaced() slots __len__()"
)
SLOTS = (
    "publish(c) publish() peek(c)! peek(cc)! release() release(c) push(r)! push_many(r)! pop()! "
    "pop_many(cc)! producer() consumer()"
)
CALLS = {
    sync.Flag: signatures("set() clear() is_set() wait()! replaced() poster() poster_lost"),
    sync.Doorbell: signatures(
        "post(c) take(c) take(a) wait(c)! take_ready() revive(c) member(c) lost members wait()!"
    ),
    sync.Ring: signatures(f"claim(c)! claim()! {SLOTS}"),
    sync.SharedRing: signatures(f"claim()! abandon() leave() wait_drained()! {SLOTS}"),
    sync.ByteRing: signatures(
        "send(m)! recv()! peek()! release() renew() recv_into(a)! capacity producer() consumer()"
    ),
    sync.Board: signatures(
        "publish(f) publish(a) read() read(a) wait(c)! writer() version _begin() _write(ca) "
        "_publish(a) _read_words(a)"
    ),
    sync.Array: signatures("view __array__(a)"),
    sync.Segment: signatures(
        "array(asc) array(as) fd id size left close() __repr__() __init__(n) from_fd(a)"
    ),
    sync.Watch: signatures(
        "add(pa) add(paa) forget(p) settle(p) wait()! losses watched close() __repr__() "
        "_add_pid(aa) __init__()"
    ),
    sync.WaitPolicy: signatures("fixed(a) usual_ns stats __repr__() __reduce_ex__(c)"),
}


def makers(hostile):
    """Return functions that make primitives from good arguments, and from bad ones."""

    def policy():
        some = [None, None, sync.WaitPolicy(), sync.WaitPolicy.fixed(spin_ns=1000, yield_ns=1000)]
        return {"policy": hostile.dice.choice(some)}

    def fields():
        return {"a": np.zeros(3), "b": np.zeros((2, 2), np.int8)}

    good = [
        lambda: sync.Flag(**policy()),
        lambda: sync.Doorbell(3, **policy()),
        lambda: sync.Ring(8, **policy()),
        lambda: sync.SharedRing(8, producers=2, **policy()),
        lambda: sync.ByteRing(4096, **policy()),
        lambda: sync.Board(fields(), **policy()),
        lambda: sync.Array((2, 3)),
        lambda: sync.Segment(1 << 16),
        sync.Watch,
        sync.WaitPolicy,
    ]

    def segment():
        return hostile.dice.choice([None, None, sync.Segment(1 << 14), hostile.any()])

    bad = [
        lambda: sync.Flag(segment(), policy=hostile.any()),
        lambda: sync.Doorbell(hostile.any(), segment()),
        lambda: sync.Ring(hostile.count(), hostile.any(), hostile.any(), segment()),
        lambda: sync.Ring(8, high=hostile.any(), low=hostile.any()),
        lambda: sync.SharedRing(8, producers=hostile.any(), segment=segment()),
        lambda: sync.SharedRing(hostile.any(), np.int8, hostile.any()),
        lambda: sync.ByteRing(hostile.any(), segment()),
        lambda: sync.Board({"a": hostile.any()}, segment(), buffers=hostile.count()),
        lambda: sync.Board(hostile.any()),
        lambda: sync.Array(hostile.any(), hostile.any(), segment()),
        lambda: sync.Segment(hostile.any()),
        lambda: sync.WaitPolicy.fixed(spin_ns=hostile.any(), yield_ns=hostile.any()),
    ]
    return good, bad


class Case:
    """One program with a few threads."""

    def __init__(self, seed, note):
        self.seed, self.note = seed, note
        self.dice = random.Random(seed)
        self.handles = [sync.Flag()]
        self.wrong = []
        good, bad = makers(Hostile(self.dice, self.handles))
        for make in self.dice.choices(good, k=3):
            self.handles.append(make())
        for make in self.dice.choices(bad, k=3):
            self.expected("make", make)

    def expected(self, name, call):
        """Return the result of a call; record an error that it may not raise."""
        try:
            return call()
        except Raises:
            return None
        except BaseException as error:
            text = str(error)
            internal = INTERNAL.search(text) or not isinstance(error, EXPECTED)
            if isinstance(error, MemoryError):
                internal = not text.startswith("cannot ")
            if internal:
                where = "".join(traceback.format_exc().splitlines(keepends=True)[-4:])
                self.wrong.append(f"{name}: {type(error).__name__}: {text}\n{where}")
        return None

    def operate(self, seed):
        dice = random.Random(seed)
        hostile = Hostile(dice, self.handles)
        for _ in range(OPERATIONS):
            handle = dice.choice(self.handles)
            kind = next(kind for kind in type(handle).__mro__ if kind in CALLS)
            calls = CALLS[kind] + (HANDLE if issubclass(kind, Handle) else [])
            name, arguments, waits = dice.choice(calls)
            if name == "close" and dice.random() < 0.5:
                continue
            if kind is sync.Array and name in ("stats", "replaced", "slots", "__len__"):
                continue
            self.note(f"{self.seed} {kind.__name__}.{name}")
            given = [] if arguments is None else [self.argument(hostile, one) for one in arguments]
            options = hostile.wait() if waits else {}
            if not hasattr(kind, name):
                continue
            shown = f"{kind.__name__}.{name}({given!r:.300}, {options!r})"
            self.note(f"{self.seed} {shown}")
            if arguments is None:
                self.expected(shown, lambda h=handle, n=name: getattr(h, n))
            else:
                call = getattr(handle, name)
                self.expected(shown, lambda c=call, g=given, o=options: c(*g, **o))

    def argument(self, hostile, kind):
        dice = hostile.dice
        if kind == "p":  # a pid, never of a process whose death could be noticed
            return dice.choice([2**22 + 1, -1, 0, 2**40, None, "a", object()])
        if kind == "s":
            return dice.choice([np.dtype("u1"), np.dtype("f8"), np.dtype("V0"), "f4", None])
        if kind == "f":
            return {"a": hostile.any(), "b": np.zeros((2, 2))}
        make = {"a": hostile.any, "n": hostile.any, "c": hostile.count, "r": hostile.records}
        return make.get(kind, hostile.message)()

    def run(self):
        seeds = [self.dice.random() for _ in range(self.dice.choice([1, 2, 3]))]
        operations = [functools.partial(self.operate, seed) for seed in seeds]
        together(*(functools.partial(self.expected, "a thread", one) for one in operations))
        for handle in self.handles:
            if hasattr(handle, "close"):
                handle.close()


# -- the child: a number of cases ------------------------------------------------------------------


def child(seed, count, notes):
    """Run cases; the last line of the notes is the current operation."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))  # of a segment
    lock = threading.Lock()
    with Path(notes).open("w") as file:

        def note(text):
            with lock:
                file.write(f"{threading.get_ident() % 1000} {' '.join(text.split())}\n")
                file.flush()

        for n in range(count):
            faulthandler.dump_traceback_later(HANG, exit=True)
            case = Case(seed + n, note)
            case.run()
            for wrong in case.wrong:
                print(f"case {seed + n}: {wrong}")
    faulthandler.cancel_dump_traceback_later()


# -- the parent ------------------------------------------------------------------------------------


def campaign(args):
    """Return the violations, and the counts of cases and operations."""
    wrong = []
    done = Counter()
    count = CASES if args.case is None else 1
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        for first in campaigns.seeds(args, step=CASES):
            command = [sys.executable, "-W", "ignore", __file__, "--child", str(first)]
            command += ["--count", str(count), "--notes", str(notes)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = notes.read_text().splitlines()
            done["operations"] += len(lines)
            done["cases"] += count
            if ended.returncode != 0:
                what = "\n  ".join([f"the child ended with {ended.returncode} at", *lines[-SHOWN:]])
                wrong.append(f"{what}\n{ended.stderr[-3000:]}")
            if ended.stdout:
                wrong.append(ended.stdout[:3000])
            if len(wrong) >= 5:
                break
    return wrong, done


def main():
    parser = campaigns.parser(__doc__, 600, out=False)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--notes", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        child(args.child, args.count, args.notes)
        return False
    wrong, done = campaign(args)
    seed = args.seed if args.case is None else args.case
    print(f"seed {seed}: {done['cases']:,} cases, {done['operations']:,} operations")
    for what in wrong:
        print(f"WRONG, repeat it with --case: {what}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
