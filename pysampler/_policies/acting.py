"""A policy where the envs are: a worker acts for its own, one command for a whole rollout."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pysampler import _core
from pysampler._policies.policies import Acting, Actor, is_module, load_weights
from pysampler._policies.seeds import seed_own
from pysampler._workers.jobs import Note, Repeated
from pysampler._workers.seeds import seed_globals
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.policies import Said
    from pysampler._vector.host import EnvHost
    from pysampler.sync import Segment

__all__ = [
    "LOST",
    "Progress",
    "Role",
    "RollOut",
    "RolledOut",
    "TakePolicy",
    "WorkerActing",
    "copied_infos",
    "mark_lost",
]

# In has_final of a step in which an env was lost.
LOST = 3
_LINE = 16  # int64 of a cache line, and the one that is fetched with it


class Progress:
    """How far each group has come in its rollout, and whether all are to stop, in a segment.

    Each line has one writer: the worker of the group; the parent writes to it where no rollout is
    under way. Anyone may tell all to stop, the learner to pause.
    """

    def __init__(self, groups: int, segment: Segment, offset: int | None = None) -> None:
        self.offset, self._lines = segment.array((groups + 1, _LINE), np.dtype(np.int64), offset)
        self.steps = self._lines[:-1, 0]  # below 0 until the first frame has been carried over
        self.blocked_ns = self._lines[:-1, 1]  # by a full ring: of the first group of each worker
        self.acting_ns = self._lines[:-1, 2]
        self.refreshing_ns = self._lines[:-1, 3]
        self.blocked = self._lines[:-1, 4]  # whether it is just now

    @staticmethod
    def size_of(groups: int) -> int:
        """Bytes it takes, wherever in a segment."""
        return (groups + 2) * _LINE * 8

    @property
    def stopped(self) -> bool:
        """Whether what is under way is to end where it is."""
        return bool(self._lines[-1, 0])

    @property
    def dropped(self) -> bool:
        """Whether what has been made and not been handed over is not wanted either."""
        return bool(self._lines[-1, 1])

    @property
    def paused(self) -> bool:
        """Whether nothing is to be begun: the learner learns."""
        return bool(self._lines[-1, 2])

    @paused.setter
    def paused(self, value: bool) -> None:
        self._lines[-1, 2] = value

    def stop(self, *, drop: bool = False) -> None:
        """Let it."""
        if drop:
            self._lines[-1, 1] = True
        self._lines[-1, 0] = True


@dataclass(frozen=True)
class Role:
    """What a worker must know to act for its envs."""

    policy: bytes
    said: Said
    board: Any  # the place of its weights; None where they come with the policy
    progress: int
    groups: int
    entropy: int | list[int]  # of random numbers
    told: int  # how many policies it had before
    apart: bool  # in a process of its own, whose generators are not the user's
    settings: dict[str, tuple[int, np.dtype[Any]]] = field(default_factory=dict)  # and where
    first: int = 0  # of its envs


@dataclass
class RolledOut:
    """What there is to say of a rollout beside what lies in its frames."""

    # (frame, kind, env, thing): what had no place there.
    leftovers: list[tuple[int, int, int, Any]] = field(default_factory=list)
    restored: bool = False  # the envs took the place of lost ones in one of the steps
    policy_ns: int = 0

    def keep(self, frame: int, leftovers: list[tuple[int, int, Any]]) -> bool:
        """What a step left over, as far as it is wanted; whether an env raised."""
        wanted = _core.EnvBlock.INFO, _core.EnvBlock.ERROR
        self.leftovers += [
            (frame, kind, env, copied_infos(thing) if kind == _core.EnvBlock.INFO else thing)
            for kind, env, thing in leftovers
            if kind in wanted
        ]
        return any(kind == _core.EnvBlock.ERROR for kind, _, _ in leftovers)


def copied_infos(infos: dict[str, Any]) -> dict[str, Any]:
    """Infos as they are now: the next step may write to the same arrays.

    What cannot be copied stays as it is.
    """
    try:
        return copy.deepcopy(infos)
    except Exception:
        return infos


class WorkerActing:
    """In a worker: the policy, for the envs of its blocks.

    ``before``: what acted until now. ``again``: seeds of the envs, if they take the place of lost
    ones.
    """

    def __init__(
        self,
        role: Role,
        frames: Frames,
        segment: Segment,
        before: WorkerActing | None,
        *,
        again: Sequence[int],
    ) -> None:
        policy = pickle.loads(role.policy)
        settings = {
            name: segment.array((frames.envs,), dtype, at)[1]
            for name, (at, dtype) in role.settings.items()
        }
        actor = Actor(policy, frames.spec, settings)
        # Drawn again, the numbers of one that was lost would do again what it was lost at.
        own = role.entropy if isinstance(role.entropy, list) else [role.entropy]
        entropy = [*own, *again] if again else role.entropy
        seeds = np.random.SeedSequence(entropy, spawn_key=(role.first, role.told))
        seed_own(policy, seeds, apart=role.apart)
        if before is not None:
            actor.draw_on(before._acting.actor)
        else:
            actor.draw_with(entropy, frames.envs)
            if role.apart:
                seed_globals(seeds)
        self._acting: Acting = Acting(actor, role.said, frames)
        self._frames = frames
        self._segment = segment
        self._progress = Progress(role.groups, segment, role.progress)
        self._board = None if role.board is None else role.board.attach(segment)
        self._weights: Any = None
        self._version = 0

    def carry(self, last: int, frame: int, envs: slice) -> None:
        """Envs go on at another frame."""
        for leaf in self._acting.carried if last != frame else ():
            leaf[frame, envs] = leaf[last, envs]

    def refresh(self) -> None:
        """Act with the newest weights."""
        if self._board is None or self._board.version == self._version:
            return
        policy, fresh = self._acting.actor.policy, self._weights is None
        self._version, self._weights = self._board.read(self._weights)
        if fresh or not is_module(policy):  # a module works with these arrays
            load_weights(policy, self._weights)

    def roll_out(
        self,
        block: _core.EnvBlock,
        take: Callable[[], list[tuple[int, int, Any]]],
        envs: slice,
        group: int,
        frame: int,
        steps: int,
        *,
        last: int,
        again: bool,
    ) -> RolledOut:
        """Act for the envs of a block, so many steps on from a frame.

        ``last``: the frame that they had come to before. ``take`` has what the block left over.
        ``again``: they take the place of lost ones, and go on from where those had come to.
        """
        self.refresh()
        report = RolledOut()
        progress = self._progress
        if progress.steps[group] < 0:  # or what lies in the last one may be of this rollout already
            self.carry(last, frame, envs)
            progress.steps[group] = 0
        at = frame + (int(progress.steps[group]) if again else 0)
        failed = False
        if again and at < frame + steps:
            report.policy_ns += self._act(at, envs)
            block.restore(at + 1)
            failed = report.keep(at + 1, take())
            mark_lost(self._frames, at, envs)
            report.restored = True
            at += 1
            self._acting.after(at, envs)
            progress.steps[group] = at - frame
        while at < frame + steps and not (failed or progress.stopped):
            report.policy_ns += self._act(at, envs)
            at += 1
            failed = block.step(at) and report.keep(at, take())
            if failed:
                break
            # Last: a replacement of this worker finds all up to here in the frames.
            self._acting.after(at, envs)
            progress.steps[group] = at - frame
        return report

    def _act(self, at: int, envs: slice) -> int:
        began = now()
        self._acting.act(at, envs)
        return now() - began


@dataclass(frozen=True)
class TakePolicy(Note):
    """The policy that acts for a worker's envs from now on."""

    role: Role
    doing = "taking over a policy"
    culprit = ("the policy", "when it was taken over")
    acting: ClassVar[type[WorkerActing]] = WorkerActing

    def apply(self, host: EnvHost) -> None:
        """Let it act for the envs of a host."""
        before: WorkerActing | None = host.acting
        again = host.seeds if before is None and host.replaced else ()
        host.acting = self.acting(self.role, host.frames, host.segment, before, again=again)


