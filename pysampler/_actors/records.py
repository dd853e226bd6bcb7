"""What actors hand over: one record of fixed size for each step of an env, or each T steps.

================================ ==============================================================
``env``                          which
``version``                      of the weights that acted; at the beginning of a record of T steps
``number``                       how many records that env had begun before: gaps were lost
``observations``                 what was acted on
``next_observations``            what came of it; where an episode ended, its last observation
``actions``                      what was done
``rewards``                      float64
``terminated`` ``truncated``     bool
``returns`` ``lengths``          of the episode so far, this step included
(names of the policy's)          what it said beside its actions
``state``                        the recurrent state that the record began in
================================ ==============================================================

With T steps all but the first three and the last have an axis of time. Of spaces that are trees
each leaf is a field: ``observations['camera']``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._frames.spec import leaf_paths
from pysampler._numbers import plain_array
from pysampler._policies.signatures import STATE
from pysampler._policies.trees import batch_from, tree_from
from pysampler._rollouts.gae import gae
from pysampler._torch import tensor_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import PolicyOutputs
    from pysampler._policies.frame_policy import FramePolicy

__all__ = ["Described", "Packer", "Records"]

# What a record has once, however many steps it has; what every record has; and what depends on the
# spaces.
_ONCE = "env", "version", "number"
_OF_ALL = *_ONCE, "rewards", "terminated", "truncated", "returns", "lengths"
_OWN = *_OF_ALL, "observations", "next_observations", "actions", STATE


@dataclass(frozen=True)
class Described:
    """What there is in a record: of these spaces and policy, and so many steps (None: of one)."""

    spec: Spec
    said: PolicyOutputs
    steps: int | None

    def __post_init__(self) -> None:
        for name, _ in self.said.extras:
            taken = name in _OWN or str(name).startswith(STATE) or hasattr(Records, str(name))
            if taken or not str(name).isidentifier():
                raise ValueError(
                    f"cannot act: the policy's {name!r} is the name of something else in a record, "
                    "or none; call it otherwise"
                )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a record."""
        time = () if self.steps is None else (self.steps,)
        spec, said = self.spec, self.said
        fields: list[Any] = [(name, np.int64) for name in _ONCE]
        for name in ("observations", "next_observations"):
            for place, field in zip(
                leaf_paths(spec.observation_tree), spec.observations, strict=True
            ):
                fields.append((name + place, field.dtype, (*time, *field.shape)))
        for place, field, dtype in zip(
            leaf_paths(spec.action_tree), spec.actions, said.actions, strict=True
        ):
            fields.append(("actions" + place, dtype, (*time, *field.shape)))
        fields += [("rewards", np.float64, time), ("returns", np.float64, time)]
        fields += [("lengths", np.int64, time)]
        fields += [(name, np.bool_, time) for name in ("terminated", "truncated")]
        fields += [(name, field.dtype, (*time, *field.shape)) for name, field in said.extras]
        if said.state is not None:
            fields += [
                (f"{STATE}{i}", field.dtype, field.shape) for i, field in enumerate(said.state[1])
            ]
        return np.dtype(fields, align=True)

    @property
    def like(self) -> dict[str, npt.NDArray[Any]]:
        """One of each field that is of a step, and not of what comes with every one.

        Of records of T steps the recurrent state is not among them: of the later steps nothing
        knows theirs.
        """
        if self.steps is not None:
            of_steps = replace(self, steps=None).like
            return {name: one for name, one in of_steps.items() if not name.startswith(STATE)}
        record = np.zeros((), self.dtype)
        names = [name for name in self.dtype.names or () if name not in _OF_ALL]
        return {name: record[name] for name in names}


