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
``has_final``                  1: there is a final observation; 2: and a message says more of it;
                               3: it was lost in this step (rollouts only)
``options_versions``           which options an episode was reset with; 0: none
``infos``                      bytes for columns (infos.py), behind all the others: they have no
                               memory before there are columns
``extras``                     what a policy said beside its actions: one array for each field
============================== ================================================================
"""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._frames.spec import Field, Spec
    from pysampler.sync import Segment

__all__ = ["Frames", "Plan", "info_room"]

LINE = 128  # bytes; csrc/layout.h
# An action keeps the dtype it was given, of up to this many bytes an element.
WIDEST = 8
# Bytes of an env and frame that columns of infos may come to: nine for a number. It is less where
# addresses are short.
_INFOS, _INFOS_IF_LIMITED = 8192, 1024
# How many of them have memory at a time.
_PIECE = 1 << 16


def info_room(envs: int, frames: int) -> int:
    """Bytes for columns of infos."""
    limits = [resource.getrlimit(of)[0] for of in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]
    limited = any(limit != resource.RLIM_INFINITY for limit in limits)
    each = _INFOS_IF_LIMITED if limited else _INFOS
    return max(envs * frames * each, 1 << 16)


@dataclass(frozen=True)
class Plan:
    """What frames there are to be, for how many envs."""

    spec: Spec
    envs: int
    count: int
    final: bool  # whether envs are reset in the step that ends their episode
    extras: tuple[Field, ...] = ()
    infos: int = 0  # bytes for columns of them, of all frames

    @property
    def fields(self) -> list[tuple[str, tuple[int, ...], npt.DTypeLike]]:
        """Every array of ``Frames``: its name, shape without the frames, and dtype."""
        spec, envs = self.spec, self.envs
        observations = [((envs, *f.shape), f.dtype) for f in spec.observations]
        return [
            *(("observations", *field) for field in observations),
            *(("final_observations", *field) for field in observations if self.final),
            *(("actions", (_action_bytes(f, envs),), np.uint8) for f in spec.actions),
            ("action_types", (envs, len(spec.actions)), np.int32),
            ("rewards", (envs,), np.float64),
            ("terminated", (envs,), np.bool_),
            ("truncated", (envs,), np.bool_),
            ("has_final", (envs,), np.uint8),
            ("options_versions", (envs,), np.int64),
            *(("extras", (envs, *f.shape), f.dtype) for f in self.extras),
        ]

    @property
    def size(self) -> int:
        """Bytes it takes, without those for infos."""
        sizes = [_bytes(shape, dtype) * self.count for _, shape, dtype in self.fields]
        return sum(map(_lines, sizes))


class Frames:
    """Frames in a segment made with ``plan.infos`` bytes of room: zeros, at first.

    Those that lie there already begin at an offset.
    """

    def __init__(self, plan: Plan, segment: Segment, at: int | None = None) -> None:
        self.offset, memory = segment.array((plan.size,), np.dtype(np.uint8), at)
        self._segment = segment
        self._infos_at = segment.size - plan.infos
        self._infos_taken = 0
        self.plan = plan
        self.spec = plan.spec
        self.envs = plan.envs
        self.count = plan.count
        arrays: dict[str, list[npt.NDArray[Any]]] = {
            "observations": [],
            "final_observations": [],
            "actions": [],
            "extras": [],
        }
        at = 0
        for name, shape, dtype in plan.fields:
            size = _bytes(shape, dtype) * plan.count
            array = memory[at : at + size].view(dtype).reshape(plan.count, *shape)
            arrays.setdefault(name, []).append(array)
            at += _lines(size)
        self.observations = arrays["observations"]
        self.final_observations = arrays["final_observations"]
        self.actions = arrays["actions"]
        self.extras = arrays["extras"]
        [self.action_types] = arrays["action_types"]
        [self.rewards] = arrays["rewards"]
        [self.terminated] = arrays["terminated"]
        [self.truncated] = arrays["truncated"]
        [self.has_final] = arrays["has_final"]
        [self.options_versions] = arrays["options_versions"]
        _, self.infos = segment.array((plan.infos,), np.dtype(np.uint8), self._infos_at)
        self.memory = memory  # all that there is

    def take_infos(self, size: int) -> None:
        """Have memory for so many bytes of infos; MemoryError if there is none. May be repeated."""
        if size <= self._infos_taken:
            return
        new = min(-(-size // _PIECE) * _PIECE, self.plan.infos)
        self._segment.take(self._infos_at + self._infos_taken, new - self._infos_taken)
        bytes_ = self._infos_at + new - self.offset
        self.memory = self._segment.array((bytes_,), np.dtype(np.uint8), self.offset)[1]
        self._infos_taken = new

    @property
    def default_actions(self) -> list[npt.NDArray[Any]]:
        """The actions, where they have the dtypes of the space."""
        return [self.actions_as(i, field.dtype) for i, field in enumerate(self.spec.actions)]

    def actions_as(self, leaf: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Actions of a dtype, at most eight bytes an element or that of the space."""
        shape = (self.envs, *self.spec.actions[leaf].shape)
        array: npt.NDArray[Any] = self.actions[leaf][:, : _bytes(shape, dtype)].view(dtype)
        return array.reshape(self.count, *shape)


def _bytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _action_bytes(field: Field, envs: int) -> int:
    return math.prod(field.shape) * max(field.dtype.itemsize, WIDEST) * envs


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
