"""Normalization of observations and rewards by running means and variances.

Observations are normalised in place in the frames as soon as a step has ended, so that policies,
rollouts and records all see normalised ones. Rewards stay unchanged, because returns are their
sums; normalised rewards go to a hidden field of the frames, and the discounted returns so far to
another.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pysampler._common.numbers import is_real, true_or_false
from pysampler._frames.frames import LOST
from pysampler._frames.spec import Field, leaf_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import At, Rows

    Array = npt.NDArray[Any]

__all__ = [
    "Moments",
    "Normalization",
    "Normalizer",
    "arrays_of_moments",
    "expect_normalizer",
    "merged",
    "moments_of_arrays",
    "normalization_of",
]

_OBSERVATIONS, _RETURNS = "observations", "returns"
# The weight of the initial mean 0 and variance 1, in rows.
_PRIOR = 1e-4


@dataclass(frozen=True)
class Moments:
    """The mean and variance of rows, element by element, and the number of rows."""

    mean: Array
    variance: Array
    count: float

    @classmethod
    def initial(cls, shape: tuple[int, ...], count: float = _PRIOR) -> Moments:
        """Return mean 0 and variance 1, with the weight of ``count`` rows."""
        return cls(np.zeros(shape), np.ones(shape), count)

    @classmethod
    def of(cls, rows: Array) -> Moments:
        """Return the moments of an array of rows."""
        if len(rows) == 0:
            return cls.initial(rows.shape[1:], 0.0)
        rows = rows.astype(np.float64, copy=False)
        return cls(rows.mean(axis=0), rows.var(axis=0), float(len(rows)))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of the rows of both (Chan, Golub and LeVeque)."""
        if other.count == 0 or self.count == 0:
            return self if other.count == 0 else other
        count = self.count + other.count
        delta = other.mean - self.mean
        squares = self.variance * self.count + other.variance * other.count
        squares = squares + np.square(delta) * self.count * other.count / count
        return Moments(self.mean + delta * other.count / count, squares / count, count)


def merged(moments: Mapping[str, Moments], seen: Mapping[str, Moments]) -> dict[str, Moments]:
    """Return ``moments`` with the rows of ``seen``, which may lack some names, merged in."""
    return {**moments, **{name: moments[name].merged(new) for name, new in seen.items()}}


@dataclass
class Statistics:
    """The moments to normalise with, and how to update them.

    Attributes:
        moments: The moments by name. Each is replaced as a whole.
        update: Whether to update the moments with the data that is normalised.
        gamma: The discount factor of returns.
        epsilon: Added to variances.
    """

    moments: dict[str, Moments]
    update: bool
    gamma: float
    epsilon: float

    def copy(self, *, update: bool) -> Statistics:
        """Return a copy that is updated independently."""
        return replace(self, moments=dict(self.moments), update=update)

    def normalized(self, name: str, rows: Array) -> Array:
        """Return rows normalised by the moments of this name, in their own dtype."""
        return ((rows - self.moments[name].mean) / self.scale(name)).astype(rows.dtype)

    def scale(self, name: str) -> Array:
        """Return the standard deviation of this name, which is never 0."""
        return np.asarray(np.sqrt(self.moments[name].variance + self.epsilon))


