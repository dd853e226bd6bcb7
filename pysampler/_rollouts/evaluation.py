"""Evaluation of a policy over a fixed number of episodes, without a bias to short ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._numbers import whole_number
from pysampler._policies.normalize import expect_normalizer
from pysampler._policies.sampler import makes_envs
from pysampler._rollouts.rollouts import Rollouts
from pysampler._torch import to_array
from pysampler._vector.make import vector_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    import numpy.typing as npt

    from pysampler._policies.normalize import Normalizer
    from pysampler._rollouts.options import PolicyIn
    from pysampler._vector.options import VectorOptions

__all__ = ["Evaluation", "evaluate"]

# Steps between checks for enough episodes. Surplus steps are dropped.
_HORIZON = 64


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of the episodes of an evaluation, env by env.

    Attributes:
        returns: The return of each episode.
        lengths: The number of steps of each episode.
    """

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
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
    device: Any = None,
    leave_out: Sequence[str] = (),
    max_steps: int = 100_000,
    normalize: Normalizer | None = None,
    seed: int | None = None,
    **options: Unpack[VectorOptions],
) -> Evaluation:
    """Run a policy for exactly ``episodes`` episodes and return their returns and lengths.

    Each env gets its share of the episodes in advance, because counting the first ones to end would
    favor short episodes. Episodes beyond an env's share are not counted.

    Args:
        envs: The ``envs`` of :class:`pysampler.Rollouts`; or open rollouts, whose vector env is
            then used: their next rollout begins with a reset.
        policy: A policy, as in :class:`pysampler.Rollouts`.
        episodes: How many episodes to count.
        num_envs: How many envs to make; by default one for each episode, up to 8.
        vector_kwargs: Options of the vector env in a dict, as ``gymnasium.make_vec`` takes them.
        policy_in: Where the policy acts, "main" or "workers", as in :class:`pysampler.Rollouts`.
        overlap: Sample while the episodes so far are counted, as in :class:`pysampler.Rollouts`.
        min_envs: Act as soon as this many envs are ready, instead of all.
        timeout: Act after this many seconds for the envs that are ready; None waits for
            ``min_envs``.
        threads: Threads that torch may use while a policy in "main" acts on the CPU; None leaves
            torch's setting unchanged.
        device: The torch device of a policy in "main", as in :class:`pysampler.Rollouts`.
        leave_out: Names of the parts of observations without a fixed shape, as in
            :class:`pysampler.Rollouts`; by default those of the open rollouts.
        max_steps: Raise ValueError if an episode takes more than this many steps: envs without a
            time limit may never end one.
        normalize: Normalise observations with the statistics of this
            :class:`pysampler.Normalizer`, without updating them; by default that of the open
            rollouts, if any. Returns sum the envs' own rewards.
        seed: Seed of the first reset and of the policy's random numbers; None: a random one.
        options: Options of :class:`pysampler.VectorEnv`, such as ``num_workers``, for the
            envs to make.

    Returns:
        Returns and lengths of the episodes.

    Raises:
        ValueError: An episode did not end within ``max_steps``.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> evaluation = evaluate("CartPole-v1", policy, 10, seed=1, num_envs=4)
    >>> len(evaluation.returns), bool((evaluation.returns == evaluation.lengths).all())
    (10, True)
    """
    vector_kwargs = vector_options("evaluate", vector_kwargs, options, evaluate)
    episodes = whole_number("evaluate", "episodes", episodes, 1)
    max_steps = whole_number("evaluate", "max_steps", max_steps, 1)
    if normalize is not None:
        expect_normalizer(normalize, "evaluate")
    paused = envs if isinstance(envs, Rollouts) else None
    if paused is not None:
        if num_envs is not None or vector_kwargs:
            raise ValueError("cannot evaluate: num_envs and vector_kwargs are for envs to make")
        paused.pause()
        envs = paused.given_envs
        normalize = paused.normalizer if normalize is None else normalize
        leave_out = leave_out or paused.leave_out
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
            device=device,
            normalize=normalize and normalize.frozen(),
            leave_out=leave_out,
            seed=seed,
        ) as rollouts:
            if rollouts.envs.reward_space is not None:
                raise ValueError(
                    "cannot evaluate: a reward has several numbers, expected one; wrap each env to "
                    "make one of them"
                )
            if rollouts.transforms is not None:
                rollouts.transforms.learns = False
            return _count(rollouts, episodes, max_steps)
    finally:
        if paused is not None:
            paused.resume()


def _count(rollouts: Rollouts, episodes: int, max_steps: int) -> Evaluation:
    num_envs = rollouts.envs.num_envs
    shares = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
    counted: list[list[tuple[float, int]]] = [[] for _ in range(num_envs)]  # returns and lengths
    steps = np.zeros(num_envs, np.int64)  # since an episode ended, in whole rollouts
    while (busy := np.array([len(rows) for rows in counted]) < shares).any():
        rollout = next(rollouts)
        ended = rollout.ended
        steps += rollout.lengths
        steps[ended.env] = 0
        steps[to_array(rollout.lost).any(axis=0)] = 0  # replaced envs begin new episodes
        for env, total, length in zip(ended.env, ended.returns, ended.lengths, strict=True):
            if len(counted[env]) < shares[env]:
                counted[env].append((float(total), int(length)))
                steps[env] = max(steps[env], length * (length > max_steps))
        if len(late := np.flatnonzero(busy & (steps > max_steps))) > 0:
            raise ValueError(
                f"cannot evaluate: an episode of env {late[0]} took more than max_steps, "
                f"{max_steps}; wrap envs that never end in gymnasium.wrappers.TimeLimit"
            )
    returns, lengths = zip(*(row for rows in counted for row in rows), strict=True)
    return Evaluation(np.array(returns), np.array(lengths))
