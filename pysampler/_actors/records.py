"""Records, which actors hand over: one for each step of an env, or for T of its steps.

================================ ==============================================================
``env``                          the index of the env
``version``                      of the weights that acted; at the beginning of a record of T steps
``number``                       records that the env had begun before; those in a gap are lost
``observations``                 the observation that was acted on
``next_observations``            the one after the step; when an episode ends, its last one
``actions``                      the action
``rewards``                      float64
``terminated`` ``truncated``     bool
``returns`` ``lengths``          of the episode so far, this step included
(names of the policy's extras)   further outputs of the policy
``state``                        the recurrent state at the beginning of the record
================================ ==============================================================

With T steps all but the first three and the last have a time axis. If a space is a tree, each leaf
is a field: ``observations['camera']``.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._common.numbers import plain_array
from pysampler._common.torch import tensor_from
from pysampler._frames.spec import leaf_paths
from pysampler._policies.signatures import STATE
from pysampler._policies.trees import batch_from, tree_from
from pysampler._rollouts.gae import gae
from pysampler._rollouts.rollout import Episode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import PolicyOutputs

__all__ = ["BatchMemory", "RecordLayout", "Records"]

# Per-record fields, regardless of its number of steps; fields that every record has;
# and names that the policy's extras cannot have.
_ONCE = "env", "version", "number"
_ALWAYS = *_ONCE, "rewards", "terminated", "truncated", "returns", "lengths"
_RESERVED = *_ALWAYS, "observations", "next_observations", "actions", STATE


@dataclass(frozen=True)
class RecordLayout:
    """The fields of a record.

    Attributes:
        spec: The spaces of the envs.
        outputs: The policy's outputs.
        steps: The number of steps of a record; None for single transitions.
        further: Names of further per-record integers.
    """

    spec: Spec
    outputs: PolicyOutputs
    steps: int | None
    further: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, _ in self.outputs.extras:
            taken = (
                name in (*_RESERVED, *self.further)
                or str(name).startswith(STATE)
                or hasattr(Records, str(name))
            )
            if taken or not str(name).isidentifier():
                raise ValueError(
                    f"cannot act: the policy's extra {name!r} has the name of another field of a "
                    "record, or is not an identifier; rename it"
                )

    @property
    def once(self) -> tuple[str, ...]:
        """The names of the per-record numbers."""
        return *_ONCE, *self.further

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a record."""
        time = () if self.steps is None else (self.steps,)
        spec, outputs = self.spec, self.outputs
        fields: list[Any] = [(name, np.int64) for name in self.once]
        for name in ("observations", "next_observations"):
            for place, field in zip(
                leaf_paths(spec.observation_tree), spec.observations, strict=True
            ):
                fields.append((name + place, field.dtype, (*time, *field.shape)))
        for place, field, dtype in zip(
            leaf_paths(spec.action_tree), spec.actions, outputs.actions, strict=True
        ):
            fields.append(("actions" + place, dtype, (*time, *field.shape)))
        fields += [("rewards", np.float64, time), ("returns", np.float64, time)]
        fields += [("lengths", np.int64, time)]
        fields += [(name, np.bool_, time) for name in ("terminated", "truncated")]
        fields += [(name, field.dtype, (*time, *field.shape)) for name, field in outputs.recorded]
        if outputs.state is not None:
            fields += [
                (f"{STATE}{i}", field.dtype, field.shape)
                for i, field in enumerate(outputs.state[1])
            ]
        return np.dtype(fields, align=True)

    @property
    def like(self) -> dict[str, npt.NDArray[Any]]:
        """An example of each field of a step that depends on the spaces or the policy.

        The recurrent state is left out if records have T steps: only the first step's is recorded.
        """
        if self.steps is not None:
            of_steps = replace(self, steps=None).like
            return {name: array for name, array in of_steps.items() if not name.startswith(STATE)}
        record = np.zeros((), self.dtype)
        always = *_ALWAYS, *self.further
        names = [name for name in self.dtype.names or () if name not in always]
        return {name: record[name] for name in names}


