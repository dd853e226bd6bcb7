"""Jobs and notes for workers, their answers and failures, and the interface of an env server.

A pool and its workers know only these classes, and only the jobs ``Close`` and ``LayOut``. Other
jobs are small frozen classes in the packages that use them. The pool pickles a job and sends it to
the worker of a group, which runs it on its env server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pysampler._workers.exceptions import Raised, Report, report
from pysampler.errors import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from pysampler._workers.gauges import WorkerGauges
    from pysampler.errors import PysamplerError
    from pysampler.sync import Segment

__all__ = [
    "Answer",
    "Attach",
    "Close",
    "Failure",
    "Job",
    "LayOut",
    "Leave",
    "Note",
    "Repeated",
    "Replace",
    "ReportLoss",
    "Server",
    "failure_of",
    "for_caller",
    "is_users",
]


class Server:
    """Base class of env servers, which hold envs, or a trainer: a block for each group."""

    blocks: list[Any]  # the loop in C++ steps blocks of envs
    inline = False  # whether it lives in the user's process, whose signal handlers may raise

    def describe(self) -> Any:
        """Return a description, from which the parent lays out frames.

        ps shows its ``name``; its ``sizes`` are the numbers of envs of the groups.
        """
        raise NotImplementedError

    def count_with(self, meter: Any, gauges: WorkerGauges, first: int) -> None:
        """Count steps and resets with this meter, everything else in ``gauges``.

        The first env has the number ``first`` from now on.
        """

    def replace(self, seeds: Sequence[int], over: Sequence[bool]) -> None:
        """Record that the envs replace others; ``seeds`` are for their next resets.

        Those that are ``over`` replace envs whose episodes had ended; if empty, none does.
        """

    def take_overflow(self, block: int) -> Any:
        """Return the overflow of a block's step: results that do not fit into the frame."""

    def peek_overflow(self, block: int) -> Any:
        """Return the overflow, and keep it until the next step."""

    def stop(self) -> None:
        """Let a step or job that is under way end early. Any thread may call it."""

    def close(self) -> None:
        """Close the envs. May be repeated."""


class _Message:
    """Base class of jobs and notes."""

    doing: str = ""  # its name in errors, such as "resetting"
    # The (culprit, activity) that errors name for exceptions not raised by an env.
    culprit: ClassVar[tuple[str, str] | None] = None


class Note(_Message):
    """A message to a worker, without an answer."""

    def snapshot(self) -> Self:
        """Return the note with its present content, for this process to apply later.

        Workers get a pickled copy, so the caller may change the content of a note once it is sent.
        """
        return self

    def apply(self, server: Any) -> None:
        """Apply the note to the env server of a worker."""
        raise NotImplementedError


class Job(_Message):
    """A task for a group, with an answer."""

    # Whether the first env begins at once, with nothing large to unpickle or import before.
    of_members: ClassVar[bool] = False
    # Whether it steps or resets envs, so that workers which are due are renewed before.
    renews: ClassVar[bool] = False
    # Whether it steps envs: an exception that interrupts it here leaves them in unknown states.
    steps_envs: ClassVar[bool] = False
    # Whether it lasts for the whole use of the envs, so that losses in it are not of one call.
    endless: ClassVar[bool] = False
    # Whether it resets all envs of the group, whatever their states.
    begins_all: ClassVar[bool] = False

    def run(self, server: Any, block: int, frame: int) -> Any:
        """Run the job in the worker, with the group's block and the command's frame."""
        raise NotImplementedError


class Repeated(Job):
    """A job that the replacement of a lost worker runs again; the answer to others is an error."""


class Attach:
    """Attaches an env server to a segment, such as one with frames. Sent with the segment.

    This base class attaches nothing.
    """

    def attach(self, server: Any, segment: Segment) -> None:
        """Attach the env server of a worker to the segment."""


@dataclass(frozen=True)
class Close(Job):
    """Closes the env server of a worker, which then exits."""

    doing = "closing"


@dataclass(frozen=True)
class Leave(Note):
    """Closes the env server of a worker that is renewed, which then exits.

    A note, because it needs no answer: the caller has nothing in flight.
    """

    doing = "closing"

    def apply(self, server: Any) -> None:
        """Close the envs; the worker ends, even if one raises."""
        server.close()


@dataclass(frozen=True)
class LayOut(Repeated):
    """Attaches the env server of a worker to a new layout, which comes through its socket.

    A replacement starts with that layout.
    """

    number: int  # of the layout
    doing = "laying out frames"


@dataclass(frozen=True)
class ReportLoss(Job):
    """Raises WorkerLostError in a replacement: the lost worker did not finish a job."""

    lost: str
    doing: str = ""

    def run(self, server: Any, block: int, frame: int) -> Any:  # noqa: ARG002
        """Raise the error."""
        raise WorkerLostError(self.lost)


@dataclass(frozen=True)
class Replace(Note):
    """Tells an env server that its envs replace others, some of which had ended their episodes."""

    seeds: Sequence[int]
    over: Sequence[bool] = ()
    doing = "replacing lost envs"

    def apply(self, server: Any) -> None:
        """Give the env server the seeds for the next resets of its envs."""
        server.replace(self.seeds, self.over)


@dataclass(frozen=True)
class Failure:
    """An exception raised by an env of a group, or by something else in its worker."""

    env: int | None  # None: not raised by an env
    doing: str  # empty: named by the group's command
    report: Report
    culprit: str = ""  # the name of the code that raised it, if that is not an env and has one


class Answer(NamedTuple):
    """The answer of a group to a command, besides its results in the frame."""

    group: int
    result: Any  # the job's result, or a Failure


def is_users(error: BaseException, *, inline: bool) -> bool:
    """Return whether an exception is for the caller, such as Ctrl-C, and not from an env.

    Args:
        error: The exception.
        inline: Whether it was raised in the user's process, whose signal handlers may raise any.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    raised_by_env = isinstance(error, (Exception, SystemExit, GeneratorExit))
    return inline and (not raised_by_env or hasattr(error, "for_caller"))


def for_caller(error: PysamplerError) -> None:
    """Let an error of envs in the user's process end the wait, as those of workers do.

    The command stays pending, and the next wait continues it.
    """
    error.for_caller = True  # type: ignore[attr-defined]


def failure_of(error: BaseException, message: _Message | str) -> Failure:
    """Return the failure for an exception raised by a job or note, or in a named activity."""
    if isinstance(error, Raised):
        cause = error.__cause__
        return Failure(error.env, error.doing, report(cause or error))
    if isinstance(message, str):
        return Failure(None, message, report(error))
    culprit, doing = message.culprit or ("", message.doing)
    return Failure(None, doing, report(error), culprit)