class Packer:
    """A worker's side: takes records of its envs from frames in a row."""

    def __init__(
        self,
        described: Described,
        acting: FramePolicy,
        frames: Frames,
        envs: slice,
        begun: npt.NDArray[np.int64],
    ) -> None:
        self.steps = described.steps
        self._frames = frames
        self._envs = envs
        self._begun = begun  # records of each env, shared: a replacement goes on from there
        count = envs.stop - envs.start
        longest = frames.count - 1
        self.versions = np.zeros(longest, np.int64)  # that acted at each frame
        self._return, self._length = np.zeros(count), np.zeros(count, np.int64)  # so far
        self._returns = np.zeros((longest + 1, count))  # of the episodes, up to each frame
        self._lengths = np.zeros((longest + 1, count), np.int64)
        self._records = np.zeros((longest if self.steps is None else 1, count), described.dtype)
        self._records["env"] = np.arange(envs.start, envs.stop)
        spec, said = described.spec, described.said
        before: list[tuple[str, npt.NDArray[Any]]] = []
        after: list[tuple[str, npt.NDArray[Any]]] = []
        self._final: list[tuple[str, npt.NDArray[Any]]] = []
        for place, leaf, final in zip(
            leaf_paths(spec.observation_tree),
            frames.observations,
            frames.final_observations,
            strict=True,
        ):
            before.append(("observations" + place, leaf))
            after.append(("next_observations" + place, leaf))
            self._final.append(("next_observations" + place, final))
        for place, leaf in zip(leaf_paths(spec.action_tree), acting.actions, strict=True):
            after.append(("actions" + place, leaf))
        after += [(name, getattr(frames, name)) for name in ("rewards", "terminated", "truncated")]
        before += acting.extras.items()
        states = frames.extras[len(said.extras) :]
        self._states = [(f"{STATE}{i}", leaf) for i, leaf in enumerate(states)]
        self._fields = [(name, leaf, 0) for name, leaf in before]
        self._fields += [(name, leaf, 1) for name, leaf in after]

    def forget(self) -> None:
        """The envs are new ones."""
        self._return[:] = 0
        self._length[:] = 0

    def count(self, at: int) -> None:
        """The envs have made the step that ends at a frame."""
        self._return += self._frames.rewards[at, self._envs]
        self._length += 1
        self._returns[at] = self._return
        self._lengths[at] = self._length
        over = self._over(slice(at, at + 1))[0]
        if over.any():
            self._return[over] = 0
            self._length[over] = 0

    def _over(self, made: slice) -> npt.NDArray[np.bool_]:
        frames, envs = self._frames, self._envs
        return np.asarray(frames.terminated[made, envs] | frames.truncated[made, envs])

    def pack(self, first: int, last: int) -> npt.NDArray[Any]:
        """Records of the steps from one frame to another: ``[n]``, valid until the next call."""
        envs = self._envs
        rows = self._records[: last - first] if self.steps is None else self._records
        for name, leaf, shift in self._fields:
            part = leaf[first + shift : last + shift, envs]
            rows[name] = part if self.steps is None else np.moveaxis(part, 0, 1)[None]
        over = self._over(slice(first + 1, last + 1))
        if over.any():
            for name, final in self._final:
                part = final[first + 1 : last + 1, envs]
                if self.steps is None:
                    rows[name][over] = part[over]
                else:
                    rows[name][0][over.T] = np.moveaxis(part, 0, 1)[over.T]
        for name, array in (("returns", self._returns), ("lengths", self._lengths)):
            part = array[first + 1 : last + 1]
            rows[name] = part if self.steps is None else part.T[None]
        begun = self._begun[envs]
        rows["number"] = begun + np.arange(len(rows))[:, None]
        if self.steps is None:
            rows["version"] = self.versions[first:last, None]
            for name, leaf in self._states:
                rows[name] = leaf[first:last, envs]
        else:
            rows["version"] = self.versions[first]
            for name, leaf in self._states:
                rows[name] = leaf[first, envs]
        # Before they are handed over: a number never comes twice.
        begun += len(rows)
        return rows.reshape(-1)


