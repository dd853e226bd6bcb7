"""How slices of a trace belong together: a command, what sent it, and what read its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._cli.screen import bar
from pysampler._workers.counters import with_unit
from pysampler._workers.tracing import SLICE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = [
    "IDLE",
    "PARTS",
    "PROGRAM",
    "flows_of",
    "idle",
    "means_of",
    "of_program",
    "rounds_of",
    "shown",
]

_KIND = _core.Track
PROGRAM = 20  # the kind of a slice in which the program neither sent, waited nor read
IDLE = 21  # the kind of one in which a worker waited for a command
_SHORT = 1000  # ns; a gap that is shorter is no slice
_CELLS = 14  # of a bar
# The parts of a round of all envs, in their order, and what each is.
PARTS = {
    "send": "commands to the workers",
    "wake": "until the workers begin, on average",
    "step": "their envs, on average",
    "slowest": "until the last of them is done",
    "notice": "until the program goes on",
    "read": "results",
    "program": "the policy, the learner and all else",
}


def of_kinds(slices: npt.NDArray[Any], *kinds: int) -> npt.NDArray[Any]:
    """Return slices of some kinds, in the order in which they began."""
    found = slices[np.isin(slices["kind"], kinds)]
    in_order: npt.NDArray[Any] = found[np.argsort(found["begin"], kind="stable")]
    return in_order


def idle(worker: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return slices in which a worker waited for a command."""
    return _gaps(of_kinds(worker, _KIND.COMMAND, _KIND.JOB), IDLE)


def of_program(parent: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return slices of what the program did before it sent commands, or took records."""
    own = of_kinds(parent, _KIND.SEND, _KIND.WAIT, _KIND.READ, _KIND.RECORDS)
    found = _gaps(own, PROGRAM)
    next_kind = own["kind"][np.searchsorted(own["begin"], found["end"])]
    before_send: npt.NDArray[Any] = found[np.isin(next_kind, [_KIND.SEND, _KIND.RECORDS])]
    return before_send


def _gaps(slices: npt.NDArray[Any], kind: int) -> npt.NDArray[Any]:
    """Return slices of a kind between those that follow one another.

    They end 1 ns before the next begins, and begin 1 ns later, so that no two times are the same.
    """
    # What one is within ends before that does.
    ends, begins = np.maximum.accumulate(slices["end"])[:-1], slices["begin"][1:]
    long = begins - ends > _SHORT
    found = np.zeros(int(long.sum()), SLICE)
    found["begin"], found["end"], found["kind"] = ends[long] + 1, begins[long] - 1, kind
    return found


def flows_of(
    parent: npt.NDArray[Any], workers: Sequence[npt.NDArray[Any]]
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return, for each worker's commands, which slice sent each, and which read its results.

    Args:
        parent: The slices of the parent, in the order in which they began, with ``of_program``.
        workers: The commands and jobs of each worker.

    Returns:
        Indexes of ``parent``; -1 where it is not known.
    """
    sends, waits, reads = (
        np.flatnonzero(np.isin(parent["kind"], kinds))
        for kinds in ([_KIND.SEND], [_KIND.WAIT], [_KIND.READ, PROGRAM])
    )
    wait_ends = parent["end"][waits]
    found = []
    for commands in workers:
        sent_by = np.searchsorted(parent["begin"][sends], commands["begin"], "right") - 1
        sender = np.where(sent_by >= 0, _at(sends, sent_by), -1)
        wait = np.searchsorted(wait_ends, commands["end"])
        read_from = _at(wait_ends, wait, otherwise=np.iinfo(np.int64).max)
        reader = _at(reads, np.searchsorted(parent["begin"][reads], read_from), otherwise=-1)
        found.append((sender, reader))
    return found


def _at(
    values: npt.NDArray[np.int64], at: npt.NDArray[np.int64], otherwise: int = -1
) -> npt.NDArray[np.int64]:
    """Return ``values[at]``, or something else where there is no such value."""
    known = (at >= 0) & (at < len(values))
    found = np.full(len(at), otherwise, np.int64)
    found[known] = values[at[known]]
    return found


def rounds_of(
    parent: npt.NDArray[Any], workers: Sequence[npt.NDArray[Any]]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return how long each part of each round of all envs took, in ns.

    A round is from one send to the next; one in which a worker had nothing to do, or was not
    awaited, is left out.

    Args:
        parent: The slices of the parent.
        workers: Those of each worker.

    Returns:
        The durations by the names in ``PARTS``.
    """
    sends = of_kinds(parent, _KIND.SEND)
    begins = sends["begin"]
    count = max(0, len(sends) - 1)

    def spans(slices: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first beginning and the last end in each round."""
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.zeros(count, np.int64)
        at = np.searchsorted(begins, slices["begin"], "right") - 1
        inside = (at >= 0) & (at < count)
        np.minimum.at(first, at[inside], slices["begin"][inside])
        np.maximum.at(last, at[inside], slices["end"][inside])
        return first, last

    own = of_kinds(parent, _KIND.STEP, _KIND.RESET)  # of the main process's envs, if it has some
    at_work = [of_kinds(one, _KIND.COMMAND, _KIND.JOB) for one in workers] + [own] * bool(len(own))
    both = [spans(one) for one in at_work]
    first, last = (np.array([one[i] for one in both]) for i in (0, 1))
    waited = spans(of_kinds(parent, _KIND.WAIT))[1]
    read = np.maximum(waited, spans(of_kinds(parent, _KIND.READ))[1])
    whole = (last > 0).all(axis=0) & (last <= waited).all(axis=0)
    first, last, waited, read = first[:, whole], last[:, whole], waited[whole], read[whole]
    sent_at, sent = (sends[what][:-1][whole] for what in ("begin", "end"))
    if not whole.any():
        return {part: np.empty(0, np.int64) for part in PARTS}
    begun, done = (one.mean(axis=0).astype(np.int64) for one in (first, last))
    sent = np.minimum(sent, begun)  # the first worker may begin before the last is sent anything
    slowest = last.max(axis=0)
    marks = sent_at, sent, begun, done, slowest, waited, read, begins[1:][whole]
    return {part: marks[i + 1] - marks[i] for i, part in enumerate(PARTS)}


def means_of(rounds: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, float]:
    """Return how long each part of a round takes on average, in seconds; empty without rounds."""
    return {part: float(ns.mean()) / 1e9 for part, ns in rounds.items() if len(ns)}


def shown(means: Mapping[str, float]) -> list[str]:
    """Return the parts of a round as lines, each with a bar."""
    whole = sum(means.values())
    return [
        f"  {part:<8}{mean / whole:>6.1%} {with_unit(mean):>9}  {PARTS[part]:<37} "
        + bar(mean / whole, _CELLS)
        for part, mean in means.items()
    ]
