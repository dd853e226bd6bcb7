"""Jobs and notes for workers, their answers and failures, and the interface of an env server.

A pool and its workers know these classes, and no jobs but ``Close`` and ``LayOut``. A job is a
small frozen class in the package that it belongs to. It is pickled, sent to the worker of a group,
and run there on the env server of the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pysampler._workers.exceptions import Raised, Report, report
from pysampler.errors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from pysampler._workers.gauges import WorkerGauges
    from pysampler.sync import Segment

__all__ = [
    "Answer",
    "Attach",
    "Close",
    "Failure",
    "Job",
    "LayOut",
    "Note",
    "Repeated",
    "Replace",
    "ReportLoss",
    "Server",
    "failure_of",
    "is_users",
]

# Which command the restore replaced.
Replaced = Literal["step", "reset"]


class Server(Protocol):
    """What a worker serves: envs, or a trainer. Its envs form groups, with a block for each."""

    blocks: list[Any]  # blocks of envs are stepped by the loop in C++
    here: bool  # whether it lives in the user's process, whose signal handlers raise exceptions

    def describe(self) -> Any:
        """Return what the parent must know before it lays out frames; ps shows its ``name``."""

    def count_with(self, meter: Any, gauges: WorkerGauges) -> None:
        """Count steps and resets of the envs with this meter; note the rest in ``gauges``."""

    def replace(self, seeds: Sequence[int]) -> None:
        """Remember that the envs replace lost ones; ``seeds`` are for their next resets."""

    def take_overflow(self, block: int) -> Any:
        """Return the results of a step of a block that have no place in the frame."""

    def peek_overflow(self, block: int) -> Any:
        """Return the same, and keep them until the next step."""

    def close(self) -> None:
        """Close the envs."""


class _Message:
    """Base class of jobs and notes."""

    doing: str = ""  # what errors call it, such as "resetting"
    # What errors blame for an exception that no env raised, and while doing what.
    culprit: ClassVar[tuple[str, str] | None] = None


class Note(_Message):
    """A message to a worker, which does not answer it."""

    def snapshot(self) -> Self:
        """Return what this is now, for this process, which applies it before its next command.

        Workers get a pickled copy. The caller may change the content of a note afterwards.
        """
        return self

    def apply(self, server: Any) -> None:
        """Apply the note to the env server of a worker."""
        raise NotImplementedError


class Job(_Message):
    """A task for a group, which answers it."""

    # Whether the first env begins at once: nothing large is unpickled or imported before.
    of_members: ClassVar[bool] = False
    # Set if this is done in the place of a step or a reset, by envs that replace lost ones.
    replaces: Replaced | None = None
    # Which groups have dealt with replaced envs after this: none, its group, all of its worker.
    settles: ClassVar[Literal["none", "group", "worker"]] = "none"

    def run(self, server: Any, block: int, frame: int) -> Any:
        """Do it in the worker, with the block of the group and the frame of the command."""
        raise NotImplementedError

    def for_replaced(self) -> Job:
        """Return the job to give instead to a group whose envs replace lost ones."""
        return self

    def after_loss(self, lost: str) -> Job:
        """Return the job for the replacement of a worker that was lost while it did this."""
        return ReportLoss(lost, self.doing)


class Repeated(Job):
    """A job that is given to the replacement too if the worker was lost while it did this."""

    def after_loss(self, lost: str) -> Job:  # noqa: ARG002
        """Return the same job."""
        return self


class Attach(Protocol):
    """Attaches an env server to a segment, such as one with frames. Sent with the segment."""

    def attach(self, server: Any, segment: Segment) -> None:
        """Attach the env server of a worker to the segment."""


@dataclass(frozen=True)
class Close(Job):
    """Closes the env server of a worker, which then exits."""

    doing = "closing"


@dataclass(frozen=True)
class LayOut(Repeated):
    """Attaches the env server of a worker to another layout, which comes through its socket.

    A replacement begins with that layout.
    """

    number: int  # of the layout
    doing = "laying out frames"


@dataclass(frozen=True)
class ReportLoss(Job):
    """Raises WorkerLostError: another worker was lost while it did a job of the group."""

    lost: str
    doing: str = ""

    def run(self, server: Any, block: int, frame: int) -> Any:  # noqa: ARG002
        """Raise the error."""
        raise WorkerLostError(self.lost)


@dataclass(frozen=True)
class Replace(Note):
    """Tells an env server that its envs replace lost ones."""

    seeds: Sequence[int]
    doing = "replacing lost envs"

    def apply(self, server: Any) -> None:
        """Give the env server the seeds for the next resets of its envs."""
        server.replace(self.seeds)


@dataclass(frozen=True)
class Failure:
    """An exception that an env of a group raised, or something else in a worker."""

    env: int | None  # None: something else
    doing: str  # empty if the command of the group says it
    report: Report
    culprit: str = ""  # what raised it, if that was no env and has a name


class Answer(NamedTuple):
    """The answer of a group to a command, besides what it wrote to its frame."""

    group: int
    result: Any  # what the job returned, or a Failure
    replaced: Replaced | None = None  # if it is that of a job with `replaces`


def is_users(error: BaseException, *, here: bool) -> bool:
    """Return whether an exception is the user's, such as of Ctrl-C, and none that envs raise.

    Args:
        error: The exception.
        here: Whether it came in the user's process, whose signal handlers may raise any.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    return here and not isinstance(error, (Exception, SystemExit, GeneratorExit))


def failure_of(error: BaseException, message: _Message | str) -> Failure:
    """Return the failure for an exception raised by a job or a note, or while doing something."""
    if isinstance(error, Raised):
        cause = error.__cause__
        return Failure(error.env, error.doing, report(cause or error))
    if isinstance(message, str):
        return Failure(None, message, report(error))
    culprit, doing = message.culprit or ("", message.doing)
    return Failure(None, doing, report(error), culprit)