@dataclass(frozen=True)
class RollOut(Repeated):
    """The policy acts for the envs of a group for some steps, from the frame of the command on.

    ``last``: the frame that the envs have come to before.
    """

    steps: int
    group: int
    last: int
    doing = "acting and stepping"
    culprit = ("the policy", "acting")
    settles = "group"

    def run(self, host: EnvHost, block: int, frame: int) -> RolledOut:
        """Do it in the worker."""
        acting: WorkerActing | None = host.acting
        assert acting is not None
        rows = host.rows(block)
        report = acting.roll_out(
            host.blocks[block],
            lambda: host.left_over(block),
            slice(host.first + rows.start, host.first + rows.stop),
            self.group,
            frame,
            self.steps,
            last=self.last,
            again=block in host.replaced,
        )
        if report.restored:  # or else in the next rollout: this one was complete
            host.replaced.discard(block)
        return report


def mark_lost(frames: Frames, at: int, envs: npt.NDArray[np.int64] | slice) -> None:
    """The step after a frame ended the episodes of envs that were lost in it."""
    frames.truncated[at + 1, envs] = True
    frames.has_final[at + 1, envs] = LOST
    for final, seen in zip(frames.final_observations, frames.observations, strict=True):
        final[at + 1, envs] = seen[at, envs]
