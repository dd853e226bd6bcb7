"""The ring of frames: each frame holds the arrays of one step of all envs.

Every field but the infos is one array ``[frames, envs, ...]``. Thus workers write the rows of
their envs in place, a frame is read without a copy, and T consecutive frames form a rollout. The
price: memory for every frame, and fixed shapes only; everything else goes by mail.

============================== ================================================================
``observations``               one array for each leaf of the observation space
``final_observations``         last observations of episodes that ended in this step, where envs
                               are reset in the same step
``actions``                    in the dtypes of the action space
``other_actions``              bytes of actions that the caller gave in another dtype
``action_types``               for each leaf the number (``dtype.num``) of the dtype given, in the
                               row of the first env of each group
``rewards``                    float64: a number, or several where an env has a ``reward_space``
``terminated`` ``truncated``   bool
``has_final``                  0, FINAL, FINAL_BY_MAIL (a message holds the object itself, too),
                               or LOST: the env was lost in this step (rollouts only); or BEGUN:
                               the env was reset in this step, since the last one had ended its
                               episode; or SKIPPED: the env's chunk had ended before, or it rests
``options_versions``           the version of the options that an episode was reset with; 0: none
``extras``                     a policy's outputs besides actions: an array for each field
``infos``                      bytes for columns of infos (infos.py), after all other fields: they
                               take no memory until there are columns
============================== ================================================================
"""

from __future__ import annotations

import math
import resource
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._workers.header import LINE

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._frames.spec import Field, Spec
    from pysampler.sync import Segment

__all__ = [
    "BEGUN",
    "FINAL",
    "FINAL_BY_MAIL",
    "LOST",
    "SKIPPED",
    "Frames",
    "Plan",
    "addresses_are_limited",
    "info_bytes",
]

# In has_final; also in csrc/bindings/leaf.h.
FINAL, FINAL_BY_MAIL, LOST, BEGUN, SKIPPED = 1, 2, 3, 4, 5

# Actions keep the dtype that the caller gave if an element has at most this many bytes.
_MAX_ACTION_ITEMSIZE = 8
# Bytes reserved for the infos of one env in one frame (a number takes nine), and where the address
# space of the process is limited.
_INFO_BYTES, _INFO_BYTES_IF_LIMITED = 8192, 1024
# Memory for infos is allocated in steps of this many bytes.
_INFO_CHUNK = 1 << 16


def addresses_are_limited() -> bool:
    """Return whether a limit keeps this process from reserving memory that it does not use."""
    limits = [resource.getrlimit(of)[0] for of in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)]
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def info_bytes(envs: int, frames: int) -> int:
    """Return the number of bytes to reserve for columns of infos."""
    each = _INFO_BYTES_IF_LIMITED if addresses_are_limited() else _INFO_BYTES
    return max(envs * frames * each, 1 << 16)


@dataclass(frozen=True)
class Plan:
    """The plan of a ring of frames: its arrays, and their numbers of frames and envs."""

    spec: Spec
    envs: int
    count: int  # of frames
    final: bool  # whether envs are reset in the step that ends their episode
    extras: tuple[Field, ...] = ()
    infos: int = 0  # bytes reserved for columns of infos, of all frames together
    chunk: int = 0  # how many frames, the last ones, are for chunks of steps

    @property
    def fields(self) -> list[tuple[str, tuple[int, ...], npt.DTypeLike]]:
        """The arrays of ``Frames``: each one's name, shape in one frame, and dtype."""
        spec, envs = self.spec, self.envs
        observations = [((envs, *f.shape), f.dtype) for f in spec.observations]
        return [
            *(("observations", *field) for field in observations),
            *(("final_observations", *field) for field in observations if self.final),
            *(("actions", (envs, *f.shape), f.dtype) for f in spec.actions),
            *(("other_actions", (envs, _other_bytes(f)), np.uint8) for f in spec.actions),
            ("action_types", (envs, len(spec.actions)), np.int32),
            ("rewards", (envs, *spec.rewards), np.float64),
            ("terminated", (envs,), np.bool_),
            ("truncated", (envs,), np.bool_),
            ("has_final", (envs,), np.uint8),
            ("options_versions", (envs,), np.int64),
            *(("extras", (envs, *f.shape), f.dtype) for f in self.extras),
        ]

    @property
    def size(self) -> int:
        """The number of bytes of all arrays but the infos."""
        sizes = [_bytes(shape, dtype) * self.count for _, shape, dtype in self.fields]
        return sum(map(_lines, sizes))


