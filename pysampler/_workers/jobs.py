"""What workers are asked to do, and what they answer.

A pool, a worker and a local pool know these classes, and no job of their own but ``Close`` and
``LayOut``. A job is a small frozen class in the room that it belongs to: it is pickled, sent to the
worker of a group, and run there on what that worker serves, its host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pysampler._workers.remote import Raised, Report, report
from pysampler.errors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysampler.sync import Segment

__all__ = [
    "Answer",
    "Attach",
    "Close",
    "Failure",
    "Host",
    "Job",
    "LayOut",
    "Lost",
    "Note",
    "Repeated",
    "Replace",
    "failure_of",
]

# What the members of a group that replaced lost ones did in the place of a step or a reset.
Replaced = Literal["step", "reset"]


class Host(Protocol):
    """What a worker serves: envs, or a trainer. Its members are in groups, a block for each."""

    blocks: list[Any]  # those of envs are stepped by the loop in C++

    def describe(self) -> Any:
        """Return what the parent must know before it lays out frames; its ``name`` is shown."""

    def count_with(self, meter: Any) -> None:
        """Count what the members do with this meter."""

    def replace(self, seeds: Sequence[int]) -> None:
        """Note that the members replace lost ones; ``seeds`` are for their next resets."""

    def left_over(self, block: int) -> Any:
        """Return what a step of a block has left that has no place in the frame."""

    def close(self) -> None:
        """Close the members."""


class _Message:
    """What a job and a note have in common."""

    doing: str = ""  # how errors name it: "resetting", say
    # Who an exception is blamed on, and at what, if no member raised it.
    culprit: ClassVar[tuple[str, str] | None] = None


class Note(_Message):
    """Something a worker is told. It does not answer."""

    def apply(self, host: Any) -> None:
        """Tell the host of a worker."""
        raise NotImplementedError


class Job(_Message):
    """Something that a group is asked to do, and answers."""

    # What the members do in the place of those that were lost before or in that command.
    replaces: Replaced | None = None
    # Who knows after this command that members were replaced, if any were.
    settles: ClassVar[Literal["none", "group", "worker"]] = "none"

    def run(self, host: Any, block: int, frame: int) -> Any:
        """Do it in the worker, with the block of the group and the frame of the command."""
        raise NotImplementedError

    def for_replaced(self) -> Job:
        """Return what a group is asked instead if its members have replaced lost ones."""
        return self

    def after_loss(self, lost: str) -> Job:
        """Return what the replacement is asked if the worker was lost while it did this."""
        return Lost(lost, self.doing)


class Repeated(Job):
    """A job that the replacement does again if the worker was lost while it did this."""

    def after_loss(self, lost: str) -> Job:  # noqa: ARG002
        """Return the same job."""
        return self


class Attach(Protocol):
    """Lets a host work on what lies in a segment. Pickled, and sent with the segment."""

    def attach(self, host: Any, segment: Segment) -> None:
        """Do it in the worker."""


@dataclass(frozen=True)
class Close(Job):
    """The worker closes its host and ends."""

    doing = "closing"


@dataclass(frozen=True)
class LayOut(Repeated):
    """The worker goes on with the segment of this number, which it gets through its socket.

    A replacement begins with that segment.
    """

    number: int
    doing = "laying out frames"


@dataclass(frozen=True)
class Lost(Job):
    """The group fails: the worker was lost that was asked for something else."""

    lost: str
    doing: str = ""

    def run(self, host: Any, block: int, frame: int) -> Any:  # noqa: ARG002
        """Raise that."""
        raise WorkerLostError(self.lost)


@dataclass(frozen=True)
class Replace(Note):
    """The members replace lost ones."""

    seeds: Sequence[int]
    doing = "replacing lost envs"

    def apply(self, host: Any) -> None:
        """Tell the host."""
        host.replace(self.seeds)


@dataclass(frozen=True)
class Failure:
    """An exception that a member raised, or something else in the worker if that is None."""

    member: int | None
    doing: str  # empty if that was just what the group had been asked for
    report: Report
    error: BaseException | None = None  # itself, where it need not travel
    culprit: str = ""  # if it was no member: what raised it

    def __reduce__(self) -> tuple[type[Failure], tuple[Any, ...]]:
        return Failure, (self.member, self.doing, self.report, None, self.culprit)


class Answer(NamedTuple):
    """What a group answered beside what it wrote to its frame."""

    group: int
    said: Any  # or a Failure
    replaced: Replaced | None = None  # the members replaced lost ones, in a step or in a reset


def failure_of(error: BaseException, asked: _Message | str) -> Failure:
    """Return what to tell the parent about an exception, raised by what was ``asked``."""
    if isinstance(error, Raised):
        cause = error.__cause__
        return Failure(error.member, error.doing, report(cause or error), cause)
    if isinstance(asked, str):
        return Failure(None, asked, report(error), error)
    culprit, doing = asked.culprit or ("", asked.doing)
    return Failure(None, doing, report(error), error, culprit)
