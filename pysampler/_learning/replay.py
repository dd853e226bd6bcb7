"""A replay buffer: experience to learn from many times, sampled in batches.

A fixed ring of records (record_ring.py), allocated in advance; frames of stacked observations are
stored once (frame_store.py), priorities are in a tree of sums (priorities.py). An exception of a
signal handler at any point loses nothing: an addition is stored in full before it is written, and a
call that finds one unfinished repeats it.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pysampler._common.closing import Uncopyable
from pysampler._common.files import (
    atomic_write,
    open_regular,
    read_arrays,
    stored_dtype,
    write_arrays,
)
from pysampler._common.numbers import fitting_array, is_real, is_whole, plain_array, whole_number
from pysampler._learning.batch import Batch
from pysampler._learning.frame_store import FrameStore, StackAddition
from pysampler._learning.priorities import MAX_PRIORITY, MIN_PRIORITY, SumTree
from pysampler._learning.record_ring import FOLLOWING, PRECEDING, Addition, RecordRing
from pysampler._learning.sequences import Sequences, n_step_returns, steps_around
from pysampler.errors import LayoutError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["ReplayBuffer"]

_FORMAT = "pysampler replay 2"
# The fields that every record has in addition to the user's.
_OWN = {
    "rewards": np.dtype(np.float64),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
    "env": np.dtype(np.int64),
}

_RESERVED = {*_OWN, FOLLOWING, PRECEDING} - {"rewards"}
# Prefixes of field names, for the numbers of frames and for ``StackAddition.oldest``. The
# blanks distinguish them from names of the user.
_FRAMES, _OLDEST = "frames of ", "oldest frame of "
# One spare frame per this many records: enough unless episodes are shorter than this.
_SPARE = 16
# Spare frames for this many stacks: a record's stack begins some steps of all envs earlier.
_STACKS = 16
# How often to redraw records that have lost frames, before searching for the others.
_REDRAWS = 16


class ReplayBuffer(Uncopyable):
    """A replay buffer: keeps the newest ``capacity`` transitions and samples batches of them.

    Memory for ``capacity`` records is allocated at once. A forked child process gets a copy, as of
    any Python object: it may sample or save it while this process continues.

    Args:
        capacity: How many records to keep: new ones replace the oldest.
        like: The fields of a record: by name, an example array with the dtype and the shape.
            Fields whose names begin with ``next_`` are results of the step. Each part of a dict is
            a field of its own, such as ``observations['camera']``. For records of actors
            pass ``actors.like``, or a part of it. Add ``rewards`` only if a reward has several
            numbers.
        n_step: Sum rewards over this many steps, for n-step returns. A sum ends earlier at the end
            of an episode, at the newest record of its env, and at the end of a sequence.
        gamma: The discount factor of these sums.
        sequences: Pass True to call ``sample_sequences``: each record then also stores links to the
            ones before and after it.
        stacks: Names of fields that are stacks of frames along their first axis, such as
            ``observations`` of images. Each frame is then stored once instead of in every stack.
            Each field needs a matching field ``next_...``. There is room for one frame per record
            and 1/32 more; if records need more, the buffer holds fewer of them (see ``len()``).
            That happens because an episode has one or two frames more than steps, and because a
            stack is stored again if its oldest frame is more than ``capacity / 32`` frames back,
            as with more than ``capacity / 32 / (depth + 1)`` envs.
        alpha: How much priorities matter. With 0, all records are equally likely. Otherwise the
            probability of a record is proportional to ``priority ** alpha``. ``update`` sets
            priorities; new records get the highest priority so far.
        seed: Seed of the draws; None: a random one.

    Raises:
        ValueError: An argument is out of range, or a field has no fixed size.
        MemoryError: There is too little memory.

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
        sequences: bool = False,
        stacks: Sequence[str] = (),
        alpha: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.capacity = whole_number("make replay", "capacity", capacity, 1)
        self.n_step = whole_number("make replay", "n_step", n_step, 1)
        numbers = is_real(gamma, 0) and is_real(alpha, 0)
        if not (numbers and gamma <= 1 and alpha < np.inf):
            raise ValueError(
                f"cannot make replay: gamma {gamma!r} and alpha {alpha!r}, expected gamma in 0 to "
                "1 and alpha >= 0"
            )
        if (
            not isinstance(like, Mapping)
            or not like.keys() - {"rewards"}
            or like.keys() & _RESERVED
        ):
            raise ValueError(
                f"cannot make replay: fields {like!r}, expected names and arrays, none of them "
                f"{sorted(_RESERVED)}"
            )
        if unnamed := [name for name in like if not isinstance(name, str)]:
            raise ValueError(f"cannot make replay: field {unnamed[0]!r}, expected a str")
        _refuse_dicts("make replay", like)
        examples = {name: plain_array("make replay", name, one) for name, one in like.items()}
        for name, one in examples.items():
            if one.dtype.hasobject or one.dtype.itemsize == 0:
                raise ValueError(f"cannot make replay: {name} holds {one.dtype}, expected numbers")
        self.gamma, self.alpha = float(gamma), float(alpha)
        self.sequences = bool(sequences)
        of_rewards = examples.pop("rewards", np.zeros(())).shape
        self._names = list(examples)
        self._like = {name: (one.dtype, one.shape) for name, one in examples.items()}
        self._like |= {name: (dtype, ()) for name, dtype in _OWN.items()}
        self._like["rewards"] = _OWN["rewards"], of_rewards
        self._stores = self._stores_of(stacks)
        stacked = {*self._stores, *(f"next_{name}" for name in self._stores)}
        self._ring = RecordRing(
            self.capacity,
            {name: kind for name, kind in self._like.items() if name not in stacked}
            | {
                _FRAMES + name: (np.dtype(np.int64), (2 * store.depth,))
                for name, store in self._stores.items()
            }
            | {_OLDEST + name: (np.dtype(np.int64), ()) for name in self._stores},
            links=(FOLLOWING, PRECEDING) if sequences else (FOLLOWING,) if self.n_step > 1 else (),
        )
        self._storing: list[tuple[FrameStore, StackAddition]] = []  # records being added
        self._tree = SumTree(self.capacity) if self.alpha > 0 else None
        self._random = np.random.default_rng(seed)

    def _stores_of(self, stacks: Sequence[str]) -> dict[str, FrameStore]:
        stores = {}
        for name in [stacks] if isinstance(stacks, str) else stacks:
            dtype, shape = self._like.get(name, (None, ()))
            if (
                dtype is None
                or name in _OWN
                or 0 in shape
                or not shape
                or self._like.get(f"next_{name}") != (dtype, shape)
            ):
                raise ValueError(
                    f"cannot make replay: stacks {name!r}, expected a field of an array of frames, "
                    f"and the same with the name 'next_{name}'"
                )
            # Half of the spare frames are for late reuse, half for the beginnings of
            # episodes.
            spare = self.capacity // _SPARE + _STACKS * shape[0]
            stores[name] = FrameStore(self.capacity + spare, spare // 2, shape[0], shape[1:], dtype)
        return stores

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "cannot pickle ReplayBuffer: it belongs to the process that made it; send that "
            "process records to add, as Actors do, or save() the buffer and load() it elsewhere"
        )

    def __len__(self) -> int:
        added = self._ring.added  # read once: another thread may add
        return added - self._first(added)

    def _first(self, added: int) -> int:
        """Return the number of the oldest record that still has all of its frames."""
        first = max(0, added - self.capacity)
        for name, store in self._stores.items():
            key = partial(_number_in, self._ring.fields[_OLDEST + name])
            first = bisect_left(range(added), store.added - store.capacity, lo=first, key=key)
        return first

    @property
    def added(self) -> int:
        """The number of records added so far, including those that were replaced."""
        return self._ring.added

    @property
    def nbytes(self) -> int:
        """The size of the buffer in bytes."""
        records = sum(array.nbytes for array in self._ring.fields.values())
        return records + sum(store.nbytes for store in self._stores.values())

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
        """Add records. Those of the same env must be in the order of its steps.

        Either all records are added or none, even if Ctrl-C interrupts the call.

        Args:
            fields: For each field of ``like`` except ``rewards``, an array with a row for each
                record.
            rewards: The reward of each step.
            terminated: Whether each step ended its episode in a terminal state.
            truncated: Whether each step ended its episode in another way.
            env: The index of each step's env.
            numbers: The count of each step among all steps of its env. Pass it if records may be
                missing: n-step returns and sequences do not continue across a gap. None: there are
                no gaps.
            begins: Whether each record begins an episode. Pass it if envs may be reset before their
                episodes end. None: an episode begins only after another has ended.

        Raises:
            ValueError: Fields or shapes are wrong, or a value does not fit the dtype of its field.
        """
        if not isinstance(fields, Mapping) or fields.keys() != set(self._names):
            if isinstance(fields, Mapping):
                _refuse_dicts("add to replay", fields)
            got = [*fields] if isinstance(fields, Mapping) else fields
            raise ValueError(
                f"cannot add to replay: fields {got!r}, expected {sorted(self._names)}"
            )
        rewards = plain_array("add to replay", "rewards", rewards)
        count = len(rewards) if rewards.ndim else 1

        def converted(
            name: str, given: Any, dtype: np.dtype[Any], shape: tuple[int, ...] = ()
        ) -> npt.NDArray[Any]:
            array = fitting_array("add to replay", name, given, dtype)
            if array.shape != (count, *shape):
                raise ValueError(
                    f"cannot add to replay: {name} of shape {array.shape}, expected "
                    f"{(count, *shape)}"
                )
            return array

        own = {"rewards": rewards, "terminated": terminated, "truncated": truncated, "env": env}
        arrays = {
            name: converted(name, given, *self._like[name])
            for name, given in {**fields, **own}.items()
        }
        zeros = np.zeros(count, np.int64)
        in_life = zeros if numbers is None else converted("numbers", numbers, zeros.dtype)
        starts = converted("begins", zeros if begins is None else begins, np.dtype(np.bool_))
        self._finish_adding()
        storing = []
        for name, store in self._stores.items():
            one = StackAddition(arrays.pop(name), arrays.pop(f"next_{name}"), arrays["env"])
            arrays[_FRAMES + name], arrays[_OLDEST + name] = one.numbers, one.oldest
            storing.append((store, one))
        adding = Addition(count, arrays, in_life, starts, numbers is not None)
        self._storing, self._ring.adding = storing, adding  # together
        try:
            self._finish_adding()
        except BaseException:  # a signal handler called it: the arguments have not changed yet
            self._finish_adding()
            raise

    def _finish_adding(self) -> None:
        for store, one in self._storing:
            store.add(one)
        self._ring.finish_adding(self._rate_new)

    def _rate_new(self, slots: npt.NDArray[np.int64]) -> None:
        """Give new records the highest priority so far."""
        if self._tree is not None:
            self._tree.set(slots)

    def extend(self, records: Any) -> None:
        """Add records of actors; each step of a trajectory becomes a record.

        Args:
            records: Records from :meth:`pysampler.Actors.take`. Fields that are not in ``like`` are
                left out.

        Raises:
            TypeError: ``records`` has another type.
            ValueError: A field of ``like`` is missing.
        """
        if not hasattr(records, "by_step"):
            raise TypeError(
                f"cannot add to replay: a {type(records).__name__}, expected records of "
                "Actors.take; ``add`` takes arrays"
            )
        found = records.rows.dtype.names
        if missing := [name for name in self._names if name not in found]:
            raise ValueError(f"cannot add to replay: records have no {missing}, got {[*found]}")
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

    # -- out -------------------------------------------------------------------------------------

    def sample(self, count: int, *, beta: float = 0.4) -> Batch:
        """Draw transitions at random, with replacement.

        Args:
            count: The number of transitions.
            beta: How much ``weights`` compensate for unequal priorities: not at all with 0, fully
                with 1. It has no effect if ``alpha`` is 0.

        Returns:
            A batch of copies, which you may change.

        Raises:
            ValueError: The buffer is empty, or an argument is out of range.
        """
        slots, weights = self._drawn(count, beta)
        return self._batch(slots, weights)

    def sample_sequences(
        self,
        count: int,
        length: int,
        *,
        burn_in: int = 0,
        beyond_ends: bool = False,
        beta: float = 0.4,
    ) -> Sequences:
        """Draw sequences of consecutive steps of an env at random, with replacement.

        The first step after the burn-in is drawn as ``sample`` draws transitions.

        Args:
            count: The number of sequences.
            length: The number of steps of each sequence to learn from.
            burn_in: The number of steps before them, to warm up a recurrent state.
            beyond_ends: Continue sequences with the next episode when one ends. With False, the
                rest of such a sequence is masked.
            beta: See ``sample``.

        Returns:
            Sequences of copies, which you may change.

        Raises:
            ValueError: The buffer is empty or was made without ``sequences``, or an argument is
                out of range.
        """
        if not self.sequences:
            raise ValueError("cannot sample sequences: make the buffer with sequences=True")
        length = whole_number("sample sequences", "length", length, 1)
        burn_in = whole_number("sample sequences", "burn_in", burn_in, 0)
        slots, weights = self._drawn(count, beta)
        steps, mask = steps_around(self._ring, slots, burn_in, length, beyond_ends=beyond_ends)
        mask &= self._kept(steps)
        fields = {}
        for name in (*self._names, "rewards", "terminated", "truncated"):
            fields[name] = self._rows(name, steps)
            fields[name][~mask] = 0
        returns = n_step_returns(fields, mask, self.n_step, self.gamma)
        fields["rewards"] = fields["rewards"].astype(np.float32)
        numbers = self._ring.numbers_in(slots)
        return Sequences(fields, mask, mask.argmax(axis=1), burn_in, *returns, weights, numbers)

    def _drawn(self, count: int, beta: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Draw records; return their slots and importance weights."""
        self._finish_adding()
        count = whole_number("sample from replay", "count", count, 1)
        if not (is_real(beta, 0) and beta <= 1):
            raise ValueError(f"cannot sample from replay: beta {beta!r}, expected 0 to 1")
        if len(self) == 0:
            raise ValueError("cannot sample from replay: the buffer is empty")
        slots, shares = self._draw(count)
        for _ in range(_REDRAWS):
            lost = np.flatnonzero(~self._kept(slots))
            if len(lost) == 0:
                break
            slots[lost], shares[lost] = self._draw(len(lost))
        else:
            slots, shares = self._draw_kept(count)
        if self._tree is None:
            return slots, np.ones(count, np.float32)
        weights = (len(self) * shares) ** -beta
        return slots, (weights / weights.max()).astype(np.float32)

    def _draw(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Draw slots, and return the probability of each."""
        if self._tree is not None:
            return self._tree.draw(self._random, count)
        there = len(self._ring)
        return self._random.integers(0, there, count), np.full(count, 1 / there)

    def _draw_kept(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Draw slots of records that have all of their frames, if many do not."""
        kept = np.flatnonzero(self._kept(np.arange(len(self._ring))))
        shares = np.ones(len(kept)) if self._tree is None else self._tree.leaves[kept]
        drawn = self._random.choice(len(kept), count, p=shares / shares.sum())
        return kept[drawn], shares[drawn] / shares.sum()

    def _kept(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which records have all of their frames."""
        return self._ring.numbers_in(slots) >= self._first(self.added)

    def _rows(self, name: str, slots: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        for of, store in self._stores.items():
            if name in (of, f"next_{of}"):
                return store.stacks(self._ring.fields[_FRAMES + of][slots])[name != of]
        return self._ring.fields[name][slots]

    def _batch(self, slots: npt.NDArray[np.int64], weights: npt.NDArray[Any]) -> Batch:
        """Return the transitions that begin with the records in ``slots``."""
        fields = self._ring.fields
        rewards = fields["rewards"]
        total = rewards[slots]
        discounts = np.full(len(slots), self.gamma)
        at = slots.copy()
        going = np.arange(len(slots))  # rows whose episodes continue
        for _ in range(self.n_step - 1):
            over = fields["terminated"][at[going]] | fields["truncated"][at[going]]
            following = np.where(over, -1, self._ring.following(at[going]))
            going = going[following >= 0]
            if len(going) == 0:
                break
            at[going] = following[following >= 0]
            later = rewards[at[going]]
            total[going] += discounts[going].reshape(-1, *[1] * (later.ndim - 1)) * later
            discounts[going] *= self.gamma
        discounts[fields["terminated"][at]] = 0.0
        return Batch(
            {n: self._rows(n, slots) for n in self._names if not n.startswith("next_")},
            {n: self._rows(n, at) for n in self._names if n.startswith("next_")},
            *(total.astype(np.float32), discounts.astype(np.float32), weights),
            self._ring.numbers_in(slots),
        )

    def update(self, indices: npt.ArrayLike, priorities: npt.ArrayLike) -> None:
        """Set the priorities of sampled records, such as their errors.

        Records that were replaced since they were sampled are skipped.

        Args:
            indices: The ``indices`` of a batch.
            priorities: A positive number for each of them.

        Raises:
            ValueError: ``alpha`` is 0, or a priority is not a positive number.
            TypeError: Indices are not whole numbers.
            IndexError: No record ever had such an index.
        """
        doing = "set priorities"
        self._finish_adding()
        if self._tree is None:
            raise ValueError(f"cannot {doing}: alpha is 0, so all records are equally likely")
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
        if (wrong := values[(powers < MIN_PRIORITY) | (powers > MAX_PRIORITY)]).size:
            raise ValueError(
                f"cannot {doing}: {wrong[0].item()} to the power of alpha, {self.alpha}, expected "
                f"{MIN_PRIORITY} to {MAX_PRIORITY}"
            )
        if (wrong := numbers[(numbers < 0) | (numbers >= self.added)]).size:
            raise IndexError(
                f"cannot {doing}: index {wrong[0]}, expected those of {self.added} records: the "
                "indices of a batch"
            )
        kept = numbers >= self.added - len(self._ring)
        self._tree.set(numbers[kept].astype(np.int64) % self.capacity, powers[kept])

    # -- on disk ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the buffer to a file: an existing file is replaced as a whole or not at all.

        Args:
            path: The file: an uncompressed ``.npz``, which ``numpy.load`` can read too.

        Raises:
            ValueError: The path exists and is not a regular file, or a field cannot be saved.
        """
        path = Path(path)
        arrays = self.to_arrays()
        with atomic_write(
            path, lambda what: ValueError(f"cannot save replay: {path} is {what}")
        ) as file:
            write_arrays(file, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ReplayBuffer:
        """Load a buffer from a file that ``save`` wrote.

        Args:
            path: The file.

        Returns:
            The buffer. It draws the same next batches as the saved one.

        Raises:
            LayoutError: The file is damaged, or not a replay buffer file.
        """
        path = Path(path)
        with open_regular(
            path, lambda what: LayoutError(f"cannot load replay: {path} is {what}")
        ) as file:
            try:
                return cls.from_arrays(read_arrays(file))
            except MemoryError:  # too little memory is not damage
                raise
            except Exception as error:  # damaged data may raise anything
                raise LayoutError(
                    f"cannot load replay: {str(path)!r} is damaged, or not a replay buffer file: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the buffer as arrays by name, for checkpoints. Large ones are views of it."""
        self._finish_adding()
        count = len(self._ring)
        # First, since this finishes an update that was interrupted.
        arrays: dict[str, Any] = {"priorities": self._tree.leaves[:count]} if self._tree else {}
        for name in self._names:
            dtype, _ = self._like[name]
            if stored_dtype(dtype) != dtype:
                raise ValueError(
                    f"cannot save replay: {name} is of {dtype}, expected numbers or text"
                )
        own = "capacity", "n_step", "gamma", "alpha", "sequences", "added"
        about = {
            "format": _FORMAT,
            **{name: getattr(self, name) for name in own},
            "highest": 1.0 if self._tree is None else self._tree.highest,
            "random": self._random.bit_generator.state,
            "names": self._names,
            "rewards": self._like["rewards"][1],  # the shape of one
            "stacks": {name: store.depth for name, store in self._stores.items()},
        }
        oldest = [_OLDEST + name for name in self._stores]
        fields = [one for name, one in self._ring.fields.items() if name not in oldest]
        arrays |= {"last": self._ring.newest, **{str(i): f[:count] for i, f in enumerate(fields)}}
        for i, store in enumerate(self._stores.values()):
            arrays |= {f"{name} {i}": one for name, one in store.to_arrays().items()}
            arrays[f"oldest {i}"] = self._ring.fields[oldest[i]][:count]
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ReplayBuffer:
        """Make a buffer from the arrays of ``to_arrays``.

        Args:
            arrays: The arrays. If they are damaged, any exception may be raised.
        """
        about = json.loads(arrays["about"].tobytes())
        if about["format"] != _FORMAT:
            raise ValueError(f"format {about['format']!r}, expected {_FORMAT!r}")
        names, added = about["names"], about["added"]
        stacks = about.get("stacks", {})  # missing in files of earlier versions
        stacked = [*stacks, *(f"next_{name}" for name in stacks)]
        plain = (name for name in names if name not in stacked)
        likes = {
            n: np.zeros(arrays[str(i)].shape[1:], arrays[str(i)].dtype) for i, n in enumerate(plain)
        }
        for i, (name, depth) in enumerate(stacks.items()):
            frames = arrays[f"frames {i}"]
            one = np.zeros((depth, *frames.shape[1:]), frames.dtype)
            likes |= {name: one, f"next_{name}": one}
        if len({*names}) != len(names) or not is_whole(added, 0) or added >= 1 << 62:
            raise ValueError(f"fields {names} of {added!r} records")
        replay = cls(
            about["capacity"],
            {name: likes[name] for name in names}
            # Missing in files of earlier versions.
            | {"rewards": np.zeros(tuple(about.get("rewards", ())))},
            n_step=about["n_step"],
            gamma=about["gamma"],
            sequences=about.get("sequences", False),
            stacks=[*stacks],
            alpha=about["alpha"],
        )
        replay._random.bit_generator.state = about["random"]
        oldest = {_OLDEST + name: f"oldest {i}" for i, name in enumerate(stacks)}
        count = min(added, replay.capacity)
        unknown = np.zeros(count, np.int64)  # for files of earlier versions
        numbers = map(str, itertools.count())
        fields = [
            arrays.get(oldest[name], unknown) if name in oldest else arrays[next(numbers)]
            for name in replay._ring.fields
        ]
        replay._ring.restore(added, fields, arrays["last"])
        order = np.argsort(replay._ring.numbers_in(np.arange(count)))
        for i, (name, store) in enumerate(replay._stores.items()):
            own = {part: arrays[f"{part} {i}"] for part in ("frames", "frames_of", "frames_added")}
            frames = replay._ring.fields[_FRAMES + name][:count][order]
            store.restore(own, frames)
            known, most = replay._ring.fields[_OLDEST + name], store.oldest_of(frames)
            if f"oldest {i}" not in arrays:
                known[order] = most
            elif (known[order] > most).any() or (np.diff(known[order]) < 0).any():
                raise ValueError("records with frames older than their oldest")
        if replay._tree is not None:
            replay._tree.restore(arrays["priorities"], count, about["highest"])
        return replay

    def __repr__(self) -> str:
        return f"<pysampler.ReplayBuffer {len(self):,} of {self.capacity:,} records>"


def _refuse_dicts(operation: str, fields: Mapping[str, Any]) -> None:
    for name, one in fields.items():
        if isinstance(one, Mapping):
            parts = ", ".join(f'"{part}"' for part in _parts(name, one))
            raise ValueError(f"cannot {operation}: {name} is a dict; its parts are fields {parts}")


def _parts(name: str, one: Any) -> list[str]:
    if not isinstance(one, Mapping):
        return [name]
    return [part for key, child in one.items() for part in _parts(f"{name}[{key!r}]", child)]


def _number_in(slots: npt.NDArray[np.int64], number: int) -> int:
    """Return the value of a field in the record with this number."""
    return int(slots[number % len(slots)])
