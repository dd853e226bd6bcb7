"""How well a policy does, over a number of whole episodes: none is preferred for being short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._numbers import whole_number
from pysampler._policies.sampler import makes_envs
from pysampler._rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._rollouts.config import PolicyIn

__all__ = ["Evaluation", "evaluate"]

# Steps between looks whether there are enough. What is sampled beyond is thrown away.
_HORIZON = 64


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes, env by env."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Of the returns."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Of the returns."""
        return float(self.returns.std())

    def __str__(self) -> str:
        return (
            f"{self.mean:.4g} +- {self.std:.2g} over {len(self.returns)} episodes of "
            f"{self.lengths.mean():.4g} steps"
        )


def evaluate(
    envs: Any,
    policy: Any,
    episodes: int,
    *,
    num_envs: int | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    policy_in: PolicyIn = "main",
    overlap: bool = False,
    min_envs: int | None = None,
    timeout: float | None = None,
    threads: int | None = 1,
    max_steps: int = 100_000,
    seed: int | None = None,
) -> Evaluation:
    """Run a policy for exactly ``episodes``, shared out among the envs beforehand.

    Taking the first that end would prefer short ones; here each env has its number to do, and what
    it does beyond is not counted.

    Args:
        envs: What :class:`pysampler.Rollouts` takes, or rollouts whose vector env is to be used
            meanwhile: their next one begins with a reset.
        policy: The policy, as of rollouts.
        episodes: How many episodes to count.
        num_envs: How many envs to make; by default up to 8.
        vector_kwargs: Further arguments of :class:`pysampler.VectorEnv`, for the envs to make.
        policy_in: As of rollouts, like the next four.
        overlap: As of rollouts.
        min_envs: As of rollouts.
        timeout: As of rollouts.
        threads: As of rollouts.
        max_steps: Steps within which each episode has to end.
        seed: Seed of the first reset and of the policy's random numbers.

    Returns:
        Returns and lengths of the episodes.

    Raises:
        ValueError: An episode did not end within ``max_steps``: the env may have no end.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> evaluation = evaluate("CartPole-v1", policy, 10, seed=1, num_envs=4)
    >>> len(evaluation.returns), bool((evaluation.returns == evaluation.lengths).all())
    (10, True)
    """
    episodes = whole_number("evaluate", "episodes", episodes, 1)
    max_steps = whole_number("evaluate", "max_steps", max_steps, 1)
    paused = envs if isinstance(envs, Rollouts) else None
    if paused is not None:
        if num_envs is not None or vector_kwargs is not None:
            raise ValueError("cannot evaluate: num_envs and vector_kwargs are for envs to make")
        paused.pause()
        envs = paused.envs
    elif num_envs is None and makes_envs(envs):
        num_envs = min(episodes, 8)
    try:
        with Rollouts(
            *(envs, policy, _HORIZON),
            num_envs=num_envs,
            vector_kwargs=vector_kwargs,
            policy_in=policy_in,
            overlap=overlap,
            min_envs=min_envs,
            timeout=timeout,
            threads=threads,
            seed=seed,
        ) as rollouts:
            return _count(rollouts, episodes, max_steps)
    finally:
        if paused is not None:
            paused.resume()


def _count(some: Rollouts, episodes: int, max_steps: int) -> Evaluation:
    count = some.envs.num_envs
    left = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    done: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    steps = np.zeros(count, np.int64)  # since an episode ended, in whole rollouts
    while (busy := np.array([len(mine) for mine in done]) < left).any():
        rollout = next(some)
        ended = rollout.ended
        steps += rollout.lengths
        steps[ended.env] = 0
        for env, one, length in zip(ended.env, ended.returns, ended.lengths, strict=True):
            if len(done[env]) < left[env]:
                done[env].append((float(one), int(length)))
                steps[env] = max(steps[env], length * (length > max_steps))
        if len(late := np.flatnonzero(busy & (steps > max_steps))) > 0:
            raise ValueError(
                f"cannot evaluate: an episode of env {late[0]} has made more than {max_steps} "
                "steps, max_steps; give envs without an end a gymnasium.wrappers.TimeLimit"
            )
    rows = [row for mine in done for row in mine]
    return Evaluation(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