class Frames:
    """A ring of frames in a segment, whose last ``plan.infos`` bytes are reserved for infos.

    New frames are zeros. Pass ``offset`` to attach to frames that another process laid out.
    """

    def __init__(self, plan: Plan, segment: Segment, offset: int | None = None) -> None:
        self.offset, memory = segment.array((plan.size,), np.dtype(np.uint8), offset)
        self._segment = segment
        self._infos_offset = segment.size - plan.infos
        self._infos_backed = 0  # bytes of infos with memory
        self.plan = plan
        self.spec = plan.spec
        self.envs = plan.envs
        self.count = plan.count
        self.ring = plan.count - plan.chunk  # how many frames take turns
        arrays: defaultdict[str, list[npt.NDArray[Any]]] = defaultdict(list)
        self._spans: list[tuple[int, int]] = []  # offset and bytes per frame of each array
        begin = 0
        for name, shape, dtype in plan.fields:
            each = _bytes(shape, dtype)
            size = each * plan.count
            array = memory[begin : begin + size].view(dtype).reshape(plan.count, *shape)
            arrays[name].append(array)
            self._spans.append((self.offset + begin, each))
            begin += _lines(size)
        self.observations = arrays["observations"]
        self.final_observations = arrays["final_observations"]
        self.actions = arrays["actions"]
        self.other_actions = arrays["other_actions"]
        self.extras = arrays["extras"]
        [self.action_types] = arrays["action_types"]
        [self.rewards] = arrays["rewards"]
        [self.terminated] = arrays["terminated"]
        [self.truncated] = arrays["truncated"]
        [self.has_final] = arrays["has_final"]
        [self.options_versions] = arrays["options_versions"]
        _, self.infos = segment.array((plan.infos,), np.dtype(np.uint8), self._infos_offset)
        self.memory = memory  # all frames, and the infos with memory
        self._smaller: list[npt.NDArray[np.uint8]] = []

    def take(self, frames: range) -> None:
        """Allocate memory for reserved frames, or raise MemoryError. May be repeated."""
        for begin, each in self._spans:
            if each > 0:
                self._segment.take(begin + frames.start * each, len(frames) * each)

    def take_infos(self, size: int) -> None:
        """Allocate the first ``size`` bytes of infos, or raise MemoryError. May be repeated."""
        if size <= self._infos_backed:
            return
        new = min(-(-size // _INFO_CHUNK) * _INFO_CHUNK, self.plan.infos)
        self._segment.take(self._infos_offset + self._infos_backed, new - self._infos_backed)
        total = self._infos_offset + new - self.offset
        self._smaller.append(self.memory)  # CUDA may know it until the frames are gone
        self.memory = self._segment.array((total,), np.dtype(np.uint8), self.offset)[1]
        self._infos_backed = new

    def actions_as(
        self, leaf: int, dtype: np.dtype[Any], *, python: bool = False
    ) -> npt.NDArray[Any]:
        """Return a leaf's actions as ``dtype``: the space's, or one of at most 8 bytes.

        Args:
            leaf: The leaf.
            dtype: The dtype.
            python: Whether they were given as Python numbers, which are among the other actions.
        """
        if dtype.num == self.actions[leaf].dtype.num and not python:
            return self.actions[leaf]
        shape = self.spec.actions[leaf].shape
        rows: npt.NDArray[Any] = self.other_actions[leaf][:, :, : _bytes(shape, dtype)]
        return rows.view(dtype).reshape(self.count, self.envs, *shape)


def _bytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _other_bytes(field: Field) -> int:
    return math.prod(field.shape) * _MAX_ACTION_ITEMSIZE


def _lines(size: int) -> int:
    """Round a number of bytes up to whole cache lines."""
    return -(-size // LINE) * LINE
