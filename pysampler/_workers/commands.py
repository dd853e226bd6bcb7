"""The commands of a pool's groups: steps, jobs, and the notes that precede them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pysampler import _core
from pysampler._workers.jobs import Retire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pysampler._workers.jobs import Job, Note
    from pysampler._workers.links import Links
    from pysampler._workers.processes import WorkerAssignment

__all__ = ["Commands"]

_STEP: int = _core.Command.STEP
_REQUEST: int = _core.Command.REQUEST
_CHUNK: int = _core.Command.CHUNK
_CHUNK_LAST: int = _core.Command.CHUNK_LAST
_ONE_STEP = _STEP, 1


class Commands:
    """The commands of a pool. Each method that sends returns whether everything has gone out.

    Args:
        assignments: The envs and groups of each worker.
        links: The links to the workers.
        restore: The job that replacement envs run instead of a step.
        replacement_notes: Returns the notes that replacement envs get before anything else.
        groups: The number of groups. Those after the workers' are inline: their jobs stay here.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerAssignment],
        links: Links,
        restore: Job | None,
        replacement_notes: Callable[[range], Sequence[Note]],
        groups: int,
    ) -> None:
        self._assignments = assignments
        self._links = links
        self._native = links.native
        self._worker_of = [w for w, groups in enumerate(links.groups_of) for _ in groups]
        self._groups = range(groups)
        self._restore = restore
        self._replacement_notes = replacement_notes
        self._jobs: dict[int, Job] = {}  # of groups whose last command was not a step
        self._standing: dict[type[Note], dict[int, bytes]] = {}  # by worker

    @property
    def all_steps(self) -> bool:
        """Whether each group's last command was a step, and no group is new."""
        return not (self._jobs or self._native.any_new())

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

    def step_some(self, group_frames: Sequence[tuple[int, int]]) -> bool:
        """Step some groups, each with its frame."""
        if self._native.any_new():
            frames = dict(group_frames)
            return self.send(dict.fromkeys(frames), frames)
        if self._jobs:
            for group, _ in group_frames:
                self._jobs.pop(group, None)
        return self._native.step_some(group_frames)

    def step_chunk(
        self, group_frames: Sequence[tuple[int, int]], steps: int, *, last: bool
    ) -> bool:
        """Let some groups make several steps, each from its frame on; see ``Pool.step_chunk``."""
        if self._native.any_new():
            frames = dict(group_frames)
            return self.send(
                dict.fromkeys(frames), frames, (_CHUNK_LAST if last else _CHUNK, steps)
            )
        for group, _ in group_frames if self._jobs else ():
            self._jobs.pop(group, None)
        return self._native.step_chunk(group_frames, steps, last)

    def send(
        self,
        jobs: Mapping[int, Job | None],
        frames: Mapping[int, int],
        step: tuple[int, int] = _ONE_STEP,
    ) -> bool:
        """Send jobs to groups, each with its frame. Either all go or none.

        None in place of a job is ``step``: the kind of the command, and the number of steps.
        """
        settled: list[int] = []
        if self._native.any_new():
            jobs = {group: self._for_new(group, job, settled) for group, job in jobs.items()}
        # Pickle all before the first is sent: if one fails, no group is left waiting.
        commands = [self._command(group, job, frames[group], step) for group, job in jobs.items()]
        for group, job in jobs.items():  # has no meaning for groups that are not in flight
            if job is None:
                self._jobs.pop(group, None)
            else:
                self._jobs[group] = job
        return self._native.send(commands, settled)

    def send_last(self, jobs: Mapping[int, Job]) -> None:
        """Send groups their last jobs, as they are even if envs have replaced lost ones."""
        self._jobs.update(jobs)
        self._native.send([self._command(group, job, 0) for group, job in jobs.items()])

    def retire(self, index: int) -> bool:
        """Make a worker retire, which has no command in flight."""
        self._native.note([(index, self._links.lanes[index].pack(Retire()))])
        return self._native.send_notes(index)

    def resume(self, index: int) -> None:
        """Send the successor of a retired worker its notes; its groups continue where they are."""
        made = self._replacement_notes(self._assignments[index].envs)
        # The first note replaces envs, here with those of the retired worker: it needs the others.
        notes = [note.for_successor() for note in reversed(made)]
        standing = [by[index] for by in list(self._standing.values()) if index in by]
        self._native.note(
            [(index, note) for note in (*map(self._links.lanes[index].pack, notes), *standing)]
        )
        self._native.send([], list(self._links.groups_of[index]))

    def resend(self, index: int, lost: str) -> bool:
        """Send a replacement its notes, and the commands that its groups have not answered.

        Each group gets the same command again, or a job in its place. ``lost`` is the error text.
        """
        notes = self._replacement_notes(self._assignments[index].envs)
        standing = [by[index] for by in list(self._standing.values()) if index in by]
        self._native.note(
            [(index, note) for note in (*map(self._links.lanes[index].pack, notes), *standing)]
        )
        settled: list[int] = []
        commands = []
        for group in self._links.groups_of[index]:
            if not self._native.owed(group):
                continue
            job = self._jobs.get(group)
            job = self._for_new(group, None if job is None else job.after_loss(lost), settled)
            commands.append(self._command(group, job, self._native.frame_of(group)))
            if job is not None:
                self._jobs[group] = job
        return self._native.send(commands, settled)

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

    def _command(
        self, group: int, job: Job | None, frame: int, step: tuple[int, int] = _ONE_STEP
    ) -> tuple[int, int, int, bytes | None, int]:
        if job is None:
            kind, steps = step
            return group, kind, frame, None, steps
        if self._is_inline(group):
            message = None
        else:
            message = self._links.lanes[self._worker_of[group]].pack(job)
        return group, _REQUEST, frame, message, 1

    def _is_inline(self, group: int) -> bool:
        return group >= len(self._worker_of)

    def _for_new(self, group: int, job: Job | None, settled: list[int]) -> Job | None:
        """Return the job to send to a group, whose envs may have replaced lost ones.

        Adds to ``settled`` the groups for which the job deals with the replacement.
        """
        if self._is_inline(group):
            return job
        if self._native.is_new(group):
            job = self._restore if job is None else job.for_replaced()
        if job is not None and job.settles == "worker":
            settled += self._links.groups_of[self._worker_of[group]]
        elif job is not None and job.settles == "group":
            settled.append(group)
        return job
