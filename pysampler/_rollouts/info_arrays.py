"""Infos that users request by key, as arrays over a rollout's steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column, Path
    from pysampler._vector.results import Results

__all__ = ["info_arrays"]


def info_arrays(
    keys: Iterable[str],
    results: Results,
    frames: Frames,
    steps: slice,
    mailed_infos: Sequence[tuple[int, int, dict[str, Any]]],
    over: npt.NDArray[np.bool_],
    valid: npt.NDArray[np.bool_],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arrays of infos by key, dicts of arrays for dicts, and masks of the same structure.

    Where an episode ended, these are the infos of its last step, not of the reset after it. A key
    that no env has given yet is left out. The value is 0 where an env gave none, and its mask is
    False.

    Args:
        keys: Keys of infos.
        results: The columns of infos.
        frames: The frames that the columns lie in.
        steps: The frames with the results of the rollout's steps.
        mailed_infos: Infos without a column: their frame, env and dict.
        over: Where a step ended an episode.
        valid: Where a step was made.
    """
    arrays: dict[str, Any] = {}
    masks: dict[str, Any] = {}
    if not keys:
        return arrays, masks
    columns = results.learn([(env, info) for _, env, info in mailed_infos])
    # Infos of a reset before the first step belong to no step.
    mailed = [(at - steps.start, env, info) for at, env, info in mailed_infos if at >= steps.start]
    for key in keys:
        of_key = [column for column in columns if column.dtype and key in column.path[:2]]
        paths = {_without_final(column.path) for column in of_key}
        paths = {path for path in paths if path[0] == key}
        if not paths and (unfit := [info[key] for *_, info in mailed if key in info]):
            warnings.warn(
                f"info {key!r} is a {type(unfit[0]).__name__}, expected numbers, arrays of "
                "numbers or dicts of these: it is left out",
                stacklevel=6,
            )
        # An info that is sometimes a number and sometimes a dict counts as a number.
        for path in [(key,)] if (key,) in paths else sorted(paths):
            during = [column for column in of_key if column.path == path]
            final = [column for column in of_key if column.path == ("final_info", *path)]
            values, mask = _joined(frames, steps, during, final, over)
            for t, env, info in mailed:
                value = _get(info.get("final_info", {}) if over[t, env] else info, path)
                if value is not None and _fits(value, values):
                    dtype = np.result_type(values, np.asarray(value))
                    values = values.astype(dtype, copy=False)  # of a type without a column
                    values[t, env] = value
                    mask[t, env] = True
            if not valid.all():  # a step under way may still be writing to its row
                mask = mask & valid
                values = values.copy()
            values[~mask] = 0  # what an earlier rollout had there
            _set(arrays, path, values)
            _set(masks, path, mask)
    return arrays, masks


def _without_final(path: Path) -> Path:
    return path[1:] if path[0] == "final_info" else path


def _get(tree: Any, path: Path) -> Any:
    """Return what lies at a path of a dict of dicts, or None."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _set(tree: dict[str, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _joined(
    frames: Frames,
    steps: slice,
    during: Sequence[Column],
    final: Sequence[Column],
    over: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Join all columns of a path in the memory of the first; return values and a mask.

    Args:
        frames: The frames that the columns lie in.
        steps: The frames with the results of the rollout's steps.
        during: Columns of infos.
        final: Columns of the ``final_info`` of episodes.
        over: Where a step ended an episode.
    """
    first, *others = [*during, *final]
    values, mask = (array[steps] for array in first.views(frames))
    others = [column for column in others if column.shape == first.shape]
    dtype = np.result_type(*(c.dtype for c in (first, *others) if c.dtype is not None))
    if dtype != values.dtype:  # columns of several types need an array of their own
        values = values.astype(dtype)
    if during:
        mask[over] = False
    for column in others:
        other_values, other_mask = (array[steps] for array in column.views(frames))
        chosen = other_mask & over if column in final else other_mask & ~over
        values[chosen] = other_values[chosen]
        mask[chosen] = True
    return values, mask


def _fits(value: Any, values: npt.NDArray[Any]) -> bool:
    try:
        array = np.asarray(value)
    except Exception:
        return False
    return array.dtype.kind in "biufc" and array.shape == values.shape[2:]
