"""Functions that handle a single env, a vector env that a function returned, or a BatchEnv."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler._workers.remote import dumps
from pysampler.envs.batch import BatchEnv

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "attribute_called",
    "attribute_of",
    "autoreset_of",
    "call",
    "expect_batch",
    "expect_env",
    "expect_whole",
    "is_several",
    "layers_of",
    "of_each",
    "reward_shape",
    "reward_space_of",
    "set_of_each",
    "trial_or",
]


# Threads take turns with what belongs to the process: pictures of pygame that two draw at once are
# corrupt, and two that ignore warnings at once would leave them ignored.
_turn = {"lock": threading.RLock()}
os.register_at_fork(after_in_child=lambda: _turn.update(lock=threading.RLock()))

# mo-gymnasium's wrapper that turns an array of rewards into one number.
_LINEAR_REWARD = "mo_gymnasium.wrappers.wrappers", "LinearReward"


@contextlib.contextmanager
def trial_or(refusal: type[Exception], passed: type[Exception]) -> Iterator[None]:
    """Ignore warnings in a trial, which begins in unusual states.

    Exceptions become a ``refusal``, except for those that are ``passed``.
    """
    try:
        with _turn["lock"], warnings.catch_warnings(action="ignore"):
            yield
    except passed:
        raise
    except Exception as error:
        raise refusal(f"a trial raised {type(error).__name__}: {error}") from error


def is_several(env: Any) -> bool:
    """Return whether an object steps many envs: a vector env or a BatchEnv."""
    return isinstance(env, (GymVectorEnv, BatchEnv))


def layers_of(env: Any) -> Iterator[Any]:
    """Yield an env's wrappers, the outermost first, and then the env itself."""
    while env is not env.unwrapped:
        yield env
        env = env.env
    yield env


def reward_space_of(env: Any) -> gym.spaces.Box | None:
    """Return the space of an env's rewards if they are arrays; None if they are numbers.

    The outermost layer with an attribute ``reward_space`` decides: the env itself, or a wrapper
    that turns the array into a number.
    """
    for layer in layers_of(env):
        if any((one.__module__, one.__name__) == _LINEAR_REWARD for one in type(layer).__mro__):
            return None
        if not hasattr(layer, "reward_space"):
            continue
        space = layer.reward_space
        if not isinstance(space, gym.spaces.Box) or space.shape == ():
            return None
        if len(space.shape) != 1 or 0 in space.shape:
            raise TypeError(f"reward_space is {space}, expected a Box of one dimension, or None")
        return space
    return None


def reward_shape(space: gym.spaces.Box | None) -> tuple[int, ...]:
    """Return the shape of rewards with this ``reward_space``: () for numbers."""
    return () if space is None else space.shape


def autoreset_of(env: Any) -> AutoresetMode:
    """Return the autoreset mode of a vector env; gymnasium assumes NEXT_STEP if it names none."""
    return AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


def _layer_with(env: Any, name: str) -> Any:
    """Return the outermost layer of a vector env that has an attribute; the env if none has."""
    return next((layer for layer in layers_of(env) if hasattr(layer, name)), env)


def attribute_of(env: Any, name: str) -> Any:
    """Return an attribute of an env, a vector env or one of their wrappers."""
    if is_several(env):
        return getattr(_layer_with(env, name), name)
    return env.get_wrapper_attr(name)


