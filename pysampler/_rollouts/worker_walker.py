"""Rollouts whose policy acts in the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._policies.copying import pickled, send_policy
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.weights import portable, weights_of
from pysampler._policies.worker_policy import PolicySetup, RolloutJob, TakePolicy
from pysampler._rollouts.config import closed_meanwhile
from pysampler._torch import is_module
from pysampler._vector.results import first
from pysampler._workers.jobs import Failure
from pysampler.sync import Board, now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.frame_policy import FramePolicy
    from pysampler._rollouts.config import RolloutConfig
    from pysampler.sync import Segment

__all__ = ["WorkerWalker"]

_BLOCK = _core.EnvBlock


class WorkerWalker:
    """Lets each worker act for its own envs, one command for a whole rollout."""

    def __init__(
        self,
        config: RolloutConfig,
        policy: FramePolicy,
        frames: Frames,
        segment: Segment,
        weights: dict[str, npt.NDArray[Any]] | None,
        entropy: int | list[int],
    ) -> None:
        self.policy = policy
        self.frames = frames
        self.mailed_infos: list[tuple[int, int, dict[str, Any]]] = []
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._core = config.core
        self._pool = config.core.pool
        self._groups = config.core.groups
        self._own_process = config.num_workers > 0
        self._horizon = config.options.horizon
        self._given = config.policy
        self._board = None if not weights else Board(weights, segment)
        self._progress = WorkerProgress(len(self._groups), segment)
        self._last = 0
        self._pickled = b""
        self._entropy = entropy
        self._policies_sent = 0
        self.lengths = np.full(frames.envs, config.options.horizon)
        if is_module(self._given):
            self._send(pickled(portable(self._given)))

    def _send(self, policy: bytes) -> None:
        """Send the workers a pickled policy."""
        self._pickled = policy
        setup = PolicySetup(
            policy,
            self.policy.outputs,
            None if self._board is None else self._board.place(),
            self._progress.offset,
            groups=len(self._groups),
            entropy=self._entropy,
            policies_before=self._policies_sent,
            own_process=self._own_process,
        )
        send_policy(self._pool, TakePolicy, setup)
        self._policies_sent += 1

    def start(self, base: int) -> None:
        """Let the workers begin a rollout at a frame, with the policy as it is now."""
        if self._board is not None:
            self._board.publish(weights_of(self._given))
        elif not is_module(self._given) and (current := pickled(self._given)) != self._pickled:
            self._send(current)
        self._progress.steps[:] = -1
        parts = [(group, base) for group in range(len(self._groups))]
        jobs = {group: RolloutJob(self._horizon, group, self._last) for group, _ in parts}
        self._last = base + self._horizon
        with self._core.enter("rollouts"):
            self._pool.request(parts, jobs)

    def finish(self) -> None:
        """Wait until the rollout is there."""
        began = now()
        with self._core.enter("rollouts"):
            answers = self._pool.wait() or []
            self._pool.take_all()
        if self._progress.stopped:  # a signal handler has closed the rollouts meanwhile
            raise closed_meanwhile()
        self.seconds["waiting"] += (now() - began) / 1e9
        failures = [(group, said) for group, said, _ in answers if isinstance(said, Failure)]
        for group, said, _ in answers:
            if isinstance(said, Failure):
                continue
            for at, kind, env, thing in said.leftovers:
                if kind == _BLOCK.ERROR:
                    failures.append((group, thing))
                elif kind == _BLOCK.INFO:
                    self.mailed_infos.append((at, env, thing))
            self.seconds["policy"] += said.policy_ns / 1e9 / max(1, len(self._pool.groups))
        if failures:
            raise self._pool.error_of(*first(failures))

    def stop(self) -> None:
        """Make the workers end the rollout where it is."""
        self._progress.stop()

    def end(self) -> bool:
        """Stop, and return True: nothing but the pool is at work."""
        self.stop()
        return True
