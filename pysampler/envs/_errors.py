"""Exceptions of envs that step together."""

from __future__ import annotations

__all__ = ["ChangedError", "RowError"]


class ChangedError(Exception):
    """A call changed an attribute of an env that its batch cannot have; this is its name."""


class RowError(ValueError):
    """An error of one of many envs.

    Args:
        row: The env.
        text: What is wrong.
    """

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row
