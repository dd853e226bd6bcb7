"""What was experienced, to learn from again: transitions in shared memory, sampled in batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pysampler._closing import Uncopyable
from pysampler._files import atomic_write, open_regular, read_arrays, stored_dtype, write_arrays
from pysampler._numbers import fitting_array, is_real, is_whole, plain_array, whole_number
from pysampler.errors import LayoutError
from pysampler.sync import Segment

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

__all__ = ["Batch", "ReplayBuffer"]

_FORMAT = "pysampler replay 2"
# What a record has beside the fields of the user's.
_OWN = {
    "rewards": np.dtype(np.float64),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
    "env": np.dtype(np.int64),
}
_LINK = "following"
_LINE = 128
# Priorities, to the power of alpha: neither sums of them nor weights become 0 or infinite.
_LEAST, _MOST = 1e-100, 1e100


@dataclass(frozen=True, repr=False)
class Batch:
    """Transitions of up to n steps: from ``fields`` to ``next_fields``, a row for each."""

    fields: dict[str, Any]  # of the first step
    next_fields: dict[str, Any]  # of the last: those whose names begin with "next_"
    rewards: Any  # discounted sums over the steps
    # What the value of what came next counts for: gamma to the power of the steps, or 0 where it
    # terminated. Truncated episodes go on from their last observation.
    discounts: Any
    weights: Any  # of importance: 1 where all are as likely
    indices: npt.NDArray[np.int64]  # for ``update``: numbers of the records, which are never reused

    def __repr__(self) -> str:
        names = ", ".join([*self.fields, *self.next_fields])
        return f"<pysampler.Batch of {len(self.indices)} transitions: {names}>"

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


class ReplayBuffer(Uncopyable):
    """The newest ``capacity`` transitions of some envs, in shared memory.

    ``like`` names the fields of a record and gives each its dtype and shape: arrays of one record,
    whose values are not taken. Those whose names begin with ``next_`` are of what came of the step.
    ``add`` takes records in bulk, in the order each env made them. ``sample`` draws batches: all as
    likely, or with ``alpha`` above 0 by priority (to that power), which ``update`` sets; new ones
    have the highest there ever was.

    ``n_step``: rewards are summed up over so many steps of the same env, not beyond the end of its
    episode nor its newest record.

    >>> replay = ReplayBuffer(1000, {"observations": np.zeros(3), "next_observations": np.zeros(3)})
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
        numbers = is_real(gamma, 0) and is_real(alpha, 0)
        if not (numbers and gamma <= 1 and alpha < np.inf):
            raise ValueError(
                f"cannot make replay: gamma {gamma!r} and alpha {alpha!r}, expected 0 to 1, and a "
                "number of at least 0"
            )
        if not isinstance(like, Mapping) or not like or like.keys() & {*_OWN, _LINK}:
            raise ValueError(
                f"cannot make replay: fields {like!r}, expected names and arrays, none of them "
                f"{sorted((*_OWN, _LINK))}"
            )
        if unnamed := [name for name in like if not isinstance(name, str)]:
            raise ValueError(f"cannot make replay: field {unnamed[0]!r}, expected a name: a str")
        examples = {name: plain_array("make replay", name, one) for name, one in like.items()}
        shapes = {name: (one.dtype, one.shape) for name, one in examples.items()}
        for name, (dtype, _) in shapes.items():
            if dtype.hasobject or dtype.itemsize == 0:
                raise ValueError(f"cannot make replay: {name} holds {dtype}, expected numbers")
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
        self._under_way: _Addition | None = None

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def added(self) -> int:
        """How many there have been."""
        added, one = self._added, self._under_way
        return added + (one.count if one is not None else 0)

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
        and ``begins`` where an episode begins though the last one had no end. A value that its
        field cannot hold is a ValueError, and nothing is added. Ctrl-C adds all of them, or none.
        """
        if not isinstance(fields, Mapping) or fields.keys() != set(self._names):
            got = [*fields] if isinstance(fields, Mapping) else fields
            raise ValueError(
                f"cannot add to replay: fields {got!r}, expected {sorted(self._names)}"
            )
        rewards = plain_array("add to replay", "rewards", rewards)
        count = len(rewards) if rewards.ndim else 1

        def converted(name: str, given: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
            array = fitting_array("add to replay", name, given, like.dtype)
            if array.shape != (count, *like.shape[1:]):
                raise ValueError(
                    f"cannot add to replay: {name} of shape {array.shape}, expected "
                    f"{(count, *like.shape[1:])}"
                )
            return array

        own = {"rewards": rewards, "terminated": terminated, "truncated": truncated, "env": env}
        arrays = {
            name: converted(name, given, self._fields[name])
            for name, given in {**fields, **own}.items()
        }
        zeros = np.zeros(count, np.int64)
        whole = zeros if numbers is None else converted("numbers", numbers, zeros)
        fresh = converted("begins", zeros if begins is None else begins, zeros.astype(np.bool_))
        self._settle()
        self._under_way = _Addition(count, arrays, whole, fresh, numbers is not None)
        try:
            self._settle()
        except BaseException:  # of a signal handler: what was given is still as it was
            self._settle()
            raise

    def _settle(self) -> None:
        """Add the records that are under way; an interrupted call is made again from its start."""
        if (one := self._under_way) is None:
            return
        added, newest = self._added + one.count, self._last
        count = min(one.count, self.capacity)  # only the newest have room
        numbers = np.arange(added - count, added)
        slots = numbers % self.capacity
        if count < one.count:
            newest = newest[:, :0]
        if count > 0:
            split = min(count, self.capacity - int(slots[0]))
            arrays = {name: array[one.count - count :] for name, array in one.arrays.items()}
            for name, array in arrays.items():
                to = self._fields[name]
                to[slots[0] : slots[0] + split] = array[:split]
                to[: count - split] = array[split:]
            if self.n_step > 1:
                newest = self._link(newest, numbers, arrays, one)
            if self._tree is not None:
                self._tree.set(slots, np.full(count, self._tree.highest))
        self._added, self._last, self._under_way = added, newest, None

    def extend(self, records: Any) -> None:
        """Records that ``Actors.take`` returned; trajectories as their steps.

        Of their fields those are kept that the replay was made for: ``like=actors.like`` is all.
        """
        if not hasattr(records, "by_step"):
            raise TypeError(
                f"cannot add to replay: a {type(records).__name__}, expected records of "
                "Actors.take; ``add`` takes arrays"
            )
        there = records.rows.dtype.names
        if missing := [name for name in self._names if name not in there]:
            raise ValueError(f"cannot add to replay: records have no {missing}, but {[*there]}")
        column = records.by_step
        numbers = column("number")
        if records.rows["rewards"].ndim == 2:
            count, steps = records.rows["rewards"].shape
            numbers = numbers * steps + np.tile(np.arange(steps), count)
        self.add(
            {name: column(name) for name in self._names},
            **{name: column(name) for name in _OWN},
            numbers=numbers,
            begins=column("lengths") == 1,
        )

    def _link(
        self,
        newest: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        arrays: Mapping[str, Any],
        one: _Addition,
    ) -> npt.NDArray[np.int64]:
        """Store which record follows each, of the same env and episode.

        Takes and returns the newest of each env, as ``_last`` has them.
        """
        following = self._fields[_LINK]
        following[numbers % self.capacity] = -1
        whole, fresh = one.numbers[-len(numbers) :], one.begins[-len(numbers) :]
        env = arrays["env"]
        over = arrays["terminated"] | arrays["truncated"]
        order = np.argsort(env, kind="stable")
        same = env[order[1:]] == env[order[:-1]]
        before, after = order[:-1][same], order[1:][same]
        goes_on = ~over[before]
        goes_on &= ~fresh[after]
        if one.known:
            goes_on &= whole[after] == whole[before] + 1
        following[numbers[before[goes_on]] % self.capacity] = numbers[after[goes_on]]
        ends = np.append(~same, True)
        firsts, lasts = order[np.append(True, ends[:-1])], order[ends]
        newest, at = _with_envs(newest, env[firsts])
        _, last, number = newest[:, at]
        joined = (last >= max(int(numbers[-1]) + 1 - self.capacity, 0)) & ~fresh[firsts]
        if one.known:
            joined &= whole[firsts] == number + 1
        following[last[joined] % self.capacity] = numbers[firsts[joined]]
        newest[1, at] = np.where(over[lasts], -1, numbers[lasts])
        newest[2, at] = whole[lasts]
        return newest

    # -- out -------------------------------------------------------------------------------------

    def sample(self, count: int, *, beta: float = 0.4) -> Batch:
        """So many, with repetition. ``beta``: how far weights make up for unequal priorities."""
        self._settle()
        count = whole_number("sample from replay", "count", count, 1)
        if not (is_real(beta, 0) and beta <= 1):
            raise ValueError(f"cannot sample from replay: beta {beta!r}, expected 0 to 1")
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
        rewards = fields["rewards"]
        total = rewards[slots]
        discounts = np.full(len(slots), self.gamma)
        at = slots.copy()
        going = np.arange(len(slots))  # whose episodes go on
        for _ in range(self.n_step - 1):
            following = fields[_LINK][at[going]]
            going = going[following >= 0]
            if len(going) == 0:
                break
            at[going] = following[following >= 0] % self.capacity
            total[going] += discounts[going] * rewards[at[going]]
            discounts[going] *= self.gamma
        discounts[fields["terminated"][at]] = 0.0
        return Batch(
            {name: fields[name][slots] for name in self._names if not name.startswith("next_")},
            {name: fields[name][at] for name in self._names if name.startswith("next_")},
            *(total.astype(np.float32), discounts.astype(np.float32), weights),
            self._numbers(slots),
        )

    def _numbers(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return how many records had been added before those in ``slots``."""
        newest = self._added - 1
        return newest - (newest - slots) % self.capacity

    def update(self, indices: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Set the priorities of sampled records: positive numbers, for the ``indices`` of a batch.

        Records that newer ones have replaced since then are skipped.
        """
        doing = "set priorities"
        self._settle()
        if self._tree is None:
            raise ValueError(f"cannot {doing}: alpha is 0, all records are as likely")
        numbers = plain_array(doing, "indices", indices)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise TypeError(f"cannot {doing}: indices of {numbers.dtype}, expected whole numbers")
        values = fitting_array(doing, "priorities", priorities, np.dtype(np.float64))
        if values.shape != numbers.shape or not (values > 0).all() or np.isinf(values).any():
            raise ValueError(
                f"cannot {doing}: {values!r}, expected a positive number for each of "
                f"{numbers.size} indices"
            )
        with np.errstate(over="ignore", under="ignore"):
            powers = values**self.alpha
        if (wrong := values[(powers < _LEAST) | (powers > _MOST)]).size:
            raise ValueError(
                f"cannot {doing}: {wrong[0].item()} to the power of alpha, {self.alpha}, expected "
                f"{_LEAST} to {_MOST}"
            )
        if (wrong := numbers[(numbers < 0) | (numbers >= self.added)]).size:
            raise IndexError(
                f"cannot {doing}: index {wrong[0]}, expected those of {self._added} records: the "
                "indices of a batch"
            )
        there = numbers >= self._added - len(self)
        self._tree.set(numbers[there].astype(np.int64) % self.capacity, powers[there])

    # -- on disk ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """All of it in one file, which is replaced as a whole: there is never half of it.

        ValueError if something else than a regular file lies there: a link, or a device.
        """
        self._settle()
        for name in self._names:
            if stored_dtype(dtype := self._fields[name].dtype) != dtype:
                raise ValueError(
                    f"cannot save replay: {name} is of {dtype}, expected numbers or text"
                )
        about = {
            "format": _FORMAT,
            "capacity": self.capacity,
            "n_step": self.n_step,
            "gamma": self.gamma,
            "alpha": self.alpha,
            "added": self.added,
            "highest": 1.0 if self._tree is None else self._tree.highest,
            "random": self._random.bit_generator.state,
            "names": self._names,
        }
        arrays = {str(i): one[: len(self)] for i, one in enumerate(self._fields.values())}
        arrays["last"] = self._last
        if self._tree is not None:
            arrays["priorities"] = self._tree.leaves[: len(self)]
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        path = Path(path)
        with atomic_write(
            path, lambda what: ValueError(f"cannot save replay: {path} is {what}")
        ) as file:
            write_arrays(file, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ReplayBuffer:
        """What ``save`` wrote. LayoutError if it is damaged, or something else."""
        path = Path(path)
        with open_regular(
            path, lambda what: LayoutError(f"cannot load replay: {path} is {what}")
        ) as file:
            try:
                return cls._loaded(file)
            except MemoryError:  # there is too little for it
                raise
            except Exception as error:  # whatever garbage leads to
                raise LayoutError(
                    f"cannot load replay: {str(path)!r} is damaged, or no file of a replay: "
                    f"{type(error).__name__}: {error}"
                ) from error

    @classmethod
    def _loaded(cls, file: IO[bytes]) -> ReplayBuffer:
        arrays = read_arrays(file)
        about = json.loads(arrays["about"].tobytes())
        if about["format"] != _FORMAT:
            raise ValueError(f"format {about['format']!r}, expected {_FORMAT!r}")
        names, added = about["names"], about["added"]
        likes = {name: arrays[str(i)] for i, name in enumerate(names)}
        if len(likes) != len(names) or not is_whole(added, 0) or added >= 1 << 62:
            raise ValueError(f"fields {names} of {added!r} records")
        replay = cls(
            about["capacity"],
            {name: np.zeros(one.shape[1:], one.dtype) for name, one in likes.items()},
            n_step=about["n_step"],
            gamma=about["gamma"],
            alpha=about["alpha"],
        )
        replay._added = added
        replay._random.bit_generator.state = about["random"]
        count = len(replay)
        for i, (name, to) in enumerate(replay._fields.items()):
            array = arrays[str(i)]
            if (array.shape, array.dtype) != ((count, *to.shape[1:]), to.dtype):
                raise ValueError(f"{name!r} of {array.shape} {array.dtype}, expected {count} rows")
            to[:count] = array
        replay._set_last(arrays["last"])
        if replay._tree is not None:
            replay._tree.restore(arrays["priorities"], count, about["highest"])
        return replay

    def _set_last(self, last: npt.NDArray[Any]) -> None:
        """Take over which records are the newest of their envs; ValueError if it makes no sense."""
        envs, newest, _ = last
        expected = last.dtype == np.int64 and (np.diff(envs) > 0).all()
        if not expected or (newest < -1).any() or (newest >= self._added).any():
            raise ValueError("no newest records of envs")
        if self.n_step > 1:
            following = self._fields[_LINK][: len(self)]
            numbers = self._numbers(np.arange(len(self)))
            onward = (following > numbers) & (following < self._added)
            if not (onward | (following == -1)).all():
                raise ValueError("records that follow none")
        self._last = last

    def __repr__(self) -> str:
        return f"<pysampler.ReplayBuffer {len(self):,} of {self.capacity:,} records>"


@dataclass(frozen=True)
class _Addition:
    """Records that are being added, checked."""

    count: int
    arrays: Mapping[str, npt.NDArray[Any]]
    numbers: npt.NDArray[np.int64]
    begins: npt.NDArray[np.bool_]
    known: bool  # whether the numbers say anything


def _with_envs(
    newest: npt.NDArray[np.int64], envs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """Return a copy with a column for each of these envs, and where those are.

    ``envs`` has each one once, ascending.
    """
    known = newest[0]
    at = np.searchsorted(known, envs)
    if len(known) and (known.take(at, mode="clip") == envs).all():
        return newest.copy(), at
    joined = np.union1d(known, envs)
    grown = np.full((3, len(joined)), -1)
    grown[0] = joined
    grown[:, joined.searchsorted(known)] = newest
    return grown, np.searchsorted(joined, envs)


class _SumTree:
    """Sums of priorities, by halves: draws in proportion to them."""

    def __init__(self, capacity: int) -> None:
        self._leaves_at = 1 << max(0, (capacity - 1).bit_length())
        self._sums = np.zeros(2 * self._leaves_at)
        self.highest = 1.0
        # Set, but not in all sums yet.
        self._under_way: tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]] | None = None

    @property
    def leaves(self) -> npt.NDArray[np.float64]:
        """The priorities."""
        self._settle()
        return self._sums[self._leaves_at :]

    def set(self, slots: npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> None:
        """Of a slot that comes more than once, the last counts."""
        self._settle()
        self._under_way = slots, priorities
        self._settle()

    def _settle(self) -> None:
        """Go through with an interrupted ``set``, from its start."""
        if self._under_way is None:
            return
        slots, priorities = self._under_way
        self._sums[slots + self._leaves_at] = priorities
        self.highest = max(self.highest, float(priorities.max(initial=0)))
        nodes = np.unique((slots + self._leaves_at) // 2)
        while len(nodes) and nodes[0] > 0:
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]
            nodes = np.unique(nodes // 2)
        self._under_way = None

    def restore(self, priorities: npt.NDArray[Any], count: int, highest: float) -> None:
        """Set the first ``count``, and the highest there ever was."""
        there = np.append(priorities, highest)
        expected = priorities.shape == (count,) and priorities.dtype == np.float64
        if not expected or not ((there >= _LEAST) & (there <= _MOST) & (there <= highest)).all():
            raise ValueError("no priorities of its records")
        self.set(np.arange(count), priorities)
        self.highest = float(highest)

    def draw(
        self, random: np.random.Generator, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Slots, one from each of ``count`` equal parts of the sum, and their shares of it.

        In random order: parts of a batch are as random as all of it.
        """
        self._settle()
        total = self._sums[1]
        left = (random.permutation(count) + random.random(count)) * (total / count)
        nodes = np.ones(count, np.int64)
        while nodes[0] < self._leaves_at:
            nodes *= 2
            below = self._sums[nodes]
            # Rounding may leave more than there is on the right: not to where nothing is.
            right = (left >= below) & (self._sums[nodes + 1] > 0)
            left -= np.where(right, below, 0.0)
            nodes += right
        return nodes - self._leaves_at, self._sums[nodes] / total
