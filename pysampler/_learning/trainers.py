"""What a worker serves where weights are averaged: a trainer; and what that is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._frames.spec import Field
from pysampler._workers import worker
from pysampler._workers.jobs import Job, Note, Repeated
from pysampler._workers.remote import Raised
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from pysampler.sync import Board, Segment

    Fields = dict[str, Field]
    Weights = dict[str, npt.NDArray[Any]]

__all__ = [
    "AttachBoards",
    "HandIn",
    "Train",
    "TrainerHost",
    "UseBoards",
    "arrays_of",
    "difference",
    "fields_of",
]


@dataclass(frozen=True)
class Description:
    """What the parent must know of a trainer before it can lay out boards."""

    name: str
    fields: Fields


class TrainerHost:
    """Trainer ``index``, whose one group is never stepped."""

    def __init__(self, make: Callable[[int, int], Any], index: int, entropy: Any) -> None:
        self._index = index
        self.blocks: list[Any] = [None]
        # Who takes the place of a lost one need not live through the same again.
        seeds = np.random.SeedSequence(
            None if worker.is_replacement else entropy, spawn_key=(index,)
        )
        with self._at("being made"):
            self.trainer = make(index, int(seeds.generate_state(1)[0]))
        with self._at("state_dict()"):
            state = self.trainer.state_dict()
            self._tensors = {name for name, value in state.items() if hasattr(value, "detach")}
            self._fields = fields_of(arrays_of(state))

    def describe(self) -> Description:
        """What its weights are."""
        return Description(type(self.trainer).__name__, self._fields)

    def count_with(self, meter: Any) -> None:
        """Nothing is counted: a round tells how long it took."""

    def left_over(self, block: int) -> None:
        """Return nothing: there are no steps."""

    def replace(self, seeds: Sequence[int]) -> None:
        """Do nothing: the trainer knew so when it was made."""

    def attach(self, segment: Segment) -> None:
        """Find boards in this segment."""
        self._segment = segment

    def use(self, fields: Fields, average: Any, own: Any) -> None:
        """Take the average from one board, and hand these fields in on the other."""
        self._fields = fields
        self._average: Board = average.attach(self._segment)
        self._own: Board = own.attach(self._segment)

    def train(self, steps: int) -> tuple[dict[str, Any], float]:
        """Go on from the average, and hand in; what the trainer reports, and seconds it took."""
        _, weights = self._average.read()
        with self._at("load_state_dict()"):
            self.trainer.load_state_dict(
                {name: self._as_given(name, array) for name, array in weights.items()}
            )
        began = now()
        with self._at("train()"):
            report = self.trainer.train(steps)
            if not isinstance(report, (Mapping, type(None))):
                raise TypeError(f"it returned {report!r}, expected a dict or None")
        seconds = (now() - began) / 1e9
        self.hand_in()
        return dict(report or {}), seconds

    def hand_in(self) -> int:
        """The weights, as a new version."""
        with self._at("state_dict()"):
            arrays = arrays_of(self.trainer.state_dict())
            if differ := difference(fields_of(arrays), self._fields):
                raise ValueError(differ)
        return self._own.publish(arrays)

    def close(self) -> None:
        """Close the trainer, if it can be."""
        if hasattr(self.trainer, "close"):
            with self._at("close()"):
                self.trainer.close()

    def _as_given(self, name: str, array: npt.NDArray[Any]) -> Any:
        if name not in self._tensors:
            return array
        import torch  # noqa: PLC0415 - it is there

        return torch.from_numpy(array)

    @contextlib.contextmanager
    def _at(self, doing: str) -> Iterator[None]:
        """The trainer is at work."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise Raised(self._index, doing) from error


# -- what it is asked ------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttachBoards:
    """Boards are to lie in the segment."""

    def attach(self, host: TrainerHost, segment: Segment) -> None:
        """Give the segment to a host."""
        host.attach(segment)


@dataclass(frozen=True)
class UseBoards(Note):
    """Where the boards lie: the average comes on one, ``fields`` are handed in on the other."""

    fields: Fields
    average: Any
    own: Any
    doing = "attaching boards"

    def apply(self, host: TrainerHost) -> None:
        """Tell the host."""
        host.use(self.fields, self.average, self.own)


class _TrainerJob(Job):
    """Of a trainer that was lost there is no answer."""

    def after_loss(self, lost: str) -> Job:  # noqa: ARG002
        """Answer with None."""
        return _NoAnswer(self.doing)


@dataclass(frozen=True)
class _NoAnswer(Repeated):
    doing: str

    def run(self, host: TrainerHost, block: int, frame: int) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Train(_TrainerJob):
    """The trainer goes on from the average for some steps, and hands its weights in."""

    steps: int
    doing = "training"

    def run(self, host: TrainerHost, block: int, frame: int) -> Any:  # noqa: ARG002
        """Do it in the worker."""
        return host.train(self.steps)


@dataclass(frozen=True)
class HandIn(_TrainerJob):
    """The trainer hands its weights in."""

    doing = "handing in weights of"

    def run(self, host: TrainerHost, block: int, frame: int) -> int:  # noqa: ARG002
        """Do it in the worker."""
        return host.hand_in()


# -- weights -------------------------------------------------------------------------------------


def arrays_of(state: Mapping[str, Any]) -> Weights:
    """Those of a ``state_dict()``, which may be tensors."""
    return {
        name: value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
        for name, value in state.items()
    }


def fields_of(arrays: Weights) -> Fields:
    """What they are, if they can be averaged."""
    if not arrays:
        raise ValueError("there are no weights")
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} is of dtype {array.dtype}, expected numbers")
    return {name: Field(array.shape, array.dtype) for name, array in arrays.items()}


def difference(got: Fields, expected: Fields) -> str:
    """In words; empty if there is none."""
    if got.keys() != expected.keys():
        return f"names {list(got)}, expected {list(expected)}"
    for name, to_be in expected.items():
        if (one := got[name]) != to_be:
            return f"{name} is {one.dtype} {one.shape}, expected {to_be.dtype} {to_be.shape}"
    return ""
