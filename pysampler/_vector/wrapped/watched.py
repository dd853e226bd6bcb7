"""Watched: detects that a call changed an attribute which a batch has copied or ignores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Watched"]

_MISSING = object()


class Watched:
    """A snapshot of the attributes of some objects, to detect changes.

    Args:
        owners: The objects.
        managed: The names of attributes that hold state and may change.
    """

    def __init__(self, owners: Sequence[Any], managed: Collection[str]) -> None:
        self._owners = owners
        self._managed = frozenset(managed)
        self._known = [dict(vars(owner)) for owner in owners]
        self._arrays = [
            (name, array, array.copy())
            for known in self._known
            for name, array in known.items()
            if isinstance(array, np.ndarray) and name not in self._managed
        ]

    def changed(self) -> str | None:
        """Return the name of an attribute that has changed; None if none has.

        New attributes do not count: nothing reads them in a step.
        """
        for owner, known in zip(self._owners, self._known, strict=True):
            now = vars(owner)
            name: str
            for name in (now.keys() | known.keys()) - self._managed - self._allowed(owner):
                new = name not in known and not hasattr(type(owner), name)
                if not new and now.get(name, _MISSING) is not known.get(name, _MISSING):
                    return name
        for name, array, numbers in self._arrays:
            if not np.array_equal(array, numbers, equal_nan=array.dtype.kind in "fc"):
                return name
        return None

    def _allowed(self, owner: Any) -> set[str]:  # noqa: ARG002 - a subclass uses it
        """Return the names of further attributes of an object that may change."""
        return set()
