"""Chunks: several steps in a row of each env, with one command.

A policy may answer with several actions for each env. The frames of a chunk follow those of steps:
actions of step k are in frame k of the chunk, where the step writes its results. They are laid out
when a program first sends a chunk, and again if a later one is longer.

Each env stops where its episode ends, and its rows in the rest of the chunk are marked SKIPPED. So
with any autoreset mode, no action is taken in an episode that it was not chosen for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pysampler._common.numbers import is_masked
from pysampler._frames.spec import build, leaves
from pysampler._vector import arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._vector.core import VectorCore
    from pysampler._vector.results import Stepped
    from pysampler._workers.jobs import Answer

__all__ = ["ChunkObservations", "Chunks"]

ChunkObservations = Literal["last", "all"]

# A command has 16 bits for the number of steps.
_MAX_STEPS = (1 << 16) - 1


def _checked(spec: Spec, envs: int, actions: Any) -> list[npt.NDArray[Any]]:
    """Return the leaves of a chunk of actions, ``[envs, steps, ...]``, or raise."""
    if spec.unshaped_actions:
        raise ValueError("cannot send actions: some have no fixed shape, and chunks are arrays")
    arrays: list[npt.NDArray[Any]] = []
    steps: int | None = None
    try:
        for (path, value), of_space in zip(
            leaves(spec.action_tree, actions), spec.actions, strict=True
        ):
            at = f" at {path}" if path else ""
            if is_masked(value):
                raise ValueError(f"masked{at}, expected an array without a mask")
            array = np.asarray(value)
            if steps is None and array.ndim >= 2:
                steps = array.shape[1]
            if array.shape != (envs, steps, *of_space.shape):
                expected = ", ".join(map(str, (envs, steps or "steps", *of_space.shape)))
                raise ValueError(f"shape {array.shape}{at}, expected ({expected})")
            if array.dtype != of_space.dtype and not (
                array.dtype.isnative
                and array.dtype.itemsize <= np.dtype(np.float64).itemsize
                and np.can_cast(array.dtype, of_space.dtype, "same_kind")
            ):
                raise TypeError(f"dtype {array.dtype}{at}, expected {of_space.dtype}")
            arrays.append(array)
        if not steps or steps > _MAX_STEPS:
            raise ValueError(f"{steps} steps, expected 1 to {_MAX_STEPS}")
    except (TypeError, ValueError) as error:
        raise type(error)(f"cannot send actions: {error}") from None
    return arrays


class Chunks:
    """The chunks that groups of envs were sent.

    Args:
        core: The envs.
        every: Whether to return the observations of all steps.

    Attributes:
        steps: The number of steps of the longest chunk that was sent.
        sent: By group, the number of steps of its chunk.
    """

    def __init__(self, core: VectorCore, *, every: bool) -> None:
        self.steps = 0
        self.sent: dict[int, int] = {}
        self._core = core
        self._every = every

    @classmethod
    def of(
        cls, core: VectorCore, what: str, observations: Any, before: Chunks | None = None
    ) -> Chunks:
        """Return chunks for a call, of which some may be under way already; raise if it is wrong.

        Args:
            core: The envs.
            what: The name of the call, for errors.
            observations: Its argument.
            before: The chunks under way.
        """
        if not isinstance(observations, str) or observations not in get_args(ChunkObservations):
            raise ValueError(
                f'cannot call {what}: observations {observations!r}, expected "last" or "all"'
            )
        every = observations == "all"
        if (why := core.why_no_chunks) is not None:
            raise ValueError(f"cannot call {what}: {why}")
        if every and core.spec.unshaped_observations:
            raise ValueError(
                f'cannot call {what}: observations "all", but some have no fixed shape, expected '
                '"last"'
            )
        if before is None or before._idle():
            return cls(core, every=every)
        if before._every != every:
            raise ValueError(
                f"cannot call {what}: observations {observations!r}, unlike those of the chunks "
                "under way"
            )
        return before

    def write(self, what: str, actions: Any, envs: npt.NDArray[np.int64], *, check: bool) -> int:
        """Write the actions of a chunk to its frames, and return its number of steps.

        Args:
            what: The name of the call, for errors.
            actions: The actions.
            envs: The envs, in the order of the rows.
            check: Whether to raise if an action is NaN.
        """
        core = self._core
        arrays = _checked(core.spec, len(envs), actions)
        if check:
            arguments.refuse_nan(core.spec, len(envs), actions)
        steps: int = arrays[0].shape[1]
        if core.results.frames.plan.chunk < steps:
            core.expect_idle(what)
            core.lay_out_chunks(steps)
        core.announce_columns()
        frames = core.results.frames
        rows = slice(frames.ring, frames.ring + steps)
        of_all = slice(None) if envs is core.everyone else envs  # copied faster
        for leaf, array in enumerate(arrays):
            frames.action_types[rows, of_all, leaf] = array.dtype.num
            frames.actions_as(leaf, array.dtype)[rows, of_all] = array.swapaxes(0, 1)
        return steps

    def send(self, name: str, groups: Sequence[int], steps: int) -> None:
        """Send a chunk, whose actions were written, to groups.

        Args:
            name: The name of the pending call.
            groups: The groups.
            steps: The number of steps.
        """
        core = self._core
        self.steps = max(self.steps, steps)
        self.sent.update((group, steps) for group in groups)
        core.begin(name, awaited=name == "send")
        first = core.results.frames.ring
        core.pool.step_some([(group, first) for group in groups], steps, last=not self._every)

    def forget(self, groups: Sequence[int]) -> bool:
        """Note that groups are sent other commands; return whether no chunk is under way."""
        for group in groups:
            self.sent.pop(group, None)
        return self._idle()

    def _idle(self) -> bool:
        """Return whether no chunk is under way, or on its way to the caller."""
        return not any(map(self._core.pool.is_pending, self.sent))

    def read(self, answers: Sequence[Answer]) -> Stepped:
        """Return the results of all envs."""
        core = self._core
        core.results.expect_none_failed(answers)
        chunks = [(group, core.results.frames.ring, self.steps) for group in core.all_groups]
        return core.results.read_chunks(chunks, answers, self.steps, every=self._every)

    def read_some(self, groups: Sequence[int], answers: Sequence[Answer]) -> Stepped:
        """Return the results of some groups, of which some may have made other commands."""
        core, results = self._core, self._core.results
        chunks = [
            (group, results.frames.ring, self.sent[group])
            if group in self.sent
            else (group, results.access.frame_of(group), int(core.pool.was_step(group)))
            for group in groups
        ]
        stepped = results.read_chunks(chunks, answers, self.steps, every=self._every)
        results.add_env_ids(stepped[4], groups)
        return stepped

    def last_of(self, observations: Any) -> Any:
        """Return the observations after the last steps, out of those that a call returns."""
        if not self._every:
            return observations
        tree = self._core.spec.observation_tree
        arrays = [leaf[:, -1] for _, leaf in leaves(tree, observations)]
        return build(tree, arrays.__getitem__, arrays.__getitem__)

    def nothing(self) -> Stepped:
        """Return empty results, for no env."""
        return self._core.results.no_chunks(self.steps, every=self._every)
