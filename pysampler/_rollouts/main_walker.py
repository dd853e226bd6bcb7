"""Rollouts whose policy acts in this process, for all envs in turn or for those that are ready."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._policies.copying import copied, fingerprint
from pysampler._policies.frame_policy import mark_lost
from pysampler._policies.seeds import seed_policy
from pysampler._policies.weights import copy_weights
from pysampler._policies.worker_policy import copied_infos
from pysampler._rollouts.background import Background
from pysampler._rollouts.config import closed_meanwhile
from pysampler._torch import get_torch_threads, is_module, set_torch_threads
from pysampler._vector.jobs import Reset
from pysampler._vector.results import first
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.frame_policy import FramePolicy
    from pysampler._rollouts.config import RolloutConfig
    from pysampler._vector.core import VectorCore
    from pysampler._workers.jobs import Answer

__all__ = ["MainWalker"]

_BLOCK = _core.EnvBlock


class MainWalker:
    """Fills a rollout's frames with a policy in this process.

    ``start`` begins at a frame, ``finish`` returns when the rollout is there, ``end`` gives it up.
    With ``overlap`` a thread fills the frames meanwhile.

    Attributes:
        policy: The policy on these frames.
        mailed_infos: Infos without a column: their frame, env and dict.
        seconds: Time spent in the policy and in waiting for envs.
    """

    def __init__(
        self,
        config: RolloutConfig,
        policy: FramePolicy,
        frames: Frames,
        outputs: Any,
        entropy: int | list[int],
    ) -> None:
        self.policy = policy
        self.frames = frames
        self.mailed_infos: list[tuple[int, int, dict[str, Any]]] = []
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._options = options = config.options
        self._core = config.core
        self._pool = config.core.pool
        self._groups = config.core.groups
        self._sizes = np.array([len(group) for group in self._groups])
        self._horizon = options.horizon
        # What the policy returned for the observations of the first frame.
        self._outputs = outputs
        self._everyone = slice(0, frames.envs)
        self._parts = _parts(config.core)
        self._ids = [np.arange(group.start, group.stop) for group in self._groups]
        self._carried: set[int] = set()  # groups whose step under way began in the last rollout
        self._base = self._opened_at = 0
        self._first = True  # the first rollout begins with the reset that there has just been
        self._stop = False
        # For each group, the frame of what it returned last, and how many steps it has made.
        self._frame = np.zeros(len(self._groups), np.int64)
        self._done = np.zeros(len(self._groups), np.int64)
        self._given = config.policy
        self._copied_from: bytes | None = None
        self._background = Background() if options.overlap else None
        # Beside a background thread they would be the user's, too.
        self._threads = None if options.overlap else options.threads
        self._seeds = np.random.SeedSequence(entropy)  # of copies
        if self._background is not None and is_module(self._given):
            make = config.caller_of()
            assert make is not None
            policy.caller = make(copy.deepcopy(self._given))
            seed_policy(policy.caller.policy, self._seeds.spawn(1)[0], own_process=False)
        policy.caller.seed_generators(entropy, frames.envs)
        if policy.caller.uses_generators:  # what it has returned came of other numbers
            self._outputs = None

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of steps of each env."""
        return np.repeat(self._done, self._sizes)

    def start(self, base: int) -> None:
        """Begin a rollout at a frame."""
        if self._background is None:
            self._base = base
            return
        if is_module(self._given):
            copy_weights(self.policy.caller.policy, self._given)
        else:
            self._copy()
        self._background.start(lambda: self._fill(base))

    def _copy(self) -> None:
        """Act with a copy of the policy, a new one only if the policy has changed.

        A copy that stays draws on from its own random numbers.
        """
        current = fingerprint(self._given)
        if current is None or current != self._copied_from:
            self._copied_from = current
            policy = copied(self._given)
            seed_policy(policy, self._seeds.spawn(1)[0], own_process=False)
            self.policy.caller.policy = policy

    def finish(self) -> None:
        """Wait until the rollout is there."""
        if self._background is None:
            self._fill(self._base)
        else:
            self._background.wait()

    def stop(self) -> None:
        """Begin no further step."""
        self._stop = True

    def end(self) -> bool:
        """Stop, and return whether only the pool is at work."""
        self.stop()
        return self._background is None or self._background.end()

    def _fill(self, base: int) -> None:
        # The background thread does not take the turn: calls that would harm it are refused since
        # the envs are leased, and users may set options and read counters.
        turn = contextlib.nullcontext() if self._background else self._core.enter("rollouts")
        before = get_torch_threads()
        try:
            set_torch_threads(self._threads)
            with turn:
                if self._options.as_ready:
                    self._fill_as_ready(base)
                else:
                    self._fill_in_turn(base)
        finally:
            if self._threads is not None:
                set_torch_threads(before)

    # -- all envs together, or one part of each worker's after the other ---------------------------

    def _fill_in_turn(self, base: int) -> None:
        self._bring(base, range(len(self._groups)))
        for at in range(base, base + self._horizon):
            for groups, envs in self._parts:
                if at > base:
                    self._receive_part(groups, envs, at)
                self._act_for_part(groups, envs, at)
        for groups, envs in self._parts:
            self._receive_part(groups, envs, base + self._horizon)
        self._frame[:] = base + self._horizon
        self._done[:] = self._horizon

    def _act_for_part(self, groups: list[int], envs: Any, at: int) -> None:
        if self._stop:
            raise closed_meanwhile()
        self._call_policy(at, envs)
        if len(self._parts) == 1:
            self._pool.step(at + 1)
        else:
            self._pool.step_some([(group, at + 1) for group in groups])

    def _receive_part(self, groups: list[int], envs: Any, at: int) -> None:
        began = now()
        if len(self._parts) == 1:
            answers = self._pool.wait() or []
            self._pool.take_all()
        else:
            answers = self._pool.wait_for(groups)
            self._pool.take(groups)
        self.seconds["waiting"] += (now() - began) / 1e9
        if answers:
            self._settle(answers, dict.fromkeys(groups, at))
        self.policy.after_step(at, envs)

    # -- the envs that are ready -------------------------------------------------------------------

    def _fill_as_ready(self, base: int) -> None:
        ready = self.open(base)
        while True:
            self.act_for(self.unfinished(ready))
            if self.over:
                return
            timeout = self._options.timeout_ns
            ready = self.receive_some(None if timeout is None else now() + timeout)

    def open_by_hand(self) -> list[int]:
        """Begin a rollout whose actions are written by the caller; return the groups to act for."""
        self._outputs = None
        return self.open(self._base)

    def unfinished(self, groups: list[int]) -> list[int]:
        """Return those of some groups that have steps to make."""
        return [group for group in groups if self._done[group] < self._horizon]

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do in this rollout."""
        full = self._done == self._horizon
        return bool(full.any() if self._options.allow_partial else full.all())

    def open(self, base: int) -> list[int]:
        """Begin a rollout at a frame; return the groups that the policy may act for."""
        self._opened_at = base
        everyone = range(len(self._groups))
        self._done[:] = 0
        if self._options.reset_each and not self._first:
            self._reset_all(base)
            return []
        self._first = False
        # What was under way at the end of the last rollout is the first step of this one.
        self._carried = {group for group in everyone if self._pool.is_pending(group)}
        for group in self._carried:
            self._bring_rows(group, base)
        ready = [group for group in everyone if group not in self._carried]
        self._bring(base, ready)
        return ready

    def _reset_all(self, base: int) -> None:
        jobs = {group: Reset([None] * len(envs)) for group, envs in enumerate(self._groups)}
        self._frame[:] = base - 1
        self._done[:] = -1
        self._pool.request([(group, base) for group in jobs], jobs)

    def act_for(self, groups: list[int]) -> None:
        """Call the policy for some groups, and let them step."""
        if self._stop:
            raise closed_meanwhile()
        if not groups:
            return
        self._call_policy(*self.rows_of(groups))
        self.step(groups)

    def step(self, groups: list[int]) -> None:
        """Step some groups, whose actions have been written."""
        self._pool.step_some([(group, int(self._frame[group]) + 1) for group in groups])

    def rows_of(self, groups: list[int]) -> tuple[Any, Any]:
        """Return the frames that some groups are at, and their envs."""
        frames = self._frame[groups]
        same = bool((frames == frames[0]).all())
        if same and len(groups) == len(self._groups):
            return int(frames[0]), self._everyone
        envs = np.concatenate([self._ids[group] for group in groups])
        return int(frames[0]) if same else np.repeat(frames, self._sizes[groups]), envs

    def receive_some(self, deadline: int | None) -> list[int]:
        """Wait until ``min_envs`` have made a step, and return the groups that have.

        At the deadline those that have made one are returned, or else the first that does.
        """
        began = now()
        everyone = self.frames.envs
        least = min(self._options.min_envs or everyone, everyone)
        groups, answers = self._pool.wait_some(least, everyone, deadline)
        if not groups:
            groups, answers = self._pool.wait_some(1, everyone, None)
        self._pool.take(groups)
        self.seconds["waiting"] += (now() - began) / 1e9
        if answers:
            self._settle(answers, {g: int(self._frame[g]) + 1 for g in groups})
        for group in groups:
            if group in self._carried:
                self._carried.discard(group)
                self._carry(group, self._opened_at)
            self._frame[group] += 1
            self._done[group] += 1
            at, rows = int(self._frame[group]), self._rows(group)
            if self._done[group] == 0:
                self.policy.begin_episodes(at, rows)
            else:
                self.policy.after_step(at, rows)
        return groups

    def _rows(self, group: int) -> slice:
        return slice(self._groups[group].start, self._groups[group].stop)

    def _carry(self, group: int, base: int) -> None:
        """Copy a step that lies in the last rollout's frames to the first frames of this one."""
        frames, rows, at = self.frames, self._rows(group), int(self._frame[group])
        if at != base:
            for leaf in (*self.policy.carried, *self.policy.extras.values()):
                leaf[base, rows] = leaf[at, rows]
            for field in (
                *(*self.policy.carried, *frames.final_observations, *self.policy.actions),
                *(frames.rewards, frames.terminated, frames.truncated, frames.has_final),
            ):
                field[base + 1, rows] = field[at + 1, rows]
            for column in self._core.results.columns:
                for array in column.views(frames):
                    array[base + 1, rows] = array[at + 1, rows]
            self.mailed_infos = [
                (base + 1 if frame == at + 1 and env in self._groups[group] else frame, env, info)
                for frame, env, info in self.mailed_infos
            ]
        self._frame[group] = base

    # -- shared by both ----------------------------------------------------------------------------

    def _call_policy(self, at: Any, envs: Any) -> None:
        """Let the policy act for these envs, or use what it returned when it was first called."""
        began = now()
        outputs, self._outputs = self._outputs, None
        if outputs is None or len(self._parts) > 1 or self._options.as_ready:
            self.policy.act(at, envs)
        else:
            self.policy.write(at, envs, *outputs)
        self.seconds["policy"] += (now() - began) / 1e9

    def _bring(self, base: int, groups: Iterable[int]) -> None:
        """Copy the last observations of some groups to the first frame of the rollout."""
        groups = list(groups)
        frames = self._frame[groups]
        if len(groups) == len(self._groups) and (frames == frames[0]).all():
            if frames[0] != base:
                for leaf in self.policy.carried:
                    leaf[base] = leaf[frames[0]]
        else:
            for group in groups:
                self._bring_rows(group, base)
        self._frame[groups] = base

    def _bring_rows(self, group: int, base: int) -> None:
        rows, at = self._rows(group), self._frame[group]
        for leaf in self.policy.carried if at != base else ():
            leaf[base, rows] = leaf[at, rows]

    def _settle(self, answers: Sequence[Answer], at: Mapping[int, int]) -> None:
        """Take in what groups answered by mail, each about the frame that its step ended at."""
        if failures := self._core.results.failed(answers):
            raise self._pool.error_of(*first(failures))
        for group, said, replaced in answers:
            if replaced == "step":
                mark_lost(self.frames, at[group] - 1, self._rows(group))
            infos = [(env, info) for kind, env, info in said if kind == _BLOCK.INFO]
            self.mailed_infos += [(at[group], env, copied_infos(info)) for env, info in infos]


def _parts(core: VectorCore) -> list[tuple[list[int], Any]]:
    """Return the groups that the policy acts for together, and their envs.

    The n-th part has the n-th group of each worker.
    """
    parts: dict[int, list[int]] = {}
    nth: dict[int, int] = {}
    for group, worker in enumerate(core.pool.worker_of):
        nth[worker] = nth.get(worker, -1) + 1
        parts.setdefault(nth[worker], []).append(group)
    if len(parts) == 1:
        return [(parts[0], slice(0, core.num_envs))]
    return [
        (
            groups,
            np.concatenate(
                [np.arange(g.start, g.stop) for g in map(core.groups.__getitem__, groups)]
            ),
        )
        for groups in parts.values()
    ]
