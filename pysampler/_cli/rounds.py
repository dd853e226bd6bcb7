"""Links between the slices of a trace: each command with its send and with the read of its results.

Also divides the time of a round of all envs into parts, for ``trace`` and ``bench``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._cli.recorder import SLICE
from pysampler._cli.screen import bar
from pysampler._workers.counters import with_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    # Periods in which slices may be missing, as (begin, end) in ns, in order.
    Holes = Sequence[tuple[int, int]]

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
PROGRAM = 20  # the kind of slices in which the program neither sends, waits nor reads
IDLE = 21  # the kind of slices in which a worker waits for a command
_SHORT = 1000  # ns; shorter gaps do not become slices
_CELLS = 14  # of a bar
_SLIVER = "▏"  # the shortest bar
# The parts of a round of all envs, in order, and a description of each.
PARTS = {
    "send": "commands to the workers",
    "wake": "until the workers begin, on average",
    "step": "their envs, on average",
    "slowest": "until the last of them is done",
    "notice": "until the program resumes",
    "read": "results",
    "program": "the policy, the learner and all else",
}


def of_kinds(slices: npt.NDArray[Any], *kinds: int) -> npt.NDArray[Any]:
    """Return the slices of some kinds, in the order in which they began."""
    found = slices[np.isin(slices["kind"], kinds)]
    return found[np.argsort(found["begin"], kind="stable")]


def crosses(
    begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], holes: Holes
) -> npt.NDArray[np.bool_]:
    """Return which periods overlap a hole; holes are in order."""
    if not holes:
        return np.zeros(len(begins), bool)
    hole_begins, hole_ends = np.array(holes).T
    after = np.searchsorted(hole_ends, begins, "right")
    return np.append(hole_begins, np.iinfo(np.int64).max)[after] < ends


def idle(worker: npt.NDArray[Any], holes: Holes) -> npt.NDArray[Any]:
    """Return slices for the gaps in which a worker waited for a command."""
    return _gaps(of_kinds(worker, _KIND.COMMAND, _KIND.JOB), IDLE, holes)


def of_program(parent: npt.NDArray[Any], holes: Holes) -> npt.NDArray[Any]:
    """Return slices for the program's own work before it sent commands or took records."""
    own = of_kinds(parent, _KIND.SEND, _KIND.WAIT, _KIND.READ, _KIND.RECORDS)
    found = _gaps(own, PROGRAM, holes)
    next_kind = own["kind"][np.searchsorted(own["begin"], found["end"])]
    return found[np.isin(next_kind, [_KIND.SEND, _KIND.RECORDS])]


def _gaps(slices: npt.NDArray[Any], kind: int, holes: Holes) -> npt.NDArray[Any]:
    """Return slices of a kind for the gaps between slices, except gaps that overlap a hole.

    They begin and end 1 ns away from their neighbours, so that no two times are the same.
    """
    # Slices may be nested: a gap begins when the last of them has ended.
    ends, begins = np.maximum.accumulate(slices["end"])[:-1], slices["begin"][1:]
    known = (begins - ends > _SHORT) & ~crosses(ends, begins, holes)
    found = np.zeros(int(known.sum()), SLICE)
    found["begin"], found["end"], found["kind"] = ends[known] + 1, begins[known] - 1, kind
    return found


