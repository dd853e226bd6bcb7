"""The ring of frames: for each of them one step's arrays of all envs.

Every field is one array ``[frames, envs, ...]``, so that the rows of one env range are written
where they lie, a frame is read without a copy, and T frames in a row are a rollout.

============================== ================================================================
``observations``               one array for each leaf of the observation space
``final_observations``         the last of an episode, where the env was reset in the same step
``actions``                    bytes, so that they keep the dtype they were given
``action_types``               number of that dtype by leaf, in the row of a group's first env
``rewards``                    float64
``terminated`` ``truncated``   bool
``has_final``                  1: there is a final observation; 2: and a message says more of it
``options_versions``           which options an episode was reset with; 0: none
``infos``                      bytes, shared out among columns (infos.py)
============================== ================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler.spec import Field, Spec

__all__ = ["Frames"]

LINE = 128  # bytes; csrc/layout.h
# An action keeps the dtype it was given, of up to this many bytes an element.
WIDEST = 8


class Frames:
    """Frames over some memory: ``size_of`` bytes of zeros, at first."""

    def __init__(
        self, spec: Spec, envs: int, count: int, *, final: bool, memory: npt.NDArray[np.uint8]
    ) -> None:
        self.spec = spec
        self.envs = envs
        self.count = count
        self._memory = memory
        self._used = 0
        self.observations = [self._take((envs, *f.shape), f.dtype) for f in spec.observations]
        self.final_observations = [
            self._take((envs, *f.shape), f.dtype) for f in spec.observations if final
        ]
        self.actions = [self._take((_action_bytes(f, envs),), np.uint8) for f in spec.actions]
        self.action_types = self._take((envs, len(spec.actions)), np.int32)
        self.rewards = self._take((envs,), np.float64)
        self.terminated = self._take((envs,), np.bool_)
        self.truncated = self._take((envs,), np.bool_)
        self.has_final = self._take((envs,), np.uint8)
        self.options_versions = self._take((envs,), np.int64)
        self.infos = self._take((_info_bytes(envs),), np.uint8)

    @property
    def default_actions(self) -> list[npt.NDArray[Any]]:
        """The actions, where they have the dtypes of the space."""
        return [self.actions_as(i, field.dtype) for i, field in enumerate(self.spec.actions)]

    def actions_as(self, leaf: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Actions of a dtype, at most eight bytes an element or that of the space."""
        shape = (self.envs, *self.spec.actions[leaf].shape)
        size = int(np.prod(shape)) * dtype.itemsize
        array: npt.NDArray[Any] = self.actions[leaf][:, :size].view(dtype)
        return array.reshape(self.count, *shape)

    @staticmethod
    def size_of(spec: Spec, envs: int, count: int, *, final: bool) -> int:
        """Bytes it takes."""
        times = 2 if final else 1
        sizes = [_bytes(f) * envs for f in spec.observations] * times
        sizes += [_action_bytes(f, envs) for f in spec.actions]
        sizes += [
            4 * len(spec.actions) * envs,
            8 * envs,
            envs,
            envs,
            envs,
            8 * envs,
            _info_bytes(envs),
        ]
        return sum(_lines(size * count) for size in sizes)

    def _take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        whole = (self.count, *shape)
        size = int(np.prod(whole)) * np.dtype(dtype).itemsize
        part = self._memory[self._used : self._used + size]
        self._used += _lines(size)
        array: npt.NDArray[Any] = part.view(dtype).reshape(whole)
        return array


def _bytes(field: Field) -> int:
    return int(np.prod(field.shape)) * field.dtype.itemsize


def _action_bytes(field: Field, envs: int) -> int:
    return int(np.prod(field.shape)) * max(field.dtype.itemsize, WIDEST) * envs


def _info_bytes(envs: int) -> int:
    # 9 bytes an env for a number: a hundred of them, or fewer and some arrays.
    return max(envs * 1024, 4096)


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
