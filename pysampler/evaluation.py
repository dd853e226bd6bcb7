"""How well a policy does: so many whole episodes, no more, and none preferred for being short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler.numbers import whole_number
from pysampler.rollouts import Rollouts, rollouts

if TYPE_CHECKING:
    import numpy.typing as npt

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
    policy: Any,
    envs: Any,
    episodes: int,
    *,
    seed: int | None = None,
    num_envs: int | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Evaluation:
    """Run a policy for just so many episodes, shared out among the envs beforehand.

    Taking the first that end would prefer short ones; here each env has its number to do, and what
    it does beyond is not counted. ``envs`` is as for :func:`pysampler.rollouts`, or rollouts whose
    vector env is to be used meanwhile: their next one begins with a reset. ``options`` are further
    ones of rollouts: ``where``, say.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> evaluation = evaluate(policy, "CartPole-v1", 10, seed=1, num_envs=4)
    >>> len(evaluation.returns), bool((evaluation.returns == evaluation.lengths).all())
    (10, True)
    """
    episodes = whole_number("evaluate", "episodes", episodes, 1)
    if isinstance(envs, Rollouts):
        envs.pause()
        try:
            return evaluate(policy, envs.envs, episodes, seed=seed, **options)
        finally:
            envs.resume()
    if num_envs is None and not hasattr(envs, "num_envs"):
        num_envs = min(episodes, 8)
    with rollouts(
        *(envs, policy, _HORIZON),
        num_envs=num_envs,
        vector_kwargs=vector_kwargs,
        seed=seed,
        **options,
    ) as some:
        return _count(some, episodes)


def _count(some: Rollouts, episodes: int) -> Evaluation:
    count = some.envs.num_envs
    left = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    done: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    while any(len(mine) < most for mine, most in zip(done, left, strict=True)):
        ended = next(some).ended
        for env, one, length in zip(ended.env, ended.returns, ended.lengths, strict=True):
            if len(done[env]) < left[env]:
                done[env].append((float(one), int(length)))
    rows = [row for mine in done for row in mine]
    return Evaluation(np.array([row[0] for row in rows]), np.array([row[1] for row in rows]))
