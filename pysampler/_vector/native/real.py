"""RealEnv: an ordinary env with the state of a native block's env, to read attributes from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from pysampler._vector.env_calls import layers_of
from pysampler.envs._errors import ChangedError

if TYPE_CHECKING:
    import gymnasium as gym

__all__ = ["MANAGED", "RealEnv"]

# Attributes that hold the state of an env, or caches.
MANAGED = {
    *("_np_random", "_np_random_seed", "_elapsed_steps", "_has_reset", "_cached_spec"),
    *("checked_reset", "checked_step", "checked_render", "checked_data_reuse", "close_called"),
    *("_previous_data", "_renderer", "_checked_begin", "_checked_step"),
    *("state", "steps_beyond_terminated", "last_u", "screen", "clock", "isopen", "surf"),
}


class RealEnv:
    """An ordinary env, into which the states of a block's env are loaded.

    Args:
        env: The env.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self._layers: list[Any] = list(layers_of(env))
        self._base = self._layers[-1]

    def write(self, block: Any, place: int) -> None:
        """Write the state of a block's env to the unwrapped env."""
        raise NotImplementedError

    def read(self, block: Any, place: int) -> None:
        """Read the state of the unwrapped env into the block.

        Raises:
            ChangedError: An attribute has a value that the block cannot have.
        """
        raise NotImplementedError

    def load(self, block: Any, place: int) -> None:
        """Load the state of a block's env into the ordinary env and its wrappers."""
        self._base._np_random = block.stepper.rngs[place]
        self._base._np_random_seed = block.stepper.rng_seeds[place]
        self.write(block, place)
        for layer in self._layers:
            if isinstance(layer, PassiveEnvChecker):  # the trial has run its checks
                layer.checked_reset = layer.checked_step = layer.checked_data_reuse = True
            elif isinstance(layer, TimeLimit):
                steps: Any = int(block.elapsed[place]) if block.begun[place] else None
                layer._elapsed_steps = steps
            elif isinstance(layer, OrderEnforcing):
                vars(layer)["_has_reset"] = bool(block.begun[place])

    def save(self, block: Any, place: int) -> None:
        """Save the state of the ordinary env and its wrappers to the block.

        Raises:
            ChangedError: An attribute has a value that the block cannot have.
        """
        base, rng, stepper = self._base, self._base._np_random, block.stepper
        # A block draws in C++, and one kind of numbers for all envs before the next kind.
        if rng is not None and type(rng) is not np.random.Generator:
            raise ChangedError("np_random")
        if rng is not None and rng is not stepper.rngs[place]:
            others = (one.bit_generator for one in stepper.rngs if one is not None)
            if any(rng.bit_generator is one for one in others):
                raise ChangedError("np_random")
        # Reading env.np_random makes a generator if the env has none, even after a reset.
        stepper.rngs[place] = base.np_random if block.begun[place] else base._np_random
        stepper.rng_seeds[place] = base._np_random_seed
        for layer in self._layers:
            if isinstance(layer, TimeLimit) and layer._elapsed_steps is not None:
                block.elapsed[place] = layer._elapsed_steps
            elif isinstance(layer, OrderEnforcing) and vars(layer)["_has_reset"]:
                block.begun[place] = True
        self.read(block, place)
