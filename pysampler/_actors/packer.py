"""Packs the steps of a worker's envs into records.

The steps stay in the frames until some are packed together: one copy per field instead of one per
field and step. Only returns, lengths and versions are counted step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._frames.frames import LOST
from pysampler._frames.spec import leaf_paths
from pysampler._policies.signatures import STATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pysampler._actors.records import RecordLayout
    from pysampler._frames.frames import Frames
    from pysampler._frames.spec import Tree
    from pysampler._policies.frame_policy import FramePolicy
    from pysampler._policies.warm_up import EpisodesSoFar

__all__ = ["Packer"]


class Packer:
    """Packs steps of some envs from frames into records.

    Args:
        layout: The layout of a record.
        policy: The policy on the frames.
        frames: The frames.
        envs: The envs.
        counts: The number of records that each env has begun, in shared memory: a replacement
            continues from there.
        so_far: Initial return and length of the current episode of each env.

    Attributes:
        versions: The version of the weights that acted at each frame for each env.
    """

    def __init__(
        self,
        layout: RecordLayout,
        policy: FramePolicy,
        frames: Frames,
        envs: slice,
        counts: npt.NDArray[np.int64],
        so_far: EpisodesSoFar,
    ) -> None:
        self._single_steps = layout.steps is None
        self._frames, self._envs = frames, envs
        self._counts = counts[envs]
        count = envs.stop - envs.start
        longest = frames.count - 1
        self.versions = np.zeros((longest, count), np.int64)
        self._return, self._length = (part[envs].copy() for part in so_far)
        self._returns = np.zeros((longest + 1, count))  # of each env's episode, up to each frame
        self._lengths = np.zeros((longest + 1, count), np.int64)
        self._records = np.zeros((longest if self._single_steps else 1, count), layout.dtype)
        self._records["env"] = np.arange(envs.start, envs.stop)
        tree = layout.spec.observation_tree
        before = _named("observations", tree, frames.observations)
        before += policy.recorded.items()
        after = _named("next_observations", tree, frames.observations)
        after += _named("actions", layout.spec.action_tree, policy.actions)
        after += [("rewards", policy.rewards)]
        after += [(name, getattr(frames, name)) for name in ("terminated", "truncated")]
        # The fields of each step, and whether they are in the frame before it (0) or after it (1).
        self._fields = [(name, leaf, 0) for name, leaf in before]
        self._fields += [(name, leaf, 1) for name, leaf in after]
        self._final = _named("next_observations", tree, frames.final_observations)
        outputs = layout.outputs
        states = frames.extras[len(outputs.recorded) : len(outputs.fields)]
        self._states = [(f"{STATE}{i}", leaf) for i, leaf in enumerate(states)]

    def begin_episodes(self) -> None:
        """Begin an episode in every env, because all were reset; the record under way is lost."""
        self._counts += 1
        self._return[:] = self._length[:] = 0

    def count(self, at: int) -> None:
        """Count the step with its results in frame ``at``."""
        self._return += self._frames.rewards[at, self._envs]
        self._length += 1
        self._returns[at] = self._return
        self._lengths[at] = self._length
        over = self._over(slice(at, at + 1))[0]
        if over.any():
            self._return[over] = self._length[over] = 0

    def _over(self, steps: slice) -> npt.NDArray[np.bool_]:
        frames, envs = self._frames, self._envs
        return np.asarray(frames.terminated[steps, envs] | frames.truncated[steps, envs])

    def pack(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return records of the steps between two frames: ``[n]``, valid until the next call."""
        envs = self._envs
        rows = self._records[: last - first] if self._single_steps else self._records
        for name, leaf, shift in self._fields:
            rows[name] = self._by_record(leaf[first + shift : last + shift, envs])
        over = self._over(slice(first + 1, last + 1))
        if over.any():
            over = self._by_record(over)
            for name, final in self._final:
                rows[name][over] = self._by_record(final[first + 1 : last + 1, envs])[over]
        rows["returns"] = self._by_record(self._returns[first + 1 : last + 1])
        rows["lengths"] = self._by_record(self._lengths[first + 1 : last + 1])
        rows["number"] = self._counts + np.arange(len(rows))[:, None]
        begins = slice(first, last if self._single_steps else first + 1)
        rows["version"] = self.versions[begins]
        for name, leaf in self._states:
            rows[name] = leaf[begins, envs]
        # Before the records are pushed, so that no number is used twice.
        self._counts += len(rows)
        made = self._by_record(self._frames.has_final[first + 1 : last + 1, envs] != LOST)
        if not made.all():  # a vector env among the envs lost a worker
            rows = rows[made if self._single_steps else made.all(axis=2)]
        return rows.reshape(-1)

    def _by_record(self, steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ``[steps, envs, ...]`` in the shape of the records."""
        return steps if self._single_steps else np.moveaxis(steps, 0, 1)[None]


def _named(
    name: str, tree: Tree, leaves: Sequence[npt.NDArray[Any]]
) -> list[tuple[str, npt.NDArray[Any]]]:
    return [(name + place, leaf) for place, leaf in zip(leaf_paths(tree), leaves, strict=True)]
