"""Converts infos and indices for libraries that expect one dict per env."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._vector.arguments import env_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["env_indices", "info_rows"]


def info_rows(infos: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return batched infos as one dict for each of ``count`` envs."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:  # it is a mask itself
            continue
        present: Iterable[int] = np.flatnonzero(mask).tolist()
        if isinstance(values, dict):
            inner = info_rows(values, count)
            for row in present:
                rows[row][key] = inner[row]
        else:
            if values.ndim == 1 and values.dtype in _PYTHON_TYPES:
                values = values.tolist()
            for row in present:
                value = values[row]
                rows[row][key] = deepcopy(value) if isinstance(value, np.ndarray) else value
    return rows


def env_indices(given: Iterable[int], count: int) -> list[int]:
    """Return valid indices of envs, or raise. Negative ones count from the end."""
    envs: list[int] = env_ids(list(given)).tolist()
    if bad := [index for index in envs if not -count <= index < count]:
        raise IndexError(f"cannot choose env {bad[0]}: expected {-count} to {count - 1}")
    return [index % count for index in envs]


# Dtypes of batched Python numbers and bools. NumPy scalars in infos rarely have them.
_PYTHON_TYPES = (np.dtype(float), np.dtype(int), np.dtype(bool))
