"""Chunks: several steps in a row of each env, with one command.

A policy may answer with several actions for each env. The frames of a chunk follow those of steps:
actions of step k are in frame k of the chunk, where the step writes its results. They are laid out
when a program first sends a chunk, and again if a later one is longer.

Each env stops where its episode ends, and its rows in the rest of the chunk are marked SKIPPED. So
with any autoreset mode, no action is taken in an episode that it was not chosen for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pysampler._frames.spec import leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._vector.core import VectorCore
    from pysampler._vector.results import Stepped
    from pysampler._workers.jobs import Answer

__all__ = ["ChunkObservations", "Chunks", "MAX_STEPS", "checked_chunk"]

ChunkObservations = Literal["last", "all"]

# A command has 16 bits for the number of steps.
MAX_STEPS = (1 << 16) - 1


def checked_chunk(
    spec: Spec, envs: int, actions: Any, steps: int | None = None
) -> list[npt.NDArray[Any]]:
    """Return the leaves of a chunk of actions, ``[envs, steps, ...]``; raise if they are no arrays.

    Args:
        spec: The spaces.
        envs: The number of envs.
        actions: The actions, as ``step`` takes them with one more dimension.
        steps: The number of steps; None: any.
    """
    if spec.unshaped_actions:
        raise ValueError("cannot send actions: some have no fixed shape, and chunks are arrays")
    arrays = []
    try:
        for (path, value), of_space in zip(
            leaves(spec.action_tree, actions), spec.actions, strict=True
        ):
            at = f" at {path}" if path else ""
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
        if not steps or steps > MAX_STEPS:
            raise ValueError(f"{steps} steps, expected 1 to {MAX_STEPS}")
    except (TypeError, ValueError) as error:
        raise type(error)(f"cannot send actions: {error}") from None
    return arrays


@dataclass
class Chunks:
    """The chunks that groups of envs were sent.

    Args:
        core: The envs.
        steps: The number of steps of the newest chunk.
        every: Whether to return the observations of all steps.
        sent: By group, the number of steps of its chunk.
    """

    core: VectorCore
    steps: int
    every: bool
    sent: dict[int, int] = field(default_factory=dict)

    @classmethod
    def send(
        cls,
        core: VectorCore,
        name: str,
        actions: Sequence[npt.NDArray[Any]],
        groups: Sequence[int],
        envs: Any,
        *,
        every: bool,
        before: Chunks | None = None,
    ) -> Chunks:
        """Write the actions of a chunk to its frames, and send it to groups.

        Args:
            core: The envs.
            name: The name of the call, for errors.
            actions: Their leaves, ``[envs, steps, ...]``.
            groups: The groups.
            envs: Their envs, in the order of the rows.
            every: Whether to return the observations of all steps.
            before: The chunks sent before to other groups, which may be under way.
        """
        steps = actions[0].shape[1]
        core.announce_columns()
        frames = core.results.frames
        first = frames.ring
        rows = slice(first, first + steps)
        for leaf, array in enumerate(actions):
            frames.action_types[rows, envs, leaf] = array.dtype.num
            frames.actions_as(leaf, array.dtype)[rows, envs] = array.swapaxes(0, 1)
        chunks = before or cls(core, steps, every)
        chunks.steps, chunks.every = steps, every
        chunks.sent.update(dict.fromkeys(groups, steps))
        core.call.begin(name)
        core.chunks = chunks
        core.pool.step_chunk([(group, first) for group in groups], steps, last=not every)
        return chunks

    def read(self, answers: Sequence[Answer]) -> Stepped:
        """Return the results of all envs."""
        results = self.core.results
        results.expect_none_failed(answers)
        return self.read_some(self.core.all_groups, answers)

    def read_some(self, groups: Iterable[int], answers: Sequence[Answer]) -> Stepped:
        """Return the results of some groups, of which some may have made other commands."""
        results = self.core.results
        first = results.frames.ring
        chunks = [
            (group, first, self.sent[group])
            if group in self.sent
            else (group, results.access.frame_of(group), 0)
            for group in groups
        ]
        return results.read_chunks(chunks, answers, self.steps, every=self.every)


def chosen_observations(observations: Any) -> bool:
    """Return whether to return the observations of all steps; raise ValueError for other words."""
    if not isinstance(observations, str) or observations not in get_args(ChunkObservations):
        raise ValueError(
            f'cannot send actions: observations {observations!r}, expected "last" or "all"'
        )
    return observations == "all"


def make_room(core: VectorCore, what: str, steps: int, *, every: bool) -> None:
    """Lay out the frames anew unless they have room for a chunk of some steps."""
    if (why := core.why_no_chunks) is not None:
        raise ValueError(f"cannot call {what}: {why}")
    if every and core.spec.unshaped_observations:
        raise ValueError(
            f'cannot call {what}: observations="all", but some have no fixed shape, expected "last"'
        )
    if core.results.frames.plan.chunk < steps:
        core.expect_idle(what)
        core.lay_out_chunks(steps)
