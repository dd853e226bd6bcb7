"""Weights of trainers: checks before averaging, and their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._frames.spec import Field

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from pysampler._policies.weights import Weights

    Fields = dict[str, Field]

__all__ = ["difference", "fields_of", "mean_of", "name_with_nan"]


def fields_of(weights: Weights) -> Fields:
    """Return dtypes and shapes of weights, or raise if they cannot be averaged."""
    if not weights:
        raise ValueError("no weights, expected arrays by name")
    for name, array in weights.items():
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} is of dtype {array.dtype}, expected numbers")
    return {name: Field(array.shape, array.dtype) for name, array in weights.items()}


def difference(got: Fields, expected: Fields) -> str:
    """Describe the first difference between fields; empty if there is none."""
    if got.keys() != expected.keys():
        return f"names {list(got)}, expected {list(expected)}"
    for name, to_be in expected.items():
        if (one := got[name]) != to_be:
            return f"{name} is {one.dtype} {one.shape}, expected {to_be.dtype} {to_be.shape}"
    return ""


def name_with_nan(weights: Weights) -> str | None:
    """Return the name of the first array that has NaN; None if there is none."""
    for name, array in weights.items():
        if array.dtype.kind in "fc" and np.isnan(array).any():
            return name
    return None


def mean_of(by_trainer: Mapping[int, Weights]) -> Weights:
    """Return the mean of each floating-point array, and the first trainer's other arrays."""
    first = next(iter(by_trainer.values()))
    return {
        name: _mean(name, {index: weights[name] for index, weights in by_trainer.items()})
        for name in first
    }


def _mean(name: str, by_trainer: Mapping[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    arrays = list(by_trainer.values())
    first = arrays[0]
    if first.dtype.kind not in "fc":
        return first.copy()
    wide = np.result_type(first, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(np.mean(arrays, axis=0, dtype=wide), first.dtype)

    if (np.isfinite(mean) | np.all([array == first for array in arrays], axis=0)).all():
        return np.where(np.isfinite(mean), mean, first)
    infinite = [index for index, array in by_trainer.items() if not np.isfinite(array).all()]
    raise ValueError(
        f"cannot average weights: the mean of {name} is not finite"
        + f": it has inf in trainers {infinite}, expected numbers" * bool(infinite)
    )
