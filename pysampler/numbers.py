"""Numbers that users give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["is_real", "is_whole", "whole_number"]


def is_whole(got: Any, least: int) -> bool:
    """Whether it is one of at least so much."""
    return isinstance(got, (int, np.integer)) and not isinstance(got, bool) and bool(got >= least)


def is_real(got: Any, least: float = -math.inf) -> bool:
    """Whether it is a number of at least so much: not nan, and neither a string nor a bool."""
    real = isinstance(got, (int, float, np.integer, np.floating)) and not isinstance(got, bool)
    return real and bool(got >= least)


def whole_number(doing: str, what: str, got: Any, least: int) -> int:
    """It, or an error."""
    if not is_whole(got, least):
        raise ValueError(
            f"cannot {doing}: {what} {got!r}, expected a whole number of at least {least}"
        )
    return int(got)
