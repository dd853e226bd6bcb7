"""KnownTwin: an env of gymnasium's classic control, and its twin, a BatchEnv that equals it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds
from gymnasium.wrappers import OrderEnforcing

from pysampler._vector.batch_block import OwnBlock
from pysampler._vector.native.known import twin_of
from pysampler._vector.native.real import RealEnv
from pysampler._vector.native.trial import KnownEnv
from pysampler.envs._errors import ChangedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler import _core
    from pysampler._vector.batch_block import Advanced

    Array = npt.NDArray[Any]

    Env = gym.Env[Any, Any]

__all__ = ["KnownTwin"]


class _Twins(OwnBlock):
    """A block that steps a twin.

    It takes only valid actions and options. With others, gymnasium's env would raise an error, so
    the envs leave the block before such a step or reset: then that env raises its error, and the
    others step as usual.
    """

    steps_ended = True

    def __init__(self, env: Any, first: int, meter: _core.Meter, *, here: bool) -> None:
        super().__init__(env, first, meter, here=here)
        self.env = env
        self._options_are_valid = True
        self._successor: Any = None

    def why_leave(self, frame: int, actions: Any) -> str | None:
        if not (self._all_begun or (self.begun | self._fresh | self.ended).all()):
            return "an env was stepped before its first reset"
        if not self._options_are_valid:
            return "it was given invalid options"
        given = self._actions.of(frame) if actions is None else _as_numbers(actions)
        if isinstance(given, np.ndarray):
            kind = given.dtype
            if kind.kind == "b" and actions is None and self._actions.were_python(frame):
                return None
            if kind.kind in "iu" and kind != np.uint64:
                wrong = self.env.outside(given)
                if not wrong.any() or not (wrong & ~(self.ended | self.resting)).any():
                    return None
        return "an action was not in its space"

    def why_not_reset(self, calls: Sequence[Any]) -> str | None:
        valid = all(call is None or self._is_valid(call[1]) for call in calls)
        return None if valid else "it was given invalid options"

    def _is_valid(self, options: Any) -> bool:
        try:
            maybe_parse_reset_bounds(options, *self.env.bounds)
        except Exception:
            return False
        return True

    def set_options(self, i: int, options: Any, version: int) -> None:
        super().set_options(i, options, version)
        self._options_are_valid = all(self._is_valid(one) for one, _ in self.options.values())

    def _has_left(self, frame: int, actions: Any) -> bool:
        if self._successor is None and self.leave is not None:
            why = self.why_leave(frame, actions)
            if why is not None:
                self._successor = self.leave(why)
        return self._successor is not None

    def step(self, frame: int, actions: Any = None) -> bool:
        if self._has_left(frame, actions):  # a loop in C++ may still hold this block
            stepped: bool = self._successor.step(frame, actions)
            return stepped
        return super().step(frame, actions)

    def step_chunk(self, frame: int, steps: int, last: bool) -> bool:  # noqa: FBT001
        if any(self._has_left(frame + k, None) for k in range(steps)):
            stepped: bool = self._successor.step_chunk(frame, steps, last)
            return stepped
        return super().step_chunk(frame, steps, last)

    def reset(self, frame: int, calls: Sequence[Any]) -> bool:
        if self.leave is not None and (why := self.why_not_reset(calls)) is not None:
            reset: bool = self.leave(why).reset(frame, calls)
            return reset
        return super().reset(frame, calls)

    def advance(self, ids: Array | None, actions: Array) -> Advanced:
        if actions.dtype.kind == "b":
            actions = actions.astype(np.int64)
        if ids is None and self.any_ended:  # the actions of these may be invalid
            actions = np.where(self.ended, actions[self.ended.argmin()], actions)
        return super().advance(ids, actions)


def _as_numbers(actions: Any) -> Any:
    """Return a list of Python bools as an array of ints; gymnasium accepts them as actions."""
    if isinstance(actions, list) and all(type(one) is bool for one in actions):
        return np.array(actions, np.int64)
    return actions


class _RealTwin(RealEnv):
    """An ordinary env, into which the states of a twin are loaded."""

    def write(self, block: _Twins, place: int) -> None:
        if block.begun[place]:
            block.env.write_to(self._base, place)

    def read(self, block: _Twins, place: int) -> None:
        base = self._base
        if getattr(base, "state", None) is None:
            if block.begun[place]:
                raise ChangedError("state")
            return
        if not block.begun[place]:
            if any(isinstance(layer, OrderEnforcing) for layer in self._layers):
                return  # it requires a reset before a step
            block.begin_episode(place)
            block.rngs[place], block.rng_seeds[place] = base.np_random, base._np_random_seed
        block.env.read_from(base, place)


class KnownTwin(KnownEnv):
    """An env with a twin in pysampler.envs.classic."""

    _envs, _steps = 8, 24

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._kind = getattr(importlib.import_module("pysampler.envs.classic"), twin_of(self.base))
        self._arguments = self._kind.arguments_of(self.base)
        self._render_mode = self.base.render_mode
        low, high = self._kind.wide
        self._options = {"low": low, "high": high}  # for trials, so that some episodes end soon

    def block(
        self, count: int, first: int, limit: int | None, meter: _core.Meter, *, here: bool = False
    ) -> _Twins:
        env = self._kind(count, **self._arguments)
        env.max_episode_steps = limit
        return _Twins(env, first, meter, here=here)

    def real(self, env: Env, block: _Twins) -> _RealTwin:  # noqa: ARG002
        return _RealTwin(env)

    def _new_base(self) -> Env:
        new: Env = type(self.base)(**self._arguments, render_mode=self._render_mode)
        return new
