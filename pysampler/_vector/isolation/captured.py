"""Objects that functions capture, of which a process has one for all envs that they make."""

from __future__ import annotations

import dis
import functools
import itertools
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    # The address of an object or of the cell that refers to it, its name, and the object.
    Captured = tuple[int, str, Any]

__all__ = ["captured_by_all"]


def captured_by_all(
    functions: Sequence[Callable[[], Any]], *, globals_too: bool = False
) -> list[Captured]:
    """Return what the first function captures and another one captures too.

    Args:
        functions: Two or more functions.
        globals_too: Whether to return global variables that the functions use as well.
    """
    first, *others = (
        [*_captured(function, set()), *(_globals_of(function) if globals_too else ())]
        for function in functions
    )
    of_others = {address for found in others for address, _, _ in found}
    return [one for one in first if one[0] in of_others]


def _captured(function: Any, seen: set[int]) -> Iterator[Captured]:
    """Yield the objects that a function, or a class by its methods, refers to except by globals."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, type):
        for method in vars(function).values():
            if isinstance(method, types.FunctionType):
                yield from _captured(method, seen)
    elif isinstance(function, functools.partial):
        yield from _captured(function.func, seen)
        for number, value in enumerate(function.args, 1):
            yield from _value(f"argument {number}", value, seen)
        for name, value in function.keywords.items():
            yield from _value(name, value, seen)
    elif isinstance(function, types.MethodType):
        yield from _value(type(function.__self__).__name__, function.__self__, seen)
        yield from _captured(function.__func__, seen)
    elif isinstance(function, types.FunctionType):
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # it is empty
                continue
            yield from _value(name, value, seen, cell)
        defaults = function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        given = zip(names, defaults, strict=True)
        for name, value in itertools.chain(given, (function.__kwdefaults__ or {}).items()):
            yield from _value(name, value, seen)
    else:
        yield from _value(type(function).__name__, function, seen)


def _globals_of(function: Any) -> Iterator[Captured]:
    """Yield the global variables that a function and the functions that it calls use."""
    left, seen = [function], set()
    while left:
        function = left.pop()
        if id(function) in seen or not isinstance(function, types.FunctionType):
            continue
        seen.add(id(function))
        # The names in `co_names` are those of attributes as well.
        code = dis.get_instructions(function.__code__)
        for name in dict.fromkeys(one.argval for one in code if one.opname == "LOAD_GLOBAL"):
            value = function.__globals__.get(name)
            left.append(value)
            if not issubclass(type(value), (type, types.ModuleType, types.FunctionType)):
                yield id(value), name, value


def _value(
    name: str, value: Any, seen: set[int], cell: types.CellType | None = None
) -> Iterator[Captured]:
    kind = type(value)  # a proxy of another object may raise if it is asked for its class
    if issubclass(kind, (type, functools.partial, types.MethodType, types.FunctionType)):
        yield from _captured(value, seen)
    elif not issubclass(kind, types.ModuleType):
        yield id(value), name, value
        if cell is not None:
            yield id(cell), name, value