@dataclass
class Normalization:
    """Normalises the envs' results in place in the frames, and counts them in the statistics.

    Attributes:
        statistics: The moments to normalise with.
        names: By leaf of the observations, the name of its moments; other leaves stay unchanged.
        seen: By name, the moments of the rows counted here; None not to keep them.
    """

    statistics: Statistics
    names: dict[int, str]
    seen: dict[str, Moments] | None = None

    def copy(self, *, update: bool, keep_seen: bool = False) -> Normalization:
        """Return a normalization that begins with the same moments and is updated independently."""
        seen = self.nothing_seen() if keep_seen else None
        return Normalization(self.statistics.copy(update=update), self.names, seen)

    def nothing_seen(self) -> dict[str, Moments]:
        """Return moments of zero rows."""
        known = self.statistics.moments
        return {name: Moments.initial(one.mean.shape, 0.0) for name, one in known.items()}

    def add(self, seen: Mapping[str, Moments]) -> None:
        """Merge in moments that were counted elsewhere."""
        self.statistics.moments = merged(self.statistics.moments, seen)
        if self.seen is not None:
            self.seen = merged(self.seen, seen)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The hidden fields of the frames: normalised rewards, and discounted returns so far."""
        has_rewards = _RETURNS in self.statistics.moments
        return (Field((), np.dtype(np.float64)),) * 2 if has_rewards else ()

    def observations(self, leaves: Sequence[Array], *, final: bool = False) -> list[Array]:
        """Count a batch of observations, and return its leaves normalised.

        ``final`` observations of episodes are not counted.
        """
        normalised = list(leaves)
        for leaf, name in self.names.items():
            rows = leaves[leaf]
            if not final:
                self._count(name, rows)
            normalised[leaf] = self.statistics.normalized(name, rows)
        return normalised

    def rewards(self, rewards: Array, returns: Array, counted: Array) -> Array:
        """Count the discounted ``returns`` of ``counted`` rows, and return normalised rewards."""
        self._count(_RETURNS, returns[counted])
        return np.asarray(rewards / self.statistics.scale(_RETURNS))

    def _count(self, name: str, rows: Array) -> None:
        if self.statistics.update and len(rows) > 0:
            self.add({name: Moments.of(rows)})

    def begin_episodes(self, frames: Frames, at: At, envs: Rows) -> None:
        """Normalise the observations of a reset, in place in a frame."""
        rows = [leaf[at, envs] for leaf in frames.observations]
        for leaf, new in zip(frames.observations, self.observations(rows), strict=True):
            leaf[at, envs] = new

    def after_step(self, frames: Frames, hidden: Sequence[Array], at: At, envs: Rows) -> None:
        """Normalise the results of a step, in place in a frame."""
        self.begin_episodes(frames, at, envs)
        has_final = frames.has_final[at, envs]
        # A lost env's final observation comes from the frame before, and is normalised already.
        ended = np.arange(frames.envs)[envs][(has_final != 0) & (has_final < LOST)]
        if len(ended) > 0:
            rows = [leaf[at, ended] for leaf in frames.final_observations]
            new_rows = self.observations(rows, final=True)
            for leaf, new in zip(frames.final_observations, new_rows, strict=True):
                leaf[at, ended] = new
        if hidden:
            normalised, returns = hidden
            rewards, made = frames.rewards[at, envs], has_final < LOST
            terminated = frames.terminated[at, envs]
            # As in gymnasium, the return of an episode that terminates is its last reward.
            so_far = returns[at - 1, envs] * self.statistics.gamma * (1 - terminated) + rewards
            normalised[at, envs] = self.rewards(rewards, so_far, made)
            so_far[terminated | frames.truncated[at, envs]] = 0
            returns[at, envs] = so_far


class Normalizer:
    """Normalise observations and rewards by running means and variances.

    Pass it to :class:`pysampler.Rollouts` or :class:`pysampler.Actors` as ``normalize``. The policy
    then gets normalised observations, and rollouts and records hold normalised observations and
    rewards; ``ended.returns`` and ``records.returns`` remain sums of the envs' own rewards. You can
    use a normalizer for several rollouts one after the other, or for one set of actors. Only one
    open sampler at a time can update it.

    If a policy in the main process acts for all envs together, the numbers are those of
    ``gymnasium.wrappers.vector.NormalizeObservation`` and ``NormalizeReward``: observations are
    counted, then normalised to mean 0 and variance 1; rewards are divided by the standard deviation
    of discounted returns. Statistics are float64 here. Every observation that a policy can act on
    is counted once. The last observation of an episode is normalised but not counted. Resets do not
    clear the statistics.

    If the policy acts in the workers, each worker normalises with the common statistics plus the
    results of its own envs since the last merge. The statistics are merged, exactly, after each
    rollout, or whenever you ``publish`` to actors. If a worker is lost, its data since the end of
    the last rollout (for actors, since its last push of records) is not counted, and its
    replacement begins with the common statistics.

    Args:
        observations: Normalise observations: floating-point arrays, element by element, also in
            dicts and tuples. Integers, such as images, stay unchanged. Arrays keep their dtype.
        rewards: Normalise rewards.
        gamma: The discount factor of the returns whose standard deviation divides the rewards: use
            that of your algorithm.
        epsilon: Added to variances, so that constant inputs do not divide by 0.
        update: Update the statistics. You can assign it later, for example to freeze them: it takes
            effect with the next rollout. Actors use its value at their start.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> normalizer = Normalizer(gamma=0.99)
    >>> with pysampler.Rollouts(
    ...     "CartPole-v1", policy, 64, num_envs=4, seed=1, normalize=normalizer
    ... ) as rollouts:
    ...     rollout = next(rollouts)
    >>> bool(abs(rollout.observations).max() > 1), normalizer.count
    (True, 260)
    >>> normalizer.normalized(np.zeros((2, 4), np.float32)).shape
    (2, 4)
    """

    def __init__(
        self,
        *,
        observations: bool = True,
        rewards: bool = True,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        update: bool = True,
    ) -> None:
        self._observations = true_or_false("normalize", "observations", observations)
        self._rewards = true_or_false("normalize", "rewards", rewards)
        if not is_real(gamma, 0) or gamma > 1:
            raise ValueError(f"cannot normalize: gamma {gamma!r}, expected 0 to 1")
        if not (is_real(epsilon, 0) and 0 < epsilon < np.inf):
            raise ValueError(f"cannot normalize: epsilon {epsilon!r}, expected more than 0")
        update = true_or_false("normalize", "update", update)
        self._statistics = Statistics({}, update, float(gamma), float(epsilon))
        self._user: weakref.ref[Any] | None = None  # the last sampler that updates it

    @property
    def update(self) -> bool:
        """Whether samplers update the statistics. Assign False to freeze them."""
        return self._statistics.update

    @update.setter
    def update(self, update: bool) -> None:
        self._statistics.update = true_or_false("normalize", "update", update)

    @property
    def count(self) -> int:
        """The number of observations counted; of rewards, if observations are not normalised."""
        moments = self._statistics.moments
        name = next((name for name in moments if name != _RETURNS), _RETURNS)
        return int(moments[name].count) if moments else 0

    def normalized(self, observations: Any) -> Any:
        """Return a batch of observations normalised but not counted, for use outside of samplers.

        Observations must be in the policy's format, without the parts that ``leave_out`` names.
        """
        used: set[str] = set()
        normalised = self._normalized(observations, _OBSERVATIONS, used)
        expected = {name for name in self._statistics.moments if name != _RETURNS}
        if used != expected:
            raise ValueError(
                f"cannot normalize observations: {sorted(expected - used)} are missing"
            )
        return normalised

    def _normalized(self, batch: Any, name: str, used: set[str]) -> Any:
        if isinstance(batch, Mapping):
            return {key: self._normalized(batch[key], f"{name}[{key!r}]", used) for key in batch}
        if isinstance(batch, tuple):
            parts = enumerate(batch)
            return tuple(self._normalized(one, f"{name}[{i}]", used) for i, one in parts)
        moments = self._statistics.moments.get(name)
        if moments is None:
            return batch
        used.add(name)
        array = np.asarray(batch)
        if array.shape[1:] != moments.mean.shape:
            raise ValueError(
                f"cannot normalize observations: {name} of shape {array.shape}, expected "
                f"{('n', *moments.mean.shape)}"
            )
        if array.dtype.kind != "f":
            array = array.astype(np.float64)
        return self._statistics.normalized(name, array)

    def frozen(self) -> Self:
        """Return a normalizer with these statistics that is never updated, for evaluation."""
        own = copy.copy(self)
        own._statistics = self._statistics.copy(update=False)
        own._user = None
        return own

    def state_dict(self) -> dict[str, Array]:
        """Return the statistics, as arrays by name; none before the first data."""
        return arrays_of_moments(self._statistics.moments) if self.count else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load statistics that ``state_dict`` returned, or raise ValueError if they are invalid.

        Do not call this while actors act: their next ``publish`` overwrites the statistics.
        """
        moments = moments_of_arrays(state)
        for name, one in moments.items():
            finite = np.isfinite(one.mean).all() and np.isfinite(one.variance).all()
            if not (0 < one.count < np.inf and finite and (one.variance >= 0).all()):
                raise ValueError(
                    f"cannot load statistics: {name} must hold mean, variance and count"
                )
        current = self._statistics.moments
        moments = moments or {n: Moments.initial(one.mean.shape) for n, one in current.items()}
        shapes, expected = ({n: m.mean.shape for n, m in one.items()} for one in (moments, current))
        if current and shapes != expected:
            raise ValueError(f"cannot load statistics: shapes {shapes}, expected {expected}")
        self._statistics.moments = moments

    def claim(self, sampler: Any) -> None:
        """Let only this sampler update the statistics until it is closed. Samplers call this."""
        self._user = weakref.ref(sampler)

    def is_claimed_by(self, sampler: Any) -> bool:
        """Return whether this sampler was the last to claim the normalizer."""
        return self._user is not None and self._user() is sampler

    def expect_unused(self, purpose: str) -> None:
        """Raise ValueError if an open sampler updates these statistics."""
        user = None if self._user is None else self._user()
        if user is not None and not user.closed:
            raise ValueError(
                f"cannot {purpose}: another open sampler updates the normalizer; close that one, "
                "or give each sampler its own normalizer"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_user": None}

    def __repr__(self) -> str:
        return f"<pysampler.Normalizer, {self.count} counted>"


def arrays_of_moments(moments: Mapping[str, Moments]) -> dict[str, Array]:
    """Return moments as arrays by name."""
    return {
        f"{name}.{part}": np.array(getattr(one, part), np.float64)
        for name, one in moments.items()
        for part in ("mean", "variance", "count")
    }


def moments_of_arrays(arrays: Mapping[str, Any]) -> dict[str, Moments]:
    """Return moments from arrays by name, or raise ValueError."""
    if not isinstance(arrays, Mapping) or not all(isinstance(name, str) for name in arrays):
        raise TypeError(
            "cannot load statistics: expected a dict of arrays, as state_dict() returns"
        )
    names = list(dict.fromkeys(name.rpartition(".")[0] for name in arrays))
    expected = [f"{name}.{part}" for name in names for part in ("mean", "variance", "count")]
    if sorted(arrays) != sorted(expected):
        raise ValueError(f"cannot load statistics: {sorted(arrays)}, expected {sorted(expected)}")
    moments = {}
    for name in names:
        mean, variance, count = (
            np.array(arrays[f"{name}.{part}"], np.float64) for part in ("mean", "variance", "count")
        )
        if mean.shape != variance.shape or count.shape != ():
            raise ValueError(
                f"cannot load statistics: {name} has a mean of shape {mean.shape}, a variance of "
                f"{variance.shape} and a count of {count.shape}"
            )
        moments[name] = Moments(mean, variance, float(count))
    return moments


def normalization_of(
    normalizer: Any, spec: Spec, purpose: str, *, counts: bool = True
) -> Normalization | None:
    """Return the normalization for envs of these spaces, or raise if the normalizer does not fit.

    Args:
        normalizer: The ``normalize`` argument of a sampler.
        spec: The spaces of the envs.
        purpose: The sampler's purpose, for errors.
        counts: Whether the sampler updates the statistics.
    """
    if normalizer is None:
        return None
    expect_normalizer(normalizer, purpose)
    if counts:
        normalizer.expect_unused(purpose)
    return _bound(normalizer, spec, purpose)


def expect_normalizer(normalizer: Any, purpose: str) -> None:
    """Raise TypeError unless the ``normalize`` argument is a normalizer."""
    if not isinstance(normalizer, Normalizer):
        raise TypeError(
            f"cannot {purpose}: normalize is a {type(normalizer).__name__}, expected a "
            "pysampler.Normalizer"
        )


def _bound(normalizer: Normalizer, spec: Spec, purpose: str) -> Normalization:
    paths = leaf_paths(spec.observation_tree)
    names = {
        i: _OBSERVATIONS + path
        for i, (path, field) in enumerate(zip(paths, spec.observations, strict=True))
        if normalizer._observations and field.dtype.kind == "f"
    }
    shapes: dict[str, tuple[int, ...]] = {n: spec.observations[i].shape for i, n in names.items()}
    if normalizer._rewards and spec.rewards:
        raise ValueError(
            f"cannot {purpose}: a reward has {spec.rewards[0]} numbers, and only single numbers "
            "can be normalized; use Normalizer(rewards=False)"
        )
    if normalizer._rewards:
        shapes[_RETURNS] = ()
    if not shapes:
        raise ValueError(
            f"cannot {purpose}: nothing to normalize, expected observations with "
            "floating-point parts, or rewards=True"
        )
    statistics = normalizer._statistics
    known = {name: moments.mean.shape for name, moments in statistics.moments.items()}
    if known != shapes:
        if any(moments.count > _PRIOR for moments in statistics.moments.values()):
            raise ValueError(
                f"cannot {purpose}: the normalizer has statistics of {known}, expected {shapes}"
            )
        statistics.moments = {name: Moments.initial(shape) for name, shape in shapes.items()}
    return Normalization(statistics, names)
