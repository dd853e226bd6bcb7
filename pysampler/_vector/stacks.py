"""Reports how envs are stepped: each wrapper natively, on a batch or in Python, and why."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pysampler._vector.native.known import has_task, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "Stack",
    "StackPart",
    "described",
    "log_once",
    "might_be_native",
    "parts_of",
    "why_not_native",
]

How = Literal["native", "on the batch", "in one call", "in Python"]
_log = logging.getLogger("pysampler")
_logged: set[str] = set()


class StackPart(NamedTuple):
    """A wrapper of an env, or the env itself.

    Attributes:
        name: The name of its class, or the env's id.
        how: How it is stepped, see ``How``.
        why: Why it is stepped in Python; "" otherwise.
        has_task: Whether it is an env that may be native.
    """

    name: str
    how: How
    why: str = ""
    has_task: bool = False


# The wrappers of an env, the outermost first, and the env.
Stack = tuple[StackPart, ...]


def parts_of(env: Any, how: How, why: str = "") -> list[StackPart]:
    """Return the parts of an env, all stepped in one way."""
    parts = []
    while env is not env.unwrapped:
        parts.append(StackPart(type(env).__name__, how))
        env = env.env
    return [*parts, StackPart(name_of(env), how, why, has_task(env))]


def why_not_native(stacks: Sequence[Stack]) -> str | None:
    """Return a reason why some envs are not native; None if all are."""
    for stack in stacks:
        if stack[-1].how != "native":
            kind = "a vector env" if stack[-1].how == "in one call" else "an ordinary env"
            return next((part.why for part in stack if part.why), f"it is {kind}")
    return None


def might_be_native(stacks: Sequence[Stack]) -> bool:
    """Return whether some envs are gymnasium's MuJoCo envs, but are not native."""
    return any(stack[-1].how != "native" and stack[-1].has_task for stack in stacks)


def log_once(message: str) -> None:
    """Log a warning, but only once in this process."""
    if message not in _logged:
        _logged.add(message)
        _log.warning("pysampler: %s", message)


def described(stacks: Sequence[Stack]) -> str:
    """Return a table for each run of envs with equal stacks."""
    tables = []
    for envs, stack in _runs(stacks):
        where = f"env {envs.start}" if len(envs) == 1 else f"envs {envs.start} to {envs.stop - 1}"
        wide = max(len(part.name) for part in stack)
        lines = [
            f"  {part.name:<{wide}}  {part.how}{f': {part.why}' if part.why else ''}"
            for part in stack
        ]
        tables.append("\n".join([f"{where}:", *lines]))
    return "\n".join(tables)


def _runs(stacks: Sequence[Stack]) -> Iterator[tuple[range, Stack]]:
    begin = 0
    for end in range(1, len(stacks) + 1):
        if end == len(stacks) or stacks[end] != stacks[begin]:
            yield range(begin, end), stacks[begin]
            begin = end
