"""Layers: each replaces one of gymnasium's wrappers, for all envs of a batch at once.

Normalizing 64 observations one by one takes 60 times as long as the same arithmetic on their rows,
and gives the same bits, since each operation is elementwise. A layer holds the state of its wrapper
for all envs, a row each. The wrappers themselves stay around the real envs: ``store`` writes the
state of one env to its wrapper, so that any other call sees the env as if it had been stepped
alone, and ``load`` reads it back.

============================ ===================================================================
``EpisodeStatistics``        RecordEpisodeStatistics
``NormalizedObservations``   NormalizeObservation
``NormalizedRewards``        NormalizeReward
``ChangedActions``           TransformAction, ClipAction, RescaleAction
``ChangedObservations``      TransformObservation, FlattenObservation, ReshapeObservation,
                             RescaleObservation, DtypeObservation
``StackedObservations``      FrameStackObservation
``ChangedRewards``           TransformReward, ClipReward
============================ ===================================================================
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from pysampler._vector.native.known import is_well_known
from pysampler._vector.same import same
from pysampler._vector.wrapped.elementwise import (
    bound_names,
    bound_values,
    is_elementwise,
    same_function,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = [
    "LAYERS",
    "ChangedRewards",
    "EpisodeStatistics",
    "Layer",
    "NormalizedRewards",
    "NotBatchedError",
    "Rows",
]


# Ended episodes to collect before they are added to the queues of wrappers, which takes time.
_MAX_ENDED = 1000


class NotBatchedError(Exception):
    """A wrapper cannot be run on batches; the message says why."""


@dataclass
class Rows:
    """Results of some envs, which the layers change one after the other, from the innermost on.

    Attributes:
        ids: The indices of these envs in the block, ascending.
        at: The index of these envs in arrays of all envs of the block.
        observations: A row for each env; None if no layer changes observations.
        rewards: The rewards of a step, float64.
        terminated: Whether the step terminated each episode.
        truncated: Whether the step truncated each episode.
        doubles: Which rewards were NumPy's float64 instead of Python numbers.
        infos: The infos that layers have added, each with the index of its env.
    """

    ids: Array
    at: Any
    observations: Any
    rewards: Array
    terminated: Array
    truncated: Array
    doubles: Any = True
    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


class Layer:
    """Base class of layers: replaces one wrapper of each env of a block.

    Args:
        wrappers: The wrapper of each env.

    Attributes:
        state: The attributes of the wrapper that hold its state. If a call changes another one,
            the layer no longer equals the wrapper.
        arrays: The state of all envs, a row each, by name.
        acts: Whether the layer changes actions.
        observes: Whether the layer changes observations.
        costs: The microseconds of a step of the layer, for any number of envs.
        saves: The microseconds of a step of one wrapper.
    """

    state: Sequence[str] = ()
    acts = observes = False
    costs, saves = 8.0, 5.0

    def __init__(self, wrappers: Sequence[Any]) -> None:
        self.wrappers = wrappers
        self.arrays: dict[str, Array] = {}

    @classmethod
    def expect(cls, wrapper: Any) -> None:
        """Raise NotBatchedError if this wrapper cannot be run on batches."""

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:  # noqa: ARG003
        """Return whether two wrappers of a class have equal parameters."""
        return True

    def act(self, actions: Array) -> Array:
        """Return the actions of all envs, changed for the next layer inwards."""
        return actions

    def begin(self, rows: Rows) -> None:
        """Change the results of a reset."""

    def step(self, rows: Rows) -> None:
        """Change the results of a step."""

    def arrays_set(self, ids: Sequence[int]) -> None:
        """React to a change of the rows of some envs in ``arrays``."""

    def stale(self) -> bool:
        """Return whether values that the layer reads outside of the wrappers have changed."""
        return False

    def load(self, i: int) -> None:
        """Load the state of env ``i`` from its wrapper.

        Raises:
            NotBatchedError: The layer cannot continue from this state.
        """

    def store(self, i: int) -> None:
        """Store the state of env ``i`` in its wrapper."""


class EpisodeStatistics(Layer):
    """``RecordEpisodeStatistics``: returns and lengths of episodes, as infos and in queues."""

    saves = 0.7
    state = (
        *("episode_count", "episode_start_time", "episode_returns", "episode_lengths"),
        *("time_queue", "return_queue", "length_queue"),
    )

    def __init__(self, wrappers: Sequence[Any]) -> None:
        super().__init__(wrappers)
        self._key: str = wrappers[0]._stats_key
        count = len(wrappers)
        self._returns = np.zeros(count)
        self._lengths = np.zeros(count, np.int64)
        self._started = np.full(count, -1.0)
        self._ended: list[tuple[int, dict[str, Any]]] = []  # not in the queues yet
        self._doubles = np.zeros(count, bool)
        self.arrays = {"returns": self._returns, "lengths": self._lengths, "doubles": self._doubles}

    @property
    def key(self) -> str:
        """The key of the info."""
        return self._key

    @classmethod
    def expect(cls, wrapper: Any) -> None:
        if not is_well_known(wrapper.env):
            raise NotBatchedError("it writes to infos that the env may keep, or may have written")

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:
        return same(one._stats_key, other._stats_key)

    def begin(self, rows: Rows) -> None:
        self._started[rows.at] = time.perf_counter()
        self._returns[rows.at] = 0.0
        self._lengths[rows.at] = 0
        self._doubles[rows.at] = False

    def step(self, rows: Rows) -> None:
        if len(self._ended) > _MAX_ENDED:
            self._fill_queues()
        self._returns[rows.at] += rows.rewards
        self._doubles[rows.at] |= rows.doubles
        self._lengths[rows.at] += 1
        over = rows.terminated | rows.truncated
        if over.any():
            for i in rows.ids[over].tolist():
                rows.infos.append((i, {self._key: self._end(i)}))

    def _end(self, i: int) -> dict[str, Any]:
        now = time.perf_counter()
        took = round(now - float(self._started[i]), 6)
        info = {"r": self._return(i), "l": int(self._lengths[i]), "t": took}
        self._ended.append((i, info))
        self._started[i] = now
        return info

    def _return(self, i: int) -> Any:
        value = self._returns[i]
        return value if self._doubles[i] else float(value)

    def _fill_queues(self) -> None:
        """Add ended episodes to the queues of their wrappers."""
        while self._ended:
            i, info = self._ended[0]
            wrapper = self.wrappers[i]
            for queue, key in (("time", "t"), ("return", "r"), ("length", "l")):
                getattr(wrapper, f"{queue}_queue").append(info[key])
            wrapper.episode_count += 1
            del self._ended[0]

    def load(self, i: int) -> None:
        one = self.wrappers[i]
        if type(one.episode_returns) not in (float, int, np.float64):
            raise NotBatchedError("episode_returns is not a float")
        self._returns[i], self._lengths[i] = one.episode_returns, one.episode_lengths
        self._doubles[i] = type(one.episode_returns) is np.float64
        self._started[i] = one.episode_start_time

    def store(self, i: int) -> None:
        self._fill_queues()
        one = self.wrappers[i]
        one.episode_returns, one.episode_lengths = self._return(i), int(self._lengths[i])
        one.episode_start_time = float(self._started[i])


class _Moments:
    """The ``RunningMeanStd`` of each env, updated with one sample at a time.

    The first update gives the mean the dtype of the samples, and rounds differently from later ones
    (float32 zeros and a float64 observation). Until then the ``RunningMeanStd`` of an env is kept
    as an object in ``untyped``.
    """

    def __init__(self, attribute: str, wrappers: Sequence[Any], dtype: Any) -> None:
        self._attribute, self._wrappers = attribute, wrappers
        one = getattr(wrappers[0], attribute)
        shape = len(wrappers), *np.shape(one.mean)
        self._dtype = np.dtype(dtype)
        self.mean = np.zeros(shape, dtype)
        self.var = np.ones(shape, dtype)
        self.count = np.zeros(len(wrappers))
        self._first_dtype = np.asarray(one.mean).dtype
        self._typed = np.zeros(len(wrappers), bool)
        self.untyped: dict[int, Any] = {}
        self.arrays = {
            "mean": self.mean,
            "var": self.var,
            "count": self.count,
            "typed": self._typed,
        }

    def take(self, i: int, one: Any) -> None:
        """Load the state of env ``i`` from its ``RunningMeanStd``."""
        self.mean[i], self.var[i], self.count[i] = one.mean, one.var, one.count
        types = {np.asarray(part).dtype for part in (one.mean, one.var)}
        self._typed[i] = types == {self._dtype}
        if self._typed[i]:
            self.untyped.pop(i, None)
        elif types == {self._first_dtype}:
            self.untyped[i] = one
        else:
            raise NotBatchedError(f"{self._attribute} has numbers of another type than at first")

    def arrays_set(self, ids: Sequence[int]) -> None:
        for i in ids:
            self.untyped.pop(i, None)
            if not self._typed[i]:
                one = self.untyped[i] = wrappers.utils.RunningMeanStd()  # type: ignore[no-untyped-call]
                one.mean = self.mean[i].astype(self._first_dtype)
                one.var = self.var[i].astype(self._first_dtype)
                one.count = float(self.count[i])

    def load(self, i: int) -> None:
        one = getattr(self._wrappers[i], self._attribute)
        parts = {"mean", "var", "count"}
        if type(one) is not wrappers.utils.RunningMeanStd or vars(one).keys() != parts:
            raise NotBatchedError(f"{self._attribute} is not a RunningMeanStd")
        shape = self.mean.shape[1:]
        if np.shape(one.mean) != shape or np.shape(one.var) != shape or np.shape(one.count):
            raise NotBatchedError(f"{self._attribute} has other shapes than at first")
        if type(one.count) not in (float, int):
            raise NotBatchedError(f"the count of {self._attribute} is not a float")
        self.take(i, copy.copy(one))

    def store(self, i: int) -> None:
        one = getattr(self._wrappers[i], self._attribute)
        if i in self.untyped:
            vars(one).update(vars(self.untyped[i]))
        else:
            one.mean, one.var = self.mean[i].copy(), self.var[i].copy()
            one.count = float(self.count[i])

    def update(self, samples: Array, at: Any) -> None:
        """Update the moments of envs, none of which is untyped."""
        mean, var, count = self.mean[at], self.var[at], self.count[at]
        wide = (-1, *[1] * (samples.ndim - 1))
        total = count + 1
        few, many = (one.astype(self._dtype).reshape(wide) for one in (count, total))
        spread = samples - samples  # nan for samples that are not finite, like their variance
        delta = samples - mean
        squares = var * few + spread * spread + np.square(delta) * few / many
        self.mean[at] = mean + delta / many
        self.var[at] = squares / many
        self.count[at] = total

    def update_untyped(self, i: int, sample: Array) -> None:
        """Update one untyped env, as its wrapper would."""
        one = copy.copy(self.untyped[i])
        one.update(sample[None])
        self.take(i, one)


class NormalizedObservations(Layer):
    """``NormalizeObservation``."""

    costs, saves = 80.0, 45.0
    observes = True
    state = "obs_rms", "_update_running_mean"

    def __init__(self, wrappers: Sequence[Any]) -> None:
        super().__init__(wrappers)
        space = wrappers[0].env.observation_space
        self._moments = _Moments("obs_rms", wrappers, np.result_type(space.dtype, np.float32))
        self._epsilon = wrappers[0].epsilon
        self._updates = np.ones(len(wrappers), bool)
        self.arrays = self._moments.arrays

    @classmethod
    def expect(cls, wrapper: Any) -> None:
        if wrapper.env.observation_space.dtype not in (np.float32, np.float64):
            raise NotBatchedError(f"it gets {wrapper.env.observation_space.dtype}")

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:
        return same(one.epsilon, other.epsilon)

    def begin(self, rows: Rows) -> None:
        moments, raw = self._moments, rows.observations
        if not moments.untyped:
            updates = self._updates[rows.at]
            if updates.all():
                moments.update(raw, rows.at)
            elif updates.any():
                moments.update(raw[updates], rows.ids[updates])
            rows.observations = self._normalized(raw, moments.mean[rows.at], moments.var[rows.at])
            return
        # One by one; this ends once each env has begun an episode.
        rows.observations = np.empty(raw.shape, np.float32)
        for row, i in enumerate(rows.ids.tolist()):
            if self._updates[i]:
                if i in moments.untyped:
                    moments.update_untyped(i, raw[row])
                else:
                    moments.update(raw[row : row + 1], [i])
            one = moments.untyped.get(i)
            mean, var = (moments.mean[i], moments.var[i]) if one is None else (one.mean, one.var)
            rows.observations[row] = self._normalized(raw[row], mean, var)

    def step(self, rows: Rows) -> None:
        self.begin(rows)

    def _normalized(self, observations: Array, mean: Any, var: Any) -> Any:
        return np.float32((observations - mean) / np.sqrt(var + self._epsilon))

    def arrays_set(self, ids: Sequence[int]) -> None:
        self._moments.arrays_set(ids)

    def load(self, i: int) -> None:
        self._moments.load(i)
        self._updates[i] = self.wrappers[i]._update_running_mean

    def store(self, i: int) -> None:
        self._moments.store(i)


class NormalizedRewards(Layer):
    """``NormalizeReward``."""

    costs, saves = 35.0, 28.0
    state = "return_rms", "discounted_reward", "_update_running_mean"

    def __init__(self, wrappers: Sequence[Any]) -> None:
        super().__init__(wrappers)
        self._moments = _Moments("return_rms", wrappers, np.float64)
        self._gamma, self._epsilon = wrappers[0].gamma, wrappers[0].epsilon
        self._discounted = np.zeros(len(wrappers))
        self._updates = np.ones(len(wrappers), bool)
        self.arrays = {"discounted": self._discounted, **self._moments.arrays}

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:
        return same((one.gamma, one.epsilon), (other.gamma, other.epsilon))

    def step(self, rows: Rows) -> None:
        before = self._discounted[rows.at] * self._gamma * (1 - rows.terminated)
        discounted = self._discounted[rows.at] = before + rows.rewards
        updates = self._updates[rows.at]
        if updates.all():
            self._moments.update(discounted, rows.at)
        elif updates.any():
            self._moments.update(discounted[updates], rows.ids[updates])
        rows.rewards = rows.rewards / np.sqrt(self._moments.var[rows.at] + self._epsilon)
        rows.doubles = True

    def load(self, i: int) -> None:
        one = self.wrappers[i]
        self._moments.load(i)
        if i in self._moments.untyped:
            raise NotBatchedError("return_rms is not float64")
        if np.shape(one.discounted_reward) != (1,):
            raise NotBatchedError("discounted_reward is not an array of one number")
        self._discounted[i] = one.discounted_reward[0]
        self._updates[i] = one._update_running_mean

    def store(self, i: int) -> None:
        self._moments.store(i)
        self.wrappers[i].discounted_reward = np.array([self._discounted[i]])


class _Changed(Layer):
    """Base class of layers for wrappers that apply a stateless function ``func``."""

    # The wrappers whose functions are gymnasium's own, so that users cannot change them.
    _known: tuple[type, ...] = ()

    def __init__(self, wrappers: Sequence[Any]) -> None:
        super().__init__(wrappers)
        self._function = self._of_rows(wrappers[0])
        # The globals and variables that users' functions read, and which users may change.
        self._names: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        if type(wrappers[0]) not in self._known:
            self._names = bound_names(wrappers[0].func)
            cells = {id(c): c for one in wrappers for c in one.func.__closure__ or ()}
            self._cells = [(cell, cell.cell_contents) for cell in cells.values()]

    def stale(self) -> bool:
        return any(where.get(name) is not value for where, name, value in self._names) or any(
            cell.cell_contents is not value for cell, value in self._cells
        )

    @classmethod
    def _shape(cls, wrapper: Any) -> tuple[int, ...]:
        raise NotImplementedError

    @classmethod
    def _of_rows(cls, wrapper: Any) -> Callable[[Array], Array]:
        """Return a function that applies ``func`` to many rows at once."""
        return wrapper.func

    @classmethod
    def expect(cls, wrapper: Any) -> None:
        if not is_elementwise(wrapper.func, cls._shape(wrapper)):
            name = getattr(wrapper.func, "__qualname__", type(wrapper.func).__name__)
            raise NotBatchedError(f"its function {name} is not known to be elementwise")
        if type(wrapper) not in cls._known and not is_well_known(wrapper.env):
            named = (value for _, _, value in bound_names(wrapper.func))
            if any(isinstance(one, np.ndarray) for one in (*named, *bound_values(wrapper.func))):
                raise NotBatchedError("its function reads an array, which envs may change")

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:
        return same_function(one.func, other.func, equal_arrays=isinstance(one, cls._known))


class ChangedActions(_Changed):
    """``TransformAction`` and its subclasses."""

    acts = True
    _known = wrappers.ClipAction, wrappers.RescaleAction

    def __init__(self, wrappers: Sequence[Any]) -> None:
        super().__init__(wrappers)
        if type(wrappers[0]) is gymnasium.wrappers.ClipAction:  # it reads the space in each step
            self._names = [one for wrapper in wrappers for one in _space_names(wrapper.env)]

    @classmethod
    def _shape(cls, wrapper: Any) -> tuple[int, ...]:
        return wrapper.action_space.shape

    @classmethod
    def _of_rows(cls, wrapper: Any) -> Callable[[Array], Array]:
        if type(wrapper) is not wrappers.ClipAction:
            return super()._of_rows(wrapper)
        space: Any = wrapper.env.action_space
        return lambda actions: np.clip(actions, space.low, space.high)

    @classmethod
    def expect(cls, wrapper: Any) -> None:
        for space in (wrapper.action_space, wrapper.env.action_space):
            if type(space) is not spaces.Box or space.shape != wrapper.action_space.shape:
                raise NotBatchedError("its actions are not arrays of one shape")
        if type(wrapper) is not wrappers.ClipAction:
            super().expect(wrapper)
        elif _space_names(wrapper.env) is None:
            raise NotBatchedError("the action space within it is not an attribute")

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:
        if type(one) is wrappers.ClipAction:
            return same(one.env.action_space, other.env.action_space)
        return super().alike(one, other)

    def act(self, actions: Array) -> Array:
        return self._function(actions)


def _space_names(env: Any) -> Any:
    """Return the attributes that determine an env's action space; None if a method does."""
    names = []
    while isinstance(env, gymnasium.Wrapper):
        if type(env).action_space is not gymnasium.Wrapper.action_space:
            return None
        names.append((vars(env), "_action_space", vars(env).get("_action_space")))
        env = env.env
    if isinstance(getattr(type(env), "action_space", None), property):
        return None
    return [*names, (vars(env), "action_space", vars(env).get("action_space"))]


