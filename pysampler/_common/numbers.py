"""Checks of the numbers and arrays that users pass.

Functions that return the value raise *cannot <operation>: <name> <got>, <expected>* on a bad one.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "byte_count",
    "fitting_array",
    "is_masked",
    "is_real",
    "is_whole",
    "plain_array",
    "refusal",
    "true_or_false",
    "whole_number",
]

_NUMBERS = "biufc"  # kinds of dtypes


def refusal(operation: str, name: str, got: Any, expected: str) -> ValueError:
    """Return the error of a bad value."""
    return ValueError(f"cannot {operation}: {name} {got!r}, expected {expected}")


def is_whole(got: Any, minimum: int) -> bool:
    """Return whether ``got`` is an integer, not a bool, and at least ``minimum``."""
    return isinstance(got, (int, np.integer)) and not isinstance(got, bool) and bool(got >= minimum)


def is_real(got: Any, minimum: float = -math.inf) -> bool:
    """Return whether ``got`` is a real number >= ``minimum``: not NaN, a string or a bool."""
    real = isinstance(got, (int, float, np.integer, np.floating)) and not isinstance(got, bool)
    return real and bool(got >= minimum)


def whole_number(operation: str, name: str, got: Any, minimum: int) -> int:
    """Return ``got`` as an int, or raise ValueError unless it is an integer >= ``minimum``."""
    if not is_whole(got, minimum):
        raise refusal(operation, name, got, f"a whole number of at least {minimum}")
    return int(got)


# A number and a unit: 2 GB, 500mib, 1.5G, 300 B.
_BYTES = r"\s*(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(i?)b?|b)\s*"


def byte_count(operation: str, name: str, got: Any) -> int:
    """Return a number of bytes, which may be text such as "2 GB", or raise ValueError."""
    number: Any = got
    if isinstance(got, str):
        text = re.fullmatch(_BYTES, got, re.IGNORECASE)
        number = math.nan
        if text is not None:
            power = "bkmgt".index((text[2] or "b").lower())
            number = float(text[1]) * (1024 if text[3] else 1000) ** power
    if not (is_real(number, 1) and math.isfinite(number)):
        expected = "a number of bytes, or text with a unit such as '2 GB' or '500 MiB'"
        raise refusal(operation, name, got, expected)
    return int(number)


def true_or_false(operation: str, name: str, got: Any) -> bool:
    """Return ``got`` as a bool, or raise TypeError: the string "no" would count as true."""
    if not isinstance(got, (bool, np.bool_)):
        raise TypeError(f"cannot {operation}: {name} {got!r}, expected True or False")
    return bool(got)


def plain_array(operation: str, name: str, got: Any) -> npt.NDArray[Any]:
    """Return ``got`` as an array, or raise ValueError if it cannot be one or would lose a mask."""
    try:
        if not is_masked(got):
            return np.asarray(got)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"cannot {operation}: {name} cannot be converted to an array: {error}"
        ) from error
    raise ValueError(f"cannot {operation}: {name} is masked, expected an array without a mask")


def is_masked(got: Any) -> bool:
    """Return whether this is an array with a mask, or a list or tuple with one in it."""
    return isinstance(got, np.ma.MaskedArray) or (
        isinstance(got, (list, tuple)) and any(map(is_masked, got))
    )


def fitting_array(operation: str, name: str, got: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return ``got`` as an array of ``dtype``, or raise ValueError if a value does not fit.

    Numbers may be rounded to floats; no value is changed otherwise.
    """
    array = plain_array(operation, name, got)
    if array.dtype == dtype:
        return array
    if not _fits(array, dtype):
        values, expected = "", f"{dtype}"
        if array.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS:
            values = f" from {array.min()} to {array.max()}"
            if dtype.kind in "biu":
                expected = "whole numbers from {} to {}".format(*_limits(dtype))
        raise ValueError(
            f"cannot {operation}: {name} of {array.dtype}{values}, expected {expected}"
        )
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the smallest and largest value of an integer or bool dtype."""
    if dtype.kind == "b":
        return 0, 1
    limits = np.iinfo(dtype)
    return limits.min, limits.max


def _fits(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether every value of an array can be represented in a dtype."""
    kind, safe = array.dtype.kind, np.can_cast(array.dtype, dtype, "safe")
    if array.size == 0:
        return True
    if kind not in _NUMBERS or dtype.kind not in _NUMBERS:
        return safe and kind == dtype.kind
    if safe or (kind == "c" and dtype.kind != "c"):
        return safe
    if dtype.kind in "fc":
        with np.errstate(all="ignore"):
            lost = np.isfinite(array) & ~np.isfinite(array.astype(dtype))
        return not lost.any()
    low, high = _limits(dtype)
    integral = kind != "f" or bool((array == np.trunc(array)).all())
    return integral and bool(low <= array.min().item() and array.max().item() <= high)
