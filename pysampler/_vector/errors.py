"""Exceptions of a vector env that are gymnasium's as well as pysampler's."""

from __future__ import annotations

import multiprocessing

from gymnasium.error import ClosedEnvironmentError

from pysampler.errors import ClosedError, WaitTimeoutError

__all__ = ["VectorClosedError", "VectorTimeoutError"]


class VectorTimeoutError(WaitTimeoutError, multiprocessing.TimeoutError):
    """A call of a vector env took longer than its timeout."""


class VectorClosedError(ClosedError, ClosedEnvironmentError):
    """The vector env is closed."""


for _own in (VectorTimeoutError, VectorClosedError):  # tracebacks show the public names
    _own.__module__, _own.__name__ = "pysampler", _own.__bases__[0].__name__
    _own.__qualname__ = _own.__name__
