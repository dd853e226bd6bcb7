"""Recognises wrappers that can run on batches, and compares their layers with them in a trial."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from pysampler._vector.env_calls import layers_of, trial_or
from pysampler._vector.wrapped.layers import LAYERS, Layer, NotBatchedError, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["alike", "expect_equal", "layers_for", "outermost", "peel"]

# The number of envs and steps of a trial, and the step that ends their episodes.
_ENVS, _STEPS, _END = 3, 9, 5


def peel(env: gym.Env[Any, Any]) -> tuple[list[Any], gym.Env[Any, Any], str | None]:
    """Split an env at the outermost wrapper that cannot run on batches.

    Returns:
        The wrappers outside of it, the outermost first; the env within them; and the reason why its
        outermost wrapper is not among them, or None if there is no layer for such a wrapper.
    """
    outer: list[Any] = []
    while (kind := LAYERS.get(type(env))) is not None:
        try:
            if name := _hidden_method(env):
                raise NotBatchedError(f"its method {name} was replaced")
            kind.expect(env)
        except NotBatchedError as error:
            return outer, env, f"the wrapper {type(env).__name__} stays in Python: {error}"
        outer.append(env)
        env = env.env  # type: ignore[attr-defined]
    return outer, env, None


def _hidden_method(env: Any) -> str | None:
    """Return the name of a method that an attribute of the object hides; None if there is none."""
    return next((name for name in vars(env) if callable(getattr(type(env), name, None))), None)


def outermost(env: Any, count: int) -> list[Any]:
    """Return the ``count`` outermost wrappers of an env."""
    return list(itertools.islice(layers_of(env), count))


def alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two stacks of wrappers have the same classes and parameters."""
    return [type(a) for a in one] == [type(b) for b in other] and all(
        LAYERS[type(a)].alike(a, b) for a, b in zip(one, other, strict=True)
    )


def layers_for(stacks: Sequence[Sequence[Any]]) -> list[Layer]:
    """Return the layers for the wrappers of some envs, the outermost first, with their state.

    Raises:
        NotBatchedError: A layer cannot continue from the state of a wrapper.
    """
    layers = [LAYERS[type(some[0])](some) for some in zip(*stacks, strict=True)]
    for layer in layers:
        for i in range(len(stacks)):
            layer.load(i)
    return layers


