"""pysampler: sample Python reinforcement-learning environments in parallel.

A tour of the code, from the bottom up:

- ``csrc/`` holds the primitives, a header each, no Python in it: ``clock``, ``futex``, ``wait``
  (how to wait), ``position``, ``flag``, ``doorbell`` (who wakes whom), ``ring``, ``shared_ring``,
  ``byte_ring``, ``board`` (what travels), ``segment``, ``watch`` (where it lies, who has died).
- ``csrc/bindings/`` makes of them ``pysampler._core``.
- ``pysampler.sync`` is that for people: handles that pickle, NumPy views, errors.
- ``pysampler.errors`` is the one tree of what can go wrong.
"""

import sys

__version__ = "0.1.0.dev0"

if sys.platform != "linux":
    raise ImportError(
        f"pysampler needs Linux (it is built on futexes, memfds and pidfds); this is {sys.platform}"
    )

from pysampler import errors, sync

__all__ = ["__version__", "errors", "sync"]
