"""FramePolicy: calls a policy with observations from frames and writes its outputs there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._frames.frames import BEGUN, LOST, SKIPPED
from pysampler._policies.calling import as_arrays
from pysampler._policies.signatures import STATE
from pysampler._policies.trees import leaves_in, structure_of, tree_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._policies.calling import Arrays, At, PolicyCaller, PolicyOutputs, Rows
    from pysampler._policies.normalize import Normalization
    from pysampler._vector.blocks import Overflow
    from pysampler._vector.transforms import Transforms

__all__ = ["BETWEEN", "FramePolicy", "Span", "end_lost_episodes"]

# The frame from which the next rollout begins: a copy of the last one of a rollout, since users may
# write to the frames of theirs.
BETWEEN = 0

Span = tuple[int, int, int]  # a frame, the first env, and how many envs


class FramePolicy:
    """Reads observations from frames, and writes a policy's outputs to them.

    For envs at frame f, observations, state, extras and previous actions and rewards are in f;
    actions and the new state are in f + 1, where the step that takes the actions writes its
    results. There is no other state.

    Attributes:
        extras: The policy's extras, by name.
        recorded: The extras, and the previous actions and rewards if the policy takes them.
        normalization: The normalization of the results of steps, or None.
    """

    normalization: Normalization | None = None

    def __init__(
        self,
        caller: PolicyCaller,
        outputs: PolicyOutputs,
        frames: Frames,
        transforms: Transforms | None = None,
    ) -> None:
        self.caller = caller
        self.outputs = outputs
        self._frames = frames
        self.actions = [frames.actions_as(i, dtype) for i, dtype in enumerate(outputs.actions)]
        frames.action_types[:] = [dtype.num for dtype in outputs.actions]
        count = len(outputs.recorded)
        names = [name for name, _ in outputs.recorded]
        self.recorded = dict(zip(names, frames.extras[:count], strict=True))
        self.extras = {name: self.recorded[name] for name, _ in outputs.extras}
        self._previous = [self.recorded[name] for name, _ in outputs.previous]
        self._structure = outputs.state and outputs.state[0]
        self._state = frames.extras[count : len(outputs.fields)]
        self._hidden = frames.extras[len(outputs.fields) :]  # hidden fields of the normalization
        self._carried = [*frames.observations, *self._state, frames.options_versions]
        self._carried += self._hidden + self._previous
        self.observations = frames.observations
        self.final_observations = frames.final_observations
        self.rewards = self._hidden[0] if self._hidden else frames.rewards
        self._transforms = transforms
        if transforms is not None:
            fields, rows = transforms.spec.observations, frames.terminated.shape
            self.observations = [np.zeros((*rows, *f.shape), f.dtype) for f in fields]
            self.final_observations = [np.zeros_like(leaf) for leaf in self.observations]
            self.rewards = np.zeros_like(frames.rewards)
            self._carried += self.observations
        # Most policies need only rows of arrays, which C++ reads and writes.
        tree = frames.spec.action_tree
        of_rows = tree[0] == "leaf" and caller.chunk is None
        self._simple = of_rows and not (self._state or self._previous)
        if self._simple:
            self._rows = _core.PolicyRows(
                *(caller.spec.observation_tree, self.observations, self.actions[0], self.extras)
            )
        self._found: tuple[Any, Any, Callable[[Any], Any] | None] = (None, None, None)

    def act(self, spans: list[Span]) -> None:
        """Call the policy for the envs of some spans together, and write its outputs."""
        policy = self._on_arrays()
        if policy is None:
            self._act(*_places(spans))
            return
        outputs = policy(self._rows.load(spans))
        if self._rows.store(spans, outputs) or self._rows.store(spans, as_arrays(outputs)):
            return
        at, envs = _places(spans)
        self.write(at, envs, *self.caller.checked(outputs, sum(count for *_, count in spans)))

    def _on_arrays(self) -> Callable[[Any], Any] | None:
        """Return the function to call with the arrays of ``_rows``; None for other policies."""
        caller = self.caller
        policy, device, found = self._found
        if policy is not caller.policy or device is not caller.device:
            found = caller.on_arrays() if self._simple else None
            self._found = caller.policy, caller.device, found
        return found

    def _act(self, at: At, envs: Rows) -> None:
        observations = [leaf[at, envs] for leaf in self.observations]
        state = None
        if self._state:
            state = tree_from(self._structure, [leaf[at, envs].copy() for leaf in self._state])
        previous = [leaf[at, envs].copy() for leaf in self._previous] or None
        self.write(at, envs, *self.caller(observations, state, envs, previous))

    def write(
        self,
        at: At,
        envs: Rows,
        actions: Arrays,
        extras: Mapping[str, npt.NDArray[Any]],
        state: Any,
    ) -> None:
        """Write the policy's outputs for some envs."""
        if extras.keys() != self.extras.keys():
            raise ValueError(
                f"cannot act: the policy returned extras {sorted(extras)}, expected those of its "
                f"first call, {sorted(self.extras)}"
            )
        steps = self.caller.chunk
        for name, array in extras.items():
            _expect_same(name, array if steps is None else array[:, 0], self.extras[name])
            if steps is None:
                self.extras[name][at, envs] = array
            else:
                self.extras[name][at : at + steps, envs] = array.swapaxes(0, 1)
        for to, array in zip(self.actions, actions, strict=True):
            _expect_same("actions", array if steps is None else array[:, 0], to)
            if steps is None:
                to[at + 1, envs] = array
            else:
                to[at + 1 : at + 1 + steps, envs] = array.swapaxes(0, 1)
        for to, array in zip(self._previous[:-1], actions if self._previous else (), strict=True):
            to[at + 1, envs] = array
        if self._state:
            new = [leaf[at, envs] for leaf in self._state]
            if state is not None:
                new = self._state_leaves(state)
            for to, array in zip(self._state, new, strict=True):
                _expect_same(STATE, array, to)
                to[at + (steps or 1), envs] = array

    @property
    def needs_after_step(self) -> bool:
        """Whether ``after_step`` does anything."""
        transformed = self.normalization is not None or self._transforms is not None
        return transformed or bool(self._state or self._previous)

    def carry(self, last: int, frame: int, envs: Rows = slice(None)) -> None:
        """Copy the observations and the policy's state of envs from frame ``last`` to ``frame``."""
        for leaf in self._carried:
            leaf[frame, envs] = leaf[last, envs]

    def after_step(self, at: At, envs: Rows) -> None:
        """Process the results of a step: transform them, and begin new episodes."""
        if self.normalization is not None:
            self.normalization.after_step(self._frames, self._hidden, at, envs)
        if self._transforms is not None:
            self._transform(self._transforms, int(at))
        if self._previous:
            self._previous[-1][at, envs] = self.rewards[at, envs]
        if self._state or self._previous:
            frames = self._frames
            ended = frames.terminated[at, envs] | frames.truncated[at, envs]
            ended |= frames.has_final[at, envs] == BEGUN
            if ended.any():
                self.begin_episodes(at, np.arange(frames.envs)[envs][ended])

    def after_chunk(self, at: int, envs: Rows) -> None:
        """Process the results of a chunk, from frame ``at`` on, whose steps were written there.

        An env that stopped has its last observation in the rest of the chunk, too.
        """
        frames, steps = self._frames, self.caller.chunk
        assert steps is not None
        rows = np.arange(frames.envs)[envs]
        skipped = frames.has_final[at : at + steps, envs] == SKIPPED
        for k in np.flatnonzero(skipped.any(axis=1)):
            for leaf in (*frames.observations, frames.options_versions):
                leaf[at + k, rows[skipped[k]]] = leaf[at + k - 1, rows[skipped[k]]]
        if self._state:
            chunk = slice(at, at + steps)
            ended = frames.terminated[chunk, envs] | frames.truncated[chunk, envs]
            if (any_ended := ended.any(axis=0)).any():
                self.begin_episodes(at + steps - 1, rows[any_ended])

    def after_reset(self, at: At, envs: Rows) -> None:
        """Process the observations of a reset: normalise them, and begin new episodes."""
        if self.normalization is not None:
            self.normalization.begin_episodes(self._frames, at, envs)
        for leaf in self._hidden:
            leaf[at, envs] = 0
        self.begin_episodes(at, envs)

    def _transform(self, transforms: Transforms, at: int) -> None:
        """Transform the results of a step of all envs like the vector env's wrappers."""
        frames = self._frames
        new = transforms.observations([leaf[at].copy() for leaf in frames.observations])
        for to, array in zip(self.observations, new, strict=True):
            to[at] = array
        self.rewards[at] = transforms.rewards(frames.rewards[at].copy())
        ended = (frames.has_final[at] != 0) & (frames.has_final[at] != BEGUN)
        if ended.any() and frames.final_observations:
            last = [leaf[at].copy() for leaf in frames.observations]
            for leaf, final in zip(last, frames.final_observations, strict=True):
                leaf[ended] = final[at, ended]
            new = transforms.observations(last, final=True)
            for to, array in zip(self.final_observations, new, strict=True):
                to[at, ended] = array[ended]

    def begin_episodes(self, at: At, envs: Rows, initial: Any = None) -> None:
        """Set the state of envs at a frame to ``initial``: by default the policy's, or zeros."""
        for leaf in self._previous:
            leaf[at, envs] = 0
        if not self._state:
            return
        rows = np.arange(self._frames.envs)[envs]
        if initial is None:
            initial = self.caller.initial_state(len(rows))
        parts = [0] * len(self._state) if initial is None else self._state_leaves(initial)
        for leaf, part in zip(self._state, parts, strict=True):
            leaf[at, rows] = part

    def recorded_state(self, rows: Callable[[npt.NDArray[Any]], Any]) -> Any:
        """Apply ``rows`` to each leaf of all envs' states; None if the policy has no state."""
        if not self._state:
            return None
        return tree_from(self._structure, map(rows, self._state))

    def _state_leaves(self, state: Any) -> list[npt.NDArray[Any]]:
        if (got := structure_of(state)) != self._structure:
            raise ValueError(f"cannot act: a state of {got}, expected {self._structure} as before")
        return leaves_in(self._structure, state)


