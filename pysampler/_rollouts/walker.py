"""The base class of walkers, which fill the frames of one rollout after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.errors import ClosedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._policies.sampler import PreparedFrames
    from pysampler._rollouts.config import RolloutConfig

__all__ = ["Walker", "closed_error"]


class Walker:
    """Fills the frames of one rollout after another.

    ``start`` begins a rollout, ``finish`` returns when all of its frames are filled, ``end`` gives
    up the rollout under way.

    Args:
        config: The envs, the policy and the options.
        prepared: Frames laid out for the policy.

    Attributes:
        policy: The policy on these frames.
        frames: The frames.
        mailed_infos: Infos without a column: their frame, env and dict.
        seconds: Time spent in the policy and in waiting for envs.
    """

    def __init__(self, config: RolloutConfig, prepared: PreparedFrames) -> None:
        self.policy = prepared.policy
        self.frames = prepared.frames
        self.mailed_infos: list[tuple[int, int, dict[str, Any]]] = []
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._core = config.core
        self._pool = config.core.pool
        self._groups = config.core.groups
        self._horizon = config.options.horizon
        self._given_policy = config.policy

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of steps of each env in the rollout."""
        return np.full(self.frames.envs, self._horizon)

    def start(self, base: int) -> None:
        """Begin a rollout at frame ``base``, with the policy as it is now."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until all frames of the rollout are filled."""
        raise NotImplementedError

    def stop(self) -> None:
        """Begin no further step."""
        raise NotImplementedError

    def end(self) -> bool:
        """Stop; return whether nothing but the pool is busy afterwards."""
        self.stop()
        return True


def closed_error() -> ClosedError:
    """Return the exception of a rollout that a signal handler or another thread has closed."""
    return ClosedError("cannot sample rollouts: they were closed meanwhile")
