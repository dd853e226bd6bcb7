"""RealTask: an ordinary env that answers calls other than steps and resets for a simulation."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from pysampler._vector.native.real import RealEnv
from pysampler.envs.mujoco._fields import STATE, load
from pysampler.envs.mujoco.env import TaskEnv

if TYPE_CHECKING:
    from collections.abc import Iterable

    import gymnasium as gym

    from pysampler._vector.mujoco.block import TaskBlock
    from pysampler.envs.mujoco.task import Task

__all__ = ["RealTask", "digest_of"]


class RealTask(RealEnv):
    """An env of a task, into which the states of simulations are loaded.

    Args:
        env: The env.
        task: The task of the simulations.
        managed: The names of further attributes that hold state.
    """

    def __init__(self, env: gym.Env[Any, Any], task: Task, managed: Iterable[str] = ()) -> None:
        self._task = task
        base: Any = env.unwrapped
        owners: list[Any] = [base.task] if isinstance(base, TaskEnv) else []
        [self._users_task] = owners or [None]
        self._memory: dict[str, Any] = owners[0].memory if owners else {}
        super().__init__(env, owners, {*task.attributes, *self._memory, *managed})
        self._digest = digest_of(base.model)

    def write(self, block: TaskBlock, place: int) -> None:
        env = self._base
        fields = {name: array[place] for name, array in block.derived.items()}
        load(env.model, env.data, block.rows[place], fields)
        for name in block.task.attributes:
            vars(env).pop(name, None)  # left by another simulation
        block.task.write_to(env, place)

    def read(self, block: TaskBlock, place: int) -> None:
        env = self._base
        row = np.empty_like(block.rows[place])
        mujoco.mj_getState(env.model, env.data, row, STATE)
        block.rows[place] = row
        for name, array in block.derived.items():
            array[place] = getattr(env.data, name)
        if all(hasattr(env, name) for name in block.task.attributes):  # else it was never reset
            block.task.read_from(env, place)

    def _allowed(self, owner: Any) -> set[str]:
        if owner is not self._users_task:
            return set()
        known = self._known[-1]  # methods of a user's task may set attributes
        return {name for name, one in vars(self._task).items() if one is not known.get(name)}

    def changed(self) -> str | None:
        """Return the name of an attribute that has changed, or "model"; None if none has."""
        for name, array in self._memory.items():
            one = vars(self._users_task).get(name)
            if not isinstance(one, np.ndarray) or (one.dtype, one.shape) != (
                array.dtype,
                array.shape,
            ):
                return name
        if digest_of(self._base.model) != self._digest:
            return "model"
        return super().changed()


def digest_of(model: mujoco.MjModel) -> bytes:
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.blake2b(buffer.tobytes()).digest()
