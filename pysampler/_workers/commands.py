"""The commands of a pool's groups: steps, jobs, and the notes that precede them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pysampler import _core
from pysampler._workers.jobs import Leave, Repeated, Replace, ReportLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pysampler._workers.jobs import Job, Note
    from pysampler._workers.links import Links
    from pysampler._workers.processes import WorkerAssignment

__all__ = ["Commands"]

_REQUEST: int = _core.Command.REQUEST
_STEP: int = _core.Command.STEP


class Commands:
    """The commands of a pool. Each method that sends returns whether everything has gone out.

    Args:
        assignments: The envs and groups of each worker.
        links: The links to the workers.
        replacement_notes: Returns the notes that replacement envs get before anything else.
        groups: The number of groups. Those after the workers' are inline: their jobs stay here.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        links: Links,
        replacement_notes: Callable[[range], Sequence[Note]],
        groups: int,
    ) -> None:
        self._assignments = assignments
        self._links = links
        self._native = links.native
        self._worker_of = [w for w, groups in enumerate(links.groups_of) for _ in groups]
        self._groups = range(groups)
        self._replacement_notes = replacement_notes
        self._jobs: dict[int, Job] = {}  # of groups whose last command was not a step
        self._standing: dict[type[Note], dict[int, bytes]] = {}  # by worker

    @property
    def all_steps(self) -> bool:
        """Whether each group's last command was a step."""
        return not self._jobs

    def job_of(self, group: int) -> Job | None:
        """Return the last job of the group; None if its last command was a step."""
        return self._jobs.get(group)

    def doing(self, group: int) -> str:
        """Return the group's last command as errors name it, such as "resetting"."""
        return self._jobs[group].doing if group in self._jobs else "stepping"

    def step(self, frame: int) -> bool:
        """Step every group, reading actions from the frame and writing results to it."""
        if not self.all_steps:
            return self.step_some([(group, frame) for group in self._groups])
        return self._native.step(frame)

    def step_some(
        self, group_frames: Sequence[tuple[int, int]], kind: int = _STEP, steps: int = 1
    ) -> bool:
        """Step some groups, each with its frame; see ``Pool.step_some``."""
        for group, _ in group_frames if self._jobs else ():
            self._jobs.pop(group, None)
        return self._native.step_some(group_frames, kind, steps)

    def send(self, jobs: Mapping[int, Job], frames: Mapping[int, int]) -> bool:
        """Send jobs to groups, each with its frame. Either all go or none."""
        # Pickle all before the first is sent: if one fails, no group is left waiting.
        commands = [
            (group, _REQUEST, frames[group], self._message(group, job), 1)
            for group, job in jobs.items()
        ]
        self._jobs.update(jobs)  # has no meaning for groups that are not in flight
        return self._native.send(commands)

    def leave(self, index: int) -> bool:
        """Let a worker, which has no command in flight, close its envs and end."""
        self._native.note([(index, self._links.lanes[index].pack(Leave()))])
        return self._native.send_notes(index)

    def resend(self, index: int, lost: str, over: Sequence[bool] = ()) -> bool:
        """Send a replacement its notes, and the commands that its groups have not answered.

        A job that cannot be repeated becomes the error ``lost``. See ``Replace`` for ``over``.
        """
        notes = [
            replace(note, over=over) if isinstance(note, Replace) else note
            for note in self._replacement_notes(self._assignments[index].envs)
        ]
        standing = [by[index] for by in list(self._standing.values()) if index in by]
        self._native.note(
            [(index, note) for note in (*map(self._links.lanes[index].pack, notes), *standing)]
        )
        messages: list[tuple[int, bytes | None]] = []
        for group in filter(self._native.in_flight, self._links.groups_of[index]):
            job = self._jobs.get(group)
            if job is not None and not isinstance(job, Repeated):
                job = self._jobs[group] = ReportLoss(lost, job.doing)
            messages.append((group, None if job is None else self._message(group, job)))
        return self._native.resend(messages)

    def note(self, note_for: Callable[[range], Note | None], *, standing: bool) -> None:
        """Send workers a note before their next command; see ``Pool.note``."""
        notes = {
            index: note
            for index, assignment in enumerate(self._assignments)
            if (note := note_for(assignment.envs)) is not None
        }
        messages = {index: self._links.lanes[index].pack(note) for index, note in notes.items()}
        for kind in {type(note) for note in notes.values()} if standing else ():
            self._standing[kind] = messages
        self._native.note(list(messages.items()))

    def drop_standing(self) -> None:
        """Stop sending standing notes to workers that replace lost ones."""
        self._standing.clear()

    def _message(self, group: int, job: Job) -> bytes | None:
        """Return a pickled job; None if the group is inline, whose jobs stay here."""
        if group >= len(self._worker_of):
            return None
        return self._links.lanes[self._worker_of[group]].pack(job)
