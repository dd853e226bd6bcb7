"""Infos that users request by key, as arrays over a rollout's steps.

The keys and types of infos are unknown until an env returns them. Numbers and arrays then get
columns in the frames; earlier infos, and infos without a column, come by mail and are merged here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column, Path
    from pysampler._vector.results import Results

    _Kind = tuple[np.dtype[Any], tuple[int, ...]]

__all__ = ["info_arrays", "of_unlike_shapes"]


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

    At the end of an episode, the infos are those of its last step, not of the reset after it. A key
    that no env has returned yet is left out. Where the info is missing, the value is 0 and the mask
    False.

    Args:
        keys: Keys of infos.
        results: The columns of infos.
        frames: The frames that hold the columns.
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
    mailed = [
        (at - steps.start, env, _of_step(info, over[at - steps.start, env]))
        for at, env, info in mailed_infos
        if at >= steps.start
    ]
    resets = [
        info for at, env, info in mailed_infos if at < steps.start or over[at - steps.start, env]
    ]
    seen: dict[Path, _Kind | type] = {}  # the kind of value at each path
    for column in columns:
        if column.path != ("final_info",) and column.dtype is not None:
            _see(seen, _without_final(column.path), column.of or (column.dtype, column.shape))
    for _, _, info in mailed:
        for path, value in _leaves(info, ()):
            _see(seen, path, _kind(value) or type(value))
    for key in keys:
        paths = {path: kind for path, kind in seen.items() if path[0] == key}
        numbers = {path for path, kind in paths.items() if isinstance(kind, tuple)}
        for path, kind in paths.items():
            if isinstance(kind, type):
                results.warn_once(
                    f"info{_place(path)} is a {kind.__name__}, expected numbers, arrays of numbers "
                    "or dicts of these; it is left out"
                )
        # Steps may give the info at the end of an episode: do not warn before one has ended.
        only_by_resets = bool(over.any()) and (
            any(key in info for info in resets)
            or any(
                column.views(frames)[1][steps][over].any()
                for column in columns
                if column.path[0] == key and _is_number(column)
            )
        )
        # An info that is sometimes a number and sometimes a dict counts as a number.
        for path in [(key,)] if (key,) in numbers else sorted(numbers):
            during = [c for c in columns if c.path == path and _is_number(c)]
            final = [c for c in columns if c.path == ("final_info", *path) and _is_number(c)]
            values, mask, unlike = _joined(frames, steps, during, final, over, seen[path])
            for t, env, info in mailed:
                value = _get(info, path)
                if value is not None and _fits(value, values):
                    dtype = np.result_type(values, np.asarray(value))
                    values = values.astype(dtype, copy=False)  # no column can hold this type
                    values[t, env] = value
                    mask[t, env] = True
                elif (other := _kind(value)) is not None:
                    unlike.append(other[1])
            if unlike:
                results.warn_once(of_unlike_shapes(path, values.shape[2:], unlike[0]), about=path)
            if not valid.all():  # a step in progress may still write to its row
                mask = mask & valid
                values = values.copy()
            only_by_resets = only_by_resets and not mask.any()
            values[~mask] = 0  # values of an earlier rollout
            _set(arrays, path, values)
            _set(masks, path, mask)
        if only_by_resets:
            results.warn_once(f"info {key!r} came only with resets, which rollouts do not record")
        elif not paths and (names := _names_without(key, seen, ended=bool(over.any()))) is not None:
            results.warn_once(f"no env has given info {key!r}, which is left out; got {names}")
    return arrays, masks


def _of_step(info: dict[str, Any], over: np.bool_) -> Any:
    """Return the infos of a step, not of the reset after it."""
    return info.get("final_info", {}) if over else info


def _leaves(tree: Mapping[Any, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _see(seen: dict[Path, _Kind | type], path: Path, kind: _Kind | type) -> None:
    """Record the kind of value at a path; numbers and arrays take precedence over dicts."""
    if not isinstance(seen.get(path), tuple):
        seen[path] = kind


def _kind(value: Any) -> _Kind | None:
    """Return the dtype and shape of a number or an array of numbers; None for anything else."""
    if type(value) in (int, float, bool) or isinstance(value, (np.generic, np.ndarray)):
        array = np.asarray(value)
        return (array.dtype, array.shape) if array.dtype.kind in "biufc" else None
    return None


def of_unlike_shapes(path: Path, shape: Any, other: Any) -> str:
    """Return the warning of an info whose values have different shapes."""
    return (
        f"info{_place(path)} has shapes {shape} and {other}, expected one shape; values of others "
        f"than {shape} are marked as missing"
    )


def _place(path: Path) -> str:
    return "".join(f"[{part!r}]" for part in path)


def _is_number(column: Column) -> bool:
    return column.dtype is not None and column.of is None


def _names_without(key: str, seen: Iterable[Path], *, ended: bool) -> str | None:
    """Return the names of all infos, for a warning that this key is missing; None: do not warn.

    Unless the key looks like a typo, do not warn before an episode has ended: envs may return
    the info with the last step. Do not warn if there are no infos at all.
    """
    names = sorted({str(path[0]) for path in seen})
    if names and (ended or difflib.get_close_matches(str(key), names, 1)):
        return ", ".join(map(repr, names))
    return None


def _without_final(path: Path) -> Path:
    return path[1:] if path[0] == "final_info" else path


def _get(tree: Any, path: Path) -> Any:
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
    kind: Any,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_], list[tuple[int, ...]]]:
    """Merge all columns of a path into the memory of the first.

    Return the values, a mask, and the shapes of values that differ from the first column's, which
    are not merged. Without columns (large arrays have none), the values and mask are new arrays.

    Args:
        frames: The frames that hold the columns.
        steps: The frames with the results of the rollout's steps.
        during: Columns of infos.
        final: Columns of the ``final_info`` of episodes.
        over: Where a step ended an episode.
        kind: The dtype and shape of the values.
    """
    if not during and not final:
        dtype, shape = kind
        return np.zeros((*over.shape, *shape), dtype), np.zeros(over.shape, np.bool_), []
    first, *others = [*during, *final]
    values, mask = (array[steps] for array in first.views(frames))
    alike = [column for column in (first, *others) if column.shape == first.shape]
    dtype = np.result_type(*(c.dtype for c in alike if c.dtype is not None))
    if dtype != values.dtype:  # columns of several types are merged into a new array
        values = values.astype(dtype)
    if during:
        mask[over] = False
    unlike = []
    for column in others:
        other_values, other_mask = (array[steps] for array in column.views(frames))
        chosen = other_mask & over if column in final else other_mask & ~over
        if column in alike:
            values[chosen] = other_values[chosen]
            mask[chosen] = True
        elif chosen.any():
            unlike.append(column.shape)
    return values, mask, unlike


def _fits(value: Any, values: npt.NDArray[Any]) -> bool:
    try:
        array = np.asarray(value)
    except Exception:
        return False
    return array.dtype.kind in "biufc" and array.shape == values.shape[2:]
