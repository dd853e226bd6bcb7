"""Cross-process primitives on shared memory: build your own sampler on them.

=============== ==================================================================================
``Segment``     shared memory: sealed, checked, without a name; ``Array`` is a NumPy view in one
``Flag``        one poster, one waiter: "there is something for you"
``Doorbell``    N members post, one waiter wants k of them, or a deadline
``Ring``        fixed-size records from one producer to one consumer, in batches, without copies
``SharedRing``  the same from many producers, any of which may die at any point
``ByteRing``    messages of any size from one producer to one consumer
``Board``       versioned arrays (policy weights): one writer, many readers, never torn
``Watch``       notices dead processes: the waits for them end at once
``WaitPolicy``  how to wait: spin, yield, park, learned from the machine and the site
=============== ==================================================================================

All of them but ``Watch`` and ``WaitPolicy`` are handles to a part of a segment. Pass them to a
child process as arguments, under any start method: ``Process(target=..., args=(flag, ring))``.
Each makes a segment of its own unless it is given one. ``close()``, or a ``with`` block, releases
the memory once no view of it is left; a handle that is garbage-collected closes itself.

Waits take ``timeout`` in seconds or ``deadline`` in ns of :func:`now`, not both; without either
they wait for ever, and with a deadline that has passed they check once. They let other threads run,
answer Ctrl-C, and raise ``LostError`` when the peer is known to be dead (see ``Watch``).
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
