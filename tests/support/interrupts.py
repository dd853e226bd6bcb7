"""Exceptions of signal handlers, at each point at which Python runs one.

Python looks for signals after a call, at the beginning of a function and at the end of a loop's
body. ``at_each_point`` runs a program again and again, and lets a real signal arrive just before
the n-th of these points within pysampler: its handler raises there.

One point in four is tried, chosen by PYSAMPLER_FAULT_SEED, by default always the same, so that two
runs of one commit try the same points. With PYSAMPLER_EVERY_POINT=1 (`make test-faults`) all are.
"""

import _thread
import dis
import gc
import itertools
import os
import random
import signal
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import pysampler

OURS = str(Path(pysampler.__file__).parent)
EVERY_POINT = os.environ.get("PYSAMPLER_EVERY_POINT") == "1"
SEED = int(os.environ.get("PYSAMPLER_FAULT_SEED", "0"))
SAMPLED = 4  # one point of this many is tried


class Interrupted(BaseException):
    """What the handler raises."""


class _Signal(int):
    # A C function called by a property: Python does not look for signals before the end of the
    # trace function that reads it.
    arrives = property(_thread.interrupt_main)


_USR1 = _Signal(signal.SIGUSR1)
_POINTS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")


@contextmanager
def handler(function):
    before = signal.signal(signal.SIGUSR1, function)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def _raise(*_):
    raise Interrupted


class _Trace:
    """Lets the signal arrive before the n-th point."""

    def __init__(self, at, only, also):
        self.left = at
        self.only = only
        self.files = OURS, *also
        self.where = None
        self.process = os.getpid()

    def __call__(self, frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(self.files):
            return None
        if self.only and code.co_name not in self.only:
            return None
        frame.f_trace = self.inside  # first: Python 3.13 asks only a frame that has it for opcodes
        frame.f_trace_opcodes = True
        return self.inside

    def inside(self, frame, event, _):
        if event != "opcode" or self.left == 0:
            return self.inside
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] in _POINTS:
            self.left -= 1
            if self.left == 0 and os.getpid() == self.process:  # or it is a fork, in which
                # signals wait until the worker outlives them
                self.where = f"{frame.f_code.co_qualname} line {frame.f_lineno}"
                sys.settrace(None)
                _USR1.arrives  # noqa: B018
        return self.inside


def points(step=1, first=1):
    """Yield the numbers of points to try: each ``step``-th, or a sample of those."""
    if EVERY_POINT:
        yield from itertools.count(first, step)
    print(f"PYSAMPLER_FAULT_SEED={SEED}")
    dice = random.Random(SEED)
    n = first
    while True:
        yield n + step * dice.randrange(SAMPLED)
        n += step * SAMPLED


def at_point(n, program, act=_raise, only=(), also=()):
    """Call a program, and ``act`` as a signal handler at its n-th point.

    ``also``: files beside those of pysampler whose points count.
    Returns (whether the program got that far, what it returned or None, where it was).
    """
    trace, result = _traced(n, program, act, only, also)
    return trace.left == 0, result, trace.where


def _traced(n, program, act, only, also=()):
    trace = _Trace(n, only, also)
    result = None
    gc.freeze()  # what an earlier program left is not finalized at a point of this one
    with handler(act), warnings.catch_warnings():
        # A socket is closed by its finalizer where the exception comes past the line that does so.
        warnings.simplefilter("ignore", ResourceWarning)
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for such a frame in settrace
        sys.settrace(trace)
        try:
            result = program()
        except Interrupted:
            pass
        finally:
            sys.settrace(None)
            gc.collect()
            gc.unfreeze()
    return trace, result


def at_each_point(program, check, act=_raise, only=(), step=1, first=1):
    """Interrupt a program at a sample of its points in turn; ``check(result, where)`` after each.

    ``result`` is None where the exception came through. Returns how many points there were.
    """
    for n in points(step, first):
        trace, result = _traced(n, program, act, only)
        check(result, trace.where)
        if trace.left:
            break
    return n - trace.left
