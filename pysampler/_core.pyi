from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions
__all__: list[str] = ['Acrobot', 'BatchBlock', 'BatchRows', 'Block', 'Board', 'ByteRing', 'Call', 'CartPole', 'Classic', 'Command', 'Detached', 'Doorbell', 'Entry', 'EnvBlock', 'Flag', 'FrameAccess', 'FrameBlock', 'Guard', 'Infos', 'Lent', 'Loss', 'Meter', 'MountainCar', 'MountainCarContinuous', 'OwnChild', 'Part', 'Pendulum', 'Pidfd', 'PolicyRows', 'Pool', 'PythonBlock', 'Ring', 'Segment', 'SharedRing', 'Simulations', 'Tally', 'TimedReturn', 'TraceReader', 'Track', 'WaitCosts', 'WaitPolicy', 'WaitStats', 'Watch', 'Worker', 'adopt_orphans', 'default_signals', 'fork_with_signals_blocked', 'has_thread', 'memory_left', 'now', 'outlive_signals', 'receive_parcel', 'send_descriptors', 'send_parcel', 'set_process_title', 'sleep_until', 'standard_normal', 'take_turns', 'uniform', 'usable_cpus', 'wait_costs']
class WaitCosts:
    """
    The costs of waiting on this machine.
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
        The time from a wake until the woken thread runs, in ns.
        """
    @property
    def yield_ns(self) -> int:
        """
        The time of a sched_yield with no other thread to run, in ns.
        """
