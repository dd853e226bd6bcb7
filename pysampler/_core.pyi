from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions
__all__: list[str] = ['Block', 'Board', 'ByteRing', 'Call', 'Command', 'Detached', 'Doorbell', 'Entry', 'EnvBlock', 'Flag', 'FrameAccess', 'Guard', 'Infos', 'Lent', 'Loss', 'Meter', 'Part', 'Pidfd', 'PolicyRows', 'Pool', 'PythonBlock', 'Ring', 'Segment', 'SharedRing', 'Simulations', 'Tally', 'TaskRows', 'TimedReturn', 'TraceReader', 'Track', 'WaitCosts', 'WaitPolicy', 'WaitStats', 'Watch', 'Worker', 'adopt_orphans', 'default_signals', 'fork_with_signals_blocked', 'memory_left', 'now', 'outlive_signals', 'receive_parcel', 'send_descriptors', 'send_parcel', 'set_process_title', 'sleep_until', 'take_turns', 'usable_cpus', 'wait_costs']
class WaitCosts:
    """
    What waiting costs on this machine.
    """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    @property
    def cpus(self) -> int:
        """
        The number of CPUs that this process may use.
        """
    @property
    def park_ns(self) -> int:
        """
        From a wake until the woken thread runs, in ns.
        """
    @property
    def yield_ns(self) -> int:
        """
        A sched_yield with no other thread to run, in ns.
        """
class WaitStats:
    """
    What the waits at one handle have cost so far.
    """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    @property
    def awake_ns(self) -> int:
        """
        The time spent awake, in ns.
        """
    @property
    def parked_ns(self) -> int:
        """
        The time spent asleep, in ns.
        """
    @property
    def parks(self) -> int:
        """
        The sleeps in them.
        """
    @property
    def spin_ns(self) -> int:
        """
        The part of awake_ns in which it kept its CPU, in ns.
        """
    @property
    def waits(self) -> int:
        """
        The waits that were not ready at once.
        """
class WaitPolicy:
    """
    How to wait: spin, yield, then park, for times learned from the machine and from the waits so far. Each handle uses a copy of the policy given to it.
    """
    @staticmethod
    def fixed(*, spin_ns: typing.Any = 0, yield_ns: typing.Any = 0) -> WaitPolicy:
        """
        Return a policy that never learns.
        
        Args:
            spin_ns: How long to spin first, in ns.
            yield_ns: How long to yield the CPU then, before it sleeps, in ns.
        """
    def __init__(self) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    @property
    def adaptive(self) -> bool:
        """
        Whether it learns.
        """
    @property
    def guard_ns(self) -> int:
        """
        How long before a deadline it wakes to be awake in time, in ns.
        """
    @property
    def stats(self) -> WaitStats:
        """
        What its waits have cost.
        """
    @property
    def usual_ns(self) -> int:
        """
        How long waits usually last, in ns.
        """
