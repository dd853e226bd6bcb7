from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions
__all__: list[str] = ['Batch', 'Block', 'Board', 'ByteRing', 'Command', 'Detached', 'Doorbell', 'Entry', 'EnvBlock', 'Flag', 'Guard', 'Infos', 'Loss', 'Meter', 'Part', 'Pidfd', 'Pool', 'Ring', 'Segment', 'SharedRing', 'TimedReturn', 'WaitCosts', 'WaitPolicy', 'WaitStats', 'Watch', 'Worker', 'adopt_orphans', 'adopt_wait_costs', 'default_signals', 'fork_with_signals_blocked', 'futex_wake_count', 'header_bytes', 'layout_version', 'memory_left', 'now', 'outlive_signals', 'page_size', 'receive_parcel', 'send_descriptors', 'send_parcel', 'set_process_title', 'sleep_until', 'usable_cpus', 'wait_costs']
class WaitCosts:
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    @property
    def cpus(self) -> int:
        ...
    @property
    def park_ns(self) -> int:
        ...
    @property
    def yield_ns(self) -> int:
        ...
class WaitStats:
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    @property
    def awake_ns(self) -> int:
        ...
    @property
    def parked_ns(self) -> int:
        ...
    @property
    def parks(self) -> int:
        ...
    @property
    def spin_ns(self) -> int:
        ...
    @property
    def waits(self) -> int:
        ...
