"""RealEnv: an ordinary env that stands for a simulation in calls other than steps and resets."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from pysampler._vector.env_calls import layers_of
from pysampler._vector.wrapped.watched import Watched
from pysampler.envs.mujoco._fields import STATE, load
from pysampler.envs.mujoco.env import TaskEnv

if TYPE_CHECKING:
    from collections.abc import Iterable

    import gymnasium as gym

    from pysampler._vector.mujoco.block import TaskBlock
    from pysampler.envs.mujoco.task import Task

__all__ = ["MANAGED", "RealEnv", "digest_of"]

# Attributes that hold the state of a simulation, or caches: calls may change these.
MANAGED = {
    *("_np_random", "_np_random_seed", "_elapsed_steps", "_has_reset", "_cached_spec"),
    *("checked_reset", "checked_step", "checked_render", "checked_data_reuse", "close_called"),
    *("_previous_data", "_renderer", "_checked_begin", "_checked_step"),
}


class RealEnv(Watched):
    """An env of a task, into which the states of simulations are loaded.

    Args:
        env: The env.
        task: The task of the simulations.
        managed: The names of further attributes that hold state.
    """

    def __init__(self, env: gym.Env[Any, Any], task: Task, managed: Iterable[str] = ()) -> None:
        self._layers = list(layers_of(env))
        self._task = task
        base = self._layers[-1]
        owners = [*self._layers]
        self._users_task: Any = None
        self._memory: dict[str, Any] = {}
        if isinstance(base, TaskEnv):
            self._users_task = base.task
            owners.append(base.task)
            self._memory = base.task.memory
        super().__init__(owners, MANAGED.union(task.attributes, self._memory, managed))
        self._digest = digest_of(base.model)

    def load(self, block: TaskBlock, place: int) -> None:
        """Load the state of a block's simulation into the env."""
        env = self._layers[-1]
        fields = {name: array[place] for name, array in block.derived.items()}
        load(env.model, env.data, block.rows[place], fields)
        env._np_random = block.rngs[place]
        env._np_random_seed = block.rng_seeds[place]
        for name in block.task.attributes:
            vars(env).pop(name, None)  # from another simulation
        block.task.write_to(env, place)
        for layer in self._layers:
            if isinstance(layer, PassiveEnvChecker):  # the trial ran its checks
                layer.checked_reset = layer.checked_step = layer.checked_data_reuse = True
            elif isinstance(layer, TimeLimit):
                steps: Any = int(block.elapsed[place]) if block.begun[place] else None
                layer._elapsed_steps = steps
            elif isinstance(layer, OrderEnforcing):
                vars(layer)["_has_reset"] = bool(block.begun[place])

    def save(self, block: TaskBlock, place: int) -> None:
        """Save the env's state as that of a block's simulation."""
        env = self._layers[-1]
        row = np.empty_like(block.rows[place])
        mujoco.mj_getState(env.model, env.data, row, STATE)
        block.rows[place] = row
        for name, array in block.derived.items():
            array[place] = getattr(env.data, name)
        # Reading env.np_random makes a generator if an env that was reset has none.
        block.rngs[place] = env.np_random if block.begun[place] else env._np_random
        block.rng_seeds[place] = env._np_random_seed
        for layer in self._layers:
            if isinstance(layer, TimeLimit) and layer._elapsed_steps is not None:
                block.elapsed[place] = layer._elapsed_steps
            elif isinstance(layer, OrderEnforcing) and vars(layer)["_has_reset"]:
                block.begin_episode(place)
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
        if digest_of(self._layers[-1].model) != self._digest:
            return "model"
        return super().changed()


def digest_of(model: mujoco.MjModel) -> bytes:
    """Return a digest of all numbers of a model."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.blake2b(buffer.tobytes()).digest()