class TimedReturn:
    def __init__(self) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def hold_until(self, deadline: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Wait until the deadline, at the end of a call whose wait came to nothing.
        """
    def wait_until(self, deadline: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return when the wait of a call must end that is to return at the deadline.
        """
    @property
    def margin_ns(self) -> int:
        """
        How long before its deadline a wait ends.
        """
class Segment:
    @staticmethod
    def attach(fd: typing.SupportsInt | typing.SupportsIndex) -> Segment:
        """
        Return the segment behind a file descriptor.
        """
    @typing.overload
    def __init__(self, same: Segment) -> None:
        ...
    @typing.overload
    def __init__(self, size: typing.Any, room: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def array(self, shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], dtype: numpy.dtype[typing.Any], offset: typing.Any = None) -> tuple[int, numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]]:
        """
        Return the offset and a view of an array, newly allocated or at `offset`.
        """
    def close(self) -> None:
        """
        Release the memory, once no handle and no view needs it.
        """
    def take(self, offset: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Allocate memory for some of the room.
        
        Args:
            offset: Where the bytes begin in the segment.
            bytes: How many.
        
        Raises:
            MemoryError: The machine or a limit has too little memory left.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def fd(self) -> int:
        """
        The descriptor of its memfd.
        """
    @property
    def id(self) -> int:
        """
        A random number, the same in every process.
        """
    @property
    def left(self) -> int:
        """
        The bytes not allocated yet; 0 in processes that did not make it.
        """
    @property
    def size(self) -> int:
        """
        The size in bytes, header included.
        """
class Loss:
    """
    A process that has died, and how.
    """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def __str__(self) -> str:
        ...
    @property
    def exit_code(self) -> int | None:
        """
        Its exit code, if it is a child that was not joined yet and exited.
        """
    @property
    def noticed_at(self) -> int:
        """
        When it was noticed, in ns of now().
        """
    @property
    def pid(self) -> int:
        """
        The process that was lost.
        """
    @property
    def signal(self) -> int | None:
        """
        The signal that ended it, if it is a child that was not joined yet.
        """
class Part:
    """
    A part of a primitive that one process plays: for Watch.add().
    """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
class Watch:
    def __init__(self) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def _add_pid(self, pid: typing.SupportsInt | typing.SupportsIndex, parts: collections.abc.Sequence[Part], replacing: bool = False) -> None:
        ...
    def _beat_every(self, interval_ns: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def _forget_pid(self, pid: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def _is_broken(self) -> bool:
        ...
    def _leave_at_end(self, socket: typing.SupportsInt | typing.SupportsIndex, code: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def _leave_with_pid(self, pid: typing.SupportsInt | typing.SupportsIndex, code: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def _paused_ns(self, since: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def _settle_pid(self, pid: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def close(self) -> None:
        """
        Stop watching, and end the waits for losses.
        """
    def wait(self, *, known: typing.Any = 0, timeout: float | None = None, deadline: int | None = None) -> list[Loss]:
        """
        Wait until more processes are lost than the caller knows of.
        
        Args:
            known: How many losses the caller knows of.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Returns:
            The losses after the first `known`, in order; none at the deadline.
        
        Raises:
            ClosedError: The watch was closed.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def losses(self) -> list[Loss]:
        """
        All losses so far, in order.
        """
    @property
    def watched(self) -> list[int]:
        """
        The pids that are watched.
        """
class Doorbell:
    @staticmethod
    def size_of(arg0: typing.Any) -> int:
        """
        Return the bytes that a doorbell of this many members takes in a segment.
        """
    def __init__(self, segment: Segment, members: typing.Any, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def member(self, member: typing.Any) -> Part:
        """
        Return what a Watch marks lost when this member's process dies.
        
        Args:
            member: The member's index.
        """
    def post(self, member: typing.Any) -> bool:
        """
        Mark a member ready, and wake the waiter if it has enough now.
        
        Args:
            member: The member's index.
        
        Returns:
            False if its last post has not been taken, or it is lost and not revived.
        """
    def revive(self, member: typing.Any) -> None:
        """
        Let another process be this member; what the dead one had posted is dropped.
        
        Args:
            member: The member's index.
        """
    def take(self, members: typing.Any) -> int:
        """
        Take the posts of one member or of several, which may then post again.
        
        Args:
            members: An index, or several.
        
        Returns:
            How many of them had posted.
        """
    def take_ready(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Take the posts of all members that are ready now.
        
        Returns:
            Their indices, longest ready first, with those that posted after the last wait.
        """
    def wait(self, count: typing.Any = None, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Wait until enough members are ready.
        
        Args:
            count: How many members to wait for; None: all.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Returns:
            The indices of the members that are ready, longest ready first; fewer than
            `count` at the deadline. They stay ready until they are taken.
        
        Raises:
            LostError: Members were lost since the last wait, or fewer than `count` are left.
                Its `members` are those lost, its `ready` those ready.
            BusyError: Another thread waits for this doorbell.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def lost(self) -> list[int]:
        """
        The members that are lost and not revived.
        """
    @property
    def members(self) -> int:
        """
        The number of members.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def stats(self) -> WaitStats:
        """
        What waits at this handle have cost.
        """
class Flag:
    @staticmethod
    def size_of() -> int:
        """
        Return the bytes that a flag takes in a segment.
        """
    def __init__(self, segment: Segment, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def clear(self) -> bool:
        """
        Clear the flag: the waiter has read what the post was about.
        
        Returns:
            False if it was not set.
        """
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def is_set(self) -> bool:
        """
        Return whether there is a post that has not been cleared.
        """
    def poster(self) -> Part:
        """
        Return what a Watch marks lost when the poster dies.
        """
    def replaced(self) -> None:
        """
        Forget the loss of the poster: another process has taken its place.
        """
    def set(self) -> bool:
        """
        Set the flag, and wake the waiter if it sleeps.
        
        Returns:
            False if the last post has not been cleared.
        """
    def wait(self, timeout: float | None = None, *, deadline: int | None = None) -> bool:
        """
        Wait until the flag is set.
        
        Args:
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Returns:
            Whether it is set: False at the deadline.
        
        Raises:
            LostError: The poster is known to be dead, and the flag is not set.
            BusyError: Another thread waits for this flag.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def poster_lost(self) -> bool:
        """
        Whether the poster is known to be dead.
        """
    @property
    def stats(self) -> WaitStats:
        """
        What waits at this handle have cost.
        """
class Ring:
    @staticmethod
    def size_of(arg0: typing.Any, arg1: numpy.dtype[typing.Any], arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], arg3: typing.Any, arg4: typing.Any) -> int:
        """
        Return the bytes that such a ring takes in a segment.
        """
    def __init__(self, segment: Segment, slots: typing.Any, dtype: numpy.dtype[typing.Any], shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], high: typing.Any = None, low: typing.Any = None, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def claim(self, count: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a view of free slots, to be filled before publish().
        
        Args:
            count: How many slots at most; at least one, fewer where the ring wraps.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: The ring stayed full.
            LostError: The consumer is known to be dead, and the ring is full.
        """
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def consumer(self) -> Part:
        """
        Return what a Watch marks lost when the consumer dies.
        """
    def peek(self, count: typing.Any = 1, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a view of the next records, until release().
        
        Args:
            count: How many records at most; fewer where the ring wraps.
            least: How many records to wait for.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: Fewer than `least` records came.
            LostError: The producers are known to be dead before that.
        """
    def pop_many(self, count: typing.Any, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a copy of the next records, and remove them.
        
        Args:
            count: How many records at most.
            least: How many records to wait for.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Returns:
            The records; fewer than `least`, perhaps none, at the deadline.
        
        Raises:
            LostError: The producers are known to be dead, and there is no record.
        """
    def producer(self) -> Part:
        """
        Return what a Watch marks lost when the producer dies.
        """
    def publish(self, count: typing.Any = None) -> None:
        """
        Hand claimed slots over to the consumer.
        
        Args:
            count: How many of the claimed slots; None: all. The others are free again.
        """
    def push_many(self, records: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], *, timeout: float | None = None, deadline: int | None = None) -> int:
        """
        Push records in order; return how many were pushed before the deadline.
        """
    def release(self, count: typing.Any = None) -> None:
        """
        Give the slots of peeked records back to the producers.
        
        Args:
            count: How many of the peeked records; None: all. The others stay in the ring.
        """
    def replaced(self) -> None:
        """
        Forget the loss of a side: another process has taken its place.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def high(self) -> int:
        """
        The number of records at which producers block, until there are only `low`.
        """
    @property
    def low(self) -> int:
        """
        The number of records at which blocked producers continue.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def slots(self) -> int:
        """
        The number of records that it holds.
        """
class SharedRing:
    @staticmethod
    def size_of(arg0: typing.Any, arg1: numpy.dtype[typing.Any], arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], arg3: typing.Any, arg4: typing.Any, arg5: typing.Any) -> int:
        """
        Return the bytes that such a ring takes in a segment.
        """
    def __init__(self, segment: Segment, slots: typing.Any, dtype: numpy.dtype[typing.Any], shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], producers: typing.Any = 64, high: typing.Any = None, low: typing.Any = None, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def abandon(self) -> bool:
        """
        Give the claimed slot up: the consumer skips it; return True.
        
        Raises:
            LostError: This process was declared dead, and its slot given to another.
        """
    def claim(self, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a view of a free slot, to be filled before publish().
        
        Later records wait until the slot is published or abandoned.
        
        Args:
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: The ring stayed full.
            LostError: The consumer is known to be dead, and the ring is full.
            BusyError: All places for producers are held by living processes.
        """
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def consumer(self) -> Part:
        """
        Return what a Watch marks lost when the consumer dies.
        """
    def leave(self) -> None:
        """
        Give this process's place as a producer back.
        """
    def peek(self, count: typing.Any = 1, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a view of the next records, until release().
        
        Args:
            count: How many records at most; fewer where the ring wraps.
            least: How many records to wait for.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: Fewer than `least` records came.
            LostError: The producers are known to be dead before that.
        """
    def pop_many(self, count: typing.Any, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a copy of the next records, and remove them.
        
        Args:
            count: How many records at most.
            least: How many records to wait for.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Returns:
            The records; fewer than `least`, perhaps none, at the deadline.
        
        Raises:
            LostError: The producers are known to be dead, and there is no record.
        """
    def producer(self) -> Part:
        """
        Return what a Watch marks lost when a producer dies.
        """
    def publish(self) -> bool:
        """
        Hand the claimed slot over to the consumer; return True.
        
        Raises:
            LostError: This process was declared dead, and its slot given to another.
        """
    def push_many(self, records: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], *, timeout: float | None = None, deadline: int | None = None) -> int:
        """
        Push records in order; return how many were pushed before the deadline.
        """
    def release(self, count: typing.Any = None) -> None:
        """
        Give the slots of peeked records back to the producers.
        
        Args:
            count: How many of the peeked records; None: all. The others stay in the ring.
        """
    def replaced(self) -> None:
        """
        Forget the loss of the consumer: another process has taken its place.
        """
    def wait_drained(self, *, timeout: float | None = None, deadline: int | None = None) -> bool:
        """
        Wait until a ring that was full has drained to its low mark.
        
        Other producers may have filled it before the next claim.
        
        Args:
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Returns:
            Whether it has: False at the deadline.
        
        Raises:
            LostError: The consumer is known to be dead.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def high(self) -> int:
        """
        The number of records at which producers block, until there are only `low`.
        """
    @property
    def low(self) -> int:
        """
        The number of records at which blocked producers continue.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def producers(self) -> int:
        """
        The number of places for producers.
        """
    @property
    def slots(self) -> int:
        """
        The number of records that it holds.
        """
class ByteRing:
    @staticmethod
    def size_of(arg0: typing.Any) -> int:
        """
        Return the bytes that such a ring takes in a segment.
        """
    def __init__(self, segment: Segment, capacity: typing.Any, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def consumer(self) -> Part:
        """
        Return what a Watch marks lost when the consumer dies.
        """
    def peek(self, timeout: float | None = None, *, limit: typing.Any = None, deadline: int | None = None) -> memoryview:
        """
        Return a read-only view of the next message, until release().
        
        Args:
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
            limit: The most bytes to accept; None: any number.
        
        Raises:
            WaitTimeoutError: No message came.
            LostError: The producer is known to be dead, and there is no message.
            ValueError: The message is larger than `limit`; it is dropped.
        """
    def producer(self) -> Part:
        """
        Return what a Watch marks lost when the producer dies.
        """
    def recv(self, timeout: float | None = None, *, limit: typing.Any = None, deadline: int | None = None) -> bytes:
        """
        Return a copy of the next message, and remove it.
        
        Args:
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
            limit: The most bytes to accept; None: any number.
        
        Raises:
            WaitTimeoutError: No message came.
            LostError: The producer is known to be dead, and there is no message.
            ValueError: The message is larger than `limit`; it is dropped.
        """
    def recv_into(self, messages: list, timeout: float | None = None, *, deadline: int | None = None) -> None:
        """
        Receive the next message, and append it to a list: no signal handler runs between.
        
        Args:
            messages: The list.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: No message came.
            LostError: The producer is known to be dead, and there is no message.
        """
    def release(self) -> None:
        """
        Remove the message that peek() returned.
        """
    def renew(self) -> None:
        """
        Empty the ring and forget losses. No other process may use it meanwhile.
        """
    def replaced(self) -> None:
        """
        Forget the loss of a side: another process has taken its place.
        """
    def send(self, message: typing_extensions.Buffer, timeout: float | None = None, *, deadline: int | None = None) -> None:
        """
        Send a message, in parts if it is larger than the ring.
        
        Args:
            message: Bytes, or any other object with a contiguous buffer.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: The ring stayed full; the message is not received.
            LostError: The consumer is known to be dead, and the ring is full.
        """
    @property
    def capacity(self) -> int:
        """
        The number of bytes that it holds, headers included.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
class Board:
    @staticmethod
    def size_of(words: typing.Any, buffers: typing.Any) -> int:
        """
        Return the bytes that a board of these buffers of words takes in a segment.
        """
    def __init__(self, segment: Segment, words: typing.Any, buffers: typing.Any, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def _begin(self) -> int:
        ...
    def _publish_words(self) -> int:
        ...
    def _read_words(self, out: numpy.typing.NDArray[numpy.uint64]) -> int:
        ...
    def _write(self, at: typing.SupportsInt | typing.SupportsIndex, field: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]) -> None:
        ...
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def replaced(self) -> None:
        """
        Forget the loss of the writer: another process has taken its place.
        """
    def wait(self, newer_than: typing.Any = 0, *, timeout: float | None = None, deadline: int | None = None) -> bool:
        """
        Wait for a newer version.
        
        Args:
            newer_than: The version that the caller has; 0 if none.
            timeout: Seconds to wait; None: for ever.
            deadline: Until when to wait, in ns of now(), instead of a timeout.
        
        Returns:
            Whether there is one: False at the deadline.
        
        Raises:
            LostError: The writer is known to be dead, and there is no newer version.
        """
    def writer(self) -> Part:
        """
        Return what a Watch marks lost when the writer dies.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def version(self) -> int:
        """
        The newest version; 0 if there is none yet.
        """
class Track:
    COMMAND: typing.ClassVar[int] = 3
    JOB: typing.ClassVar[int] = 4
    POLICY: typing.ClassVar[int] = 5
    READ: typing.ClassVar[int] = 8
    RECORDS: typing.ClassVar[int] = 9
    RESET: typing.ClassVar[int] = 2
    ROOM: typing.ClassVar[int] = 10
    SEND: typing.ClassVar[int] = 6
    SENT: typing.ClassVar[int] = 11
    SLICES: typing.ClassVar[int] = 16384
    STEP: typing.ClassVar[int] = 1
    TAKEN: typing.ClassVar[int] = 12
    WAIT: typing.ClassVar[int] = 7
    @staticmethod
    def size_of(tracks: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return how many bytes the tracks of a trace take in a segment.
        """
    def __init__(self, segment: Segment, offset: typing.SupportsInt | typing.SupportsIndex, index: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def begin(self) -> int:
        """
        Return the time in ns at which a slice begins, or 0 if no slice is wanted.
        """
    def end(self, kind: typing.SupportsInt | typing.SupportsIndex, id: typing.SupportsInt | typing.SupportsIndex, began: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Write a slice that ends now, unless `began` is 0.
        """
class TraceReader:
    def __init__(self, memory: numpy.typing.NDArray[numpy.uint8], offset: typing.SupportsInt | typing.SupportsIndex, index: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def read(self) -> bytes:
        """
        Return the slices that ended since the last call, each as 24 bytes.
        """
    @property
    def missed(self) -> int:
        """
        How many slices were overwritten before they were read.
        """
class Meter:
    BUCKETS: typing.ClassVar[int] = 40
    FIRST_BUCKET: typing.ClassVar[int] = 18
    def __init__(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8], workers: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8], index: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def at(self, env: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Count time for this env from now on.
        """
    def idle(self) -> None:
        """
        Count time for no env from now on.
        """
    def stepped(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], ns: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Count a step of this duration for each of these envs.
        """
    def trace_to(self, track: Track) -> None:
        """
        Trace what comes on this track; None: trace nothing.
        """
    def were_reset(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], ns: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Count a reset of this duration for each of these envs.
        """
    @property
    def track(self) -> Track:
        """
        What it traces to, or None.
        """
class Block:
    def __reduce__(self) -> tuple:
        ...
class Pool:
    @staticmethod
    def size_of(groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], own: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
        """
        Bytes it takes in a segment.
        """
    def __init__(self, segment: Segment, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], weights: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], capacity: typing.SupportsInt | typing.SupportsIndex, policy: WaitPolicy | None = None, own: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def any_new(self) -> bool:
        """
        Whether a group is new.
        """
    def cancel_inline(self) -> None:
        """
        Forget the inline commands that are due; they are not in flight any more.
        """
    def close(self) -> None:
        """
        Let go of the memory.
        """
    def complete_inline(self, message: bool) -> None:
        """
        The job or note that was due is done; whether its answer has to be read.
        """
    def count_waits_in(self, counter: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Add up in a number how long this process waits, in ns.
        """
    def flush(self, timeout: float | None = None, *, deadline: int | None = None) -> bool:
        """
        Until all that was sent has gone; False at the deadline.
        """
    def forget_losses(self) -> None:
        """
        Do not tell of losses again.
        """
    def frame_of(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The frame of the last command to a group.
        """
    def has_mail(self) -> bool:
        """
        Whether there are any.
        """
    def in_flight(self, group: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether a command is.
        """
    def inbox(self, worker: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Where a worker's inbox begins.
        """
    def interrupt_wait(self) -> None:
        """
        In a signal handler that interrupted a wait of this thread: end that wait.
        """
    def is_new(self, group: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether its worker was replaced, and the group has not been told since.
        """
    def is_ready(self, group: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether it has come back.
        """
    def note(self, messages: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, bytes]]) -> None:
        """
        Messages to workers, before their next commands: (worker, message) each.
        """
    def note_inline(self, note: typing.Any) -> None:
        """
        Let a note be due, in the order of commands.
        """
    def number_of(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The number of the last command to a group; a message that answers it has the same.
        """
    def owed(self, group: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether a group in flight must be sent something once more.
        """
    def renew(self, worker: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Another process takes the place of a dead worker. Its groups in flight are owed.
        """
    def round(self, frame: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Let every group step, wait until all are back, and take them. False if something else is to be done: to look for late envs, or to read a message.
        """
    def run_inline(self) -> bool:
        """
        Step the inline groups that are due, up to a job or a note; return whether nothing is left.
        """
    def send(self, requests: collections.abc.Iterable, settled: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> bool:
        """
        Send commands to groups, to all or none: (group, kind, frame, message or None) each. Groups that are settled are new no more. False if some of it has yet to be flushed.
        """
    def set_inline_blocks(self, blocks: list) -> None:
        """
        The blocks of the inline groups, which run_inline() steps.
        """
    def set_overflow(self, overflow: bool) -> None:
        """
        Whether the next inline step has an answer in any case.
        """
    def step(self, frame: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Let every group step. False if some of it has yet to be flushed.
        """
    def step_some(self, group_frames: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> bool:
        """
        Let some groups step: (group, frame) each. False if some of it has yet to be flushed.
        """
    def take(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Groups have come back, or nothing more is expected of them.
        """
    def take_all(self) -> None:
        """
        All that is in flight has come back.
        """
    def trace_to(self, track: Track) -> None:
        """
        Trace what comes on this track; None: trace nothing.
        """
    def until(self, deadline: typing.Any) -> typing.Any:
        """
        Return how long a wait may last: to its deadline, or until one is to look.
        """
    def wait(self, timeout: float | None = None, *, deadline: int | None = None) -> bool:
        """
        Until all that is in flight has come back; False at the deadline.
        """
    def wait_some(self, least: typing.SupportsInt | typing.SupportsIndex, most: typing.SupportsInt | typing.SupportsIndex, *, deadline: int | None = None) -> list[int]:
        """
        Groups that have come back, longest ready first: at least so many weights, unless the deadline comes first, at most so many.
        """
    def worker(self, worker: typing.SupportsInt | typing.SupportsIndex) -> Part:
        """
        What a Watch marks lost when the worker dies.
        """
    @property
    def due(self) -> typing.Any:
        """
        The inline command or note to run next: (kind, group, frame, note), or None.
        """
    @property
    def groups_with_mail(self) -> list[int]:
        """
        Groups of which a message follows, after a wait.
        """
    @property
    def look_at(self) -> int:
        """
        When to look for late envs next, in ns.
        """
    @look_at.setter
    def look_at(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def look_due(self) -> bool:
        """
        Whether it is time for that.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def pending(self) -> int:
        """
        How many groups are in flight.
        """
    @property
    def pending_weight(self) -> int:
        """
        Weights of what is in flight.
        """
    @property
    def ready_weight(self) -> int:
        """
        Weights of what has come back and was not taken.
        """
    @property
    def satisfied(self) -> bool:
        """
        Whether the last wait_some() came to an end before its deadline.
        """
    @property
    def unsent(self) -> int:
        """
        How many commands have yet to go.
        """
class Worker:
    def __init__(self, segment: Segment, offset: typing.SupportsInt | typing.SupportsIndex, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], index: typing.SupportsInt | typing.SupportsIndex, meter: Meter, policy: WaitPolicy | None = None, own: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def complete(self, group: typing.SupportsInt | typing.SupportsIndex, message: bool) -> None:
        """
        The group is done; whether a message follows.
        """
    def serve(self, blocks: list, report: typing.Any, flush: typing.Any) -> tuple:
        """
        Steps blocks as commanded, until another command comes: (kind, group, frame, number).
        """
    def set_overflow(self, overflow: bool) -> None:
        """
        Whether the next step is to be reported in any case.
        """
class Command:
    NOTE: typing.ClassVar[int] = 2
    REQUEST: typing.ClassVar[int] = 1
    STEP: typing.ClassVar[int] = 0
    def __reduce__(self) -> tuple:
        ...
class Entry:
    def __enter__(self) -> None:
        ...
    def __exit__(self, arg0: typing.Any, arg1: typing.Any, arg2: typing.Any) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    @property
    def nested(self) -> bool:
        """
        Whether this thread was inside already, as when a signal handler closes the object.
        """
class Guard:
    def __init__(self, thing: str, closed_message: str, closed_error: typing.Any) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def close(self) -> None:
        """
        Refuse all entries from now on.
        """
    def closing(self, what: str) -> Entry:
        """
        Return such a context for closing, which a signal handler may do while its own thread is inside.
        """
    def entry(self, what: str) -> Entry:
        """
        Return a context in which this thread alone uses the object; BusyError on entry if another thread does.
        """
    @property
    def busy(self) -> bool:
        """
        Whether another thread is inside.
        """
    @property
    def closed(self) -> bool:
        """
        Whether it refuses all entries.
        """
    @property
    def inside(self) -> bool:
        """
        Whether this thread is inside.
        """
    @property
    def mine(self) -> bool:
        """
        Whether this process made it; False in a fork of that process.
        """
class Pidfd:
    def __init__(self, pid: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def close(self) -> None:
        """
        Close the descriptor.
        """
    def ended(self) -> bool:
        """
        Return whether the process has ended.
        """
    def fileno(self) -> int:
        """
        Return the descriptor, -1 once it is closed.
        """
    def kill(self) -> bool:
        """
        Send SIGKILL, unless the process has ended; return whether that is allowed.
        """
class Detached:
    def __init__(self, socket: typing.Any) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def close(self) -> None:
        """
        Close the descriptor.
        """
    def fileno(self) -> int:
        """
        Return the descriptor, -1 once it is closed.
        """
    def shut(self) -> None:
        """
        Let the other end see that nothing more will come.
        """
class Infos:
    def __init__(self) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def add_column(self, path: tuple, mask: typing.Annotated[numpy.typing.ArrayLike, numpy.bool], values: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], form: str) -> None:
        """
        Add a column for numbers, or for arrays of one shape.
        """
    def add_node(self, path: tuple, mask: typing.Annotated[numpy.typing.ArrayLike, numpy.bool]) -> None:
        """
        Add a place for nested dicts at the end of this path of keys.
        """
    def add_pickles(self, path: tuple, mask: typing.Annotated[numpy.typing.ArrayLike, numpy.bool], rows: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], type: typing.Any) -> None:
        """
        Add a column for small objects of this type.
        """
    def row(self, frame: typing.SupportsInt | typing.SupportsIndex, env: typing.SupportsInt | typing.SupportsIndex, key: str) -> dict:
        """
        Return {key: value} of what one env gave under a key, or an empty dict.
        """
    @property
    def count(self) -> int:
        """
        The number of nodes and columns.
        """
class EnvBlock(Block):
    ERROR: typing.ClassVar[int] = 3
    FINAL_OBS: typing.ClassVar[int] = 1
    INFO: typing.ClassVar[int] = 0
    def __init__(self, envs: list, first: typing.SupportsInt | typing.SupportsIndex, frames: typing.Any, infos: Infos, meter: Meter, autoreset: str, keep: str, here: bool = False) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def ended(self, i: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether env i is reset by the next step.
        """
    def peek_overflow(self) -> list:
        """
        What take_overflow() would return.
        """
    def replace(self, seeds: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Let the envs take the place of lost ones: these are the seeds of their next resets.
        """
    def reset(self, frame: typing.SupportsInt | typing.SupportsIndex, calls: list) -> bool:
        """
        Reset each env with its (seed, options), or leave it as it is if that is None; return whether something is left over.
        """
    def restore(self, frame: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Write the results of the step in which the envs before these were lost.
        """
    def set_ended(self, i: typing.SupportsInt | typing.SupportsIndex, ended: bool) -> None:
        """
        Let the next step reset env i, or not.
        """
    def set_options(self, i: typing.SupportsInt | typing.SupportsIndex, options: typing.Any, version: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Reset env i with these options from its next reset on.
        """
    def step(self, frame: typing.SupportsInt | typing.SupportsIndex, actions: list | None = None) -> bool:
        """
        Step every env, with the actions in the frame or these; return whether something is left over.
        """
    def stop(self) -> None:
        """
        End a call that is at work in an env, once that returns; in a signal handler.
        """
    def take_overflow(self) -> list:
        """
        Return and forget what had no place in the frame: (kind, env, object) each.
        """
    def use(self, frames: typing.Any, infos: Infos, autoreset: str, keep: str) -> None:
        """
        Use other frames of the same spec from now on; the envs stay as they are.
        """
class Lent:
    """
    Memory that is lent as arrays, and written again once none of them is left.
    
    A fork of this process gets pages of its own for what is held.
    """
    def __init__(self, array: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], of_this_process: bool = False) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def view(self) -> typing.Any:
        """
        Return a view of the array.
        """
    @property
    def held(self) -> bool:
        """
        Whether a view of it is left, here or in a fork.
        """
class FrameAccess:
    def __init__(self, frames: typing.Any, infos: Infos, copy: bool, groups: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], spare: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def frame_of(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The frame that a group uses.
        """
    def groups_of(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> list[int]:
        """
        Return the groups of these envs, which must be whole groups.
        """
    def mark_all_seen(self) -> None:
        """
        Note that the caller sees the frame of all envs.
        """
    def mark_seen(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Note that the caller sees the frames of these groups.
        """
    def next_frame(self) -> int:
        """
        Return the frame that all envs use next.
        """
    def read(self, frame: typing.SupportsInt | typing.SupportsIndex) -> tuple:
        """
        Return observations, rewards, terminated, truncated, infos, and the keys of infos whose values do not share a dtype.
        """
    def read_some(self, group_frames: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> tuple:
        """
        Return what read() does, for these groups and their frames, in this order.
        """
    def seen(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The frame that the caller saw last of a group.
        """
    def start(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> list[tuple[int, int]]:
        """
        Choose the frame that each of these groups uses next: (group, frame) each.
        """
    def write(self, frame: typing.SupportsInt | typing.SupportsIndex, actions: typing.Any) -> bool:
        """
        Write actions of a common kind to the frame; return whether they are of one.
        """
    def write_some(self, group_frames: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], actions: typing.Any) -> bool:
        """
        Write actions, a row for each env last given to groups_of(), whose groups these are; return whether they are of a common kind.
        """
    @property
    def frame(self) -> int:
        """
        The frame that all envs use.
        """
class Call:
    def __init__(self, pool: typing.Any, entry: typing.Any, groups: typing.Any) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def arm_fast_path(self) -> None:
        """
        Let the next step, if no other call comes before it, be done by step().
        """
    def begin(self, name: typing.Any) -> None:
        """
        Note that this call is pending, before anything of it is sent.
        """
    def forget(self) -> None:
        """
        Note that nothing is pending or kept.
        """
    def keep(self, groups: typing.Any, results: typing.Any, error: typing.Any) -> None:
        """
        Keep what has come back.
        """
    def step(self, actions: typing.Any) -> typing.Any:
        """
        Step all envs: return the results, or whether the actions were sent if Python has to do the rest.
        """
    def use_frames(self, frames: typing.Any) -> None:
        """
        Use these frames from now on; None: none, until they are laid out anew.
        """
    @property
    def kept(self) -> typing.Any:
        """
        What has come back and is on its way to the caller: (groups, results, error), or None.
        """
    @property
    def laid_out(self) -> bool:
        """
        Whether there are frames to use.
        """
    @property
    def name(self) -> typing.Any:
        """
        The name of the call that was made last; None if it is completed.
        """
    @property
    def returned(self) -> bool:
        """
        Whether nothing is kept; to be set right before it is returned.
        """
    @returned.setter
    def returned(self, arg1: bool) -> None:
        ...
class PythonBlock(Block):
    """
    Base class of blocks in Python: step(frame) writes results into the frame and returns whether something is left over.
    """
    def __init__(self) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
class Simulations:
    def __init__(self, library: str, model: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, state: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def begin(self, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None) -> int:
        """
        Compute all fields of some simulations, or all, from their states, as after a reset; return how many failed.
        """
    def error(self, simulation: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        Return why a simulation failed in its last call, or an empty text.
        """
    def field(self, name: str) -> typing.Any:
        """
        Return a field of mjData, which every call copies out from now on, as rows of bytes; None if there is no such field.
        """
    def rows(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        Return the states, a row each: a view.
        """
    def step(self, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None, substeps: typing.SupportsInt | typing.SupportsIndex, forces: bool) -> int:
        """
        Step some simulations, or all if ids is None, and return how many failed.
        """
class TaskRows:
    def __init__(self, first: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, meter: Meter, elapsed: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], limit: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def add_column(self, key: typing.Any, values: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], mask: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]) -> None:
        """
        Write the infos of this key to these arrays.
        """
    def add_mask(self, mask: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]) -> None:
        """
        Clear this mask of infos, too, when a step begins.
        """
    def begin(self, frame: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Begin a step of all envs.
        """
    def use(self, frames: typing.Any, infos: bool) -> None:
        """
        Write to these frames from now on, with infos or without.
        """
    def write(self, frame: typing.SupportsInt | typing.SupportsIndex, observations: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], rewards: typing.Any, terminated: typing.Any, infos: dict) -> tuple[bool, typing.Any]:
        """
        Write the results of a step of all envs; return whether an episode has ended, and the infos without a column, or None.
        """
class Tally:
    """
    Counts the steps and returns of episodes across rollouts.
    """
    def __init__(self, returns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], lengths: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], lost: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def begin_episodes(self) -> None:
        """
        Begin an episode in every env: all were reset.
        """
    def count(self, rewards: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], terminated: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], truncated: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], has_final: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], made: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], starts: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], valid: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], lost: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]) -> tuple:
        """
        Count the first `made` steps of each env, and fill `starts`, `valid` and `lost`; return the envs, steps, returns and lengths of the episodes that ended.
        """
class PolicyRows:
    """
    Lets a policy that takes observations alone act for consecutive envs.
    """
    def __init__(self, policy: typing.Any, unusual: typing.Any, observation_tree: tuple, observations: list, actions: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], extras: dict, first: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def act(self, frame: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Call the policy with the observations in a frame, and write what it returns.
        """
def adopt_orphans() -> bool:
    """
    Make this process the parent of descendants whose own parent ends; return whether the system allows it.
    """
def default_signals() -> None:
    """
    Undo outlive_signals() in a forked child.
    """
def fork_with_signals_blocked() -> int:
    """
    Call os.fork(). In the child, those signals are blocked until outlive_signals().
    """
def memory_left() -> int:
    """
    Return how many bytes may still be allocated: the available memory, within the limits of the cgroups.
    """
def now() -> int:
    """
    Return the time that deadlines are given in: monotonic, in ns.
    """
def outlive_signals() -> None:
    """
    Catch SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2, so that they end neither this process nor its system calls. Programs that it starts have the defaults.
    """
def receive_parcel(socket: typing.SupportsInt | typing.SupportsIndex, parcels: list) -> None:
    """
    Append the bytes of the next parcel to a list: no signal handler runs between.
    """
def send_descriptors(socket: typing.SupportsInt | typing.SupportsIndex, message: bytes, descriptors: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
    """
    Send a short message and descriptors through a Unix socket, all or nothing.
    """
def send_parcel(socket: typing.SupportsInt | typing.SupportsIndex, head: bytes, body: bytes) -> bool:
    """
    Send bytes in memory of their own, without waiting; return whether that was possible.
    """
def set_process_title(title: str) -> None:
    """
    Set the name that ps and top show, as far as there is room.
    """
def sleep_until(deadline: typing.Any) -> None:
    """
    Sleep until a deadline, to within a microsecond or so where a CPU is free.
    
    Args:
        deadline: A time of now(), in ns.
    """
def take_turns(act: typing.Any, block: typing.Any, overflow: typing.Any, after_step: typing.Any, begin: typing.SupportsInt | typing.SupportsIndex, end: typing.SupportsInt | typing.SupportsIndex, steps: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], stopped: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], track: typing.Any) -> int:
    """
    Let a policy act and a block step from a frame to another; return the ns that the policy took.
    """
def usable_cpus() -> int:
    """
    Return how many CPUs this process may use: those of its affinity, or its cgroup's quota rounded up if that is less.
    """
def wait_costs() -> WaitCosts:
    """
    Return what waiting costs on this machine, measured once.
    """