class WaitPolicy:
    @staticmethod
    def fixed(*, spin_ns: typing.Any = 0, yield_ns: typing.Any = 0) -> WaitPolicy:
        """
        Never learns: spins for `spin_ns`, yields for `yield_ns`, then sleeps.
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
        How long before a deadline it wakes, to be awake when it comes.
        """
    @property
    def stats(self) -> WaitStats:
        """
        Where its waits went.
        """
    @property
    def usual_ns(self) -> int:
        """
        How long waits at this site usually last.
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
        The segment behind a file descriptor.
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
        Offset and view of an array, fresh or at an offset.
        """
    def close(self) -> None:
        """
        Let go of the memory, once no handle and no view needs it.
        """
    def take(self, offset: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Have memory for these bytes of the room.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def fd(self) -> int:
        """
        The memfd.
        """
    @property
    def id(self) -> int:
        """
        A random number, the same in every process.
        """
    @property
    def left(self) -> int:
        """
        Bytes not allocated yet.
        """
    @property
    def size(self) -> int:
        """
        Bytes, the header included.
        """
class Loss:
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def __str__(self) -> str:
        ...
    @property
    def exit_code(self) -> int | None:
        ...
    @property
    def noticed_at(self) -> int:
        ...
    @property
    def pid(self) -> int:
        ...
    @property
    def signal(self) -> int | None:
        ...
class Part:
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
    def _add_pid(self, pid: typing.SupportsInt | typing.SupportsIndex, parts: collections.abc.Sequence[Part], alone: bool = False) -> None:
        ...
    def _forget_pid(self, pid: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def _leave_with_pid(self, pid: typing.SupportsInt | typing.SupportsIndex, code: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def _settle_pid(self, pid: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def close(self) -> None:
        """
        Stops watching.
        """
    def wait(self, *, known: typing.Any = 0, timeout: float | None = None, deadline: int | None = None) -> list[Loss]:
        """
        Until more than `known` processes were lost; those beyond the first `known`, perhaps none at the deadline.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def losses(self) -> list[Loss]:
        """
        Every loss so far, in order.
        """
    @property
    def watched(self) -> list[int]:
        """
        The pids watched.
        """
class Doorbell:
    @staticmethod
    def size_of(arg0: typing.Any) -> int:
        """
        Bytes it takes in a segment, for so many members.
        """
    def __init__(self, segment: Segment, members: typing.Any, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def close(self) -> None:
        """
        Let go of the memory.
        """
    def member(self, member: typing.Any) -> Part:
        """
        What a Watch marks lost when this member's process dies.
        """
    def post(self, member: typing.Any) -> bool:
        """
        Member is ready. False if its last post has not been taken, or it is lost and not revived.
        """
    def revive(self, member: typing.Any) -> None:
        """
        Another process is this member from now on; what the dead one had posted is dropped.
        """
    def take(self, members: typing.Any) -> int:
        """
        What a member, or each of several, posted has been read; it may post again. How many had posted.
        """
    def take_ready(self) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Takes all who are ready now, longest ready first: also those who came after the last wait.
        """
    def wait(self, count: typing.Any = None, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Until `count` members are ready (all, by default); who is, longest ready first. At the deadline those who are.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def lost(self) -> list[int]:
        """
        Members that are lost and not revived.
        """
    @property
    def members(self) -> int:
        """
        How many there are.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def stats(self) -> WaitStats:
        """
        Where the waits at this handle went.
        """
class Flag:
    @staticmethod
    def size_of() -> int:
        """
        Bytes it takes in a segment.
        """
    def __init__(self, segment: Segment, offset: typing.Any = None, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def beside(self, doorbell: Doorbell) -> None:
        """
        The waiter works beside the members of that doorbell: as long as they need every CPU, it sleeps rather than spins.
        """
    def clear(self) -> bool:
        """
        The waiter is done with what the post was about. False if it was not set.
        """
    def close(self) -> None:
        """
        Let go of the memory.
        """
    def is_set(self) -> bool:
        """
        Whether there is a post that has not been cleared.
        """
    def poster(self) -> Part:
        """
        What a Watch marks lost when the poster dies.
        """
    def replaced(self) -> None:
        """
        The poster that died has been replaced: waits are waits again.
        """
    def set(self) -> bool:
        """
        Post. False if the last post has not been cleared.
        """
    def wait(self, timeout: float | None = None, *, deadline: int | None = None) -> bool:
        """
        Until it is set; False at the deadline.
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
        Where the waits at this handle went.
        """
class Ring:
    @staticmethod
    def size_of(arg0: typing.Any, arg1: numpy.dtype[typing.Any], arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], arg3: typing.Any, arg4: typing.Any) -> int:
        """
        Bytes it takes in a segment.
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
        A view of up to `count` free slots, at least one; WaitTimeoutError if it stayed full.
        """
    def close(self) -> None:
        """
        Let go of the memory.
        """
    def consumer(self) -> Part:
        """
        What a Watch marks lost when the consumer dies.
        """
    def peek(self, count: typing.Any = 1, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        A view of up to `count` records once there are `least`; WaitTimeoutError if they did not come.
        """
    def pop_many(self, count: typing.Any, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        A copy of up to `count` records once there are `least`, or of what there is at the deadline.
        """
    def producer(self) -> Part:
        """
        What a Watch marks lost when the producer dies.
        """
    def publish(self, count: typing.Any = None) -> None:
        """
        Hands over the first `count` of the claimed slots (all, by default); the rest are free again.
        """
    def push_many(self, records: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], *, timeout: float | None = None, deadline: int | None = None) -> int:
        """
        All of them, in order; how many went before the deadline.
        """
    def release(self, count: typing.Any = None) -> None:
        """
        Hands back the first `count` of the peeked slots (all, by default).
        """
    def replaced(self) -> None:
        """
        The side that died has been replaced: waits are waits again.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def high(self) -> int:
        """
        A producer that finds so many slots full blocks ...
        """
    @property
    def low(self) -> int:
        """
        ... until there are only so many.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def slots(self) -> int:
        """
        How many records it holds.
        """
class SharedRing:
    @staticmethod
    def size_of(arg0: typing.Any, arg1: numpy.dtype[typing.Any], arg2: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], arg3: typing.Any, arg4: typing.Any, arg5: typing.Any) -> int:
        """
        Bytes it takes in a segment.
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
        Gives the claimed slot up: the consumer skips it.
        """
    def claim(self, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        A view of one free slot; later records wait for it to be published or abandoned. WaitTimeoutError if it stayed full.
        """
    def close(self) -> None:
        ...
    def consumer(self) -> Part:
        """
        What a Watch marks lost when the consumer dies.
        """
    def leave(self) -> None:
        """
        Gives this process's place as a producer back.
        """
    def peek(self, count: typing.Any = 1, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        A view of up to `count` records once there are `least`; WaitTimeoutError if they did not come.
        """
    def pop_many(self, count: typing.Any, least: typing.Any = 1, *, timeout: float | None = None, deadline: int | None = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        A copy of up to `count` records once there are `least`, or of what there is at the deadline.
        """
    def producer(self) -> Part:
        """
        What a Watch marks lost when a producer dies.
        """
    def publish(self) -> bool:
        """
        Hands over the claimed slot.
        """
    def push_many(self, records: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], *, timeout: float | None = None, deadline: int | None = None) -> int:
        """
        All of them, in order; how many went before the deadline.
        """
    def release(self, count: typing.Any = None) -> None:
        """
        Hands back the first `count` of the peeked slots (all, by default).
        """
    def replaced(self) -> None:
        """
        The consumer that died has been replaced.
        """
    def wait_drained(self, *, timeout: float | None = None, deadline: int | None = None) -> bool:
        """
        For a producer who found the ring full: until it has drained to the low mark; False at the deadline. Others may have filled it before a claim.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def high(self) -> int:
        """
        A producer that finds so many slots full blocks ...
        """
    @property
    def low(self) -> int:
        """
        ... until there are only so many.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
    @property
    def producers(self) -> int:
        """
        How many places for producers there are.
        """
    @property
    def slots(self) -> int:
        """
        How many records it holds.
        """
class ByteRing:
    @staticmethod
    def size_of(arg0: typing.Any) -> int:
        """
        Bytes it takes in a segment.
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
        Let go of the memory.
        """
    def consumer(self) -> Part:
        """
        What a Watch marks lost when the consumer dies.
        """
    def peek(self, timeout: float | None = None, *, limit: typing.Any = None, deadline: int | None = None) -> memoryview:
        """
        A read-only view of the next message where it lies, until release().
        """
    def producer(self) -> Part:
        """
        What a Watch marks lost when the producer dies.
        """
    def recv(self, timeout: float | None = None, *, limit: typing.Any = None, deadline: int | None = None) -> bytes:
        """
        A copy of the next message; WaitTimeoutError if none came.
        """
    def recv_into(self, messages: list, timeout: float | None = None, *, deadline: int | None = None) -> None:
        """
        As recv(), appended to a list: nothing comes in between, not even Ctrl-C.
        """
    def release(self) -> None:
        """
        Hands back the message peeked at.
        """
    def renew(self) -> None:
        """
        Empty, and as new: who was at the other end is dead.
        """
    def replaced(self) -> None:
        """
        The side that died has been replaced: waits are waits again.
        """
    def send(self, message: typing_extensions.Buffer, timeout: float | None = None, *, deadline: int | None = None) -> None:
        """
        The message, in parts if it is larger than the ring; WaitTimeoutError if it stayed full.
        """
    @property
    def capacity(self) -> int:
        """
        Bytes it holds, headers included.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def largest_whole(self) -> int:
        """
        The largest message that goes in one part.
        """
    @property
    def offset(self) -> int:
        """
        Where it begins in its segment.
        """
class Board:
    @staticmethod
    def size_of(words: typing.Any, buffers: typing.Any) -> int:
        ...
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
        Let go of the memory.
        """
    def replaced(self) -> None:
        """
        The writer that died has been replaced: waits are waits again.
        """
    def wait(self, newer_than: typing.Any = 0, *, timeout: float | None = None, deadline: int | None = None) -> bool:
        """
        Until there is a version beyond `newer_than`; False at the deadline.
        """
    def writer(self) -> Part:
        """
        What a Watch marks lost when the writer dies.
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
class Meter:
    BUCKETS: typing.ClassVar[int] = 40
    FIRST_BUCKET: typing.ClassVar[int] = 18
    def __init__(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8], workers: typing.Annotated[numpy.typing.ArrayLike, numpy.uint8], index: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def at(self, env: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        This env is at work now.
        """
    def idle(self) -> None:
        """
        No env is.
        """
class Block:
    def __reduce__(self) -> tuple:
        ...
class Pool:
    @staticmethod
    def size_of(groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> int:
        """
        Bytes it takes in a segment.
        """
    def __init__(self, segment: Segment, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], weights: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], capacity: typing.SupportsInt | typing.SupportsIndex, policy: WaitPolicy | None = None) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def any_new(self) -> bool:
        """
        Whether a group is new.
        """
    def close(self) -> None:
        """
        Let go of the memory.
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
    def give_up_wait(self) -> None:
        """
        In a signal handler that interrupted a wait of this thread: end that wait.
        """
    def has_messages(self) -> bool:
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
    def send(self, requests: collections.abc.Iterable, settled: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = []) -> bool:
        """
        Send commands to groups, to all or none: (group, kind, frame, message or None) each. Groups that are settled are new no more. False if some of it has yet to be flushed.
        """
    def step(self, frame: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Let every group step. False if some of it has yet to be flushed.
        """
    def step_some(self, parts: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> bool:
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
    def messages(self) -> list[int]:
        """
        Groups of which a message follows, after a wait.
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
    def __init__(self, segment: Segment, offset: typing.SupportsInt | typing.SupportsIndex, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], index: typing.SupportsInt | typing.SupportsIndex, meter: Meter, policy: WaitPolicy | None = None) -> None:
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
    def set_left_over(self, left_over: bool) -> None:
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
        Whether this thread was inside already: a signal handler closes.
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
        The same for closing, which a signal handler may do while its own thread is inside.
        """
    def entry(self, what: str) -> Entry:
        """
        A context in which this thread alone is at work. BusyError if another thread is.
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
        Whether this process made it, and not one that this is a fork of.
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
    def kill(self) -> None:
        """
        Send SIGKILL, unless the process has ended.
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
class Infos:
    def __init__(self) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def add_column(self, path: tuple, mask: typing.Annotated[numpy.typing.ArrayLike, numpy.bool], values: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], form: str) -> None:
        """
        A place for numbers, or arrays of a shape.
        """
    def add_node(self, path: tuple, mask: typing.Annotated[numpy.typing.ArrayLike, numpy.bool]) -> None:
        """
        A place for nested dicts at the end of this path of keys.
        """
    def row(self, frame: typing.SupportsInt | typing.SupportsIndex, env: typing.SupportsInt | typing.SupportsIndex, key: str) -> typing.Any:
        """
        What one env had under a key, None if nothing.
        """
    @property
    def count(self) -> int:
        """
        How many places there are.
        """
class EnvBlock(Block):
    ERROR: typing.ClassVar[int] = 3
    FINAL_OBS: typing.ClassVar[int] = 1
    INFO: typing.ClassVar[int] = 0
    ODD_OBS: typing.ClassVar[int] = 2
    def __init__(self, envs: list, first: typing.SupportsInt | typing.SupportsIndex, frames: typing.Any, infos: Infos, meter: Meter, autoreset: str, keep: str) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def replace(self, seeds: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        The envs take the place of lost ones; seeds of their next resets.
        """
    def reset(self, frame: typing.SupportsInt | typing.SupportsIndex, calls: list) -> bool:
        """
        Resets each env with its (seed, options), or leaves it as it is for None.
        """
    def restore(self, frame: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Instead of the step in which the others were lost.
        """
    def set_options(self, i: typing.SupportsInt | typing.SupportsIndex, options: typing.Any, version: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        What env i is reset with from its next reset on.
        """
    def step(self, frame: typing.SupportsInt | typing.SupportsIndex, actions: list | None = None) -> bool:
        """
        Steps every env; whether something is left that has no place in the frame.
        """
    def take_leftovers(self) -> list:
        """
        What had no place in the frame: (kind, env, object) each.
        """
    def use(self, frames: typing.Any, infos: Infos, autoreset: str, keep: str) -> None:
        """
        Work on other frames from now on; the envs stay as they are.
        """
class Batch:
    def __init__(self, frames: typing.Any, infos: Infos, copy: bool, groups: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], spare: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def groups_of(self, envs: typing.Annotated[numpy.typing.ArrayLike, numpy.int64]) -> list[int]:
        """
        The groups of these envs, which must be whole groups.
        """
    def next(self, frame: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        The frame to use after this one: the next that is not referred to.
        """
    def read(self, frame: typing.SupportsInt | typing.SupportsIndex) -> tuple:
        """
        Observations, rewards, terminated, truncated, infos, and keys of infos whose values do not share a dtype.
        """
    def read_some(self, parts: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]) -> tuple:
        """
        As read(), for groups with their frames, in this order.
        """
    def write(self, frame: typing.SupportsInt | typing.SupportsIndex, actions: typing.Any) -> bool:
        """
        Whether the actions were of a common kind, and lie in the frame now.
        """
    def write_some(self, parts: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], actions: typing.Any) -> bool:
        """
        As write(), a row for each env that groups_of() was asked for last; its groups with their frames.
        """
def adopt_orphans() -> bool:
    """
    Make this process the parent of descendants whose own parent ends; False if refused.
    """
def adopt_wait_costs(park_ns: typing.SupportsInt | typing.SupportsIndex, yield_ns: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    What another process of this machine has measured, unless this one has.
    """
def default_signals() -> None:
    """
    Undo outlive_signals(), in a forked child.
    """
def fork_with_signals_blocked() -> int:
    """
    Call os.fork(). In the child, those signals wait until outlive_signals().
    """
def futex_wake_count() -> int:
    ...
def memory_left() -> int:
    ...
def now() -> int:
    """
    The clock that deadlines are told by: ns, monotonic.
    """
def outlive_signals() -> None:
    """
    Let SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end neither this process nor a system call of it. Programs it starts have the defaults.
    """
def receive_parcel(socket: typing.SupportsInt | typing.SupportsIndex, parcels: list) -> None:
    """
    Append the bytes of the next parcel to a list: nothing comes in between, not even Ctrl-C.
    """
def send_descriptors(socket: typing.SupportsInt | typing.SupportsIndex, message: bytes, descriptors: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
    """
    Send a short message and descriptors through a Unix socket, all or nothing.
    """
def send_parcel(socket: typing.SupportsInt | typing.SupportsIndex, head: bytes, body: bytes) -> bool:
    """
    Send bytes in memory of their own, without waiting; False if that cannot be now.
    """
def set_process_title(title: str) -> None:
    """
    Set what ps and top show, as far as there is room.
    """
def sleep_until(deadline: typing.Any) -> None:
    """
    Until now() reaches the deadline, to within a microsecond or so where a CPU is free.
    """
def usable_cpus() -> int:
    """
    CPUs this process may use: its affinity, and its cgroup's quota rounded up.
    """
def wait_costs() -> WaitCosts:
    """
    What waiting costs on this machine; measured once.
    """
header_bytes: int = 128
layout_version: int = 1
page_size: int = 4096