class WaitStats:
    """
    The cost of all waits at one handle so far.
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
        The number of times that they slept.
        """
    @property
    def spin_ns(self) -> int:
        """
        The part of awake_ns spent spinning, without yielding the CPU, in ns.
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
            yield_ns: How long to yield the CPU after that, before sleeping, in ns.
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
        How long before a deadline it wakes up, in ns.
        """
    @property
    def stats(self) -> WaitStats:
        """
        The cost of its waits.
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
        Wait until the deadline, at the end of a call whose wait timed out.
        """
    def wait_until(self, deadline: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return when to end the wait of a call that should return at the deadline.
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
        Allocate memory for a part of the room.
        
        Args:
            offset: The offset of the part in the segment.
            bytes: Its length.
        
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
        How many bytes are not yet allocated; 0 except in the process that made it.
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
        Its exit code, if it is a child that exited and was not joined yet.
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
    One process's role in a primitive, for Watch.add().
    """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def mark_lost(self) -> None:
        """
        Do what a Watch does when the process dies; for the end of a thread.
        """
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
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Returns:
            The losses after the first `known`, in order; empty at the deadline.
        
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
        The watched pids.
        """
class Doorbell:
    @staticmethod
    def size_of(arg0: typing.Any) -> int:
        """
        Return how many bytes a doorbell with this many members takes in a segment.
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
        Return the part that a Watch marks lost when this member's process dies.
        
        Args:
            member: The member's index.
        """
    def post(self, member: typing.Any) -> bool:
        """
        Mark a member ready, and wake the waiter if enough members are.
        
        Args:
            member: The member's index.
        
        Returns:
            False if its last post has not been taken, or it is lost and not revived.
        """
    def revive(self, member: typing.Any) -> None:
        """
        Let another process be this member; drops the post of the dead one.
        
        Args:
            member: The member's index.
        """
    def take(self, members: typing.Any) -> int:
        """
        Take the posts of one or several members, which may then post again.
        
        Args:
            members: One index, or several.
        
        Returns:
            How many of them had posted.
        """
    def take_ready(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Take the posts of all members that are ready now.
        
        Returns:
            Their indices, longest ready first, including posts after the last wait.
        """
    def wait(self, count: typing.Any = None, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Wait until enough members are ready.
        
        Args:
            count: How many members to wait for; None: all.
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Returns:
            The indices of the ready members, longest ready first; fewer than `count` at
            the deadline. They stay ready until they are taken.
        
        Raises:
            LostError: Members were lost since the last wait, or fewer than `count` are left.
                Its `members` lists the lost ones, its `ready` the ready ones.
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
        Its offset in its segment.
        """
    @property
    def stats(self) -> WaitStats:
        """
        The cost of waits at this handle.
        """
class Flag:
    @staticmethod
    def size_of() -> int:
        """
        Return how many bytes a flag takes in a segment.
        """
    def __init__(self, segment: Segment, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def clear(self) -> bool:
        """
        Clear the flag once the waiter has handled the post.
        
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
        Return the part that a Watch marks lost when the poster dies.
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
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Returns:
            False if it is not set at the deadline.
        
        Raises:
            LostError: The flag is not set, and the poster is known to be dead.
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
        Its offset in its segment.
        """
    @property
    def poster_lost(self) -> bool:
        """
        Whether the poster is known to be dead.
        """
    @property
    def stats(self) -> WaitStats:
        """
        The cost of waits at this handle.
        """
class Ring:
    @staticmethod
    def size_of(arg0: typing.Any, arg1: numpy.dtype[typing.Any], arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], arg3: typing.Any, arg4: typing.Any) -> int:
        """
        Return how many bytes such a ring takes in a segment.
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
            count: How many slots at most; at least one, fewer if the ring wraps.
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: The ring stayed full.
            LostError: The ring is full, and the consumer is known to be dead.
        """
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def consumer(self) -> Part:
        """
        Return the part that a Watch marks lost when the consumer dies.
        """
    def peek(self, count: typing.Any = 1, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a view of the next records, valid until release().
        
        Args:
            count: How many records at most; fewer if the ring wraps.
            least: How many records to wait for.
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: Fewer than `least` records came.
            LostError: Fewer than `least` came, and the producers are known to be dead.
        """
    def pop_many(self, count: typing.Any, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Remove the next records, and return a copy of them.
        
        Args:
            count: How many records at most.
            least: How many records to wait for.
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Returns:
            The records; at the deadline fewer than `least`, perhaps none.
        
        Raises:
            LostError: The ring is empty, and the producers are known to be dead.
        """
    def producer(self) -> Part:
        """
        Return the part that a Watch marks lost when the producer dies.
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
        The number of records at which producers block, until only `low` are left.
        """
    @property
    def low(self) -> int:
        """
        The number of records at which blocked producers continue.
        """
    @property
    def offset(self) -> int:
        """
        Its offset in its segment.
        """
    @property
    def slots(self) -> int:
        """
        The number of records that fit.
        """
class SharedRing:
    @staticmethod
    def size_of(arg0: typing.Any, arg1: numpy.dtype[typing.Any], arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], arg3: typing.Any, arg4: typing.Any, arg5: typing.Any) -> int:
        """
        Return how many bytes such a ring takes in a segment.
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
        Give the claimed slot up, so that the consumer skips it; return True.
        
        Raises:
            LostError: This process was declared dead, and its slot given to another.
        """
    def claim(self, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a view of a free slot, to be filled before publish().
        
        Later records wait until the slot is published or abandoned.
        
        Args:
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: The ring stayed full.
            LostError: The ring is full, and the consumer is known to be dead.
            BusyError: All places for producers are held by living processes.
        """
    def close(self) -> None:
        """
        Release the memory, once no view of it is left.
        """
    def consumer(self) -> Part:
        """
        Return the part that a Watch marks lost when the consumer dies.
        """
    def leave(self) -> None:
        """
        Give this process's place as a producer back.
        """
    def peek(self, count: typing.Any = 1, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a view of the next records, valid until release().
        
        Args:
            count: How many records at most; fewer if the ring wraps.
            least: How many records to wait for.
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: Fewer than `least` records came.
            LostError: Fewer than `least` came, and the producers are known to be dead.
        """
    def pop_many(self, count: typing.Any, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Remove the next records, and return a copy of them.
        
        Args:
            count: How many records at most.
            least: How many records to wait for.
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Returns:
            The records; at the deadline fewer than `least`, perhaps none.
        
        Raises:
            LostError: The ring is empty, and the producers are known to be dead.
        """
    def producer(self) -> Part:
        """
        Return the part that a Watch marks lost when a producer dies.
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
        Wait until a full ring has drained to its low mark.
        
        Other producers may fill it again before the next claim.
        
        Args:
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Returns:
            False if it has not drained at the deadline.
        
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
        The number of records at which producers block, until only `low` are left.
        """
    @property
    def low(self) -> int:
        """
        The number of records at which blocked producers continue.
        """
    @property
    def offset(self) -> int:
        """
        Its offset in its segment.
        """
    @property
    def producers(self) -> int:
        """
        The number of places for producers.
        """
    @property
    def slots(self) -> int:
        """
        The number of records that fit.
        """
class ByteRing:
    @staticmethod
    def size_of(arg0: typing.Any) -> int:
        """
        Return how many bytes such a ring takes in a segment.
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
        Return the part that a Watch marks lost when the consumer dies.
        """
    def peek(self, timeout: float | None = None, *, limit: typing.Any = None, deadline: int | None = None) -> memoryview:
        """
        Return a read-only view of the next message, valid until release().
        
        Args:
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
            limit: The most bytes to accept; None: any number.
        
        Raises:
            WaitTimeoutError: No message came.
            LostError: There is no message, and the producer is known to be dead.
            ValueError: The message is larger than `limit`; it is dropped.
        """
    def producer(self) -> Part:
        """
        Return the part that a Watch marks lost when the producer dies.
        """
    def recv(self, timeout: float | None = None, *, limit: typing.Any = None, deadline: int | None = None) -> bytes:
        """
        Remove the next message, and return a copy of it.
        
        Args:
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
            limit: The most bytes to accept; None: any number.
        
        Raises:
            WaitTimeoutError: No message came.
            LostError: There is no message, and the producer is known to be dead.
            ValueError: The message is larger than `limit`; it is dropped.
        """
    def recv_into(self, messages: list, timeout: float | None = None, *, deadline: int | None = None) -> None:
        """
        Receive the next message and append it to a list; no signal handler runs in between.
        
        Args:
            messages: The list.
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: No message came.
            LostError: There is no message, and the producer is known to be dead.
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
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Raises:
            WaitTimeoutError: The ring stayed full; the consumer will not get the message.
            LostError: The ring is full, and the consumer is known to be dead.
        """
    @property
    def capacity(self) -> int:
        """
        The number of bytes that fit, headers included.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def offset(self) -> int:
        """
        Its offset in its segment.
        """
class Board:
    @staticmethod
    def size_of(words: typing.Any, buffers: typing.Any) -> int:
        """
        Return how many bytes a board of this size takes in a segment.
        """
    def __init__(self, segment: Segment, words: typing.Any, buffers: typing.Any, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def _publish(self, fields: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]]]) -> int:
        ...
    def _read_words(self, out: numpy.typing.NDArray[numpy.uint64]) -> int:
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
            timeout: Seconds to wait; None: forever.
            deadline: When to stop waiting, in ns of now(), instead of a timeout.
        
        Returns:
            False if there is no newer version at the deadline.
        
        Raises:
            LostError: There is no newer version, and the writer is known to be dead.
        """
    def writer(self) -> Part:
        """
        Return the part that a Watch marks lost when the writer dies.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def offset(self) -> int:
        """
        Its offset in its segment.
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
        Attribute time to this env from now on.
        """
    def idle(self) -> None:
        """
        Attribute time to no env from now on.
        """
    def stepped(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], ns: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Count a step of `ns` for each of these envs.
        """
    def trace_to(self, track: Track) -> None:
        """
        Trace to this track from now on; None turns tracing off.
        """
    def were_reset(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], ns: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Count a reset of `ns` for each of these envs.
        """
    @property
    def track(self) -> Track:
        """
        The track it traces to, or None.
        """
class Block:
    def __reduce__(self) -> tuple:
        ...
    @property
    def halted(self) -> bool:
        """
        Whether an exception has ended a wait: the same command goes on with it.
        """
    @halted.setter
    def halted(self, arg0: bool) -> None:
        ...
    @property
    def torn(self) -> bool:
        """
        Whether an exception has ended a step half-way: replace the envs.
        """
    @torn.setter
    def torn(self, arg0: bool) -> None:
        ...
class Pool:
    @staticmethod
    def size_of(groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], inline: typing.SupportsInt | typing.SupportsIndex = 0) -> int:
        """
        Return how many bytes it takes in a segment.
        """
    def __init__(self, segment: Segment, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], weights: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], capacity: typing.SupportsInt | typing.SupportsIndex, policy: WaitPolicy | None = None, inline: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def cancel_inline(self) -> None:
        """
        Drop the inline commands that are due; they are no longer in flight.
        """
    def close(self) -> None:
        """
        Release the memory.
        """
    def complete_inline(self, message: bool) -> None:
        """
        Complete the job or note that was due; `message`: its answer must be read.
        """
    def count_waits_in(self, counter: numpy.typing.NDArray[numpy.int64]) -> None:
        """
        Add the ns that this process waits to the number in `counter`.
        """
    def flush(self, timeout: float | None = None, *, deadline: int | None = None) -> bool:
        """
        Wait until every command has gone to its worker; return False at the deadline.
        """
    def forget_losses(self) -> None:
        """
        Do not report past losses again.
        """
    def frame_of(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return the frame of a group's last command.
        """
    def has_mail(self) -> bool:
        """
        Whether there are any `groups_with_mail`.
        """
    def in_flight(self, group: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether a group has a command in flight.
        """
    def inbox(self, worker: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return the offset of a worker's inbox.
        """
    def interrupt_wait(self) -> None:
        """
        End the wait of this thread that the calling signal handler interrupted.
        """
    def is_ready(self, group: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether a group is back.
        """
    def note(self, messages: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, bytes]]) -> None:
        """
        Send messages to workers before their next commands: (worker, message) pairs.
        """
    def note_inline(self, note: typing.Any) -> None:
        """
        Add an inline note in order.
        """
    def number_of(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Return the number of a group's last command, which the answer repeats.
        """
    def renew(self, worker: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Let another process replace a dead worker; its groups in flight need resend().
        """
    def resend(self, groups: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, bytes | None]]) -> bool:
        """
        Send groups in flight their last commands again, each with the message of a request, or None: (group, message) pairs. Return False if commands remain to be flushed.
        """
    def round(self, frame: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Step every group, wait until all are back, and take them; return False if something is left to do: flush, look for late envs, or read a message.
        """
    def run_inline(self) -> bool:
        """
        Step the inline groups that are due, up to a job or a note; return whether nothing is left.
        """
    def send(self, requests: collections.abc.Iterable) -> bool:
        """
        Send commands (group, kind, frame, message or None, steps), all or none of them; return False if commands remain to be flushed.
        """
    def send_notes(self, worker: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Send a worker these messages now, without a command; return False if some remain to be flushed.
        """
    def set_inline_blocks(self, blocks: list) -> None:
        """
        Set the blocks of the inline groups, for run_inline().
        """
    def set_overflow(self, overflow: bool) -> None:
        """
        Set whether the next inline step has overflow, whatever its block returns.
        """
    def step(self, frame: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Send a step to every group; return False if commands remain to be flushed.
        """
    def step_some(self, group_frames: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], kind: typing.SupportsInt | typing.SupportsIndex = 0, steps: typing.SupportsInt | typing.SupportsIndex = 1) -> bool:
        """
        Send a step, or a chunk of steps, to some groups, given as (group, frame) pairs; return False if commands remain to be flushed.
        """
    def take(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Take groups that are back, or whose answers are no longer wanted.
        """
    def take_all(self) -> None:
        """
        Take all groups in flight.
        """
    def trace_to(self, track: Track) -> None:
        """
        Trace to this track from now on; None turns tracing off.
        """
    def until(self, deadline: typing.Any) -> typing.Any:
        """
        Return when a wait must end: at its deadline or at `look_at`.
        """
    def wait(self, timeout: typing.Any = None, *, deadline: typing.Any = None) -> bool:
        """
        Wait until all groups in flight are back; return False at the deadline.
        """
    def wait_some(self, least: typing.SupportsInt | typing.SupportsIndex, most: typing.SupportsInt | typing.SupportsIndex, *, deadline: int | None = None) -> list[int]:
        """
        Wait until the groups that are back weigh `least`, or until the deadline; return them, longest ready first, up to a weight of `most`.
        """
    def wake_left(self) -> None:
        """
        Wake the workers that others should have woken, but may not have.
        """
    def worker(self, worker: typing.SupportsInt | typing.SupportsIndex) -> Part:
        """
        Return the part that a Watch marks lost when the worker dies.
        """
    @property
    def due(self) -> typing.Any:
        """
        The inline job or note to run next: (kind, group, frame, note).
        """
    @property
    def groups_with_mail(self) -> list[int]:
        """
        The groups that the last wait found with a message to read.
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
        Whether `look_at` has passed.
        """
    @property
    def offset(self) -> int:
        """
        Its offset in its segment.
        """
    @property
    def pending(self) -> int:
        """
        How many groups are in flight.
        """
    @property
    def pending_weight(self) -> int:
        """
        The weight of groups in flight.
        """
    @property
    def ready_weight(self) -> int:
        """
        The weight of groups that are back and not taken.
        """
    @property
    def satisfied(self) -> bool:
        """
        If wait_some() was in time.
        """
    @property
    def unsent(self) -> int:
        """
        How many commands have not gone yet.
        """
class Worker:
    def __init__(self, segment: Segment, offset: typing.SupportsInt | typing.SupportsIndex, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], index: typing.SupportsInt | typing.SupportsIndex, meter: Meter, policy: WaitPolicy | None = None, inline: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def complete(self, group: typing.SupportsInt | typing.SupportsIndex, message: bool) -> None:
        """
        Complete the group's command; `message`: one follows.
        """
    def end_commands(self) -> None:
        """
        Let serve() raise LostError once no command is left; any thread may call this.
        """
    def serve(self, blocks: list, report: typing.Any, flush: typing.Any) -> tuple:
        """
        Step blocks as commanded until another command comes; return that one as (kind, group, frame, number).
        """
    def set_overflow(self, overflow: bool) -> None:
        """
        Set whether the next step has overflow, whatever its block returns.
        """
class Command:
    CHUNK: typing.ClassVar[int] = 3
    CHUNK_LAST: typing.ClassVar[int] = 4
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
        Whether this thread was inside already: a signal handler closes the object.
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
        Return such a context for closing, which a signal handler may enter while its own thread is inside.
        """
    def entry(self, what: str) -> Entry:
        """
        Return a context in which only this thread uses the object; entering raises BusyError if another thread does.
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
    def fileno(self) -> int:
        """
        Return the descriptor, or -1 once it is closed.
        """
    def kill(self) -> bool:
        """
        Send SIGKILL unless the process has ended; return False if that is not permitted.
        """
class OwnChild(Pidfd):
    def __init__(self, start: typing.Any) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def status(self) -> int | None:
        """
        Reap it and kill its group; return its exit code, or minus the signal, if known.
        """
    @property
    def pid(self) -> int:
        """
        Its pid; 0 in a fork.
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
        Return the descriptor, or -1 once it is closed.
        """
    def shut(self) -> None:
        """
        Tell the other end that nothing more will be sent.
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
        Add a node for nested dicts at the end of this path of keys.
        """
    def add_pickles(self, path: tuple, mask: typing.Annotated[numpy.typing.ArrayLike, numpy.bool], rows: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], type: typing.Any) -> None:
        """
        Add a column for small objects of this type.
        """
    def row(self, frame: typing.SupportsInt | typing.SupportsIndex, env: typing.SupportsInt | typing.SupportsIndex, key: str) -> dict:
        """
        Return an env's value under a key as {key: value}, or an empty dict.
        """
    def store(self, frame: typing.SupportsInt | typing.SupportsIndex, env: typing.SupportsInt | typing.SupportsIndex, info: dict, under: str | None = None) -> dict | None:
        """
        Write an env's info, at the top or under a key; return the rest as a dict, or None.
        """
    @property
    def count(self) -> int:
        """
        The number of nodes and columns.
        """
class FrameBlock(Block):
    ERROR: typing.ClassVar[int] = 3
    FINAL_OBS: typing.ClassVar[int] = 1
    INFO: typing.ClassVar[int] = 0
    LOST: typing.ClassVar[int] = 5
    NO_RESULTS: typing.ClassVar[int] = 7
    UNLIKE: typing.ClassVar[int] = 4
    UNSEEN: typing.ClassVar[int] = 6
    UNSHAPED_OBS: typing.ClassVar[int] = 2
    def __reduce__(self) -> tuple:
        ...
    def is_fresh(self, i: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether env i has yet to begin.
        """
    def peek_overflow(self) -> list:
        """
        Return the overflow, like take_overflow(), without forgetting it.
        """
    def replace(self, seeds: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex | None], over: collections.abc.Sequence[bool]) -> None:
        """
        Let the envs replace others, of which some had ended their episodes: their next resets use these seeds.
        """
    def reset(self, frame: typing.SupportsInt | typing.SupportsIndex, calls: list) -> bool:
        """
        Reset each env with its (seed, options), or leave it unchanged if that is None and it is not fresh; return whether there is overflow.
        """
    def rest(self, i: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Let steps leave env i alone until a reset.
        """
    def set_ended(self, i: typing.SupportsInt | typing.SupportsIndex, ended: bool) -> None:
        """
        Set whether the next step resets env i, which is not fresh any more.
        """
    def set_options(self, i: typing.SupportsInt | typing.SupportsIndex, options: typing.Any, version: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Use these options for env i from its next reset on.
        """
    def step(self, frame: typing.SupportsInt | typing.SupportsIndex, actions: typing.Any = None) -> bool:
        """
        Step every env with the actions in the frame or these; return whether there is overflow.
        """
    def step_chunk(self, frame: typing.SupportsInt | typing.SupportsIndex, steps: typing.SupportsInt | typing.SupportsIndex, last: bool) -> bool:
        """
        Let every env make several steps, from the frame on, until its episode ends; with `last`, only its last results are read, and all rewards.
        """
    def stop(self) -> None:
        """
        End the interrupted call as soon as its env returns; for signal handlers.
        """
    def take_overflow(self) -> list:
        """
        Return and forget the results that did not fit: (kind, env, object) tuples, with the step after a chunk.
        """
    def use(self, frames: typing.Any, infos: Infos, autoreset: str, keep: str) -> None:
        """
        Use these frames from now on; the envs stay unchanged.
        """
    @property
    def count(self) -> int:
        """
        The number of envs.
        """
    @property
    def double_rewards(self) -> typing.Any:
        """
        Which envs' last rewards were NumPy's float64; True: those of all.
        """
    @double_rewards.setter
    def double_rewards(self, arg0: typing.Any) -> None:
        ...
    @property
    def ended(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        Whether the next step resets each env.
        """
    @property
    def failed(self) -> bool:
        """
        Whether the last call raised before it had written all results.
        """
    @property
    def first(self) -> int:
        """
        The index of the first env.
        """
    @property
    def fresh(self) -> bool:
        """
        Whether an env has not begun since it replaced another.
        """
    @property
    def options(self) -> dict:
        """
        By env, the options of its later resets and their version.
        """
    @property
    def resting(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        Whether steps leave each env alone.
        """
    @property
    def seeds(self) -> dict:
        """
        By env, the seeds that replace() set and no reset has used.
        """
    @property
    def used(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        By env, the version of its options.
        """
class EnvBlock(FrameBlock):
    def __init__(self, envs: list, first: typing.SupportsInt | typing.SupportsIndex, meter: Meter, inline: bool = False) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def last(self, i: typing.SupportsInt | typing.SupportsIndex) -> typing.Any:
        """
        The last observation of env i, or None.
        """
    def report_unlike(self, observations: bool, ints: bool) -> None:
        """
        Report rewards, and observations too or not, that the frame cannot hold unchanged.
        """
    def set_last(self, i: typing.SupportsInt | typing.SupportsIndex, observation: typing.Any) -> None:
        """
        Set the last observation of env i, which a reset that leaves it unchanged returns.
        """
class BatchBlock(FrameBlock):
    def __init__(self, stepper: typing.Any, count: typing.SupportsInt | typing.SupportsIndex, first: typing.SupportsInt | typing.SupportsIndex, meter: Meter, limit: typing.SupportsInt | typing.SupportsIndex | None, inline: bool = False) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def set_states(self, ids: typing.Any, states: typing.Any) -> None:
        """
        Set the states of envs.
        """
    def set_stopped(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.bool] | None) -> None:
        """
        Let the envs in this mask make no steps, in a chunk; None: let all.
        """
    def states(self, ids: typing.Any) -> typing.Any:
        """
        Return the states of envs, one row each.
        """
    def why_leave(self, frame: typing.SupportsInt | typing.SupportsIndex, actions: typing.Any) -> typing.Any:
        """
        Return why the envs cannot step together; None if they can.
        """
    def why_not_reset(self, calls: list) -> typing.Any:
        """
        Return why the envs cannot be reset together; None if they can.
        """
    @property
    def begun(self) -> numpy.typing.NDArray[numpy.bool]:
        """
        Whether each env was reset at least once.
        """
    @property
    def elapsed(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        The number of steps of each env's episode.
        """
    @property
    def stepper(self) -> typing.Any:
        """
        What steps the envs.
        """
class Lent:
    """
    Memory that is lent as arrays and written again once none of them is left.
    
    A fork of this process gets its own copy of lent memory that is held.
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
    def next_frame(self) -> int:
        """
        Choose and return the frame that all envs use next.
        """
    def read(self, frame: typing.SupportsInt | typing.SupportsIndex) -> tuple:
        """
        Return observations, rewards, terminated, truncated, infos, and the keys of infos whose values do not share a dtype.
        """
    def read_chunks(self, chunks: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> tuple:
        """
        Read the last results of each env after chunks of some groups, given as (group, first frame, steps): observations, terminated, truncated, infos, mixed keys as in read(), the frames of these results, and how many actions each env took.
        """
    def read_some(self, group_frames: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> tuple:
        """
        Like read(), for these groups and their frames, in this order.
        """
    def seen(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The frame in which the caller last saw a group.
        """
    def start(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> list[tuple[int, int]]:
        """
        Choose the frame that each of these groups uses next; return (group, frame) pairs.
        """
    def write(self, frame: typing.SupportsInt | typing.SupportsIndex, actions: typing.Any) -> bool:
        """
        Write actions of a common kind to the frame; return False for any other kind.
        """
    def write_some(self, group_frames: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], actions: typing.Any) -> bool:
        """
        Write actions of a common kind, one row for each env last passed to groups_of(), whose groups these are; return False for any other kind.
        """
    @property
    def frame(self) -> int:
        """
        The frame that all envs use.
        """
class Call:
    def __init__(self, pool: typing.Any, entry: typing.Any) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def arm_fast_path(self, chunk: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Let step() do the next step, or step_chunk() the next chunk of this many steps, unless another call comes first.
        """
    def begin(self, name: str) -> None:
        """
        Note that this call is pending, before its first command is sent.
        """
    def forget(self) -> None:
        """
        Note that nothing is pending.
        """
    def hand_over(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None, seen: bool) -> None:
        """
        Note that the results of these groups, None: all, have been read: once they are `returned` the groups are taken, and the caller has `seen` their frames.
        """
    def step(self, actions: typing.Any) -> typing.Any:
        """
        Step all envs and return the results; if Python must do the rest, return whether the actions were sent.
        """
    def step_chunk(self, actions: typing.Any) -> typing.Any:
        """
        The same for a chunk of steps, of which only the last observations are returned.
        """
    def use_frames(self, frames: typing.Any) -> None:
        """
        Use these frames from now on; None: there are none until they are laid out anew.
        """
    @property
    def laid_out(self) -> bool:
        """
        Whether there are frames to use.
        """
    @property
    def name(self) -> typing.Any:
        """
        The pending call; a send until another.
        """
    @property
    def on_their_way(self) -> typing.Any:
        """
        The groups that were handed over and not returned, or None.
        """
    @property
    def returned(self) -> bool:
        """
        Whether no results are on their way; set it right before returning them, or to False when an exception keeps them from the caller.
        """
    @returned.setter
    def returned(self, arg1: bool) -> None:
        ...
class PythonBlock(Block):
    """
    Base class of blocks in Python: step(frame) writes results into the frame and returns whether there is overflow.
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
        Compute all fields of some simulations, or all if ids is None, from their states, as after a reset; return how many failed.
        """
    def error(self, simulation: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        Return why a simulation failed in its last call, or an empty string.
        """
    def field(self, name: str) -> typing.Any:
        """
        Return a field of mjData as rows of bytes, updated by every call from now on; None if mjData has no such field.
        """
    def rows(self) -> numpy.typing.NDArray[numpy.float64]:
        """
        Return a view of the states, one row for each simulation.
        """
    def step(self, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None, substeps: typing.SupportsInt | typing.SupportsIndex, forces: bool) -> int:
        """
        Step some simulations, or all if ids is None; return how many failed.
        """
class BatchRows:
    def __init__(self, first: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, meter: Meter, elapsed: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], limit: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def begin(self, frame: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Begin a step or a reset.
        """
    def use(self, frames: typing.Any, infos: Infos, all_infos: bool) -> None:
        """
        Write to these frames from now on, with all infos or those of an episode's end.
        """
    def write(self, frame: typing.SupportsInt | typing.SupportsIndex, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None, observations: typing.Any, rewards: typing.Any, terminated: typing.Any, infos: dict, truncated: typing.Any, uncounted: typing.Any = None) -> tuple[typing.Any, typing.Any]:
        """
        Write the results of a step of some envs, or all if ids is None; return the rows whose episodes have ended, or None, and the infos without a column, or None. If observations are None, they are not written. Without `truncated`, the limit applies. Steps of envs in the mask `uncounted` do not count.
        """
    def write_infos(self, frame: typing.SupportsInt | typing.SupportsIndex, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int32], infos: dict, final: bool = False) -> typing.Any:
        """
        Write infos of some envs, some rows of arrays; with `final` to final_info. Return the infos without a column, or None.
        """
class Classic:
    def __reduce__(self) -> tuple:
        ...
    def begun(self, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32]) -> None:
        """
        Begin episodes of some envs with the states that were drawn for them.
        """
    def observe(self, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return the observations of some envs, or of all if ids is None.
        """
    def step(self, ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32] | None, actions: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]) -> typing.Any:
        """
        Step some envs, or all if ids is None; return rewards and terminated, or None if an action is not valid.
        """
    def takes(self, actions: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], python: bool = False) -> bool:
        """
        Return whether all of these actions are valid.
        """
class CartPole(Classic):
    def __init__(self, arg0: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], arg1: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], arg2: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg3: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg4: bool) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
class MountainCar(Classic):
    def __init__(self, arg0: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], arg1: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], arg2: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg3: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg4: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
class Acrobot(Classic):
    def __init__(self, arg0: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], arg1: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], arg2: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg3: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex]) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
class Pendulum(Classic):
    def __init__(self, arg0: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], arg1: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], arg2: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg3: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg4: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
class MountainCarContinuous(Classic):
    def __init__(self, arg0: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], arg1: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], arg2: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg3: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], arg4: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
class Tally:
    """
    Counts the steps and returns of episodes across rollouts.
    """
    def __init__(self, returns: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], lengths: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], lost: typing.SupportsInt | typing.SupportsIndex, begun: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def begin_episodes(self) -> None:
        """
        Begin an episode in every env, since all were reset.
        """
    def count(self, rewards: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], terminated: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], truncated: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], has_final: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], made: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], starts: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], valid: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], lost: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]) -> tuple:
        """
        Count the first `made` steps of each env, and fill `starts`, `valid` and `lost`; return the envs, steps, returns and lengths of the episodes that ended.
        """
class PolicyRows:
    """
    The rows of frames that a policy reads and writes, for some spans: each a frame, the first env, and how many envs.
    """
    def __init__(self, observation_tree: tuple, observations: list, actions: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], extras: dict) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def load(self, spans: list) -> typing.Any:
        """
        Return a copy of the observations of some spans.
        """
    def store(self, spans: list, outputs: typing.Any) -> bool:
        """
        Write a policy's outputs for some spans; return False, and write nothing, unless they are arrays of the frames' types and shapes.
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
def has_thread(number: typing.SupportsInt | typing.SupportsIndex) -> bool:
    """
    Return whether this process has a thread with this number of the kernel.
    """
def memory_left() -> int:
    """
    Return how many bytes may still be allocated: the available memory, capped by the cgroups' limits.
    """
def now() -> int:
    """
    Return the time on the monotonic clock of deadlines, in ns.
    """
def outlive_signals() -> None:
    """
    Catch SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2, so that they end neither this process nor its system calls. Programs that it starts get the defaults.
    """
def receive_parcel(socket: typing.SupportsInt | typing.SupportsIndex, parcels: list) -> None:
    """
    Receive the next parcel and append it to a list; no signal handler runs in between.
    """
def send_descriptors(socket: typing.SupportsInt | typing.SupportsIndex, message: bytes, descriptors: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
    """
    Send a short message and descriptors through a Unix socket, all or nothing.
    """
def send_parcel(socket: typing.SupportsInt | typing.SupportsIndex, head: bytes, body: bytes) -> bool:
    """
    Send bytes in their own memfd, without waiting; return whether that was possible.
    """
def set_process_title(title: str) -> None:
    """
    Set the name that ps and top show, truncated to the room there is.
    """
def sleep_until(deadline: typing.Any) -> None:
    """
    Sleep until a deadline, to within about a microsecond if a CPU is free. The calling thread prefers short slices of the CPU from then on.
    
    Args:
        deadline: A time of now(), in ns.
    """
def standard_normal(generators: list, out: typing.Annotated[numpy.typing.ArrayLike, numpy.float64]) -> bool:
    """
    Fill each row of `out` with standard normal numbers, drawn with one generator; return False if this NumPy does not export how.
    """
def take_turns(act: typing.Any, block: typing.Any, overflow: typing.Any, after_step: typing.Any, begin: typing.SupportsInt | typing.SupportsIndex, end: typing.SupportsInt | typing.SupportsIndex, steps: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], stopped: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], track: typing.Any) -> int:
    """
    Let a policy act and a block step, in turns, from frame `begin` to `end`; return the ns that the policy took.
    """
def uniform(generators: list, low: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], high: typing.Annotated[numpy.typing.ArrayLike, numpy.float64], out: typing.Annotated[numpy.typing.ArrayLike, numpy.float64]) -> None:
    """
    Fill each row of `out` with numbers from `low` to `high`, drawn with one generator.
    """
def usable_cpus() -> int:
    """
    Return how many CPUs this process may use: those of its affinity mask, or its cgroup's quota rounded up if that is less.
    """
def wait_costs() -> WaitCosts:
    """
    Return the costs of waiting on this machine, measured once.
    """