class ChangedObservations(_Changed):
    """``TransformObservation`` and its subclasses."""

    observes = True
    # Wrappers whose function depends only on the spaces.
    _of_spaces = (
        *(wrappers.FlattenObservation, wrappers.ReshapeObservation, wrappers.DtypeObservation),
    )
    _known = (*_of_spaces, wrappers.RescaleObservation)

    @classmethod
    def _shape(cls, wrapper: Any) -> tuple[int, ...]:
        return wrapper.env.observation_space.shape

    @classmethod
    def _of_rows(cls, wrapper: Any) -> Callable[[Array], Array]:
        if type(wrapper) not in cls._of_spaces:
            return super()._of_rows(wrapper)
        space = wrapper.observation_space
        return lambda rows: rows.astype(space.dtype).reshape(len(rows), *space.shape)

    @classmethod
    def expect(cls, wrapper: Any) -> None:
        for space in (wrapper.observation_space, wrapper.env.observation_space):
            if type(space) is not spaces.Box:
                raise NotBatchedError(f"its observations are a {type(space).__name__}")
        if type(wrapper) not in cls._of_spaces:
            super().expect(wrapper)
        before, after = wrapper.env.observation_space.dtype, wrapper.observation_space.dtype
        if before != after and after not in (np.float32, np.float64):
            raise NotBatchedError(f"it makes {before} {after}")

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:
        if type(one) in cls._of_spaces:
            return same(one.observation_space, other.observation_space)
        return super().alike(one, other)

    def begin(self, rows: Rows) -> None:
        rows.observations = self._function(rows.observations)

    def step(self, rows: Rows) -> None:
        rows.observations = self._function(rows.observations)


