"""Base classes of blocks in Python, which have the methods of ``_core.FrameBlock``."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames

    Array = npt.NDArray[Any]

__all__ = ["GivenActions", "GroupBlock", "Overflow", "PythonBlock", "WholeBlock", "copied_info"]

# Results that do not fit into the frame, as (kind, env, object); those of a chunk with the step.
Overflow = list[Any]
# dtypes by their NumPy type number.
_CODES = np.typecodes["AllInteger"] + "?efdgFD"
_DTYPES: dict[int, np.dtype[Any]] = {np.dtype(code).num: np.dtype(code) for code in _CODES}
_TYPE = 0xFFFF  # masks out the bit that marks Python numbers


class GivenActions:
    """One leaf of some envs' actions in the frames, converted to the dtypes that the caller passed.

    Args:
        frames: The frames.
        first: The first of the envs.
        count: Their number.
        leaf: Which leaf of the action space.
    """

    def __init__(self, frames: Frames, first: int, count: int, leaf: int = 0) -> None:
        self._frames = frames
        self._leaf = leaf
        self._envs = slice(first, first + count)
        self._types = frames.action_types[:, first, leaf]
        self._actions: dict[int, Array] = {}

    def of(self, frame: int) -> Array:
        """Return the actions in a frame as an array, also if they were Python numbers.

        It is a copy: envs may keep their actions or write to them.
        """
        given = int(self._types[frame])
        if given not in self._actions:
            dtype = _DTYPES[given & _TYPE]
            of_all = self._frames.actions_as(self._leaf, dtype, python=given > _TYPE)
            self._actions[given] = of_all[:, self._envs]
        return np.array(self._actions[given][frame], order="C")

    def were_python(self, frame: int) -> bool:
        """Return whether the actions in a frame were Python numbers."""
        return int(self._types[frame]) > _TYPE


class PythonBlock(_core.PythonBlock):
    """A block whose methods are in Python."""

    fresh: bool  # whether an env has not begun since it replaced another

    def step(self, frame: int, actions: Any = None) -> bool:
        """Step every env, or reset it if its episode has ended; return whether there is overflow.

        A fresh env ends the episode of the lost env that it replaces: its row is marked ``LOST``
        and truncated. Only with the autoreset mode SAME_STEP it is reset in that step.

        Args:
            frame: The frame.
            actions: Actions to use instead of those in the frame.
        """
        raise NotImplementedError

    def step_chunk(self, frame: int, steps: int, last: bool) -> bool:  # noqa: FBT001 - C++ calls it
        """Let every env make several steps, from the frame on, until its episode ends.

        Args:
            frame: The frame of the first step.
            steps: The number of steps.
            last: Whether only the last results of each env are read, and all rewards.
        """
        raise NotImplementedError(f"a {type(self).__name__} steps all of its envs or none")

    def replace(self, seeds: Sequence[int | None], over: Sequence[bool]) -> None:
        """Let the envs replace others; their next resets use ``seeds``.

        Those that are ``over`` replace envs whose episodes had ended; if empty, none does.
        """
        raise NotImplementedError

    def rest(self, i: int) -> None:
        """Let steps leave env ``i`` alone until it is reset, as far as the block can."""


class WholeBlock(PythonBlock):
    """A block that steps its envs together.

    Args:
        inline: Whether the block is in the user's process, whose signal handlers may raise.
    """

    def __init__(self, *, inline: bool) -> None:
        super().__init__()
        self.inline = inline
        self._overflow: Overflow = []

    def stop(self) -> None:
        """Do nothing: the envs step together."""

    def peek_overflow(self) -> Overflow:
        """Return the overflow without dropping it."""
        return self._overflow

    def take_overflow(self) -> Overflow:
        """Return the overflow, and drop it."""
        left, self._overflow = self._overflow, []
        return left


def copied_info(info: Any) -> Any:
    """Return a copy, or the object itself if it cannot be copied."""
    try:
        return copy.deepcopy(info)
    except Exception:
        return info


class GroupBlock(PythonBlock):
    """Several blocks that step one after the other as the envs of one group.

    Args:
        blocks: The blocks.
        first: The index of the first env.
        sizes: The number of envs of each block.
        frames: The frames that the blocks use.
    """

    def __init__(
        self, blocks: Sequence[Any], first: int, sizes: Sequence[int], frames: Frames
    ) -> None:
        super().__init__()
        self.blocks = list(blocks)
        ends = np.cumsum(sizes).tolist()
        self._envs = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._firsts = [first + envs.start for envs in self._envs]
        self._action_types = frames.action_types

    def use(self, frames: Frames, infos: _core.Infos, autoreset: str, keep: str) -> None:
        self._action_types = frames.action_types
        for block in self.blocks:
            block.use(frames, infos, autoreset, keep)

    def _share_types(self, frames: int | slice) -> None:
        """Copy the types of the actions from the row of the first env to that of each block."""
        for first in self._firsts[1:]:
            self._action_types[frames, first] = self._action_types[frames, self._firsts[0]]

    def step(self, frame: int, actions: list[Any] | None = None) -> bool:
        over = False
        self._share_types(frame)
        for envs, block in zip(self._envs, self.blocks, strict=True):
            over |= block.step(frame, None if actions is None else actions[envs])
        return over

    def step_chunk(self, frame: int, steps: int, last: bool) -> bool:  # noqa: FBT001
        over = False
        self._share_types(slice(frame, frame + steps))
        for block in self.blocks:
            over |= block.step_chunk(frame, steps, last)
        return over

    def reset(self, frame: int, calls: list[Any]) -> bool:
        over = False
        for envs, block in zip(self._envs, self.blocks, strict=True):
            over |= block.reset(frame, calls[envs])
        return over

    def replace(self, seeds: Sequence[int | None], over: Sequence[bool]) -> None:
        for envs, block in zip(self._envs, self.blocks, strict=True):
            block.replace(seeds[envs], over[envs])

    @property
    def fresh(self) -> bool:  # type: ignore[override]
        return any(block.fresh for block in self.blocks)

    def set_options(self, i: int, options: Any, version: int) -> None:
        for envs, block in zip(self._envs, self.blocks, strict=True):
            if envs.start <= i < envs.stop:
                block.set_options(i - envs.start, options, version)

    def rest(self, i: int) -> None:
        for envs, block in zip(self._envs, self.blocks, strict=True):
            if envs.start <= i < envs.stop:
                block.rest(i - envs.start)

    def stop(self) -> None:
        for block in self.blocks:
            block.stop()

    def peek_overflow(self) -> Overflow:
        return [one for block in self.blocks for one in block.peek_overflow()]

    def take_overflow(self) -> Overflow:
        return [one for block in self.blocks for one in block.take_overflow()]
