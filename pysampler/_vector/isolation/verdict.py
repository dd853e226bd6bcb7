"""Isolation: whether envs may share a process or step in threads, judged by runs of a check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pysampler._vector.isolation.members import RunResult

__all__ = ["Isolation", "judged", "listed"]

_NAMED = 5  # names in a sentence
# Kinds of state that belong to the whole program, which an env in a thread must leave alone.
_OF_THE_PROGRAM = {"generators", "directory", "environment", "module"}
# By kind of state, what helps envs in one process.
_ADVICE = {"generators": ". seed_globals=True gives each env its own, with the seed of its reset"}
_UNEXPLAINED = (
    "no change of modules or global generators explains it: look for files that envs share, for "
    "objects that env_fns refer to, and for state in a library of the env, such as a renderer"
)


@dataclass(frozen=True)
class Isolation:
    """Whether envs may share a process, or step in threads of it; print it for the reasons.

    Attributes:
        name: The name of the env.
        isolated: True if an env gave the same results beside others as alone, False if not. None if
            it is not deterministic alone, so that the check cannot tell. With threads, False also
            if envs change what belongs to the whole program, and None if they change other state
            that threads share, since equal results may be luck then.
        reasons: The first difference, then shared state that may explain it.
        steps: The number of steps that were compared.
        ignored: Infos that differ between two runs of the env alone, such as times, and objects
            that do not pickle. They were not compared.
        remedy: The option of ``VectorEnv`` that helps: "seed_globals=True" if global random
            generators are all that the envs share, "isolate=True" otherwise. Instead of threads,
            "context='forkserver'", followed by one of these unless all results were equal. "" if
            ``isolated``.
        threads: Whether the envs were stepped in threads.
    """

    name: str
    isolated: bool | None
    reasons: tuple[str, ...] = ()
    steps: int = 0
    ignored: tuple[str, ...] = ()
    remedy: str = ""
    threads: bool = False

    @property
    def verdict(self) -> str:
        """Whether the envs may share a process, as a sentence without its end."""
        act = "step in threads" if self.threads else "share a process"
        if self.isolated:
            return (
                f"envs of {self.name} may {act}: {self.steps} steps beside others gave the same "
                "results as alone"
            )
        text = f"envs of {self.name} must not {act}"
        if self.isolated is None:
            text = f"the check cannot tell whether envs of {self.name} may {act}"
        return f"{text} ({self.steps} steps compared)"

    def __str__(self) -> str:
        """Return the verdict and the reasons, in lines."""
        lines = [self.verdict + ":" * bool(self.reasons)]
        lines += [f"- {reason}" for reason in self.reasons]
        if self.ignored:
            lines.append(
                f"not compared, since they differ alone or do not pickle: {listed(self.ignored)}"
            )
        return "\n".join(lines)


def judged(
    alone: RunResult, again: RunResult, beside: RunResult | str, *, threads: bool
) -> Isolation:
    """Return the verdict of a check.

    Args:
        alone: The run of the env alone.
        again: The second run alone.
        beside: The run beside siblings; text: why it has not ended.
        threads: Whether the envs of that run were in threads.
    """
    where = f"beside others{' in threads' * threads}"
    shared, equal = set[str](), False
    if isinstance(beside, str):
        found = _found(alone, f"{where}, {beside}", isolated=False)
    else:
        shared = {kind for kind, _ in beside.causes}
        causes = [text + _ADVICE.get(kind, "") * (not threads) for kind, text in beside.causes]
        found = _compared(alone, again, beside, where, causes)
        equal = found.isolated is True
        if threads and equal and shared:
            of_program = shared & _OF_THE_PROGRAM
            found = replace(found, isolated=False if of_program else None, reasons=tuple(causes))
    remedy = "seed_globals=True" if shared == {"generators"} else "isolate=True"
    if threads:
        remedy = "context='forkserver'" + f", {remedy}" * (not equal)
    return replace(found, remedy="" if found.isolated else remedy, threads=threads)


def _found(
    alone: RunResult, *reasons: str, isolated: bool | None, ignored: Sequence[str] = ()
) -> Isolation:
    return Isolation(alone.name, isolated, reasons, alone.steps, tuple(ignored))


def _compared(
    alone: RunResult, again: RunResult, beside: RunResult, where: str, causes: Sequence[str]
) -> Isolation:
    if beside.failed is not None:
        doing, raised = beside.failed
        text = f"{where}, an env raised {raised.kind} {doing}: {raised.text}"
        return _found(alone, text, *causes, isolated=False)
    if again.failed is not None:
        doing, raised = again.failed
        text = f"it is not deterministic: run again alone, it raised {raised.kind} {doing}"
        return _found(alone, f"{text}: {raised.text}", isolated=None)
    unsteady = list(_differences(alone, again))
    opaque = {path for _, values in alone.records for path, one in values.items() if one.opaque}
    ignored = sorted(opaque | {path for _, path, _ in unsteady if path.startswith("infos")})
    if different := [one for one in unsteady if one[1] not in ignored]:
        text = _described(different[0], "it is not deterministic: run again alone")
        return _found(alone, text, isolated=None)
    different = [one for one in _differences(alone, beside) if one[1] not in ignored]
    if not different:
        return _found(alone, isolated=True, ignored=ignored)
    reasons = _described(different[0], where), *(causes or [_UNEXPLAINED])
    return _found(alone, *reasons, isolated=False, ignored=ignored)


# A call, the path of a result of it that differs, and the two values, if they are short.
_Difference = tuple[str, str, str]


def _differences(one: RunResult, other: RunResult) -> Iterator[_Difference]:
    """Yield the differences between two runs."""
    for (call, ours), (other_call, theirs) in zip(one.records, other.records, strict=False):
        if call != other_call:
            yield other_call, "ends of episodes", ""
            return
        if ours == theirs:
            continue
        for path in [*ours, *(path for path in theirs if path not in ours)]:
            a, b = ours.get(path), theirs.get(path)
            if a != b:
                yield call, path, f"{b.text}, not {a.text}" if a and b and a.text and b.text else ""


def _described(different: _Difference, where: str) -> str:
    """Return a sentence on a difference."""
    call, path, values = different
    return f"{where}, {path} of {call} differ" + (f" ({values})" if values else "")


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