class Records:
    """A batch of n records from actors: arrays ``[n, ...]``, or ``[n, T, ...]`` with T steps each.

    Each field is an attribute: an array, or a dict or tuple of arrays if the space is one:

    - ``env``, ``version``, ``number`` (``[n]``): the index of the env, the version of the weights
      at the beginning of the record, and the number of records that the env had begun before.
    - ``observations``, ``next_observations``, ``actions``, ``rewards``, ``terminated``,
      ``truncated``: the steps. Where an episode ends, ``next_observations`` holds its last
      observation, and not the first of the next episode.
    - ``returns``, ``lengths``: the sum of rewards and the number of steps of the episode so far,
      including this step.
    - ``state``: the recurrent state at the beginning of the record, if the policy has one.
    - The names of the policy's extras: its further outputs.

    Later calls of ``take`` do not write to the arrays while you hold any of them.
    ``records[a:b]`` and ``records[mask]`` are batches of some of the records.

    Attributes:
        rows: The records as a structured array, with a field for each leaf.
    """

    def __init__(
        self,
        rows: npt.NDArray[Any],
        layout: RecordLayout,
        convert: Callable[[npt.NDArray[Any]], Any] | None = None,
    ) -> None:
        self.rows = rows
        self._layout = layout
        self._convert = convert

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: slice | npt.NDArray[Any]) -> Records:
        if not isinstance(which, (slice, list, np.ndarray)):
            raise TypeError(
                f"cannot choose records: {which!r}, expected a slice, or an array of indices or "
                "bools; fields are attributes: records.rewards"
            )
        return Records(self.rows[which], self._layout, self._convert)

    def by_step(self, name: str) -> npt.NDArray[Any]:
        """Return a field with a row per step, ``[n * T, ...]``; per-record values are repeated."""
        array = self.rows[name]
        steps = self._layout.steps
        if steps is None:
            return np.asarray(array)
        if name in self._layout.once or name.startswith(STATE):
            return np.repeat(array, steps, axis=0)
        return np.asarray(array.reshape(-1, *array.shape[2:]))

    def copy(self) -> Records:
        """Return a copy in separate memory."""
        return Records(self.rows.copy(), self._layout, self._convert)

    def joined(self, others: Iterable[Records]) -> Records:
        """Return a copy of these and other records as one batch."""
        rows = np.concatenate([self.rows, *(other.rows.copy() for other in others)])
        return Records(rows, self._layout, self._convert)

    def gae(
        self, values: Any, next_values: Any, *, gamma: float = 0.99, gae_lambda: float = 0.95
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Compute advantages by generalized advantage estimation (GAE), and returns.

        Args:
            values: ``[n, T]``: the values of ``observations``.
            next_values: ``[n, T]``: the values of ``next_observations``, from the same network. Do
                not use values that the actors recorded: they come from older weights.
            gamma: The discount factor.
            gae_lambda: How much longer estimates count: with 0 the advantage is the one-step error
                (low variance), with 1 the return minus the value (low bias).

        Returns:
            Advantages, and returns (advantages + values): ``[n, T]`` each.

        Raises:
            ValueError: The records are single steps, or shapes do not fit.
        """
        rows = self.rows
        if self._layout.steps is None:
            raise ValueError(
                "cannot estimate advantages: records of single steps, expected records of T "
                "steps: Actors(..., steps=T)"
            )
        doing = "estimate advantages"
        values = plain_array(doing, "values", values)
        next_values = plain_array(doing, "next_values", next_values)
        expected = rows["rewards"].shape
        for name, array in (("values", values), ("next_values", next_values)):
            if array.shape != expected:
                raise ValueError(
                    f"cannot {doing}: {name} of shape {array.shape}, expected {expected}"
                )
        terminated, truncated = rows["terminated"].T, rows["truncated"].T
        advantages, returns = gae(
            *(rows["rewards"].T, values.T, next_values[:, -1], terminated, truncated),
            next_values.T[truncated & ~terminated],
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        return advantages.T, returns.T

    def torch(self, device: Any = None) -> Records:
        """Return the records with tensors instead of arrays.

        Args:
            device: The torch device to copy to. None: tensors on the CPU that share memory with the
                arrays.
        """
        tensor = functools.partial(tensor_from, device=device, non_blocking=True)
        return Records(self.rows, self._layout, tensor)

    @property
    def fields(self) -> dict[str, Any]:
        """All arrays by name; for dicts and tuples, one per leaf: ``observations['camera']``."""
        return {name: self._leaf(name) for name in self.rows.dtype.names or ()}

    def _leaf(self, name: str) -> Any:
        array = self.rows[name]
        return array if self._convert is None else self._convert(array)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        layout = self._layout
        trees = {
            "observations": layout.spec.observation_tree,
            "next_observations": layout.spec.observation_tree,
            "actions": layout.spec.action_tree,
        }
        if name in trees:
            tree = trees[name]
            names = [name + place for place in leaf_paths(tree)]
            return batch_from(tree, lambda i: self._leaf(names[i]))
        if name == STATE and layout.outputs.state is not None:
            structure, fields = layout.outputs.state
            return tree_from(structure, (self._leaf(f"{STATE}{i}") for i in range(len(fields))))
        if name in (self.rows.dtype.names or ()):
            return self._leaf(name)
        names = sorted(self.rows.dtype.names or ())
        raise AttributeError(f"records have no {name!r}, expected one of {names}")

    def episodes(self) -> Iterator[Episode]:
        """Yield each episode, or the part of it in these records, env by env.

        ``episode.steps`` counts from the beginning of the episode: it is ``slice(0, 9)`` for a
        whole episode of 9 steps. If records in the middle of an episode were dropped, you get two
        parts.
        """
        ordered = Records(
            self.rows[np.lexsort((self.rows["number"], self.rows["env"]))], self._layout
        )
        env, lengths = ordered.by_step("env"), ordered.by_step("lengths")
        terminated, truncated = ordered.by_step("terminated"), ordered.by_step("truncated")
        leaves = {
            name: ordered.by_step(name)
            for name in ordered.rows.dtype.names or ()
            if name not in self._layout.once
        }
        goes_on = (env[1:] == env[:-1]) & (lengths[1:] == lengths[:-1] + 1)
        goes_on &= np.diff(ordered.by_step("number")) <= 1  # 0 within a record of T steps
        goes_on &= ~(terminated | truncated)[:-1]
        edges = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(env)]
        spec = self._layout.spec

        def tree(name: str, structure: Any, rows: Any) -> Any:
            names = [name + place for place in leaf_paths(structure)]
            return batch_from(structure, lambda i: leaves[names[i]][rows])

        for begin, end in itertools.pairwise(edges if len(env) else ()):
            rows, last = slice(begin, end), end - 1
            over = bool(terminated[last])
            yield Episode(
                env=int(env[begin]),
                steps=slice(int(lengths[begin]) - 1, int(lengths[last])),
                observations=tree("observations", spec.observation_tree, rows),
                actions=tree("actions", spec.action_tree, rows),
                rewards=leaves["rewards"][rows],
                extras={name: leaves[name][rows] for name, _ in self._layout.outputs.recorded},
                last_observation=None
                if over
                else tree("next_observations", spec.observation_tree, last),
                begins=int(lengths[begin]) == 1,
                terminated=over,
                truncated=bool(truncated[last]),
                infos={},
            )

    @property
    def ended(self) -> npt.NDArray[Any]:
        """The returns of the episodes that ended in these records."""
        rows = self.rows
        return np.asarray(rows["returns"][rows["terminated"] | rows["truncated"]])

    def __repr__(self) -> str:
        return f"<pysampler.Records {len(self)} of {', '.join(self.rows.dtype.names or ())}>"


class BatchMemory:
    """Memory for batches of rows, which is reused once nothing refers to a batch."""

    def __init__(self) -> None:
        self._lent: list[tuple[npt.NDArray[Any], _core.Lent]] = []

    def copy_of(self, rows: npt.NDArray[Any], room: int = 0) -> npt.NDArray[Any]:
        """Return a copy of rows, followed by unset ones up to ``room``."""
        room = max(room, len(rows))
        for memory, lent in self._lent:
            if len(memory) >= room and not lent.held:
                break
        else:
            memory = np.empty(room, rows.dtype)
            lent = _core.Lent(memory, of_this_process=True)
            # A loop holds the last batch while it takes the next one.
            self._lent = [*self._lent[-1:], (memory, lent)]
        batch: npt.NDArray[Any] = lent.view()[:room]
        batch[: len(rows)] = rows
        return batch
