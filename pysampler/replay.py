"""What was experienced, to learn from again: transitions in shared memory, sampled in batches."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pysampler.errors import LayoutError
from pysampler.numbers import whole_number
from pysampler.sync import Segment

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Batch", "Replay"]

_FORMAT = "pysampler replay 1"
# What a record has beside the fields of the user's.
_OWN = {
    "rewards": np.dtype(np.float64),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
    "env": np.dtype(np.int64),
}
_LINK = "following"
_LINE = 128


@dataclass(frozen=True)
class Batch:
    """Transitions of up to n steps: from ``fields`` to ``next_fields``, a row for each."""

    fields: dict[str, Any]  # of the first step
    next_fields: dict[str, Any]  # of the last: those whose names begin with "next_"
    rewards: Any  # discounted sums over the steps
    # What the value of what came next counts for: gamma to the power of the steps, or 0 where it
    # terminated. Truncated episodes go on from their last observation.
    discounts: Any
    weights: Any  # of importance: 1 where all are as likely
    indices: npt.NDArray[np.int64]  # for ``update``

    def torch(self, device: Any = None) -> Batch:
        """With tensors: of the same memory, or on a device."""
        import torch  # noqa: PLC0415 - only where it is asked for

        def tensor(array: npt.NDArray[Any]) -> Any:
            one = torch.from_numpy(array)
            return one if device is None else one.to(device, non_blocking=True)

        return Batch(
            {name: tensor(array) for name, array in self.fields.items()},
            {name: tensor(array) for name, array in self.next_fields.items()},
            *(tensor(self.rewards), tensor(self.discounts), tensor(self.weights)),
            self.indices,
        )


class Replay:
    """The newest ``capacity`` transitions of some envs, in shared memory.

    ``like`` names the fields of a record and gives each its dtype and shape: arrays of one record,
    whose values are not taken. Those whose names begin with ``next_`` are of what came of the step.
    ``add`` takes records in bulk, in the order each env made them. ``sample`` draws batches: all as
    likely, or with ``alpha`` above 0 by priority (to that power), which ``update`` sets; new ones
    have the highest there is.

    ``n_step``: rewards are summed up over so many steps of the same env, not beyond the end of its
    episode nor its newest record.

    >>> replay = Replay(1000, {"observations": np.zeros(3), "next_observations": np.zeros(3)})
    >>> replay.add(
    ...     {"observations": np.zeros((4, 3)), "next_observations": np.ones((4, 3))},
    ...     rewards=[1, 2, 3, 4], terminated=[0, 0, 0, 1], truncated=[0, 0, 0, 0], env=[0, 0, 0, 0],
    ... )
    >>> batch = replay.sample(32)
    >>> batch.fields["observations"].shape, batch.next_fields["next_observations"].shape
    ((32, 3), (32, 3))
    """

    def __init__(
        self,
        capacity: int,
        like: Mapping[str, npt.NDArray[Any]],
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        alpha: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.capacity = whole_number("make replay", "capacity", capacity, 1)
        self.n_step = whole_number("make replay", "n_step", n_step, 1)
        if not 0 <= gamma <= 1 or not alpha >= 0:
            raise ValueError(
                f"cannot make replay: gamma {gamma!r} and alpha {alpha!r}, expected 0 to 1, and at "
                "least 0"
            )
        if not isinstance(like, Mapping) or not like or like.keys() & {*_OWN, _LINK}:
            raise ValueError(
                f"cannot make replay: fields {like!r}, expected names and arrays, none of them "
                f"{sorted((*_OWN, _LINK))}"
            )
        shapes = {name: (np.asarray(one).dtype, np.shape(one)) for name, one in like.items()}
        for name, (dtype, _) in shapes.items():
            if dtype.hasobject:
                raise ValueError(f"cannot make replay: {name} holds Python objects")
        self.gamma, self.alpha = float(gamma), float(alpha)
        self._names = list(shapes)
        shapes |= {name: (dtype, ()) for name, dtype in _OWN.items()}
        if self.n_step > 1:
            shapes[_LINK] = np.dtype(np.int64), ()
        size = sum(d.itemsize * int(np.prod(s)) * self.capacity + _LINE for d, s in shapes.values())
        self._segment = Segment(size)
        self._fields = {
            name: self._segment.array((self.capacity, *shape), dtype, None)[1]
            for name, (dtype, shape) in shapes.items()
        }
        self._added = 0  # ever
        # Of the newest record of each env: whose it is, ascending; which it is here, -1 if nothing
        # follows it; and which in the env's life.
        self._last = np.empty((3, 0), np.int64)
        self._tree = _SumTree(self.capacity) if self.alpha > 0 else None
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    @property
    def added(self) -> int:
        """How many there have been."""
        return self._added

    @property
    def nbytes(self) -> int:
        """Of the records."""
        return sum(array.nbytes for array in self._fields.values())

    # -- in --------------------------------------------------------------------------------------

    def add(
        self,
        fields: Mapping[str, npt.ArrayLike],
        *,
        rewards: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        env: npt.ArrayLike,
        numbers: npt.ArrayLike | None = None,
        begins: npt.ArrayLike | None = None,
    ) -> None:
        """Records, each env's in the order it made them.

        If they are given, their ``numbers`` in the life of their env tell where some are missing,
        and ``begins`` where an episode begins though the last one had no end.
        """
        own = {"rewards": rewards, "terminated": terminated, "truncated": truncated, "env": env}
        given: dict[str, Any] = {**fields, **own}
        if fields.keys() != set(self._names):
            raise ValueError(
                f"cannot add to replay: fields {sorted(fields)}, expected {sorted(self._names)}"
            )
        arrays = {name: np.asarray(value) for name, value in given.items()}
        count = len(arrays["rewards"])
        whole = np.zeros(count, np.int64) if numbers is None else np.asarray(numbers, np.int64)
        fresh = np.zeros(count, np.bool_) if begins is None else np.asarray(begins, np.bool_)
        for name, marks in (("numbers", whole), ("begins", fresh)):
            if marks.shape != (count,):
                raise ValueError(
                    f"cannot add to replay: {name} of shape {marks.shape}, expected {(count,)}"
                )
        for name, array in arrays.items():
            expected = (count, *self._fields[name].shape[1:])
            if array.shape != expected:
                raise ValueError(
                    f"cannot add to replay: {name} of shape {array.shape}, expected {expected}"
                )
        if count > self.capacity:  # only the newest have room
            skipped = count - self.capacity
            arrays = {name: array[skipped:] for name, array in arrays.items()}
            whole, fresh = whole[skipped:], fresh[skipped:]
            self._added += skipped
            self._last = self._last[:, :0]
            count = self.capacity
        if count == 0:
            return
        at = np.arange(self._added, self._added + count)
        slots = at % self.capacity
        split = min(count, self.capacity - int(slots[0]))
        for name, array in arrays.items():
            to = self._fields[name]
            to[slots[0] : slots[0] + split] = array[:split]
            to[: count - split] = array[split:]
        if self.n_step > 1:
            self._link(at, arrays, whole, fresh, known=numbers is not None)
        self._added += count
        if self._tree is not None:
            self._tree.set(slots, np.full(count, self._tree.highest))

    def extend(self, records: Any) -> None:
        """Records that ``Actors.take`` returned; trajectories as their steps.

        Of their fields those are kept that the replay was made for: ``like=actors.like`` is all.
        """
        rows = records.rows
        whole = (len(rows),) if rows["rewards"].ndim == 1 else rows["rewards"].shape

        def column(name: str) -> npt.NDArray[Any]:
            array = rows[name]
            if len(whole) == 1:
                return np.asarray(array)
            if array.shape[:2] != whole:
                array = np.broadcast_to(array[:, None], (*whole, *array.shape[1:]))
            return np.asarray(array.reshape(-1, *array.shape[2:]))

        self.add(
            {name: column(name) for name in self._names},
            **{name: column(name) for name in _OWN},
            numbers=column("number") * whole[-1] + np.tile(np.arange(whole[-1]), whole[0])
            if len(whole) == 2
            else rows["number"],
            begins=column("lengths") == 1,
        )

    def _link(
        self,
        numbers: npt.NDArray[np.int64],
        arrays: Mapping[str, Any],
        whole: npt.NDArray[np.int64],
        fresh: npt.NDArray[np.bool_],
        *,
        known: bool,
    ) -> None:
        """Which record follows each, of the same env and episode."""
        following = self._fields[_LINK]
        following[numbers % self.capacity] = -1
        env = arrays["env"].astype(np.int64)
        over = (arrays["terminated"] != 0) | (arrays["truncated"] != 0)
        order = np.argsort(env, kind="stable")
        same = env[order[1:]] == env[order[:-1]]
        before, after = order[:-1][same], order[1:][same]
        goes_on = ~over[before]
        goes_on &= ~fresh[after]
        if known:
            goes_on &= whole[after] == whole[before] + 1
        following[numbers[before[goes_on]] % self.capacity] = numbers[after[goes_on]]
        ends = np.append(~same, True)
        firsts, lasts = order[np.append(True, ends[:-1])], order[ends]
        at = self._places_of(env[firsts])
        _, last, number = self._last[:, at]
        joined = (last >= max(int(numbers[-1]) + 1 - self.capacity, 0)) & ~fresh[firsts]
        if known:
            joined &= whole[firsts] == number + 1
        following[last[joined] % self.capacity] = numbers[firsts[joined]]
        self._last[1, at] = np.where(over[lasts], -1, numbers[lasts])
        self._last[2, at] = whole[lasts]

    def _places_of(self, envs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where in ``_last`` such envs are: each one once, ascending."""
        known = self._last[0]
        at = np.searchsorted(known, envs)
        if len(known) == 0 or (known.take(at, mode="clip") != envs).any():
            joined = np.union1d(known, envs)
            grown = np.full((3, len(joined)), -1)
            grown[0] = joined
            grown[:, joined.searchsorted(known)] = self._last
            self._last = grown
            at = np.searchsorted(joined, envs)
        return at

    # -- out -------------------------------------------------------------------------------------

    def sample(self, count: int, *, beta: float = 0.4) -> Batch:
        """So many, with repetition. ``beta``: how far weights make up for unequal priorities."""
        if len(self) == 0:
            raise ValueError("cannot sample from replay: it is empty")
        if self._tree is None:
            slots = self._random.integers(0, len(self), count)
            weights: npt.NDArray[Any] = np.ones(count, np.float32)
        else:
            slots, shares = self._tree.draw(self._random, count)
            weights = (len(self) * shares) ** -beta
            weights = (weights / weights.max()).astype(np.float32)
        return self._batch(slots, weights)

    def _batch(self, slots: npt.NDArray[np.int64], weights: npt.NDArray[Any]) -> Batch:
        fields = self._fields
        total = np.zeros(len(slots))
        discounts = np.ones(len(slots))
        at = slots.copy()
        going = np.ones(len(slots), np.bool_)
        for step in range(self.n_step):
            total += np.where(going, discounts * fields["rewards"][at], 0.0)
            discounts = np.where(going, discounts * self.gamma, discounts)
            if step + 1 < self.n_step:
                following = fields[_LINK][at]
                going &= following >= 0
                at = np.where(going, following % self.capacity, at)
        discounts = np.where(fields["terminated"][at], 0.0, discounts)
        return Batch(
            {name: fields[name][slots] for name in self._names if not name.startswith("next_")},
            {name: fields[name][at] for name in self._names if name.startswith("next_")},
            *(total.astype(np.float32), discounts.astype(np.float32), weights),
            slots,
        )

    def update(self, indices: npt.NDArray[np.int64], priorities: npt.ArrayLike) -> None:
        """The priorities of records that were sampled: positive numbers."""
        if self._tree is None:
            raise ValueError("cannot set priorities: alpha is 0, all records are as likely")
        values = np.asarray(priorities, np.float64)
        if values.shape != np.shape(indices) or not (values > 0).all() or np.isinf(values).any():
            raise ValueError(
                f"cannot set priorities: {values!r}, expected a positive number for each of "
                f"{len(indices)} indices"
            )
        self._tree.set(np.asarray(indices), values**self.alpha)

    # -- on disk ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """All of it in one file, which is replaced as a whole: there is never half of it."""
        path = Path(path)
        about = {
            "format": _FORMAT,
            "capacity": self.capacity,
            "n_step": self.n_step,
            "gamma": self.gamma,
            "alpha": self.alpha,
            "added": self._added,
            "last": self._last.tolist(),
            "random": self._random.bit_generator.state,
            "names": self._names,
        }
        arrays: dict[str, Any] = {
            f"field {name}": array[: len(self)] for name, array in self._fields.items()
        }
        if self._tree is not None:
            arrays["priorities"] = self._tree.leaves[: len(self)]
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Replay:
        """What ``save`` wrote. LayoutError if it is damaged, or something else."""
        with Path(path).open("rb") as file:
            try:
                return cls._loaded(file)
            except Exception as error:  # whatever garbage leads to
                raise LayoutError(
                    f"cannot load replay: {os.fspath(path)!r} is damaged, or no file of a replay: "
                    f"{type(error).__name__}: {error}"
                ) from error

    @classmethod
    def _loaded(cls, file: IO[bytes]) -> Replay:
        with np.load(file, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            if about["format"] != _FORMAT:
                raise ValueError(f"format {about['format']!r}, expected {_FORMAT!r}")
            names = [*about["names"], *_OWN, *([_LINK] if about["n_step"] > 1 else [])]
            fields = {name: arrays[f"field {name}"] for name in names}
            priorities = arrays["priorities"] if about["alpha"] > 0 else None
        replay = cls(
            about["capacity"],
            {name: np.zeros(fields[name].shape[1:], fields[name].dtype) for name in about["names"]},
            n_step=about["n_step"],
            gamma=about["gamma"],
            alpha=about["alpha"],
        )
        replay._added = about["added"]
        replay._last = np.array(about["last"], np.int64).reshape(3, -1)
        replay._random.bit_generator.state = about["random"]
        for name, array in fields.items():
            if len(array) != len(replay):  # which would be spread over all of them
                raise ValueError(f"{len(array)} of {name!r}, expected {len(replay)}")
            replay._fields[name][: len(replay)] = array
        if replay._tree is not None and priorities is not None:
            replay._tree.set(np.arange(len(replay)), priorities)
        return replay

    def __repr__(self) -> str:
        return f"<pysampler.Replay {len(self):,} of {self.capacity:,} records>"


class _SumTree:
    """Sums of priorities, by halves: draws in proportion to them."""

    def __init__(self, capacity: int) -> None:
        self._leaves_at = 1 << max(0, (capacity - 1).bit_length())
        self._sums = np.zeros(2 * self._leaves_at)
        self.highest = 1.0

    @property
    def leaves(self) -> npt.NDArray[np.float64]:
        """The priorities."""
        return self._sums[self._leaves_at :]

    def set(self, slots: npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> None:
        """Of a slot that comes more than once, the last counts."""
        self.leaves[slots] = priorities
        self.highest = max(self.highest, float(priorities.max(initial=0)))
        nodes = np.unique((slots + self._leaves_at) // 2)
        while len(nodes) and nodes[0] > 0:
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]
            nodes = np.unique(nodes // 2)

    def draw(
        self, random: np.random.Generator, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Slots, one from each of so many equal parts of the sum, and their shares of it."""
        total = self._sums[1]
        left = (np.arange(count) + random.random(count)) * (total / count)
        nodes = np.ones(count, np.int64)
        while nodes[0] < self._leaves_at:
            nodes *= 2
            below = self._sums[nodes]
            # Rounding may leave more than there is on the right: not to where nothing is.
            right = (left >= below) & (self._sums[nodes + 1] > 0)
            left -= np.where(right, below, 0.0)
            nodes += right
        return nodes - self._leaves_at, self._sums[nodes] / total
