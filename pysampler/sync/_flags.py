"""Who wakes whom: one to one, and many to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pysampler import _core
from pysampler.sync._segment import Handle

if TYPE_CHECKING:
    from pysampler.sync._segment import Segment


class Flag(Handle, _core.Flag):
    """From one poster to one waiter: "there is something for you".

    ``set()`` returns False if the last post has not been cleared; it makes a system call only if
    the waiter sleeps. ``wait()`` returns whether the flag is set, False at the deadline.
    ``clear()`` says that the waiter is done with it. What the poster wrote to shared memory
    before ``set()`` is there after ``wait()``, and what the waiter read before ``clear()`` may be
    overwritten after.

    A second waiter gets ``BusyError``. A waiter whose poster has died gets ``LostError``, if a
    ``Watch`` knows: ``watch.add(process, flag.poster())``.

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
    """``members`` post, one waiter wants some of them, or a deadline.

    ``post(i)`` says that member i is ready; False if its last post has not been taken.
    ``wait(k)`` returns the indices of those that are ready, longest ready first, once there are k
    (all of them by default) or at the deadline. They stay ready until taken: ``take(ready)``, or
    ``take_ready()`` for all there are by then. Only the post that makes up the number makes a
    system call, and only if the waiter sleeps.

    When members have died, and a ``Watch`` knows (``watch.add(process, bell.member(i))``), a wait
    ends at once with ``LostError``, once for each, and whenever those who are left cannot be k;
    its ``ready`` says who is ready all the same. The posts of the lost are ignored. Call
    ``revive(i)`` once another process is member i.

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