def _places(spans: list[Span]) -> tuple[At, Rows]:
    """Return the frames of the envs of some spans, and these envs."""
    at, begin, _ = spans[0]
    end = begin
    for frame, first, count in spans:
        if frame != at or first != end:
            break
        end += count
    else:
        return at, slice(begin, end)
    frames, _, counts = zip(*spans, strict=True)
    envs = np.concatenate([np.arange(first, first + count) for _, first, count in spans])
    return at if len(set(frames)) == 1 else np.repeat(frames, counts), envs


def _expect_same(name: str, array: npt.NDArray[Any], to: npt.NDArray[Any]) -> None:
    """Raise ValueError if rows have another shape, or a wider dtype, than in the first call."""
    if array.shape[1:] != to.shape[2:] or (
        array.dtype != to.dtype and not np.can_cast(array.dtype, to.dtype, "safe")
    ):
        raise ValueError(
            f"cannot act: the policy's outputs have changed: {name} of {array.dtype} "
            f"{array.shape[1:]} a row, before {to.dtype} {to.shape[2:]}"
        )


def end_lost_episodes(frames: Frames, at: int, overflow: Overflow) -> None:
    """End the episodes of envs that were lost in the step after a frame."""
    for kind, env, *_ in overflow:
        if kind == _core.EnvBlock.LOST:
            frames.truncated[at + 1, env] = True
            frames.has_final[at + 1, env] = LOST
            for final, seen in zip(frames.final_observations, frames.observations, strict=True):
                final[at + 1, env] = seen[at, env]