class Records:
    """A batch of records: ``[n, ...]``, or ``[n, T, ...]`` of T steps.

    Views of where the actors wrote them, until the next ``take``; ``copy()`` stays. Each field is
    an attribute, as a tree where the space is one; ``fields`` has the leaves by name.
    """

    def __init__(
        self,
        rows: npt.NDArray[Any],
        described: Described,
        convert: Callable[[npt.NDArray[Any]], Any] | None = None,
    ) -> None:
        self.rows = rows
        self._described = described
        self._convert = convert

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: slice | npt.NDArray[Any]) -> Records:
        if not isinstance(which, (slice, list, np.ndarray)):
            raise TypeError(
                f"cannot choose records: {which!r}, expected a slice, or an array of indices or "
                "bools; fields are attributes: records.rewards"
            )
        return Records(self.rows[which], self._described, self._convert)

    def by_step(self, name: str) -> npt.NDArray[Any]:
        """A field as ``[n * T, ...]``: what a record has once is there for each of its steps."""
        array = self.rows[name]
        steps = self._described.steps
        if steps is None:
            return np.asarray(array)
        if name in _ONCE or name.startswith(STATE):
            return np.repeat(array, steps, axis=0)
        return np.asarray(array.reshape(-1, *array.shape[2:]))

    def copy(self) -> Records:
        """With memory of its own."""
        return Records(self.rows.copy(), self._described, self._convert)

    def joined(self, others: Iterable[Records]) -> Records:
        """These and others in one batch, with memory of its own."""
        rows = np.concatenate([self.rows, *(other.rows.copy() for other in others)])
        return Records(rows, self._described, self._convert)

    def gae(
        self, values: Any, next_values: Any, *, gamma: float = 0.99, gae_lambda: float = 0.95
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Advantages and returns of records of T steps, ``[n, T]`` as :func:`pysampler.gae` has it.

        ``values`` are of ``observations``, ``next_values`` of ``next_observations``, by the same
        network: what actors said at the time was by others.
        """
        rows = self.rows
        if self._described.steps is None:
            raise ValueError(
                "cannot estimate advantages: of records of single steps, expected records of T "
                "steps: actors(..., steps=T)"
            )
        doing = "estimate advantages"
        given = {"values": values, "next_values": next_values}
        arrays = {name: plain_array(doing, name, one) for name, one in given.items()}
        for name, array in arrays.items():
            if array.shape != rows["rewards"].shape:
                raise ValueError(
                    f"cannot {doing}: {name} of shape {array.shape}, expected "
                    f"{rows['rewards'].shape}"
                )
        before, after = arrays.values()
        terminated, truncated = rows["terminated"].T, rows["truncated"].T
        advantages, returns = gae(
            *(rows["rewards"].T, before.T, after[:, -1], terminated, truncated),
            after.T[truncated & ~terminated],
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        return advantages.T, returns.T

    def torch(self, device: Any = None) -> Records:
        """With tensors: of the same memory, or copies on a device."""
        tensor = functools.partial(tensor_from, device=device, non_blocking=True)
        return Records(self.rows, self._described, tensor)

    @property
    def fields(self) -> dict[str, Any]:
        """Every leaf, by name."""
        assert self.rows.dtype.names is not None
        return {name: self._one(name) for name in self.rows.dtype.names}

    def _one(self, name: str) -> Any:
        array = self.rows[name]
        return array if self._convert is None else self._convert(array)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        described = self._described
        trees = {
            "observations": described.spec.observation_tree,
            "next_observations": described.spec.observation_tree,
            "actions": described.spec.action_tree,
        }
        if name in trees:
            tree = trees[name]
            names = [name + place for place in leaf_paths(tree)]
            return batch_from(tree, lambda i: self._one(names[i]))
        if name == STATE and described.said.state is not None:
            structure, fields = described.said.state
            return tree_from(structure, (self._one(f"{STATE}{i}") for i in range(len(fields))))
        if name in (self.rows.dtype.names or ()):
            return self._one(name)
        raise AttributeError(f"records have no {name!r}, but {sorted(self.rows.dtype.names or ())}")

    @property
    def ended(self) -> npt.NDArray[Any]:
        """The returns of the episodes that ended in these steps."""
        rows = self.rows
        return np.asarray(rows["returns"][rows["terminated"] | rows["truncated"]])

    def __repr__(self) -> str:
        return f"<pysampler.Records {len(self)} of {', '.join(self.rows.dtype.names or ())}>"