class StackedObservations(Layer):
    """``FrameStackObservation``."""

    saves = 15.0
    observes = True
    state = "obs_queue", "stacked_obs", "padding_value"

    def __init__(self, wrappers: Sequence[Any]) -> None:
        super().__init__(wrappers)
        one = wrappers[0]
        self._size: int = one.stack_size
        self._repeats_first = one.padding_type == "reset"
        self._queue = np.zeros((len(wrappers), *one.stacked_obs.shape), one.stacked_obs.dtype)
        self._padding = np.zeros_like(self._queue[:, 0])
        self.arrays = {"queue": self._queue, "padding": self._padding}

    @classmethod
    def expect(cls, wrapper: Any) -> None:
        if type(wrapper.env.observation_space) is not spaces.Box:
            kind = type(wrapper.env.observation_space).__name__
            raise NotBatchedError(f"its observations are a {kind}")
        if not is_well_known(wrapper.env):
            raise NotBatchedError("it refers to observations, which the env may write to later")

    @classmethod
    def alike(cls, one: Any, other: Any) -> bool:
        ours, theirs = ((w.stack_size, w.padding_type) for w in (one, other))
        return same(ours, theirs)

    def begin(self, rows: Rows) -> None:
        if self._repeats_first:
            self._padding[rows.at] = rows.observations
        self._queue[rows.at] = self._padding[rows.at][:, None]
        self._queue[rows.at, -1] = rows.observations
        rows.observations = self._queue[rows.at]

    def step(self, rows: Rows) -> None:
        self._queue[rows.at, :-1] = self._queue[rows.at, 1:]
        self._queue[rows.at, -1] = rows.observations
        rows.observations = self._queue[rows.at]

    def load(self, i: int) -> None:
        one, kind = self.wrappers[i], (self._queue.dtype, self._queue.shape[2:])
        kinds = {(np.asarray(seen).dtype, np.shape(seen)) for seen in one.obs_queue}
        if kinds != {kind} or {len(one.obs_queue), one.obs_queue.maxlen} != {self._size}:
            raise NotBatchedError("obs_queue has other observations than at first")
        padding = np.asarray(one.padding_value)
        if (padding.dtype, padding.shape) != kind:
            raise NotBatchedError("padding_value is not an observation")
        self._queue[i], self._padding[i] = np.array(one.obs_queue), padding

    def store(self, i: int) -> None:
        one = self.wrappers[i]
        one.obs_queue.extend(self._queue[i].copy())
        one.stacked_obs[:] = self._queue[i]
        if self._repeats_first:
            one.padding_value = self._padding[i].copy()


