"""Whole numbers that users give."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["is_whole", "whole_number"]


def is_whole(got: Any, least: int) -> bool:
    """Whether it is one of at least so much."""
    return isinstance(got, (int, np.integer)) and not isinstance(got, bool) and bool(got >= least)


def whole_number(doing: str, what: str, got: Any, least: int) -> int:
    """It, or an error."""
    if not is_whole(got, least):
        raise ValueError(
            f"cannot {doing}: {what} {got!r}, expected a whole number of at least {least}"
        )
    return int(got)
