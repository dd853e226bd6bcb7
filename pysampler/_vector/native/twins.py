"""KnownTwin: an env of gymnasium's classic control, and its twin, a BatchEnv that equals it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing

from pysampler._vector.native.known import twin_of
from pysampler._vector.native.real import RealEnv
from pysampler._vector.native.trial import KnownEnv
from pysampler._vector.stepper import BatchEnvStepper
from pysampler.envs._errors import ChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler import _core
    from pysampler._vector.stepper import Advanced

    Array = npt.NDArray[Any]

    Env = gym.Env[Any, Any]

__all__ = ["KnownTwin"]


class _TwinStepper(BatchEnvStepper):
    """A twin.

    It takes only valid actions and options. With others, gymnasium's env would raise an error, so
    the envs leave the block before such a step or reset: then that env raises its error, and the
    others step as usual.
    """

    steps_ended = checks = True

    def takes(self, options: Any) -> bool:
        """Return whether these options of a reset are valid."""
        try:
            ranges = np.subtract(*self.env.bounds_of(options)[::-1])
        except Exception:
            return False
        return bool((ranges >= 0).all() and np.isfinite(ranges).all())  # else NumPy raises

    def takes_actions(self, actions: Any, exempt: Sequence[int], python: bool) -> bool:  # noqa: FBT001
        """Return whether all actions are valid.

        Args:
            actions: The actions.
            exempt: The envs whose actions do not matter.
            python: Whether they were Python numbers.
        """
        if isinstance(actions, list) and all(type(one) is bool for one in actions):
            actions = np.array(actions, np.int64)  # gymnasium accepts them
        if not isinstance(actions, np.ndarray):
            return False
        if actions.dtype.kind == "b" and python:
            actions = actions.astype(np.int64)
        actions = np.delete(actions, exempt, axis=0)
        return self.env.kernel.takes(actions, python)

    def advance(self, ids: Array | None, actions: Array, dropped: Array | None) -> Advanced:
        if actions.dtype.kind == "b":
            actions = actions.astype(np.int64)
        if dropped is not None:
            actions = np.where(dropped, actions[dropped.argmin()], actions)
        return super().advance(ids, actions, dropped)


class _RealTwin(RealEnv):
    """An ordinary env, into which the states of a twin are loaded."""

    def write(self, block: _core.BatchBlock, place: int) -> None:
        if block.begun[place]:
            block.stepper.env.write_to(self._base, place)

    def read(self, block: _core.BatchBlock, place: int) -> None:
        base = self._base
        if getattr(base, "state", None) is None:
            if block.begun[place]:
                raise ChangedError("state")
            return
        if not block.begun[place]:
            if any(isinstance(layer, OrderEnforcing) for layer in self._layers):
                return  # it requires a reset before a step
            block.begun[place] = True
            stepper = block.stepper
            stepper.rngs[place], stepper.rng_seeds[place] = base.np_random, base._np_random_seed
        block.stepper.env.read_from(base, place)


class KnownTwin(KnownEnv):
    """An env with a twin in pysampler.envs.classic."""

    real = _RealTwin
    _envs, _steps = 8, 24

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._kind = getattr(importlib.import_module("pysampler.envs.classic"), twin_of(self.base))
        self._arguments = self._kind.arguments_of(self.base)
        self._render_mode = self.base.render_mode
        self._options = self._kind.wide  # for trials, so that some episodes end soon

    def block(
        self, count: int, first: int, limit: int | None, meter: _core.Meter, *, inline: bool = False
    ) -> _core.BatchBlock:
        env = self._kind(count, **self._arguments)
        env.max_episode_steps = limit
        return _TwinStepper(env).block(first, meter, inline=inline)

    def _new_base(self) -> Env:
        return type(self.base)(**self._arguments, render_mode=self._render_mode)
