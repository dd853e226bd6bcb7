"""Checks and defaults of the options of actors."""

from __future__ import annotations

from typing import Any

from pysampler._common.numbers import is_real, whole_number

__all__ = ["counts_to_take", "default_high", "share_of_time", "watermarks"]


def counts_to_take(count: Any, min_records: Any) -> tuple[int, int]:
    """Return ``count`` and ``min_records`` as ints, or raise ValueError."""
    count = whole_number("take records", "count", count, 1)
    min_records = whole_number("take records", "min_records", min_records, 1)
    if min_records > count:
        raise ValueError(
            f"cannot take records: min_records {min_records}, expected at most count, {count}"
        )
    return count, min_records


def default_high(num_envs: int, steps: int | None) -> int:
    """Return the default of ``high``: 64 records per env, or 4 if they are trajectories."""
    return max((64 if steps is None else 4) * num_envs, 16)


def watermarks(high: Any, low: Any) -> tuple[int, int]:
    """Return ``high`` and ``low`` as ints, or raise ValueError."""
    high = whole_number("act", "high", high, 1)
    least = high // 2 if low is None else whole_number("act", "low", low, 0)
    if least >= high:
        raise ValueError(f"cannot act: low {low!r}, expected less than high, {high}")
    return high, least


def share_of_time(refresh_share: Any) -> float:
    """Return ``refresh_share`` as a float, or raise ValueError."""
    if not is_real(refresh_share, 0) or not 0 < refresh_share <= 1:
        raise ValueError(
            f"cannot act: refresh_share {refresh_share!r}, expected more than 0 and at most 1"
        )
    return float(refresh_share)