def call(env: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of an env, or return an attribute that is not callable.

    For a vector env with a method ``call``, like gymnasium's, return the results of its envs.
    """
    if isinstance(env, GymVectorEnv):
        for layer in layers_of(env):
            if hasattr(layer, "call"):
                return layer.call(name, *args, **kwargs)
            if hasattr(layer, name):
                break
    attribute = attribute_of(env, name)
    if name == "render" and "pygame" in sys.modules:
        with _turn["lock"]:
            return attribute(*args, **kwargs)
    return attribute_called(env, attribute, args, kwargs)


def attribute_called(_: Any, attribute: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a method, or an attribute that is not callable."""
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def of_each(result: Any, count: int) -> list[Any]:
    """Return the result of a vector env's call as one result for each env.

    A list, tuple or array with one item for each env is split; anything else is repeated.
    """
    several = isinstance(result, (list, tuple)) or (isinstance(result, np.ndarray) and result.ndim)
    return list(result) if several and len(result) == count else [result] * count


def set_of_each(env: Any, name: str, values: Sequence[Any]) -> None:
    """Set an attribute of the envs of a vector env, with one value for each."""
    if isinstance(env, BatchEnv):
        if name == "max_episode_steps":
            raise ValueError("max_episode_steps is read when the envs are made")
        if any(getattr(env, name, None) is array for array in env.memory.values()):
            getattr(env, name)[...] = values
            return
    for layer in layers_of(env):
        if hasattr(layer, "set_attr"):
            layer.set_attr(name, list(values))
            return
        if hasattr(layer, name):
            break
    first = dumps(values[0])
    if any(dumps(value) != first for value in values[1:]):
        raise ValueError(
            f"{type(env).__name__} is a vector env without set_attr(), expected one value of "
            f"{name} for all of its envs"
        )
    owner = _layer_with(env, name)
    setattr(owner if hasattr(owner, name) else env.unwrapped, name, values[0])


# Attributes of every gymnasium.Env, besides its spaces, reset and step.
_ATTRIBUTES = ("metadata", "render_mode", "spec", "unwrapped", "close")


def expect_env(env: Any, number: int) -> None:
    """Raise TypeError unless ``env`` has the attributes of a ``gymnasium.Env``, of any class."""
    methods = all(callable(getattr(env, name, None)) for name in ("reset", "step"))
    if isinstance(env, type) or not methods:
        got = f"the class {env.__name__}" if isinstance(env, type) else type(env).__name__
        raise TypeError(f"the function of env {number} returned {got}, expected a gymnasium.Env")
    kind = type(env).__name__
    name = f"env {number} is a{'n' * kind.startswith(tuple('AEIOU'))} {kind}"
    # Look at the class first: a wrapper makes its spec anew at each access.
    missing = [one for one in _ATTRIBUTES if not (hasattr(type(env), one) or hasattr(env, one))]
    if missing:
        raise TypeError(
            f"{name}, expected a gymnasium.Env: it has no {', '.join(missing)}; wrap it in a "
            "gymnasium.Env (envs of gym: shimmy.GymV21CompatibilityV0(env=env))"
        )
    for space in ("observation_space", "action_space"):
        found = type(getattr(env, space, None))
        if not issubclass(found, gym.Space):
            module = "" if found.__module__ == "builtins" else f"{found.__module__}."
            raise TypeError(
                f"{name} whose {space} is {module}{found.__name__}, expected a gymnasium.Space"
            )
    if not isinstance(env.metadata, Mapping):
        raise TypeError(f"{name} whose metadata is {env.metadata!r}, expected a dict")


# Spaces of a BatchEnv, whose values are one array or number.
_ARRAYS = gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary


def expect_batch(env: Any, number: int) -> None:
    """Raise TypeError unless a BatchEnv called its base's __init__ and has spaces of one array."""
    name = f"env {number} is a {type(env).__name__}"
    if "memory" not in vars(env):
        raise TypeError(f"{name} without memory: call super().__init__(num_envs) first")
    if not isinstance(env.num_envs, (int, np.integer)) or env.num_envs < 1:
        raise TypeError(f"{name} with num_envs {env.num_envs!r}, expected at least 1")
    for space in ("observation_space", "action_space"):
        found = getattr(env, space, None)
        if not isinstance(found, _ARRAYS):
            kinds = ", ".join(kind.__name__ for kind in _ARRAYS)
            raise TypeError(f"{name} whose {space} is {found}, expected one of {kinds}")


def expect_whole(env: Any, number: int) -> None:
    """Raise TypeError unless a vector env steps all of its envs at once and names their spaces."""
    name = f"env {number} is a {type(env).__name__}"
    if not isinstance(getattr(env, "num_envs", None), (int, np.integer)) or env.num_envs < 1:
        raise TypeError(f"{name} without num_envs, expected a vector env of at least one env")
    try:
        autoreset_of(env)
    except ValueError:
        modes = ", ".join(mode.name for mode in AutoresetMode)
        given = env.metadata["autoreset_mode"]
        raise TypeError(f"{name} with autoreset_mode {given!r}, expected one of {modes}") from None
    for space in ("single_observation_space", "single_action_space"):
        if not isinstance(getattr(env, space, None), gym.Space):
            raise TypeError(f"{name} without {space}, expected a gymnasium.vector.VectorEnv")
    if getattr(env, "batch_size", env.num_envs) != env.num_envs:
        raise TypeError(
            f"{name} with batch_size {env.batch_size}, expected {env.num_envs}: one that steps all "
            "of its envs in each call"
        )
