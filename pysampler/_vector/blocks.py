"""Base classes of blocks in Python, which have the methods of ``_core.EnvBlock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column

    Array = npt.NDArray[Any]

__all__ = ["GivenActions", "Overflow", "PythonBlock", "RepeatableBlock"]

# Results that do not fit into the frame, as (kind, env, object).
Overflow = list[tuple[int, int, Any]]
# dtypes by their NumPy type number.
_CODES = np.typecodes["AllInteger"] + "?efdgFD"
_DTYPES: dict[int, np.dtype[Any]] = {np.dtype(code).num: np.dtype(code) for code in _CODES}
_TYPE = 0xFFFF  # masks out the bit for actions that were Python numbers


class GivenActions:
    """The actions of some envs in the frames, in the dtypes that the caller gave.

    Args:
        frames: The frames, whose actions are one array per env.
        first: The first of the envs.
        count: Their number.
    """

    def __init__(self, frames: Frames, first: int, count: int) -> None:
        self._frames = frames
        self._envs = slice(first, first + count)
        self._types = frames.action_types[:, first, 0]
        self._actions: dict[int, Array] = {}

    def of(self, frame: int) -> Array:
        """Return the actions in a frame. Python numbers become arrays here."""
        number = int(self._types[frame]) & _TYPE
        if number not in self._actions:
            of_all = self._frames.actions_as(0, _DTYPES[number])
            self._actions[number] = of_all[:, self._envs]
        actions: Array = np.ascontiguousarray(self._actions[number][frame])
        return actions

    def were_python(self, frame: int) -> bool:
        """Return whether the actions in a frame were Python numbers."""
        return int(self._types[frame]) > _TYPE


class PythonBlock(_core.PythonBlock):
    """A block whose methods are in Python."""

    def step(self, frame: int, actions: Any = None) -> bool:
        """Step every env, or reset it if its episode has ended; return whether there is overflow.

        Args:
            frame: The frame.
            actions: Actions to use in place of those in the frame.
        """
        raise NotImplementedError

    def add_columns(self, columns: Sequence[Column]) -> None:
        """Write infos to these columns too."""
        raise NotImplementedError


class RepeatableBlock(PythonBlock):
    """A block that steps its envs together, so an interrupted step is repeated as a whole.

    A signal handler of the user's process may raise anywhere in a step. The same step then comes
    again, and begins from the state that the envs had before it.

    Args:
        here: Whether the block is in the user's process.
    """

    def __init__(self, *, here: bool) -> None:
        super().__init__()
        self.here = here
        self._overflow: Overflow = []
        self._number: int | None = None  # of the last step
        self._before: Any = None

    def snapshot(self) -> Any:
        """Return the state of all envs, for ``return_to``."""
        raise NotImplementedError

    def return_to(self, snapshot: Any) -> None:
        """Return to the state of the last snapshot."""
        raise NotImplementedError

    def step_once(self, frame: int, number: int) -> bool:
        """Step. A number that comes again means that an exception ended the last attempt."""
        self._overflow = []
        if self.here:
            if number == self._number:
                self.return_to(self._before)
            else:
                self._before = self.snapshot()
                self._number = number
        return self.step(frame)

    def stop(self) -> None:
        """Do nothing: the envs step together."""

    def peek_overflow(self) -> Overflow:
        """Return the overflow, and keep it."""
        return self._overflow

    def take_overflow(self) -> Overflow:
        """Return the overflow, and drop it."""
        left, self._overflow = self._overflow, []
        return left
