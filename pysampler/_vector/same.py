"""Decides whether two values are the same bit for bit, and whether a class is as it was written.

Envs step in one batch only if nothing tells them apart. So a value of a type that is not known here
equals only itself, and a method that was replaced makes a class unknown.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["replaced_method", "same"]

_ATOMS = bool, int, str, bytes, complex, np.dtype, range


def same(one: Any, other: Any) -> bool:
    """Return whether two values have the same types and bits; unknown objects must be one."""
    kind = type(one)
    if one is other:
        return True
    if kind is not type(other):
        return False
    if issubclass(kind, np.ndarray | np.generic):
        bits = one.dtype == other.dtype and one.shape == other.shape and one.dtype.kind != "O"
        return bits and bool(one.tobytes() == other.tobytes())
    if kind is float:
        return bool(one.hex() == other.hex())  # tells -0.0 from 0.0, and a nan equals itself
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if issubclass(kind, dict):
        return same(list(one.items()), list(other.items()))
    if issubclass(kind, gym.Space) and kind.__module__.startswith("gymnasium.spaces."):
        ours, theirs = ({**vars(space), "_np_random": None} for space in (one, other))
        return same(ours, theirs)
    return issubclass(kind, _ATOMS) and bool(one == other)


def replaced_method(kind: type) -> str | None:
    """Return the name of a method of a class that other code has replaced; None if there is none.

    A method counts as replaced if its code is not from the file of its class.
    """
    for base in kind.__mro__:
        if not base.__module__.startswith(("gymnasium.", "pysampler.")):
            continue
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        for name, value in vars(base).items():
            for function in _functions(value):
                code = getattr(function, "__code__", None)
                if code is None or code.co_filename != file:
                    return f"{base.__name__}.{name}"
    return None


def _functions(attribute: Any) -> Iterator[Any]:
    """Yield the functions of a class attribute: a method, a property or the like."""
    if isinstance(attribute, (classmethod, staticmethod)):
        attribute = attribute.__func__
    if isinstance(attribute, property):
        yield from (one for one in (attribute.fget, attribute.fset, attribute.fdel) if one)
    elif isinstance(attribute, functools.cached_property):
        yield attribute.func
    elif callable(attribute) and not isinstance(attribute, type):
        yield attribute
