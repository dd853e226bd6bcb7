"""Cross-process primitives on shared memory: build your own sampler on them.

=============== ==================================================================================
``Segment``     shared memory: sealed, checked, without a name; ``Array`` is a NumPy array in one
``Flag``        one poster, one waiter: "there is something for you"
``Doorbell``    N members post, one waiter wants k of them, or a deadline
``Ring``        fixed-size records from one producer to one consumer, in batches, without copies
``SharedRing``  the same from many producers, any of which may die at any point
``ByteRing``    messages of any size from one producer to one consumer
``Board``       versioned arrays (policy weights): one writer, many readers, never torn
``Watch``       notices dead processes: the waits for them end at once
``WaitPolicy``  how to wait: spin, yield, park, learned from the machine and the site
=============== ==================================================================================

All of them except ``Watch`` and ``WaitPolicy`` are handles to a part of a segment. Pass them to a
child process as arguments, under any start method: ``Process(target=..., args=(flag, ring))``.
Each makes a new segment unless you pass one. ``close()``, or a ``with`` block, releases the memory
once no view of it is left; a garbage-collected handle closes itself.

Waits take a ``timeout`` in seconds or a ``deadline`` in ns of :func:`now`, not both. Without either
they wait forever; with a deadline in the past they check once. They let other threads run,
respond to Ctrl-C, and raise ``LostError`` if the peer is known to be dead (see ``Watch``).

There are no locks in shared memory, so a process that dies at any point blocks no other.
"""

from pysampler.sync._board import Board
from pysampler.sync._flags import Doorbell, Flag
from pysampler.sync._rings import ByteRing, Ring, SharedRing
from pysampler.sync._segment import Array, Segment
from pysampler.sync._wait import (
    WaitCosts,
    WaitPolicy,
    WaitStats,
    memory_left,
    now,
    sleep_until,
    usable_cpus,
    wait_costs,
)
from pysampler.sync._watch import Loss, Watch

__all__ = [
    "Array",
    "Board",
    "ByteRing",
    "Doorbell",
    "Flag",
    "Loss",
    "Ring",
    "Segment",
    "SharedRing",
    "WaitCosts",
    "WaitPolicy",
    "WaitStats",
    "Watch",
    "memory_left",
    "now",
    "sleep_until",
    "usable_cpus",
    "wait_costs",
]
