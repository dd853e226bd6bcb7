"""KnownTwin: an env of gymnasium's classic control, and the BatchEnv that equals many of them."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

from gymnasium import Wrapper

from pysampler._vector.batch_block import OwnBlock
from pysampler._vector.env_calls import layers_of
from pysampler._vector.native.known import twin_of
from pysampler._vector.native.real import RealEnv
from pysampler._vector.native.trial import KnownEnv

if TYPE_CHECKING:
    import gymnasium as gym

    from pysampler import _core

    Env = gym.Env[Any, Any]

__all__ = ["KnownTwin"]


class _Twins(OwnBlock):
    """A block of a twin, which is ``env``."""

    steps_ended = True

    def __init__(self, env: Any, first: int, meter: _core.Meter, *, here: bool) -> None:
        super().__init__(env, first, meter, here=here)
        self.env = env


class _RealTwin(RealEnv):
    """An env, into which the states of its twins are loaded."""

    def write(self, block: _Twins, place: int) -> None:
        if block.begun[place]:
            block.env.write_to(self._base, place)

    def read(self, block: _Twins, place: int) -> None:
        if getattr(self._base, "state", None) is not None:
            block.env.read_from(self._base, place)
            block.begin_episode(place)


class KnownTwin(KnownEnv):
    """An env that has a twin in pysampler.envs.classic."""

    _envs, _steps = 8, 24

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._kind = getattr(importlib.import_module("pysampler.envs.classic"), twin_of(self.base))
        self._arguments = self._kind.arguments_of(self.base)
        low, high = self._kind.wide
        self._options = {"low": low, "high": high}  # of a trial: so that some episodes end soon

    def block(
        self, count: int, first: int, limit: int | None, meter: _core.Meter, *, here: bool = False
    ) -> _Twins:
        env = self._kind(count, **self._arguments)
        env.max_episode_steps = limit
        return _Twins(env, first, meter, here=here)

    def real(self, env: Env, block: _Twins, managed: set[str]) -> _RealTwin:  # noqa: ARG002
        return _RealTwin(env, (), managed)

    def _new(self) -> Env:
        new: Env = type(self.base)(**self._arguments, render_mode=self.base.render_mode)
        for layer in reversed(list(layers_of(self.env))[:-1]):
            wrapper = copy.copy(layer)
            assert isinstance(wrapper, Wrapper)
            wrapper.env, new = new, wrapper
        return new
