"""A policy where the envs are: a worker acts for its own, one command for a whole rollout."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler.errors import StopActors
from pysampler.policies import Acting, Actor, is_module, load_weights
from pysampler.records import Packer
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pysampler.frames import Frames
    from pysampler.policies import Said
    from pysampler.records import Described
    from pysampler.sync import Segment

__all__ = ["LOST", "Errand", "Progress", "Role", "RolledOut", "WorkerActing", "mark_lost"]

# In has_final of a step in which an env was lost.
LOST = 3
_LINE = 16  # int64 of a cache line, and the one that is fetched with it
# Records wait for others to be handed over with them, but not for so many ns.
_SOON = 5_000_000
# How often who waits for room looks whether that is wanted, in seconds.
_LOOK = 0.05


class Progress:
    """How far each group has come in its rollout, and whether all are to stop, in a segment.

    Each line has one writer: the worker of the group; the parent writes zeros where no rollout is
    under way. Anyone may tell all to stop.
    """

    def __init__(self, groups: int, segment: Segment, offset: int | None = None) -> None:
        self.offset, self._lines = segment.array((groups + 1, _LINE), np.dtype(np.int64), offset)
        self.steps = self._lines[:-1, 0]
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
    seed: int | None
    settings: dict[str, tuple[int, np.dtype[Any]]] = field(default_factory=dict)  # and where


@dataclass(frozen=True)
class Errand:
    """What a worker must know beside its role to act by itself, and hand over records."""

    ring: Any  # its place
    described: Described
    begun: int  # where the numbers of records are counted
    most: int | None  # steps, or for ever
    share: float  # of its time, at most, to take over weights in
    max_lag: int | None  # versions, beyond which it takes them over whatever that costs


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
        self.leftovers += [(frame, *one) for one in leftovers if one[0] in wanted]
        return any(kind == _core.EnvBlock.ERROR for kind, _, _ in leftovers)


class WorkerActing:
    """In a worker: the policy, for the envs of its blocks."""

    def __init__(self, role: Role, frames: Frames, segment: Segment) -> None:
        policy = pickle.loads(role.policy)
        if role.seed is not None:
            _seed(policy, role.seed)
        settings = {
            name: segment.array((frames.envs,), dtype, at)[1]
            for name, (at, dtype) in role.settings.items()
        }
        self._acting = Acting(Actor(policy, frames.spec, settings), role.said, frames)
        self._frames = frames
        self._segment = segment
        self._progress = Progress(role.groups, segment, role.progress)
        self._board = None if role.board is None else role.board.attach(segment)
        self._weights: Any = None
        self._version = 0
        self._refresh_at = 0
        self._ring: Any = None
        self._packer: Packer | None = None
        self._at = 0  # the frame that envs which act by themselves have come to

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

    def _keep_up(self, errand: Errand, group: int) -> None:
        """Take over weights, unless that was done just now and takes long."""
        if self._board is None or (behind := self._board.version - self._version) == 0:
            return
        began = now()
        if began < self._refresh_at and (errand.max_lag is None or behind <= errand.max_lag):
            return
        self.refresh()
        took = now() - began
        self._refresh_at = began + int(took / errand.share)
        self._progress.refreshing_ns[group] += took

    def roll_out(
        self,
        block: _core.EnvBlock,
        take: Callable[[], list[tuple[int, int, Any]]],
        envs: slice,
        group: int,
        frame: int,
        steps: int,
        *,
        again: bool,
    ) -> RolledOut:
        """Act for the envs of a block, so many steps on from a frame.

        ``take`` has what the block left over. ``again``: they take the place of lost ones, and go
        on from where those had come to.
        """
        self.refresh()
        report = RolledOut()
        progress = self._progress
        at = frame + (int(progress.steps[group]) if again else 0)
        if again and at < frame + steps:
            report.policy_ns += self._act(at, envs)
            block.restore(at + 1)
            report.keep(at + 1, take())
            mark_lost(self._frames, at, envs)
            report.restored = True
            at += 1
            self._acting.after(at, envs)
            progress.steps[group] = at - frame
        while at < frame + steps and not progress.stopped:
            report.policy_ns += self._act(at, envs)
            at += 1
            if block.step(at) and report.keep(at, take()):
                break
            # Last: whoever takes this one's place finds all up to here in the frames.
            self._acting.after(at, envs)
            progress.steps[group] = at - frame
        return report

    def act_on(
        self,
        crew: Sequence[tuple[_core.EnvBlock, Callable[[], list[tuple[int, int, Any]]]]],
        envs: slice,
        group: int,
        errand: Errand,
        *,
        again: bool,
    ) -> RolledOut:
        """Act for the envs of all blocks until told to stop, and hand over records.

        ``crew`` has the blocks, each with what takes what it left over. ``again``: they take the
        place of lost ones.
        """
        if self._packer is None:
            self._ring = errand.ring.attach(self._segment)
            _, begun = self._segment.array((self._frames.envs,), np.dtype(np.int64), errand.begun)
            self._packer = Packer(errand.described, self._acting, self._frames, envs, begun)
        packer, progress, steps = self._packer, self._progress, errand.described.steps
        report = RolledOut()
        if again:
            for block, take in crew:
                block.restore(1)
                report.keep(1, take())
            self.carry(1, 0, envs)
            self._acting.forget(0, envs)
            packer.forget()
            self._at = 0
        made, packed = 0, self._at
        end = self._frames.count - 1
        handed = now()
        while not progress.stopped and (errand.most is None or made < errand.most):
            at = self._at
            if steps is None or at == 0:
                self._keep_up(errand, group)
            packer.versions[at] = self._version
            try:
                took = self._act(at, envs)
            except StopActors:
                progress.stop()
                break
            report.policy_ns += took
            progress.acting_ns[group] += took
            failed = False
            for block, take in crew:
                if block.step(at + 1):
                    failed = report.keep(at + 1, take()) or failed
            if failed:
                if any(isinstance(thing.error, StopActors) for _, _, _, thing in report.leftovers):
                    progress.stop()
                    report.leftovers.clear()
                break
            self._at = at = at + 1
            made += 1
            self._acting.after(at, envs)
            packer.count(at)
            if at == end or (steps is None and now() - handed > _SOON):
                if not self._hand_over(packer.pack(packed, at), group):
                    return report
                packed, handed = at, now()
            if at == end:
                self.carry(at, 0, envs)
                self._at = packed = 0
        if steps is None and self._at > packed:
            self._hand_over(packer.pack(packed, self._at), group)
            self.carry(self._at, 0, envs)
            self._at = 0
        return report

    def _hand_over(self, records: npt.NDArray[Any], group: int) -> bool:
        """Push them, however long that takes; False if they are not wanted any more."""
        began = now()
        sent = self._ring.push_many(records, timeout=0)
        if sent == len(records):
            return True
        self._progress.blocked[group] = True
        while sent < len(records):
            if self._progress.dropped:
                return False
            sent += self._ring.push_many(records[sent:], timeout=_LOOK)
        self._progress.blocked[group] = False
        self._progress.blocked_ns[group] += now() - began
        self._refresh_at = 0  # somebody has learned meanwhile
        return True

    def _act(self, at: int, envs: slice) -> int:
        began = now()
        self._acting.act(at, envs)
        return now() - began


def mark_lost(frames: Frames, at: int, envs: npt.NDArray[np.int64] | slice) -> None:
    """The step after a frame ended the episodes of envs that were lost in it."""
    frames.truncated[at + 1, envs] = True
    frames.has_final[at + 1, envs] = LOST
    for final, seen in zip(frames.final_observations, frames.observations, strict=True):
        final[at + 1, envs] = seen[at, envs]


def _seed(policy: Any, seed: int) -> None:
    """The generators that a policy may use: the global ones, and its own if it takes a seed."""
    np.random.seed(seed % 2**32)
    if callable(own := getattr(policy, "seed", None)):
        own(seed)
    if is_module(policy):
        import torch  # noqa: PLC0415 - it is there

        torch.manual_seed(seed)
