"""Averaging: every worker trains for itself, and at a barrier all take the mean of their weights.

                 board                              boards, one each
    average ──────────────▶ each trainer: train(steps) ──────────────▶ mean ──▶ the next average

The boards lie in a segment of their own. Commands and completions say
when to read them: no board is read while it is written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._closing import Closing, Single
from pysampler._learning.trainers import (
    AttachBoards,
    HandIn,
    Train,
    TrainerHost,
    UseBoards,
    arrays_of,
    difference,
    fields_of,
)
from pysampler._numbers import whole_number
from pysampler._vector import arguments
from pysampler._workers.jobs import Failure
from pysampler._workers.local import LocalPool
from pysampler._workers.nursery import CONTEXTS
from pysampler._workers.pool import Pool
from pysampler._workers.processes import Share
from pysampler._workers.recovery import MAX_RESTARTS, RESTART_WINDOW
from pysampler._workers.remote import dumps_by_value
from pysampler.errors import ClosedError, EnvError, LostError, WaitTimeoutError
from pysampler.sync import Board, Segment, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from pysampler._learning.trainers import Fields, Weights
    from pysampler._workers.jobs import Answer, Job

__all__ = ["Averaging", "Round"]

# Of a board: the newest version, and room for the next.
_BUFFERS = 2
# What a board takes beside its contents, and where it may begin, in bytes.
_BESIDE = 1024


@dataclass(frozen=True)
class Round:
    """What became of a round."""

    number: int  # from 1 on
    reports: list[dict[str, Any]]  # what each trainer's train() returned; {} of a lost one
    lost: list[int]  # workers that were replaced: their weights are not in the average
    # By worker: "training", and "waiting" for the others and the average.
    seconds: dict[str, npt.NDArray[np.float64]]


class Averaging(Single, Closing):
    """Trainers, one in each of so many workers, whose weights are averaged after every round.

    ``make(index, seed)`` is called in the worker and returns a trainer: an object with

    - ``train(steps)``, which acts and learns for so many steps and returns a dict of numbers to
      report, or None;
    - ``state_dict()`` and ``load_state_dict(weights)``: names, and NumPy arrays or tensors. What is
      not among them (a replay, the moments of an optimizer) stays the trainer's own;
    - ``close()``, if it has one.

    All begin with the weights of the first. The average of floating-point arrays is their mean,
    taken in float64; of others it is what the first worker has.

    - ``workers``: processes. 0 trains one trainer in this process, for debugging.
    - ``context``: as of :class:`pysampler.VectorEnv`.
    - ``on_worker_loss``: "raise" ``WorkerLostError``, or "restart": a new trainer, made with
      another seed, takes its place and begins with the last average. More than ``max_restarts`` of
      one worker within ``restart_window`` seconds raise all the same.
    - ``seed``: those of the trainers are drawn from it.

    A trainer that raises is an ``EnvError``, which is also an instance of what it raised, and the
    others are ended. A round that Ctrl-C or its time-out interrupts goes on in the workers: the
    next one waits for it and drops it, ``close()`` ends it. Weights that are nan, or inf in some
    trainers only, are a ValueError, and the last average stays.

    >>> class Trainer:
    ...     def __init__(self, index, seed):
    ...         self.index, self.weights = index, {"w": np.zeros(2)}
    ...     def train(self, steps):
    ...         self.weights = {"w": self.weights["w"] + steps * self.index}
    ...     def state_dict(self):
    ...         return self.weights
    ...     def load_state_dict(self, weights):
    ...         self.weights = weights
    >>> with Averaging(Trainer, workers=3) as averaging:
    ...     for round in averaging.rounds(steps=10, count=2):
    ...         print(round.number, averaging.weights["w"])
    1 [10. 10.]
    2 [20. 20.]
    """

    def __init__(
        self,
        make: Callable[[int, int], Any],
        workers: int,
        *,
        context: str = "nursery",
        on_worker_loss: arguments.OnLoss = "raise",
        max_restarts: int = MAX_RESTARTS,
        restart_window: float = RESTART_WINDOW,
        seed: int | None = None,
    ) -> None:
        if not callable(make):
            raise TypeError(f"cannot average: make is {make!r}, expected a function")
        self.workers = whole_number("average", "workers", workers, 0)
        _one_of("context", context, CONTEXTS)
        faults = arguments.faults("average", on_worker_loss, max_restarts, restart_window)
        if seed is not None:
            seed = whole_number("average", "seed", seed, 0)
        if self.workers > 0 and context != "fork":
            _expect_sendable(make)
        self._turn = _core.Guard(
            "this averaging", "cannot train: this averaging is closed", ClosedError
        )
        self._rounds = 0
        self._boards: list[Board] = []  # of each worker, and last this process's own
        self._everyone = range(max(self.workers, 1))
        entropy = np.random.SeedSequence(seed).entropy

        def host(share: Share) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return TrainerHost, (make, share.first, entropy)

        shares = [Share(index, (1,), "trainer") for index in self._everyone]
        self._pool: Pool | LocalPool
        if self.workers == 0:
            self._pool = LocalPool(shares[0], host)
        else:
            self._pool = Pool(shares, host, context=context, faults=faults)
        try:
            descriptions: list[Any] = self._pool.descriptions
            self._lay_out([one.fields for one in descriptions])
            while not self._ask(HandIn(), [0]):
                pass  # it was lost: ask the one in its place
            self._weights = self._handed_in(0)
        except BaseException:
            self._end()
            raise

    def _lay_out(self, of_each: list[Fields]) -> None:
        fields = self._fields = of_each[0]
        for index, some in enumerate(of_each):
            if differ := difference(some, fields):
                raise ValueError(f"cannot average weights: of trainer {index}, {differ}")
        count = len(of_each)
        like = {name: np.empty(field.shape, field.dtype) for name, field in fields.items()}
        size = sum(array.nbytes + 8 for array in like.values())
        segment = Segment((count + 1) * (_BUFFERS * size + _BESIDE))
        self._pool.lay_out(segment, AttachBoards())
        self._boards = [Board(like, segment, buffers=_BUFFERS) for _ in range(count + 1)]
        *own, average = [board.place() for board in self._boards]
        self._pool.note(lambda w: UseBoards(fields, average, own[w.start]), standing=True)

    # -- rounds ----------------------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        """The last average. Assign to it, to go on from others."""
        return self._weights

    @weights.setter
    def weights(self, weights: Mapping[str, Any]) -> None:
        # Its own: tensors would change with the module they are of.
        arrays = {name: array.copy() for name, array in arrays_of(weights).items()}
        if differ := difference(fields_of(arrays), self._fields):
            raise ValueError(f"cannot set weights: {differ}")
        for name, array in arrays.items():
            if _has_nan(array):
                raise ValueError(f"cannot set weights: {name} has nan, expected numbers")
        self._weights = arrays

    def round(self, steps: int, timeout: float | None = None) -> Round:
        """Let every trainer take the average and train for ``steps`` steps; average anew.

        WaitTimeoutError if that takes longer than ``timeout`` seconds. Without workers it has to
        wait for its trainer all the same.
        """
        steps = whole_number("average", "steps", steps, 1)
        deadline = arguments.deadline(timeout, "train")
        if self.closed:
            raise ClosedError("cannot train: this averaging is closed")
        with self._turn.entry("train"):
            try:
                return self._round(steps, deadline)
            except (EnvError, LostError):
                self._pool.kill()
                raise
            finally:
                if self._pool.closed:
                    self._end()

    def _round(self, steps: int, deadline: int | None) -> Round:
        list(self._answers(deadline))  # of a round that was interrupted: they are dropped
        began = now()
        self._boards[-1].publish(self._weights)
        said = self._ask(Train(steps), self._everyone, deadline)
        if handed_in := {index: self._handed_in(index) for index in sorted(said)}:
            self._weights = {
                name: _mean(name, {index: weights[name] for index, weights in handed_in.items()})
                for name in self._fields
            }
        self._rounds += 1
        told = [said.get(index, ({}, 0.0)) for index in self._everyone]
        training = np.array([seconds for _, seconds in told])
        waiting = (now() - began) / 1e9 - training
        return Round(
            self._rounds,
            [report for report, _ in told],
            [index for index in self._everyone if index not in said],
            {"training": training, "waiting": waiting},
        )

    def rounds(
        self, steps: int, count: int | None = None, timeout: float | None = None
    ) -> Iterator[Round]:
        """One after the other: so many, or for ever; each may take ``timeout`` seconds."""
        if count is not None:
            count = whole_number("average", "count", count, 0)
        for _ in itertools.count() if count is None else range(count):
            yield self.round(steps, timeout)

    def _ask(self, job: Job, of: Sequence[int], deadline: int | None = None) -> dict[int, Any]:
        """Return what trainers answer, by worker; of those that were lost there is nothing."""
        self._pool.request([(index, 0) for index in of], dict.fromkeys(of, job))
        return {index: said for index, said, _ in self._answers(deadline) if said is not None}

    def _answers(self, deadline: int | None) -> Iterator[Answer]:
        """Yield the answers of all that were asked, as they come; raise a failure at once."""
        while self._pool.pending:
            groups, answers = self._pool.wait_some(1, len(self._everyone), deadline)
            if not groups and deadline is not None and now() >= deadline:
                late = [index for index in self._everyone if self._pool.is_pending(index)]
                raise WaitTimeoutError(f"cannot train: trainers {late} have not answered in time")
            self._pool.take(groups)
            for group, said, _ in answers:
                if isinstance(said, Failure):
                    raise self._pool.error_of(group, said)
            yield from answers

    def _handed_in(self, index: int) -> Weights:
        _, weights = self._boards[index].read()
        for name, array in weights.items():
            if _has_nan(array):
                raise ValueError(
                    f"cannot average weights: {name} of trainer {index} has nan, expected numbers"
                )
        return weights

    # -- ending ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has ended because something went wrong."""
        pool = getattr(self, "_pool", None)
        return pool is None or pool.closed

    def close(self) -> None:
        """Let the trainers close, and end the workers. EnvError if a trainer raised in close()."""
        if self._turn.closed or self.closed:
            self._end()
            return
        entry = self._turn.closing("close")
        with entry:
            if entry.nested:  # a signal handler, in the middle of a round, which ends by it
                self._pool.give_up_wait()
            try:
                self._pool.close()
            finally:
                self._turn.close()
                self._end()

    def _end(self) -> None:
        self._pool.kill()
        for board in self._boards:
            board.close()

    def __del__(self) -> None:
        if (pool := getattr(self, "_pool", None)) is not None:
            pool.kill(wait=0)

    def __repr__(self) -> str:
        closed = ", closed" * self.closed
        return f"<pysampler.Averaging {self.workers} workers, {self._rounds} rounds{closed}>"


