"""Frozen: freezes the wrappers of an env during an evaluation, and sums the env's own rewards.

Wrappers that normalise keep the statistics that they have, and ``thaw`` restores what other
wrappers have counted. Wrappers still change rewards, because the policy may see them: as
``previous_rewards``, or in observations. The env's own rewards are those that the innermost of
these wrappers gets; their sum travels in the infos.

This replaces methods of the objects, rather than wrapping the env or copying its wrappers: users'
wrappers may look at the env within them, and other code may hold any of them.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium.wrappers as of_envs
import gymnasium.wrappers.vector as of_vectors
import numpy as np
from gymnasium import Env
from gymnasium.vector import VectorEnv

from pysampler._vector.env_calls import layers_of, reward_space_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RETURN", "Frozen", "FrozenNames", "changes_in_steps", "has_seen_nothing"]

# The key of infos with the sum of an env's own rewards in the episode so far.
RETURN = "pysampler_return"

# Wrappers that only change rewards. Users' own wrappers are part of the env, because they may
# define its task.
_REWARDS = (
    *(of_envs.NormalizeReward, of_envs.TransformReward),
    *(of_vectors.NormalizeReward, of_vectors.TransformReward, of_vectors.VectorizeTransformReward),
)
_OF_SB3 = "stable_baselines3.common.atari_wrappers", "ClipRewardEnv"
# Wrappers that count while an env steps, besides statistics that can be frozen.
_COUNTERS = (
    *(of_envs.NormalizeReward, of_envs.RecordEpisodeStatistics),
    *(of_vectors.NormalizeReward, of_vectors.RecordEpisodeStatistics),
)
# Wrappers that learn nothing. Python 3.11 and 3.12 read an object's attributes more slowly once
# anything has asked for its ``vars``: from then on, a step of CartPole takes 12 % longer.
_NOT_LEARNING = of_envs.TimeLimit, of_envs.OrderEnforcing, of_envs.PassiveEnvChecker
_NUMBERS = int, float, np.generic, np.ndarray, deque
_FLAG = "_update_running_mean"  # of gymnasium's wrappers that normalise
_MISSING = object()


class FrozenNames(NamedTuple):
    """The wrappers of an env that an evaluation may not use, by the names of their classes.

    Attributes:
        unseen: Those that would learn from observations and have seen none yet.
        in_vectors: Those of a vector env that change rewards, so that nobody sees its envs' own.
    """

    unseen: list[str]
    in_vectors: list[str]


class Frozen:
    """The wrappers of an env, or a vector env, which learn nothing until ``thaw``.

    Attributes:
        names: The wrappers that an evaluation may not use.
        whole: Whether all wrappers are frozen.
    """

    def __init__(self) -> None:
        self.names, self.whole = FrozenNames([], []), False
        self._before: list[tuple[dict[str, Any], str, Any]] = []
        self._queues: list[tuple[deque[Any], deque[Any]]] = []

    def freeze(self, env: Any) -> None:
        """Freeze the wrappers. After an interrupt, call it again."""
        self.thaw()
        self.names, self._before, self._queues = FrozenNames([], []), [], []
        for each in _with_members(env):
            self._freeze(each)
        self.whole = True

    def thaw(self) -> None:
        """Restore what the wrappers had. May be repeated."""
        for owner, name, value in reversed(self._before):
            if value is _MISSING:
                owner.pop(name, None)
            else:
                owner[name] = value
        for queue, before in self._queues:
            queue.clear()
            queue.extend(before)

    def _freeze(self, env: Any) -> None:
        changes_rewards = []
        for layer in layers_of(env):
            if _is_of_rewards(layer):
                changes_rewards.append(layer)
            elif has_seen_nothing(layer):
                self.names.unseen.append(type(layer).__name__)
            for one in _learned_by(layer):
                if _FLAG in vars(layer):
                    self._set(layer, _FLAG, value=False)
                else:
                    self._set(one, "update", _learn_nothing)
            for name, value in list(vars(layer).items()) if isinstance(layer, _COUNTERS) else ():
                if isinstance(value, deque):
                    self._queues.append((value, value.copy()))
                elif isinstance(value, _NUMBERS) and name != _FLAG:
                    self._set(layer, name, copy.copy(value))
        if not changes_rewards:
            return
        if isinstance(env, VectorEnv):
            self.names.in_vectors.extend(type(one).__name__ for one in changes_rewards)
        elif reward_space_of(changes_rewards[-1].env) is None:  # else it makes a number of several
            summing = _Summing(env, changes_rewards[-1].env)
            self._set(summing.env, "reset", summing.reset)
            self._set(summing.inner, "step", summing.step_inner)
            self._set(summing.env, "step", summing.step)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        attributes = vars(owner)  # past the user's __setattr__
        self._before.append((attributes, name, attributes.get(name, _MISSING)))
        attributes[name] = value


class _Summing:
    """Sums the rewards of an env as a part of it returns them.

    Args:
        env: The env.
        inner: The part.
    """

    def __init__(self, env: Any, inner: Any) -> None:
        self.env, self.inner = env, inner
        self._step, self._reset, self._step_inner = env.step, env.reset, inner.step
        self._total = 0.0

    def reset(self, **kwargs: Any) -> Any:
        self._total = 0.0
        return self._reset(**kwargs)

    def step_inner(self, action: Any) -> Any:
        results = self._step_inner(action)
        self._total += float(results[1])
        return results

    def step(self, action: Any) -> Any:
        results = self._step(action)
        if not (isinstance(results, tuple) and len(results) == 5 and isinstance(results[4], dict)):
            return results  # the block that steps the env says what is wrong
        *others, info = results
        return *others, {**info, RETURN: self._total}


def changes_in_steps(env: Any) -> bool:
    """Return whether an env has wrappers that ``Frozen`` looks after."""
    return any(
        _is_of_rewards(layer) or isinstance(layer, _COUNTERS) or _learned_by(layer)
        for each in _with_members(env)
        for layer in layers_of(each)
    )


def has_seen_nothing(layer: Any) -> bool:
    """Return whether a wrapper learns statistics, but has none yet."""
    statistics = _learned_by(layer)
    return len(statistics) > 0 and all(np.all(one.count < 1) for one in statistics)


def _with_members(env: Any) -> Iterator[Any]:
    """Yield an env; also those of a vector env, if they are in this process."""
    yield env
    if isinstance(env, VectorEnv):
        members = vars(env.unwrapped).get("envs")
        yield from members if isinstance(members, (list, tuple)) else ()


def _is_of_rewards(layer: Any) -> bool:
    kinds = ((one.__module__, one.__name__) for one in type(layer).__mro__)
    return isinstance(layer, _REWARDS) or _OF_SB3 in kinds


def _learned_by(layer: Any) -> list[Any]:
    """Return the running means that a wrapper updates."""
    if layer is layer.unwrapped or type(layer) in _NOT_LEARNING or not vars(layer).get(_FLAG, True):
        return []
    return [value for value in vars(layer).values() if _is_running_mean(value)]


def _is_running_mean(value: Any) -> bool:
    names = {} if isinstance(value, Env) else getattr(value, "__dict__", None) or {}
    return {"mean", "var", "count"} <= names.keys() and callable(getattr(value, "update", None))


def _learn_nothing(*_: Any, **__: Any) -> None:
    pass
