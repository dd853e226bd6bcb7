"""Raises from signal handlers at each point at which Python runs them.

Python checks for signals after a call, at the start of a function and at the end of a loop body.
``at_each_point`` runs a program repeatedly, and each time sends a real signal just before the n-th
of these points within pysampler: its handler raises there.

One point in eight is tried, chosen by PYSAMPLER_FAULT_SEED; its default is fixed, so that two runs
of a commit try the same points. PYSAMPLER_EVERY_POINT=1 (`make test-faults`) tries all.
"""

import _thread
import dis
import gc
import itertools
import os
import random
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import pysampler

OURS = str(Path(pysampler.__file__).parent)
EVERY_POINT = os.environ.get("PYSAMPLER_EVERY_POINT") == "1"
SEED = int(os.environ.get("PYSAMPLER_FAULT_SEED", "0"))
SAMPLED = 8  # one point of this many is tried


class Interrupted(BaseException):
    """Raised by the handler."""


class _Signal(int):
    # A property that calls a C function: Python does not check for signals before the trace
    # function that reads it has ended.
    arrives = property(_thread.interrupt_main)


_USR1 = _Signal(signal.SIGUSR1)
_POINTS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")


@contextmanager
def handler(function, number=signal.SIGUSR1):
    before = signal.signal(number, function)
    try:
        yield
    finally:
        signal.signal(number, before)


def _raise(*_):
    raise Interrupted


def signal_later(seconds, number=signal.SIGUSR1):
    """Return a timer that, once started, sends a signal to this thread."""
    return threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), number))


class _Trace:
    """Trace function that sends the signal before the n-th point."""

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
        frame.f_trace = self.inside  # first: Python 3.13 traces opcodes only in frames that have it
        frame.f_trace_opcodes = True
        return self.inside

    def inside(self, frame, event, _):
        if event != "opcode" or self.left == 0:
            return self.inside
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] in _POINTS:
            self.left -= 1
            if self.left == 0 and os.getpid() == self.process:  # not in a fork: there
                # signals are blocked until the worker is ready for them
                self.where = f"{frame.f_code.co_qualname} line {frame.f_lineno}"
                sys.settrace(None)
                _USR1.arrives  # noqa: B018
        return self.inside


def points(step=1, first=1):
    """Yield the numbers of the points to try: each ``step``-th, or a sample of them."""
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

    ``also``: files other than pysampler's whose points count.
    Returns (whether the point was reached, the program's result or None, the place).
    """
    trace, result = _traced(n, program, act, only, also)
    return trace.left == 0, result, trace.where


def _traced(n, program, act, only, also=()):
    trace = _Trace(n, only, also)
    result = None
    gc.freeze()  # keeps garbage of earlier programs from being finalized in this one
    with handler(act), warnings.catch_warnings():
        # If the exception skips the line that closes a socket, its finalizer closes it.
        warnings.simplefilter("ignore", ResourceWarning)
        sys._getframe().f_trace_opcodes = True  # Python 3.12: settrace checks for it
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

    ``result`` is None if the exception came through. Returns the number of points.
    """
    for n in points(step, first):
        trace, result = _traced(n, program, act, only)
        check(result, trace.where)
        if trace.left:
            break
    return n - trace.left