def _has_nan(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind in "fc" and bool(np.isnan(array).any())


def _mean(name: str, by_trainer: dict[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Of floating-point arrays; of others the first."""
    arrays = list(by_trainer.values())
    first = arrays[0]
    if first.dtype.kind not in "fc":
        return first.copy()
    wide = np.result_type(first, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(np.mean(arrays, axis=0, dtype=wide), first.dtype)
    # A mask may be inf, in all of them.
    if (np.isfinite(mean) | np.all([array == first for array in arrays], axis=0)).all():
        return np.where(np.isfinite(mean), mean, first)
    sick = [index for index, array in by_trainer.items() if not np.isfinite(array).all()]
    raise ValueError(
        f"cannot average weights: the mean of {name} is not finite"
        + f": it has inf in trainers {sick}, expected numbers" * bool(sick)
    )


# -- arguments -----------------------------------------------------------------------------------


def _one_of(what: str, got: Any, expected: Sequence[str]) -> None:
    if got not in expected:
        raise ValueError(
            f"cannot average: {what} {got!r}, expected one of {', '.join(map(repr, expected))}"
        )


def _expect_sendable(make: Callable[..., Any]) -> None:
    try:
        dumps_by_value(make)
    except Exception as error:
        raise TypeError(
            f"cannot send make to workers: {type(error).__name__}: {error}; make what it needs "
            'inside of it, or pass context="fork"'
        ) from error
