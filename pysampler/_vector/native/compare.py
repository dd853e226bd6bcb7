"""Finds the first difference between the results of two vector envs."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["first_difference"]

_NAMES = {
    "reset": ("observations", "infos"),
    "step": ("observations", "rewards", "terminated", "truncated", "infos"),
}


def first_difference(ours: Any, theirs: Any, of: str) -> str | None:
    """Return a description of the first difference between two results, or None.

    Args:
        ours: The result of one vector env.
        theirs: The result of the other.
        of: "reset" or "step".
    """
    for name, one, other in zip(_NAMES[of], ours, theirs, strict=True):
        if found := _different(one, other, name):
            return f"{found} of a {of}"
    return None


def _different(one: Any, other: Any, name: str) -> str | None:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            keys = ", ".join(sorted(map(str, one.keys() ^ other.keys())))
            return f"the keys of {name} ({keys})"
        return next(
            (
                found
                for key in one
                if (found := _different(one[key], other[key], f"{name}[{key!r}]"))
            ),
            None,
        )
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{name}: {one.dtype}{one.shape}, expected {other.dtype}{other.shape}"
    if one.dtype == object and one.ndim == 0:
        return None if one.item() == other.item() else name
    if one.dtype == object:
        same = all(_different(a, b, name) is None for a, b in zip(one, other, strict=True))
        return None if same else name
    equal = (one == other) | ((one != one) & (other != other))
    if equal.all():
        return None
    index = tuple(np.argwhere(~equal)[0].tolist())
    return f"{name}{list(index)}: {one[index]!r}, expected {other[index]!r}"