@dataclass
class _Scripted(gym.Env[Any, Any]):
    """Replaces the env within some wrappers: returns numbers drawn beforehand."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    observations: Array
    rewards: Array

    def __post_init__(self) -> None:
        self.at = 0
        self.action: Any = None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:  # noqa: ARG002
        return self._next(), {}

    def step(self, action: Any) -> Any:
        self.action = action
        end = self.at == _END
        observation = self._next()
        return observation, self.rewards[self.at - 1], end, False, {}

    def _next(self) -> Any:
        self.at += 1
        return self.observations[self.at - 1].copy()


def expect_equal(outer: Sequence[Any], inner: gym.Env[Any, Any]) -> None:
    """Compare layers with copies of the wrappers, around an env that returns drawn numbers.

    Raises:
        NotBatchedError: The results differ.
    """
    with trial_or(NotBatchedError, NotBatchedError), np.errstate(all="ignore"):
        _compare(outer, inner)


def _compare(outer: Sequence[Any], inner: gym.Env[Any, Any]) -> None:
    space, actions = inner.observation_space, inner.action_space
    rng = np.random.default_rng(1)
    observes = any(LAYERS[type(one)].observes for one in outer)
    shape = _ENVS, _STEPS + 2, *((space.shape or ()) if observes else ())
    observations = rng.normal(1.0, 3.0, shape).astype(space.dtype if observes else np.float64)
    scripts = [
        _Scripted(space, actions, drawn, rewards)
        for drawn, rewards in zip(observations, rng.normal(size=shape[:2]), strict=True)
    ]
    real, ours = ([_around(outer, script) for script in scripts] for _ in range(2))
    layers = layers_for([outermost(env, len(outer)) for env in ours])
    trial = _Trial(real, layers, scripts, outer[0])
    trial.begin(np.arange(_ENVS))
    for step in range(_STEPS):
        if step == _END:
            trial.begin(np.arange(_ENVS - 1))  # one of them continues
        trial.step(rng)


def _around(outer: Sequence[Any], script: _Scripted) -> gym.Env[Any, Any]:
    """Return copies of wrappers around a script."""
    try:
        wrapped: gym.Env[Any, Any] = copy.deepcopy(outer[0], {id(outer[-1].env): copy.copy(script)})
    except Exception as error:
        raise NotBatchedError(f"its wrappers cannot be copied: {error!r}") from error
    return wrapped


class _Trial:
    def __init__(
        self, real: list[Any], layers: list[Layer], scripts: list[_Scripted], outermost: Any
    ) -> None:
        self._real, self._layers, self._scripts = real, layers, scripts
        self._space = outermost.observation_space
        self._actions = outermost.action_space

    def begin(self, ids: Array) -> None:
        rows = self._rows(ids, [self._scripts[i].reset() for i in ids])
        for layer in reversed(self._layers):
            layer.begin(rows)
        self._compare(rows, [self._real[i].reset() for i in ids], "a reset")

    def step(self, rng: np.random.Generator) -> None:
        ids = np.arange(_ENVS)
        given: Any = [None] * _ENVS
        if acts := any(layer.acts for layer in self._layers):
            drawn = rng.normal(scale=2.0, size=(_ENVS, *(self._actions.shape or ())))
            given = drawn.astype(self._actions.dtype)
        theirs = [env.step(action) for env, action in zip(self._real, given, strict=True)]
        if acts:
            for layer in self._layers:
                given = layer.act(given)
            for env, action in zip(self._real, given, strict=True):
                _expect_same(action, env.unwrapped.action, "an action")
        rows = self._rows(ids, [script.step(None) for script in self._scripts])
        for layer in reversed(self._layers):
            layer.step(rows)
        self._compare(rows, theirs, "a step")
        for i in ids:
            infos: dict[str, Any] = {}
            for env, info in rows.infos:
                if env == i:
                    infos |= info
            _expect_same_infos(infos, theirs[i][4])

    def _rows(self, ids: Array, results: list[Any]) -> Rows:
        at: Any = slice(None) if len(ids) == _ENVS else ids
        columns = list(zip(*results, strict=True))
        observations = np.stack(columns[0])
        if len(columns) == 2:
            none = np.zeros(len(ids), bool)
            return Rows(ids, at, observations, np.zeros(len(ids)), none, none)
        _, rewards, terminated, truncated, _ = map(np.array, columns)
        return Rows(ids, at, observations, rewards, terminated, truncated)

    def _compare(self, rows: Rows, theirs: list[Any], call: str) -> None:
        if any(layer.observes for layer in self._layers):
            if (dtype := rows.observations.dtype) != self._space.dtype:
                raise NotBatchedError(
                    f"observations are {dtype}, in a space of {self._space.dtype}"
                )
            for ours, result in zip(rows.observations, theirs, strict=True):
                _expect_same(ours, result[0], f"observations of {call}")
        if call == "a step":
            for ours, result in zip(rows.rewards, theirs, strict=True):
                _expect_same(ours, np.float64(result[1]), "rewards")


def _expect_same(ours: Any, theirs: Any, what: str) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        raise NotBatchedError(
            f"{what}: {ours.dtype}{ours.shape}, expected {theirs.dtype}{theirs.shape}"
        )
    if ours.tobytes() != theirs.tobytes():
        raise NotBatchedError(f"{what} differ from those of gymnasium's wrappers")


def _expect_same_infos(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    def without_times(infos: dict[str, Any]) -> dict[str, Any]:
        return {key: {**value, "t": 0} for key, value in infos.items()}

    if without_times(ours) != without_times(theirs):
        raise NotBatchedError("infos differ from those of gymnasium's wrappers")
