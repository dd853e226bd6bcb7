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
``infos``                      bytes, shared out among columns (infos.py)
``extras``                     what a policy said beside its actions: one array for each field
============================== ================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler.spec import Field, Spec

__all__ = ["Frames", "Plan"]

LINE = 128  # bytes; csrc/layout.h
# An action keeps the dtype it was given, of up to this many bytes an element.
WIDEST = 8


@dataclass(frozen=True)
class Plan:
    """What frames there are to be, for how many envs."""

    spec: Spec
    envs: int
    count: int
    final: bool  # whether envs are reset in the step that ends their episode
    extras: tuple[Field, ...] = ()
    infos: bool = True  # whether there is room for columns of them

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
            ("infos", (_info_bytes(envs) if self.infos else 0,), np.uint8),
            *(("extras", (envs, *f.shape), f.dtype) for f in self.extras),
        ]

    @property
    def size(self) -> int:
        """Bytes it takes."""
        sizes = [_bytes(shape, dtype) * self.count for _, shape, dtype in self.fields]
        return sum(map(_lines, sizes))


class Frames:
    """Frames over some memory: ``plan.size`` bytes of zeros, at first."""

    def __init__(self, plan: Plan, memory: npt.NDArray[np.uint8]) -> None:
        self.plan = plan
        self.spec = plan.spec
        self.envs = plan.envs
        self.count = plan.count
        self.memory = memory
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
        [self.infos] = arrays["infos"]

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


def _info_bytes(envs: int) -> int:
    # 9 bytes an env for a number: a hundred of them, or fewer and some arrays.
    return max(envs * 1024, 4096)


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
