"""Averaging: workers train independently, and after every round all load their mean weights.

                 board                              boards, one each
    average ──────────────▶ each trainer: train(steps) ──────────────▶ mean ──▶ the next average

The boards are in a separate segment. A trainer reads the average after it gets a command, and the
parent reads a trainer's board after its completion: no board is read while it is written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._common.closing import Closing, Uncopyable
from pysampler._common.numbers import whole_number
from pysampler._learning.mean_weights import difference, fields_of, mean_of, name_with_nan
from pysampler._learning.trainers import AttachBoards, HandIn, Train, TrainerServer
from pysampler._policies.weights import arrays_of
from pysampler._vector import arguments
from pysampler._workers.jobs import Answer, Failure
from pysampler._workers.launcher import CONTEXTS
from pysampler._workers.pool import Pool
from pysampler._workers.processes import WorkerAssignment
from pysampler._workers.recovery import MAX_RESTARTS, RESTART_WINDOW
from pysampler._workers.remote import dumps_by_value
from pysampler.errors import ClosedError, EnvError, LostError, WaitTimeoutError, WorkerLostError
from pysampler.sync import Board, Segment, now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from pysampler._learning.mean_weights import Fields
    from pysampler._policies.weights import Weights
    from pysampler._workers.jobs import Job

__all__ = ["Averaging", "AveragingRound"]

_BUFFERS = 2  # of a board: the newest version, and room for the next
_BOARD_OVERHEAD = 1024  # bytes that a board takes in addition to its arrays, with alignment


@dataclass(frozen=True)
class AveragingRound:
    """The result of a round of averaging.

    Attributes:
        number: The number of the round, from 1 on.
        reports: The result of each trainer's ``train()``; {} for trainers that were lost.
        lost: The workers that were lost and replaced. Their weights are not in the average.
        seconds: For each worker, the seconds spent "training", and "waiting" for the others and
            the average.
    """

    number: int
    reports: list[dict[str, Any]]
    lost: list[int]
    seconds: dict[str, npt.NDArray[np.float64]]


class Averaging(Uncopyable, Closing):
    """Train in several workers at once, and average their weights after every round.

    All trainers begin with the weights of the first. Floating-point arrays are averaged in float64;
    other arrays are taken from the first worker.

    If a trainer raises, you get an ``EnvError``, which is also an instance of the trainer's
    exception, and the other trainers end. A round that Ctrl-C or its timeout interrupts continues
    in the workers: the next round waits for it and drops its results; ``close()`` ends it. If
    weights are NaN, or inf in some trainers only, you get a ValueError, and the last average
    remains.

    Args:
        make: A function ``make(index, seed)`` that each worker calls to make its trainer. A trainer
            has the method ``train(steps)``, which acts and learns for that many steps and returns a
            dict of numbers to report, or None; ``state_dict()`` and ``load_state_dict(weights)``,
            with NumPy arrays or tensors by name; and optionally ``close()``. State outside of the
            weights (a replay buffer, the moments of an optimizer) is not averaged.
        workers: The number of workers. 0 trains one trainer in this process, for debugging.
        context: How workers start: "forkserver", "fork" or "spawn", as in
            :class:`pysampler.VectorEnv`. Threads are not supported.
        on_worker_loss: If a worker dies, "raise" raises ``WorkerLostError``; "restart" replaces its
            trainer by a new one with another seed, which begins with the last average.
        max_restarts: With "restart", raise nevertheless if one worker dies more often than this
            within ``restart_window``.
        restart_window: Seconds in which restarts are counted; see ``max_restarts``.
        seed: The trainers' seeds are drawn with this seed; None: with a random one.

    Raises:
        ValueError: An argument is out of range, or trainers have different weights.
        TypeError: ``make`` cannot be called, or cannot be sent to workers.
        EnvError: A trainer raised while it was created.

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
        context: str = "forkserver",
        on_worker_loss: arguments.OnLoss = "raise",
        max_restarts: int = MAX_RESTARTS,
        restart_window: float = RESTART_WINDOW,
        seed: int | None = None,
    ) -> None:
        if not callable(make):
            raise TypeError(f"cannot average: make is {make!r}, expected a function")
        self.workers = whole_number("average", "workers", workers, 0)
        arguments.one_of("context", context, CONTEXTS, "average")
        faults = arguments.faults("average", on_worker_loss, max_restarts, restart_window)
        seed = None if seed is None else whole_number("average", "seed", seed, 0)
        if self.workers > 0 and context != "fork":
            _expect_sendable(make)
        self._turn = _core.Guard(
            "this averaging", "cannot train: this averaging is closed", ClosedError
        )
        self._rounds = 0
        self._boards: list[Board] = []  # one for each worker, then the average's
        self._everyone = range(max(self.workers, 1))
        entropy = np.random.SeedSequence(seed).entropy

        def server(assignment: WorkerAssignment) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return TrainerServer, (make, assignment.first, entropy)

        assignments = [WorkerAssignment(index, (1,), "trainer") for index in self._everyone]
        if self.workers == 0:
            self._pool = Pool([], server, assignments[0])
        else:
            self._pool = Pool(assignments, server, context=context, faults=faults)
        try:
            descriptions: list[Any] = self._pool.descriptions
            self._lay_out([one.fields for one in descriptions])
            for _ in range(self._pool.max_restarts + 1):
                if self._request(HandIn(), [0]):
                    break  # otherwise the worker was lost: ask its replacement
            else:
                raise self._pool.last_loss(0)
            self._weights = self._handed_in(0)
        except BaseException:
            self._end()
            raise

    def _lay_out(self, of_each: list[Fields]) -> None:
        fields = self._fields = of_each[0]
        for index, some in enumerate(of_each):
            if differ := difference(some, fields):
                raise ValueError(f"cannot average weights: trainer {index}: {differ}")
        count = len(of_each)
        like = {name: np.empty(field.shape, field.dtype) for name, field in fields.items()}
        size = sum(array.nbytes + 8 for array in like.values())
        segment = Segment((count + 1) * (_BUFFERS * size + _BOARD_OVERHEAD))
        self._boards = [Board(like, segment, buffers=_BUFFERS) for _ in range(count + 1)]
        *own, average = [board.place() for board in self._boards]
        self._pool.lay_out(segment, AttachBoards(fields, average, own))

    # -- rounds ----------------------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        """The last average, by name. Assign weights to continue from those instead."""
        return self._weights

    @weights.setter
    def weights(self, weights: Mapping[str, Any]) -> None:
        # Copies, because tensors would change with the module that they belong to.
        arrays = {name: array.copy() for name, array in arrays_of(weights).items()}
        if differ := difference(fields_of(arrays), self._fields):
            raise ValueError(f"cannot set weights: {differ}")
        if (name := name_with_nan(arrays)) is not None:
            raise ValueError(f"cannot set weights: {name} has nan, expected numbers")
        self._weights = arrays

    def round(self, steps: int, timeout: float | None = None) -> AveragingRound:
        """Let every trainer load the last average and train; then average their weights.

        Args:
            steps: The argument of each trainer's ``train``.
            timeout: Raise WaitTimeoutError after this many seconds; None waits forever. With
                ``workers=0``, the trainer is not interrupted.

        Returns:
            The trainers' reports, and how long they took.

        Raises:
            WaitTimeoutError: The round took longer than ``timeout``.
            EnvError: A trainer raised.
            WorkerLostError: A worker was lost and not replaced.
            ValueError: The weights have no finite mean.
        """
        steps = whole_number("average", "steps", steps, 1)
        deadline = arguments.deadline(timeout, "train")
        if self.closed:
            raise ClosedError("cannot train: this averaging is closed")
        with self._turn.entry("train"):
            try:
                return self._round(steps, deadline)
            except (EnvError, LostError):
                self._pool.abandon()
                raise
            finally:
                if self._pool.closed:
                    self._end()

    def _round(self, steps: int, deadline: int | None) -> AveragingRound:
        self._pool.cancel_inline()  # jobs of an interrupted round, whose answers are dropped
        list(self._answers(deadline))
        began = now()
        self._boards[-1].publish(self._weights)
        answers = self._request(Train(steps), self._everyone, deadline)
        if handed_in := {index: self._handed_in(index) for index in sorted(answers)}:
            self._weights = mean_of(handed_in)
        self._rounds += 1
        results = [answers.get(index, ({}, 0.0)) for index in self._everyone]
        training = np.array([seconds for _, seconds in results])
        waiting = (now() - began) / 1e9 - training
        return AveragingRound(
            self._rounds,
            [report for report, _ in results],
            [index for index in self._everyone if index not in answers],
            {"training": training, "waiting": waiting},
        )

    def rounds(
        self, steps: int, count: int | None = None, timeout: float | None = None
    ) -> Iterator[AveragingRound]:
        """Train round after round, and yield the result of each.

        Args:
            steps: The argument of each trainer's ``train`` in a round.
            count: The number of rounds; None: endless.
            timeout: Raise WaitTimeoutError if a round takes longer than this many seconds.

        Yields:
            The result of each ``round``.
        """
        if count is not None:
            count = whole_number("average", "count", count, 0)
        for _ in itertools.count() if count is None else range(count):
            yield self.round(steps, timeout)

    def _request(
        self, job: Job, workers: Sequence[int], deadline: int | None = None
    ) -> dict[int, Any]:
        """Send a job to workers; return, by worker, the answers of those that were not lost."""
        self._pool.request([(index, 0) for index in workers], dict.fromkeys(workers, job))
        return dict(self._answers(deadline))

    def _answers(self, deadline: int | None) -> Iterator[Answer]:
        """Yield answers of trainers that were not lost, as they come; raise a failure at once."""
        while self._pool.pending:
            groups, answers = self._pool.wait_some(1, len(self._everyone), deadline)
            if not groups and deadline is not None and now() >= deadline:
                late = [index for index in self._everyone if self._pool.is_pending(index)]
                raise WaitTimeoutError(f"cannot train: trainers {late} have not answered in time")
            self._pool.take(groups)
            for group, answer in answers:
                if not isinstance(answer, Failure):
                    yield Answer(group, answer)
                elif answer.env is not None or answer.report.kind != WorkerLostError.__name__:
                    raise self._pool.error_of(group, answer)

    def _handed_in(self, index: int) -> Weights:
        """Return the weights on a trainer's board; ValueError if they have NaN."""
        _, weights = self._boards[index].read()
        if (name := name_with_nan(weights)) is not None:
            raise ValueError(
                f"cannot average weights: {name} of trainer {index} has nan, expected numbers"
            )
        return weights

    # -- ending ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called, or an error ended the workers."""
        pool = getattr(self, "_pool", None)
        return pool is None or pool.closed

    def close(self) -> None:
        """Close the trainers, and end the workers.

        Raises:
            EnvError: A trainer raised in its ``close()``.
        """
        if self._turn.closed or self.closed:
            self._end()
            return
        entry = self._turn.closing("close")
        with entry:
            if entry.nested:  # in a signal handler during a round: make the round end
                self._pool.interrupt_wait()
            try:
                self._pool.close()
            finally:
                self._turn.close()
                self._end()

    def _end(self) -> None:
        self._pool.abandon()
        for board in self._boards:
            board.close()

    def __del__(self) -> None:
        if (pool := getattr(self, "_pool", None)) is not None:
            pool.kill(wait=0)

    def __repr__(self) -> str:
        closed = ", closed" * self.closed
        return f"<pysampler.Averaging {self.workers} workers, {self._rounds} rounds{closed}>"


def _expect_sendable(make: Callable[..., Any]) -> None:
    try:
        dumps_by_value(make)
    except Exception as error:
        raise TypeError(
            f"cannot send make to workers: {type(error).__name__}: {error}; create what it needs "
            'inside make, or pass context="fork"'
        ) from error
