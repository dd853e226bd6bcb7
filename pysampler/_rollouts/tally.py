"""What is counted of rollouts: which steps were made, episodes that ended, infos as columns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._policies.frame_policy import LOST
from pysampler._rollouts.rollout import Ended

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column, Path
    from pysampler._vector.results import Results

__all__ = ["InfoColumns", "Tally"]


class Tally:
    """What is counted across rollouts: episodes, and which of their steps were made."""

    def __init__(self, slots: int, horizon: int, count: int) -> None:
        self._starts = np.zeros((slots, horizon + 1, count), np.bool_)
        self._valid = np.zeros((slots, horizon, count), np.bool_)
        self._lost = np.zeros((slots, horizon, count), np.bool_)
        self._begins = np.ones(count, np.bool_)  # what comes next, with an episode
        self._return = np.zeros(count)  # of the episode so far
        self._length = np.zeros(count, np.int64)
        self._time = np.arange(horizon)[:, None]

    def begin_episodes(self) -> None:
        """All envs were reset."""
        self._begins[:] = True
        self._return[:] = 0
        self._length[:] = 0

    def count(
        self, slot: int, frames: Frames, steps: slice, lengths: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        """The fields of a rollout that say what its steps are."""
        starts, valid, lost = self._starts[slot], self._valid[slot], self._lost[slot]
        rewards, over = frames.rewards[steps], starts[1:]
        np.less(self._time, lengths, out=valid)
        np.logical_or(frames.terminated[steps], frames.truncated[steps], out=over)
        np.logical_and(over, valid, out=over)
        starts[0] = self._begins
        np.equal(frames.has_final[steps], LOST, out=lost)
        np.logical_and(lost, valid, out=lost)
        ended: list[tuple[int, int, float, int]] = []
        # Step by step, so that an episode's return is of nothing but its own rewards.
        for t, some in enumerate(over.any(axis=1)):
            np.add(self._return, rewards[t], out=self._return, where=valid[t])
            np.add(self._length, 1, out=self._length, where=valid[t])
            if some:
                envs = np.flatnonzero(over[t])
                ended += [
                    (int(env), t, float(self._return[env]), int(self._length[env]))
                    for env in envs[~lost[t, envs]]
                ]
                self._return[envs] = 0
                self._length[envs] = 0
        ended.sort()
        columns = list(zip(*ended, strict=True)) or [()] * 4
        self._begins = starts[lengths, np.arange(len(lengths))].copy()
        np.greater(valid, lost, out=valid)  # made, and not lost
        return {
            "starts": starts,
            "valid": valid,
            "lost": lost,
            "lengths": lengths.copy(),
            "ended": Ended(
                np.array(columns[0], np.int64),
                np.array(columns[1], np.int64),
                np.array(columns[2], np.float64),
                np.array(columns[3], np.int64),
            ),
        }


class InfoColumns:
    """The infos that were asked for, as arrays over a rollout's steps, or dicts of such.

    Where an episode ended, that is what came with its last step, not with the reset after it. A key
    that no env has given yet is left out; where there was none in a step, its value is 0.
    """

    def __init__(
        self,
        results: Results,
        frames: Frames,
        names: Iterable[str],
        rest: Sequence[tuple[int, int, dict[str, Any]]],
        steps: slice,
        marks: dict[str, Any],
    ) -> None:
        self.values: dict[str, Any] = {}
        self.masks: dict[str, Any] = {}
        if not names:
            return
        columns = results.learn([(env, info) for _, env, info in rest])
        over, valid = marks["starts"][1:], marks["valid"]
        # A reset before the first step is none of the steps.
        said = [(at - steps.start, env, info) for at, env, info in rest if at >= steps.start]
        for name in names:
            here = [column for column in columns if column.dtype and name in column.path[:2]]
            paths = {_without_final(column.path) for column in here}
            paths = {path for path in paths if path[0] == name}
            if not paths and (odd := [info[name] for *_, info in said if name in info]):
                warnings.warn(
                    f"info {name!r} is a {type(odd[0]).__name__}, expected numbers, arrays of "
                    "numbers or dicts of these: it is left out",
                    stacklevel=5,
                )
            # Of one that is a number and a dict by turns, the number.
            for path in [(name,)] if (name,) in paths else sorted(paths):
                during = [column for column in here if column.path == path]
                final = [column for column in here if column.path == ("final_info", *path)]
                values, mask = _joined(frames, steps, during, final, over)
                for t, env, info in said:
                    one = _at(path, info.get("final_info", {}) if over[t, env] else info)
                    if one is not None and _fits(one, values):
                        dtype = np.result_type(values, np.asarray(one))
                        values = values.astype(dtype, copy=False)  # of a type without a column
                        values[t, env] = one
                        mask[t, env] = True
                if not valid.all():  # a step under way may yet be writing to its row
                    mask = mask & valid
                    values = values.copy()
                values[~mask] = 0  # what an earlier rollout had there
                _put(self.values, path, values)
                _put(self.masks, path, mask)


def _without_final(path: Path) -> Path:
    return path[1:] if path[0] == "final_info" else path


def _at(path: Path, info: Any) -> Any:
    """What lies in a dict of dicts at a path; None if nothing does."""
    for key in path:
        info = info.get(key) if isinstance(info, Mapping) else None
    return info


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
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
    """One array of all columns of a key, in the memory of the first."""
    first, *others = [*during, *final]
    values, mask = (array[steps] for array in first.views(frames))
    others = [column for column in others if column.shape == first.shape]
    dtype = np.result_type(*(c.dtype for c in (first, *others) if c.dtype is not None))
    if dtype != values.dtype:  # types of values mix: the one array that is not the workers' own
        values = values.astype(dtype)
    if during:
        mask[over] = False
    for column in others:
        more, there = (array[steps] for array in column.views(frames))
        there = there & over if column in final else there & ~over
        values[there] = more[there]
        mask[there] = True
    return values, mask


def _fits(value: Any, values: npt.NDArray[Any]) -> bool:
    try:
        array = np.asarray(value)
    except Exception:
        return False
    return array.dtype.kind in "biufc" and array.shape == values.shape[2:]
