"""Infos env by env, for libraries that want a dict for each."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["info_rows"]


def info_rows(infos: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return batched infos as one dict for each of ``count`` envs."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key.startswith("_") or mask is None:
            continue
        present: Iterable[int] = np.flatnonzero(mask).tolist()
        if isinstance(values, dict):
            inner = info_rows(values, count)
            for row in present:
                rows[row][key] = inner[row]
        else:
            for row in present:
                value = values[row]
                rows[row][key] = deepcopy(value) if isinstance(value, np.ndarray) else value
    return rows
