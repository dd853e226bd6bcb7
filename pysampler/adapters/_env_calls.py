"""What adapters call where the envs are: workers import this module, and no training library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MASK",
    "MaskInfo",
    "call_method",
    "get_attribute",
    "has_attribute",
    "is_wrapped",
    "make_with_masks",
    "seed_action_space",
    "set_attribute",
    "set_unwrapped",
]

MASK = "action_mask"  # the key of infos


class MaskInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Put what the env's method ``action_masks`` returns into the infos, as ``action_mask``.

    Infos travel as columns of shared memory, so nothing is pickled for the masks.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env."""
        observation, info = self.env.reset(**kwargs)
        return observation, self._with_mask(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):  # no action follows
            info = self._with_mask(info)
        return observation, reward, terminated, truncated, info

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        if MASK in info:
            return info
        masks = self.env.get_wrapper_attr("action_masks")()
        return {**info, MASK: np.asarray(masks, np.bool_)}


def make_with_masks(env_fn: Callable[[], gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
    """Make an env, which puts its action masks into the infos if it has the method for them."""
    env = env_fn()
    if isinstance(env, gym.Env) and has_attribute(env, "action_masks"):
        return MaskInfo(env)
    return env


def get_attribute(env: gym.Env[Any, Any], name: str) -> Any:
    """Return an attribute of an env or of one of its wrappers."""
    return env.get_wrapper_attr(name)


def has_attribute(env: gym.Env[Any, Any], name: str) -> bool:
    """Return whether an env or one of its wrappers has an attribute."""
    try:
        env.get_wrapper_attr(name)
    except AttributeError:
        return False
    return True


def set_attribute(env: gym.Env[Any, Any], name: str, value: Any) -> None:
    """Set an attribute of the wrapper or env that has it."""
    env.set_wrapper_attr(name, value)


def set_unwrapped(env: gym.Env[Any, Any], name: str, value: Any) -> None:
    """Set an attribute of the env without its wrappers."""
    setattr(env.unwrapped, name, value)


def seed_action_space(env: gym.Env[Any, Any], seed: int | None) -> None:
    """Seed the space that random actions are drawn from."""
    env.action_space.seed(seed)


def call_method(env: gym.Env[Any, Any], name: str, args: Any, kwargs: Any) -> Any:
    """Call a method of an env or of one of its wrappers."""
    return env.get_wrapper_attr(name)(*args, **kwargs)


def is_wrapped(env: Any, wrapper_class: type[Any]) -> bool:
    """Return whether an env has a wrapper of a class."""
    while not isinstance(env, wrapper_class):
        if env is env.unwrapped:
            return False
        env = env.env
    return True
