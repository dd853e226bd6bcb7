"""Flag and Doorbell: one process wakes another, or many wake one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pysampler import _core
from pysampler.sync._segment import Handle

if TYPE_CHECKING:
    from pysampler.sync._segment import Segment


class Flag(Handle, _core.Flag):
    """A flag with which one process tells another that data is ready.

    The poster writes data and calls ``set()``, which makes a system call only if the waiter sleeps.
    The waiter calls ``wait()``, reads the data, and then calls ``clear()``. Writes to shared memory
    before ``set()`` are visible after ``wait()``, and the poster may overwrite data that the waiter
    read before ``clear()``.

    ``wait()`` raises ``LostError`` if a ``Watch`` knows that the poster has died:
    ``watch.add(process, flag.poster())``.

    Args:
        segment: The segment to allocate the flag in; None: a new one.
        policy: How to wait; None: adaptively.

    >>> flag = Flag()
    >>> flag.set()
    True
    >>> flag.wait(timeout=1.0)
    True
    >>> flag.clear()
    True
    >>> flag.wait(timeout=0.001)
    False
    >>> flag
    <pysampler.sync.Flag not set, posts 1>
    """

    def __init__(
        self, segment: Segment | None = None, *, policy: _core.WaitPolicy | None = None
    ) -> None:
        self._init(_core.Flag, segment, (), size=_core.Flag.size_of(), policy=policy)


class Doorbell(Handle, _core.Doorbell):
    """Wait until k of several members are ready, or until a deadline.

    Member i calls ``post(i)``. ``wait(k)`` returns the indices of the ready members, longest ready
    first, once there are k of them or at the deadline. They stay ready until the waiter takes them:
    ``take(ready)``, or ``take_ready()`` for all that are ready by then. Only the k-th post makes a
    system call, and only if the waiter sleeps.

    If a ``Watch`` knows that members have died (``watch.add(process, bell.member(i))``), a wait
    raises ``LostError`` immediately: once for each loss, and whenever fewer than k members are
    left. The ``ready`` of the exception lists the members that are ready in spite of the loss.
    Posts of lost members are ignored. Call ``revive(i)`` once another process is member i.

    Args:
        members: The number of members.
        segment: The segment to allocate the doorbell in; None: a new one.
        policy: How to wait; None: adaptively.

    Raises:
        ValueError: ``members`` is not a whole number of at least 1.

    >>> bell = Doorbell(3)
    >>> bell.post(2), bell.post(0), bell.post(0)
    (True, True, False)
    >>> bell.wait(2)
    array([2, 0], dtype=uint32)
    >>> bell.take(2)
    1
    >>> bell.wait(3, timeout=0.001)
    array([0], dtype=uint32)
    >>> bell
    <pysampler.sync.Doorbell 1 of 3 ready, 2 posts>
    """

    def __init__(
        self,
        members: int,
        segment: Segment | None = None,
        *,
        policy: _core.WaitPolicy | None = None,
    ) -> None:
        size = _core.Doorbell.size_of(members)
        self._init(_core.Doorbell, segment, (members,), size=size, policy=policy)
