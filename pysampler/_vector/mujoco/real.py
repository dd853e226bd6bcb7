"""RealTask: an ordinary env, into which the state of a simulation is loaded."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from pysampler._vector.native.real import RealEnv
from pysampler.envs.mujoco._fields import STATE, load

if TYPE_CHECKING:
    from pysampler import _core

__all__ = ["RealTask", "digest_of"]


class RealTask(RealEnv):
    """An env of a task, into which the states of simulations are loaded."""

    def write(self, block: _core.BatchBlock, place: int) -> None:
        env, stepper = self._base, block.stepper
        fields = {name: array[place] for name, array in stepper.derived.items()}
        load(env.model, env.data, stepper.rows[place], fields)
        for name in stepper.task.attributes:
            vars(env).pop(name, None)  # left by another simulation
        stepper.task.write_to(env, place)

    def read(self, block: _core.BatchBlock, place: int) -> None:
        env, stepper = self._base, block.stepper
        row = np.empty_like(stepper.rows[place])
        mujoco.mj_getState(env.model, env.data, row, STATE)
        stepper.rows[place] = row
        for name, array in stepper.derived.items():
            array[place] = getattr(env.data, name)
        if all(hasattr(env, name) for name in stepper.task.attributes):  # else it was never reset
            stepper.task.read_from(env, place)


def digest_of(model: mujoco.MjModel) -> bytes:
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.blake2b(buffer.tobytes()).digest()