def flows_of(
    parent: npt.NDArray[Any],
    marks: npt.NDArray[Any],
    workers: Sequence[npt.NDArray[Any]],
    holes: Holes,
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return, for each worker's commands, the slices that sent them and read their results.

    Args:
        parent: The slices of the parent, in the order in which they began, with ``of_program``.
        marks: When it sent to each group, and when it noticed each completion.
        workers: The commands and jobs of each worker.
        holes: Periods in which slices may be missing.

    Returns:
        Indexes into ``parent``; -1 where unknown.
    """
    sends, waits, reads = (
        np.flatnonzero(np.isin(parent["kind"], kinds))
        for kinds in ([_KIND.SEND], [_KIND.WAIT], [_KIND.READ, PROGRAM])
    )
    wait_ends = np.sort(parent["end"][waits])
    sent, taken = of_kinds(marks, _KIND.SENT), of_kinds(marks, _KIND.TAKEN)
    found = []
    for commands in workers:
        sender = np.full(len(commands), -1)
        reader = np.full(len(commands), -1)
        for group in np.unique(commands["id"]):
            own = np.flatnonzero(commands["id"] == group)
            begins, ends = commands["begin"][own], commands["end"][own]
            moments = sent["begin"][sent["id"] == group]
            sent_at = _at(moments, np.searchsorted(moments, begins, "right") - 1)
            by = _at(sends, np.searchsorted(parent["begin"][sends], sent_at, "right") - 1)
            sender[own] = np.where((sent_at < 0) | crosses(sent_at, begins, holes), -1, by)
            moments = taken["begin"][taken["id"] == group]
            taken_at = _at(moments, np.searchsorted(moments, ends))
            waited = _at(wait_ends, np.searchsorted(wait_ends, taken_at, "right") - 1)
            by = _at(reads, np.searchsorted(parent["begin"][reads], waited))
            unknown = (taken_at < 0) | (waited < ends) | crosses(ends, taken_at, holes)
            reader[own] = np.where(unknown, -1, by)
        found.append((sender, reader))
    return found


def _at(values: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return ``values[at]``, or -1 where ``at`` is out of range."""
    known = (at >= 0) & (at < len(values))
    found = np.full(len(at), -1, np.int64)
    found[known] = values[at[known]]
    return found


def rounds_of(
    parent: npt.NDArray[Any],
    workers: Sequence[npt.NDArray[Any]],
    groups: int,
    holes: Holes = (),
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the duration of each part of each round of all envs, in ns.

    A round lasts from a send to all groups until the next send. Rounds that did not wait for every
    worker, or that overlap a hole, are left out.

    Args:
        parent: The slices of the parent.
        workers: The slices of each worker.
        groups: The number of groups.
        holes: Periods in which slices may be missing.

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

    own = of_kinds(parent, _KIND.STEP, _KIND.RESET)  # if the main process has envs
    at_work = [of_kinds(one, _KIND.COMMAND, _KIND.JOB) for one in workers] + [own] * bool(len(own))
    first, last = np.array([spans(one) for one in at_work]).swapaxes(0, 1)
    waited = spans(of_kinds(parent, _KIND.WAIT))[1]
    read = np.maximum(waited, spans(of_kinds(parent, _KIND.READ))[1])
    whole = (last > 0).all(axis=0) & (last <= waited).all(axis=0)
    whole &= (sends["id"][:-1] == groups) & ~crosses(begins[:-1], begins[1:], holes)
    first, last, waited, read = first[:, whole], last[:, whole], waited[whole], read[whole]
    sent_at, sent = (sends[name][:-1][whole] for name in ("begin", "end"))
    if not whole.any():
        return {part: np.empty(0, np.int64) for part in PARTS}
    begun, done = (one.mean(axis=0).astype(np.int64) for one in (first, last))
    sent = np.minimum(sent, begun)  # the first worker may begin before the last one is sent to
    slowest = last.max(axis=0)
    marks = sent_at, sent, begun, done, slowest, waited, read, begins[1:][whole]
    return {part: marks[i + 1] - marks[i] for i, part in enumerate(PARTS)}


def means_of(rounds: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, float]:
    """Return the mean duration of each part of a round, in seconds; empty without rounds."""
    return {part: float(ns.mean()) / 1e9 for part, ns in rounds.items() if len(ns)}


def shown(means: Mapping[str, float]) -> list[str]:
    """Return the parts of a round as lines, whose bars together make up one whole bar."""
    whole = sum(means.values())
    lines, before = [], 0.0
    for part, mean in means.items():
        head = f"  {part:<8}{mean / whole:>6.1%} {with_unit(mean):>9}  {PARTS[part]:<37} "
        blank = " " * min(int(before / whole * _CELLS), _CELLS - 1)
        lines.append(head + blank + (bar(mean / whole, _CELLS) or _SLIVER))
        before += mean
    return lines
