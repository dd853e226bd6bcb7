"""RealTask: an ordinary env, into which the state of a simulation is loaded."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from pysampler._vector.native.real import RealEnv
from pysampler.envs.mujoco._fields import STATE, load

if TYPE_CHECKING:
    import gymnasium as gym

    from pysampler._vector.mujoco.block import TaskBlock
    from pysampler.envs.mujoco.task import Task

__all__ = ["RealTask", "digest_of"]


class RealTask(RealEnv):
    """An env of a task, into which the states of simulations are loaded.

    Args:
        env: The env.
        task: The task of the simulations.
    """

    def __init__(self, env: gym.Env[Any, Any], task: Task) -> None:
        super().__init__(env)
        self._task = task

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


def digest_of(model: mujoco.MjModel) -> bytes:
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.blake2b(buffer.tobytes()).digest()
