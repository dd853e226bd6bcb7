"""TrainerServer: the env server of a worker with a trainer, for averaging; and its jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.torch import is_tensor, tensor_from
from pysampler._learning.mean_weights import difference, fields_of
from pysampler._policies.weights import arrays_of
from pysampler._workers import worker
from pysampler._workers.exceptions import Raised
from pysampler._workers.jobs import Attach, Job, Server
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from pysampler._learning.mean_weights import Fields
    from pysampler.sync import Board, Segment

__all__ = ["AttachBoards", "HandIn", "Train", "TrainerServer"]


@dataclass(frozen=True)
class TrainerDescription:
    """The data about a trainer that the parent needs to lay out boards."""

    name: str
    fields: Fields
    sizes: tuple[int, ...] = (1,)


class TrainerServer(Server):
    """The env server of trainer ``index``. It has one group, which is never stepped."""

    def __init__(self, make: Callable[[int, int], Any], index: int, entropy: Any) -> None:
        self._index = index
        self.blocks: list[Any] = [None]
        # With the same random numbers, a replacement might die at the same point again.
        entropy = None if worker.is_replacement else entropy
        seeds = np.random.SeedSequence(entropy, spawn_key=(index,))
        with self._blaming("being made"):
            self.trainer = make(index, int(seeds.generate_state(1)[0]))
        with self._blaming("state_dict()"):
            state = self.trainer.state_dict()
            self._tensors = {name for name, value in state.items() if is_tensor(value)}
            self._fields = fields_of(arrays_of(state))

    def describe(self) -> TrainerDescription:
        """Return the class of the trainer, and the fields of its weights."""
        return TrainerDescription(type(self.trainer).__name__, self._fields)

    def attach(self, segment: Segment, fields: Fields, average: Any, own: Sequence[Any]) -> None:
        """Attach the boards of the average and of this trainer's weights."""
        self._fields = fields
        self._average: Board = average.attach(segment)
        self._own: Board = own[self._index].attach(segment)

    def train(self, steps: int) -> tuple[dict[str, Any], float]:
        """Load the average, train and publish the weights; return the report and the seconds."""
        _, weights = self._average.read()
        with self._blaming("load_state_dict()"):
            given = {name: self._as_given(name, array) for name, array in weights.items()}
            self.trainer.load_state_dict(given)
        began = now()
        with self._blaming("train()"):
            report = self.trainer.train(steps)
            if not isinstance(report, (Mapping, type(None))):
                raise TypeError(f"it returned {report!r}, expected a dict or None")
        seconds = (now() - began) / 1e9
        self.hand_in()
        return dict(report or {}), seconds

    def hand_in(self) -> int:
        """Publish the weights on the trainer's board; return their version."""
        with self._blaming("state_dict()"):
            arrays = arrays_of(self.trainer.state_dict())
            if differ := difference(fields_of(arrays), self._fields):
                raise ValueError(differ)
        return self._own.publish(arrays)

    def close(self) -> None:
        """Close the trainer, if it has a ``close``."""
        if hasattr(self.trainer, "close"):
            with self._blaming("close()"):
                self.trainer.close()

    def _as_given(self, name: str, array: npt.NDArray[Any]) -> Any:
        return tensor_from(array) if name in self._tensors else array

    @contextlib.contextmanager
    def _blaming(self, doing: str) -> Iterator[None]:
        """Report an exception in this context as an error of the trainer."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise Raised(self._index, doing) from error


# -- jobs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttachBoards(Attach):
    """Attaches the boards of the average and of each trainer, at these places in the segment."""

    fields: Fields
    average: Any
    own: Sequence[Any]

    def attach(self, server: TrainerServer, segment: Segment) -> None:
        """Give the boards to an env server."""
        server.attach(segment, self.fields, self.average, self.own)


@dataclass(frozen=True)
class Train(Job):
    """Job: load the average, train for some steps, and publish the weights."""

    steps: int
    doing = "training"

    def run(self, server: TrainerServer, block: int, frame: int) -> Any:  # noqa: ARG002
        """Train in the worker."""
        return server.train(self.steps)


@dataclass(frozen=True)
class HandIn(Job):
    """Job: publish the weights."""

    doing = "handing in weights of"

    def run(self, server: TrainerServer, block: int, frame: int) -> int:  # noqa: ARG002
        """Hand in from the worker."""
        return server.hand_in()
