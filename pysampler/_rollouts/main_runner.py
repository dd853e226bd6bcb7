"""Runners with the policy in this process: MainRunner, the base class, and TurnRunner."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysampler import _core
from pysampler._common.torch import get_torch_threads, is_module, set_torch_threads
from pysampler._policies.copying import copied, fingerprint
from pysampler._policies.frame_policy import BETWEEN, end_lost_episodes
from pysampler._policies.seeds import seed_policy
from pysampler._policies.weights import copy_weights
from pysampler._rollouts.background import Background
from pysampler._rollouts.runner import RolloutRunner, closed_error
from pysampler._vector.blocks import copied_info
from pysampler._vector.results import first
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pysampler._rollouts.runner import RunnerSetup
    from pysampler._vector.core import VectorCore
    from pysampler._workers.jobs import Answer

__all__ = ["MainRunner", "TurnRunner"]


class MainRunner(RolloutRunner):
    """Base class for runners whose policy acts in this process.

    With ``overlap`` a background thread fills the frames, acting with a copy of the policy.
    """

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        overlap = self._options.overlap
        self._base = 0
        self._stopped = False
        self._copy_fingerprint: bytes | None = None  # of the last copied policy
        self._background = Background() if overlap else None
        # With a background thread, the setting could also affect the user's code.
        self._threads = None if overlap else self._options.threads
        self._copy_seeds = np.random.SeedSequence(setup.entropy)
        if overlap and is_module(setup.policy):
            self.policy.caller = setup.make_caller(copy.deepcopy(setup.policy))
            seed_policy(self.policy.caller.policy, self._copy_seeds.spawn(1)[0], own_process=False)
        self.policy.caller.seed_generators(setup.entropy, self.frames.envs)

    def start(self, base: int) -> None:
        """Begin a rollout at frame ``base``, with the current policy."""
        self._base = base
        if self._background is not None:
            self._copy_policy()
        self.policy.caller.follow_weights()
        if self._background is not None:
            self._background.start(self._fill)

    def _copy_policy(self) -> None:
        """Update the copy that acts: the weights of a module, or a new copy of any other policy.

        If the policy has not changed, the copy stays, and its random numbers continue.
        """
        if is_module(self._given_policy):
            copy_weights(self.policy.caller.policy, self._given_policy)
            return
        current = fingerprint(self._given_policy)
        if current is None or current != self._copy_fingerprint:
            self._copy_fingerprint = current
            policy = copied(self._given_policy)
            seed_policy(policy, self._copy_seeds.spawn(1)[0], own_process=False)
            self.policy.caller.policy = policy

    def finish(self) -> None:
        """Fill the frames, or wait until the background thread has filled them."""
        if self._background is None:
            self._fill()
        else:
            self._background.wait()

    def stop(self) -> None:
        """Start no more steps."""
        self._stopped = True

    def end(self) -> bool:
        """Stop; return True if nothing but the pool may still be busy."""
        self.stop()
        return self._background is None or self._background.end()

    def _fill(self) -> None:
        # The background thread does not enter the guard. The lease refuses calls that would harm,
        # and users may set options and read counters meanwhile.
        turn = contextlib.nullcontext() if self._background else self._core.enter("rollouts")
        threads_before = get_torch_threads()
        try:
            set_torch_threads(self._threads)
            with turn:
                self._fill_frames()
        finally:
            if self._threads is not None:
                set_torch_threads(threads_before)

    def _fill_frames(self) -> None:
        raise NotImplementedError

    def _expect_running(self) -> None:
        if self._stopped:
            raise closed_error()

    def _timed(self, act: Callable[..., None], *arguments: Any) -> None:
        began = now()
        act(*arguments)
        self.seconds["policy"] += (now() - began) / 1e9
        if (track := self._pool.track) is not None:
            track.end(_core.Track.POLICY, 0, began)

    def _handle(self, answers: Sequence[Answer], frame_of: Mapping[int, int]) -> None:
        """Mark lost envs and keep mailed infos, for groups whose step ended at these frames."""
        if failures := self._core.results.failed(answers):
            raise self._pool.error_of(*first(failures))
        for group, overflow in answers:
            frame = frame_of[group]
            end_lost_episodes(self.frames, frame - 1, overflow)
            self.mailed_infos += [
                (frame + sum(step), env, copied_info(info))
                for kind, env, info, *step in overflow
                if kind == _core.EnvBlock.INFO
            ]


class _Part(NamedTuple):
    """Groups that step together, and their envs: all of them, or consecutive ones of each group."""

    groups: list[int]
    envs: Any
    ranges: list[range]


class TurnRunner(MainRunner):
    """Acts for all envs together, or in turn for parts of each worker's envs.

    While the policy acts for one part, the others step.
    """

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        self._parts = _parts(setup.core)
        # The policy's outputs for the first frame were computed for all envs, with unseeded
        # generators: they are reused only if this runner would make the same call.
        fits = len(self._parts) == 1 and not self.policy.caller.uses_generators
        self._outputs = setup.prepared.outputs if fits else None

    def _fill_frames(self) -> None:
        base, end = self._base, self._base + self._horizon
        self.policy.carry(BETWEEN, base)
        parts = self._parts
        if len(parts) == 1 and self._options.chunk is None:
            for at in range(base, end):
                self._act(parts[0], at)
                self._round(parts[0], at + 1)
        else:
            self._take_turns(parts, base, end, self._options.chunk or 1)
        self.policy.carry(end, BETWEEN)

    def _take_turns(self, parts: Sequence[_Part], base: int, end: int, steps: int) -> None:
        for at in range(base, end, steps):
            for part in parts:
                if at > base:
                    self._receive(part, at - steps + 1)
                self._act(part, at)
                group_frames = [(group, at + 1) for group in part.groups]
                self._pool.step_some(group_frames, self._options.chunk and steps)
        for part in parts:
            self._receive(part, end - steps + 1)

    def _act(self, part: _Part, at: int) -> None:
        self._expect_running()
        outputs, self._outputs = self._outputs, None
        if outputs is None:
            self._timed(self.policy.act, [(at, one.start, len(one)) for one in part.ranges])
        else:
            self._timed(self.policy.write, at, part.envs, *outputs)

    def _round(self, part: _Part, at: int) -> None:
        began = now()
        self._stepped(part, at, self._pool.round(at), began)

    def _receive(self, part: _Part, at: int) -> None:
        began = now()
        answers = self._pool.wait_for(part.groups)
        self._pool.take(part.groups)
        self._stepped(part, at, answers, began)

    def _stepped(self, part: _Part, at: int, answers: Sequence[Answer], began: int) -> None:
        self.seconds["waiting"] += (now() - began) / 1e9
        if answers:
            self._handle(answers, dict.fromkeys(part.groups, at))
        if self._options.chunk is None:
            self.policy.after_step(at, part.envs)
        else:
            self.policy.after_chunk(at, part.envs)


def _parts(core: VectorCore) -> list[_Part]:
    """Return the parts for which the policy acts in turn: part n has each worker's n-th group."""
    parts: dict[int, list[int]] = {}
    seen: Counter[int] = Counter()  # by worker
    for group, worker in enumerate(core.pool.worker_of):
        parts.setdefault(seen[worker], []).append(group)
        seen[worker] += 1
    if len(parts) == 1:
        return [_Part(parts[0], slice(0, core.num_envs), [range(core.num_envs)])]
    ranges = [[core.groups[group] for group in groups] for groups in parts.values()]
    return [
        _Part(groups, np.concatenate(envs), envs)
        for groups, envs in zip(parts.values(), ranges, strict=True)
    ]
