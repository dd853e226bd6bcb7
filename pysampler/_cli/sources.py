"""What makes the envs to measure: an id, a function of a module or of a file, or a script's own."""

from __future__ import annotations

import functools
import importlib
import json
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import gymnasium as gym

import pysampler
from pysampler._vector.make import EnvMaker
from pysampler._vector.registry import register, registered
from pysampler._workers.remote import dumps_by_value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EnvSource", "SourceError", "from_calls", "load", "save", "source_of"]


class SourceError(Exception):
    """Says in one line why there are no envs to measure."""


@dataclass(frozen=True)
class EnvSource:
    """Says what makes the envs to measure, alone or as a vector env.

    Attributes:
        call: How a vector env of these envs is made in a program, without its options.
        keyword: Whether options are in ``vector_kwargs`` there, as of ``make_vec``.
        function: Makes one env; None if envs are different.
        functions: The function of each env then.
        count: How many envs a program makes.
        made_by: The arguments of ``make_vec`` if that makes the envs: id, wrappers, arguments of
            the env.
        options: Arguments of ``VectorEnv`` that stay as a program has them.
    """

    call: str
    keyword: bool
    function: Callable[[], Any] | None = None
    functions: Sequence[Callable[[], Any]] = ()
    count: int | None = None
    made_by: tuple[Any, Any, dict[str, Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def env_fns(self, count: int) -> list[Callable[[], Any]]:
        """Return a function for each env."""
        return list(self.functions) or [self.function] * count  # type: ignore[list-item]

    def vector_env(self, count: int, **options: Any) -> pysampler.VectorEnv:
        """Make a vector env, as a program would."""
        if self.made_by is not None:
            name, wrappers, kwargs = self.made_by
            envs: pysampler.VectorEnv = pysampler.make_vec(
                name, count, vector_kwargs=options, wrappers=wrappers, **kwargs
            )
            return envs
        options.pop("native", None)
        return pysampler.VectorEnv(self.env_fns(count), **options)


def source_of(text: str) -> EnvSource:
    """Return what an argument of the command names, or raise SourceError.

    Args:
        text: "CartPole-v1", "module:Id-v0", "package.module:function" or "file.py:function".
    """
    place, _, name = text.rpartition(":")
    if not place and name.endswith(".py"):
        raise SourceError(f"{text} does not say which function makes an env: {text}:FUNCTION")
    if place.endswith(".py"):
        return _of_function(_imported_file(place), place, name)
    if place and name.isidentifier():
        try:
            module = importlib.import_module(place)
        except Exception as error:
            raise SourceError(f"cannot import {place}: {_line(error)}") from error
        if hasattr(module, name):
            return _of_function(module, place, name)
    call = f"pysampler.make_vec({json.dumps(text)}, num_envs={{}}"
    try:
        if place:
            importlib.import_module(place)
        gym.spec(name)
    except Exception as error:
        if not name or not name.strip(":"):
            raise SourceError("expected an id, module:function or file.py:function") from error
        if place and name.isidentifier():
            raise SourceError(f"{place} has no function {name}, and gymnasium no env") from error
        raise SourceError(_line(error)) from error
    return EnvSource(
        call, keyword=True, function=functools.partial(gym.make, text), made_by=(text, None, {})
    )


def _imported_file(path: str) -> Any:
    """Import a file as Python imports a module beside a program; or raise SourceError."""
    file = Path(path).resolve()
    if not file.is_file():
        raise SourceError(f"there is no file {path}")
    if file.stem in sys.modules:
        raise SourceError(f"{path} has the name of a module that is imported already")
    sys.path.insert(0, str(file.parent))
    try:
        return importlib.import_module(file.stem)
    except Exception as error:
        raise SourceError(f"cannot import {path}: {_line(error)}") from error


def _of_function(module: Any, place: str, name: str) -> EnvSource:
    function = getattr(module, name, None)
    if not callable(function):
        raise SourceError(f"{place} has no function {name}")
    return EnvSource(f"pysampler.VectorEnv([{name}] * {{}}", keyword=False, function=function)


def from_calls(functions: Sequence[Callable[[], Any]], options: dict[str, Any]) -> EnvSource:
    """Return what makes the envs of a vector env that a program makes.

    Args:
        functions: One for each env.
        options: Arguments of ``VectorEnv`` that stay as they are.
    """
    first, count = functions[0], len(functions)
    if any(function is not first for function in functions):
        call = "pysampler.VectorEnv(env_fns"
        return EnvSource(call, keyword=False, functions=functions, count=count, options=options)
    spec = first.kwargs.get("id") if isinstance(first, EnvMaker) else None
    if spec is None:
        call = "pysampler.VectorEnv(env_fns"
        return EnvSource(call, keyword=False, function=first, count=count, options=options)
    assert isinstance(first, EnvMaker)
    kwargs = {name: value for name, value in first.kwargs.items() if name != "id"}
    more = "".join(f", {name}={value!r}" for name, value in kwargs.items())
    if first.wrappers:
        more += ", wrappers=[...]"
    return EnvSource(
        f"pysampler.make_vec({json.dumps(spec.id)}, num_envs={{}}{_escaped(more)}",
        keyword=True,
        function=first,
        count=count,
        made_by=(spec, first.wrappers, kwargs),
        options=options,
    )


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _line(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def save(path: Path, source: EnvSource) -> None:
    """Write what makes the envs to a file, for other processes."""
    places = [place for place in sys.path if isinstance(place, str)]
    path.write_bytes(pickle.dumps((places, registered(), dumps_by_value(source))))


def load(path: Path) -> EnvSource:
    """Read what ``save`` has written."""
    places, specs, pickled = pickle.loads(path.read_bytes())
    sys.path[:] = places  # first: what the functions import is found there
    if specs:
        register(specs)
    source: EnvSource = cloudpickle.loads(pickled)
    return source
