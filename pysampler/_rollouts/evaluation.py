"""How well a policy does, over a number of whole episodes: none is preferred for being short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._numbers import whole_number
from pysampler._rollouts.rollouts import Rollouts, rollouts

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Evaluation", "evaluate"]

# Steps between looks whether there are enough. What is sampled beyond is thrown away.
_HORIZON = 64
# Options of rollouts that make no sense here: with ``fresh`` no episode would be longer than that.
_NOT_OURS = ("fresh", "keep", "infos", "owned")


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
    max_steps: int = 100_000,
    **options: Any,
) -> Evaluation:
    """Run a policy for exactly ``episodes``, shared out among the envs beforehand.

    Taking the first that end would prefer short ones; here each env has its number to do, and what
    it does beyond is not counted. ``envs`` is as for :func:`pysampler.rollouts`, or rollouts whose
    vector env is to be used meanwhile: their next one begins with a reset. ``options`` are further
    ones of rollouts: ``where``, say. An episode that does not end within ``max_steps`` is a
    ValueError, and nothing is returned: the env may have no end.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> evaluation = evaluate(policy, "CartPole-v1", 10, seed=1, num_envs=4)
    >>> len(evaluation.returns), bool((evaluation.returns == evaluation.lengths).all())
    (10, True)
    """
    episodes = whole_number("evaluate", "episodes", episodes, 1)
    max_steps = whole_number("evaluate", "max_steps", max_steps, 1)
    if refused := [name for name in options if name in _NOT_OURS]:
        raise ValueError(
            f"cannot evaluate: {refused[0]} {options[refused[0]]!r}, expected other options of "
            "rollouts: whole episodes are counted, and nothing else is kept"
        )
    if isinstance(envs, Rollouts):
        if num_envs is not None or vector_kwargs is not None:
            raise ValueError("cannot evaluate: num_envs and vector_kwargs are of other envs")
        envs.pause()
        try:
            return evaluate(policy, envs.envs, episodes, seed=seed, max_steps=max_steps, **options)
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
        return _count(some, episodes, max_steps)


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