class ChangedRewards(_Changed):
    """``TransformReward`` and ``ClipReward``."""

    _known = (wrappers.ClipReward,)

    @classmethod
    def _shape(cls, wrapper: Any) -> tuple[int, ...]:  # noqa: ARG003
        return ()

    def step(self, rows: Rows) -> None:
        rows.rewards = self._function(rows.rewards)
        rows.doubles = True


# By the exact class: a subclass may do anything.
LAYERS: dict[type, type[Layer]] = {
    wrappers.RecordEpisodeStatistics: EpisodeStatistics,
    wrappers.NormalizeObservation: NormalizedObservations,
    wrappers.NormalizeReward: NormalizedRewards,
    wrappers.TransformAction: ChangedActions,
    wrappers.ClipAction: ChangedActions,
    wrappers.RescaleAction: ChangedActions,
    wrappers.TransformObservation: ChangedObservations,
    wrappers.FlattenObservation: ChangedObservations,
    wrappers.ReshapeObservation: ChangedObservations,
    wrappers.RescaleObservation: ChangedObservations,
    wrappers.DtypeObservation: ChangedObservations,
    wrappers.FrameStackObservation: StackedObservations,
    wrappers.TransformReward: ChangedRewards,
    wrappers.ClipReward: ChangedRewards,
}
