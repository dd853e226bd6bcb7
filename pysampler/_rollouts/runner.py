"""The base class of runners, which fill the frames of one rollout after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pysampler._policies.calling import PolicyCaller
    from pysampler._policies.sampler import PreparedFrames
    from pysampler._rollouts.options import RolloutOptions
    from pysampler._vector.core import VectorCore

__all__ = ["RolloutRunner", "RunnerSetup", "closed_error"]


@dataclass(frozen=True)
class RunnerSetup:
    """The arguments of a runner.

    Attributes:
        core: The envs.
        num_workers: The number of workers; 0 if the envs are in this process.
        policy: The policy of the user.
        options: The options of the rollouts.
        prepared: Frames laid out for the policy.
        entropy: Entropy of the policy's random numbers.
        weights: The weights of a torch module.
        make_caller: Returns a caller for a copy of the policy. A runner must not keep this
            function, because it refers to the rollouts.
    """

    core: VectorCore
    num_workers: int
    policy: Any
    options: RolloutOptions
    prepared: PreparedFrames
    entropy: int | list[int]
    weights: dict[str, npt.NDArray[Any]] | None
    make_caller: Callable[[Any], PolicyCaller]


class RolloutRunner:
    """Fills the frames of one rollout after another.

    ``start`` begins a rollout, ``finish`` returns when all of its frames are filled, and ``end``
    abandons the rollout under way.

    Attributes:
        policy: The policy on these frames.
        frames: The frames.
        mailed_infos: Infos without a column: their frame, env and dict.
        seconds: Time spent in the policy and in waiting for envs.
        begun: Whether ``start`` has begun the rollout, if it raised.
    """

    begun = True

    def __init__(self, setup: RunnerSetup) -> None:
        self.policy = setup.prepared.policy
        self.frames = setup.prepared.frames
        self.mailed_infos: list[tuple[int, int, dict[str, Any]]] = []
        self.seconds = {"policy": 0.0, "waiting": 0.0}
        self._core = setup.core
        self._pool = setup.core.pool
        self._groups = setup.core.groups
        self._options = setup.options
        self._horizon = setup.options.horizon
        self._given_policy = setup.policy

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of steps of each env in the rollout."""
        return np.full(self.frames.envs, self._horizon)

    def start(self, base: int) -> None:
        """Begin a rollout at frame ``base``, with the current policy."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait until all frames of the rollout are filled."""
        raise NotImplementedError

    def stop(self) -> None:
        """Start no more steps."""
        raise NotImplementedError

    def end(self) -> bool:
        """Stop; return whether only the pool may still be busy."""
        self.stop()
        return True


def closed_error() -> ClosedError:
    """Return the error for rollouts that a signal handler or another thread has closed."""
    return ClosedError("cannot sample rollouts: they were closed meanwhile")
