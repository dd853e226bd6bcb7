"""Exceptions of envs that step together."""

from __future__ import annotations

__all__ = ["ChangedError", "RowError"]


class ChangedError(Exception):
    """A call changed an attribute of an env which its batch cannot represent: this one."""


class RowError(ValueError):
    """An error of one of many envs.

    Args:
        row: The row of the env.
        text: The error message.
    """

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row
