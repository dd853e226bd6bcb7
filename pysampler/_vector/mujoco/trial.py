"""KnownTask: an env that simulations of a task can replace, and their comparison."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from gymnasium.wrappers import OrderEnforcing

from pysampler import _core
from pysampler._common.numbers import is_real
from pysampler._vector.env_calls import layers_of
from pysampler._vector.mujoco.real import RealTask, digest_of
from pysampler._vector.mujoco.stepper import TaskStepper
from pysampler._vector.native.known import NotNativeError, is_of_a_task, task_of
from pysampler._vector.native.trial import KnownEnv
from pysampler.envs.mujoco._fields import STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gymnasium as gym

    Env = gym.Env[Any, Any]

__all__ = ["KnownTask"]


class KnownTask(KnownEnv):
    """An env of a MuJoCo task.

    Attributes:
        task: The task.
    """

    real = RealTask

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.task = task_of(self.base)
        self._digest = digest_of(self.task.model)
        self._users = is_of_a_task(env)
        if not any(isinstance(layer, OrderEnforcing) for layer in layers_of(env)):
            raise NotNativeError("it has no OrderEnforcing, so it may be stepped before a reset")
        if not self._users:
            # Copies of lists and dicts, whose contents the env may change.
            self._arguments = copy.deepcopy(_arguments_of(self.base))

    def block(
        self, count: int, first: int, limit: int | None, meter: _core.Meter, *, inline: bool = False
    ) -> _core.BatchBlock:
        return _core.BatchBlock(TaskStepper(self.task, count), count, first, meter, limit, inline)

    def has(self, env: Env) -> bool:
        model: Any = env.unwrapped.model  # type: ignore[attr-defined]
        return super().has(env) and digest_of(model) == self._digest

    def _objects(self, env: Env) -> list[Any]:
        base: Any = env.unwrapped
        return [*super()._objects(env), base.model, base.data, base.mujoco_renderer]

    def _state(self, env: Env) -> list[Any]:
        base: Any = env.unwrapped
        row = np.empty(mujoco.mj_stateSize(base.model, STATE))
        mujoco.mj_getState(base.model, base.data, row, STATE)
        return [*super()._state(env), row, *[getattr(base.data, name) for name in self.task.fields]]

    def expect_equal(self, make: Callable[[], Env] | None) -> None:
        _expect_batches()
        if self._users and make is None:
            raise NotNativeError("only make_vec simulates tasks of your own together")
        super().expect_equal(make)

    def _parts(self, env: Env) -> Sequence[Any]:
        layers: list[Any] = list(layers_of(env))
        return [*layers, layers[-1].task] if is_of_a_task(env) else layers

    def _new_base(self) -> Env:
        args, kwargs = copy.deepcopy(self._arguments)
        return type(self.base)(*args, **kwargs)

    def _expect_unchanged(self, new: Env) -> None:
        super()._expect_unchanged(new)
        if digest_of(task_of(new.unwrapped).model) != self._digest:
            raise NotNativeError("its model was changed after the env was made")


def _arguments_of(base: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments with which one of gymnasium's envs was made."""
    args, kwargs = base._ezpickle_args, base._ezpickle_kwargs
    if len(args) == 3 and is_real(args[2]):  # a pendulum, whose third argument is its camera
        kwargs = {**kwargs, "reset_noise_scale": args[2]}
        kwargs["default_camera_config"] = base.mujoco_renderer.default_cam_config
        if hasattr(base, "_healthy_reward"):
            kwargs["healthy_reward"] = base._healthy_reward
        args = args[:2]
    return args, kwargs


def _expect_batches() -> None:
    """Raise NotNativeError unless this MuJoCo can step batches of simulations."""
    try:
        importlib.import_module("mujoco.batch")
    except ImportError:
        version = mujoco.__version__
        raise NotNativeError(f"mujoco {version} has no batches, expected 3.17 or newer") from None
    if getattr(mujoco, "MJTNUM_DTYPE", np.float64) != np.float64:
        raise NotNativeError("this MuJoCo computes in single precision")
