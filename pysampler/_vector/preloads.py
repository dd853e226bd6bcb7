"""Chooses the modules that the fork server imports for a vector env before it forks the workers.

They are then imported once instead of in each worker, and while this process prepares the workers.
A module of an env is known before an env is made if the function that makes it mentions an id, as
in ``lambda: gym.make("HalfCheetah-v5")``. Only modules of gymnasium and pysampler are foreseen:
they do nothing else during their import.
"""

from __future__ import annotations

import functools
import itertools
import os
import types
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from pysampler._vector.native.known import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeGuard

    T = TypeVar("T")

__all__ = ["modules_of_envs", "modules_of_servers"]

_FORESEEN = "gymnasium.envs.", "pysampler.envs."
# The modules with which workers recognise and step known envs.
_OF_KNOWN: dict[str | None, tuple[str, ...]] = {
    "task": ("pysampler._vector.mujoco.trial", "pysampler.envs.mujoco"),
    "twin": ("pysampler._vector.native.twins", "pysampler.envs.classic"),
}
_FUNCTIONS = 16  # functions to look at, the first ones that differ
_DEPTH = 3  # of functions that refer to others
_SETTERS = {"environ", "putenv"}  # names in functions that may set environment variables


class _SetsEnvironment(Exception):  # noqa: N818 - no error
    """A function may set environment variables, which imports in the worker must find."""


def modules_of_servers(*, in_python: bool) -> list[str]:
    """Return the modules that ``make_server`` imports in workers, by the options of the envs."""
    of_server = [
        "pysampler._vector.env_maker",
        "pysampler._vector.isolation.known",
        "pysampler._vector.jobs",
    ]
    return of_server if in_python else [*of_server, "pysampler._vector.wrapped.server"]


def modules_of_envs(env_fns: Iterable[Callable[[], Any]], *, in_python: bool) -> list[str]:
    """Return the modules of the envs whose ids some functions mention.

    Args:
        env_fns: The functions.
        in_python: Whether the options require that envs are stepped one by one.
    """
    modules: dict[str, None] = {}
    try:
        entry_points = [*_entry_points(env_fns)]
    except Exception:  # _SetsEnvironment, or what the code of a user's object raises
        return []
    for entry_point in entry_points:
        module = entry_point.partition(":")[0]
        # With MUJOCO_GL=egl, MuJoCo opens a device during its import: each worker needs its own.
        if "mujoco" in module and os.environ.get("MUJOCO_GL"):
            continue
        modules[module] = None
        if not in_python:
            modules.update(dict.fromkeys(_OF_KNOWN.get(kind_of(entry_point), ())))
    return [*modules]


def _entry_points(env_fns: Iterable[Callable[[], Any]]) -> Iterator[str]:
    """Yield the names of the functions and classes that make these envs, as far as foreseen."""
    different = {id(env_fn): env_fn for env_fn in env_fns}.values()
    for env_fn in itertools.islice(different, _FUNCTIONS):
        own = getattr(env_fn, "entry_point", None)  # of an EnvMaker
        found = [*_mentioned(own or env_fn, _DEPTH)]
        for entry_point in [own, *found] if own is not None else found:
            if callable(entry_point):
                entry_point = f"{entry_point.__module__}:{getattr(entry_point, '__qualname__', '')}"
            if isinstance(entry_point, str) and entry_point.startswith(_FORESEEN):
                yield entry_point


def _mentioned(value: Any, depth: int) -> Iterator[Any]:
    """Yield the entry points of the envs whose ids or specs a function refers to."""
    spec = gym.registry.get(value) if _is_a(value, str) else value
    if _is_a(spec, EnvSpec):
        yield spec.entry_point
    elif depth > 0:
        for part in _parts(value):
            yield from _mentioned(part, depth - 1)


def _parts(value: Any) -> Sequence[Any]:
    """Return the objects that a function refers to directly."""
    if _is_a(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if _is_a(value, types.CodeType):
        if not _SETTERS.isdisjoint(value.co_names):
            raise _SetsEnvironment
        return value.co_consts
    if not _is_a(value, types.FunctionType):
        return ()
    code, known = value.__code__, value.__globals__
    empty = types.CellType()
    return [
        code,
        *(known[name] for name in code.co_names if name in known),
        *(cell.cell_contents for cell in value.__closure__ or () if cell != empty),
        *(value.__defaults__ or ()),
        *(value.__kwdefaults__ or {}).values(),
    ]


def _is_a(value: Any, kind: type[T]) -> TypeGuard[T]:
    """Do what ``isinstance`` does, which would ask lazily made objects for their ``__class__``."""
    return issubclass(type(value), kind)
