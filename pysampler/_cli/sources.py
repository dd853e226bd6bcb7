"""Sources of the envs to measure: an id, or a function of a module or a file."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym

import pysampler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CHECKED", "Call", "EnvSource", "SourceError", "line_of", "named", "source_of"]

CHECKED = 3  # envs of a check whether they may share a process


class SourceError(Exception):
    """Why there are no envs to measure, in one line."""


_UNKNOWN = gym.error.NamespaceNotFound, gym.error.NameNotFound
_MODULES = {"ALE": "ale_py"}  # the modules that register namespaces
_MODE = "vectorization_mode"  # the option that is an argument of make_vec, not of VectorEnv


class Call(NamedTuple):
    """The call by which a program makes a vector env.

    Attributes:
        text: The call up to its options; "{}" stands for the number of envs.
        imported: The imports that the call needs.
    """

    text: str
    imported: str = "import pysampler"

    def written(self, envs: int, options: Mapping[str, str]) -> str:
        """Return the call with its options, whose values are source code."""
        arguments = [f"{name}={text}" for name, text in options.items()]
        return ", ".join([self.text.format(envs), *arguments]) + ")"


class EnvSource(NamedTuple):
    """Makes the envs to measure, alone or as a vector env.

    Attributes:
        call: The call by which a program makes a vector env of them.
        function: Makes one env.
        id: The id of the envs, with its module if it has one; None if only the function makes them.
    """

    call: Call
    function: Callable[[], Any]
    id: str | None = None

    @property
    def has_vector_class(self) -> bool:
        """Whether a vector env class is registered for the id of the envs."""
        spec = gym.registry.get((self.id or "").rpartition(":")[2])
        return getattr(spec, "vector_entry_point", None) is not None

    def vector_env(self, count: int, **options: Any) -> Any:
        """Make a vector env, as a program would."""
        if self.id is None:
            return pysampler.VectorEnv([self.function] * count, **options)
        mode = options.pop(_MODE, None)
        return pysampler.make_vec(self.id, count, mode, vector_kwargs=options)


def source_of(text: str) -> EnvSource:
    """Return the source that an argument of the command names, or raise SourceError.

    Args:
        text: "CartPole-v1", "module:Id-v0", "package.module:function" or "file.py:function".
    """
    if text.endswith(".py"):
        raise SourceError(_without_function(Path(text)))
    place, _, name = text.rpartition(":")
    if (found := _named(place, name)) is not None:
        return _of_function(found, place, name)
    try:
        if place:
            importlib.import_module(place)
        gym.spec(name)
    except Exception as error:
        why = line_of(error)
        if not name:
            why = f"got {text!r}, expected an id, module:function or file.py:function"
        elif place and name.isidentifier():
            why = f"{place} has no function or env {name}"
        elif not place and isinstance(error, _UNKNOWN):
            registers = _MODULES.get(name.partition("/")[0], "MODULE")
            why += f" To import the module that registers it, pass {registers}:{name}"
        raise SourceError(why) from error
    call = Call(f"pysampler.make_vec({json.dumps(text)}, num_envs={{}}")
    return EnvSource(call, functools.partial(gym.make, text), id=text)


def _without_function(path: Path) -> str:
    """Return what to pass instead of a file alone: its function that makes an env."""
    if not path.is_file():
        return f"file not found: {path}"
    try:
        nodes = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:
        return f"cannot read {path}: {line_of(error)}"
    functions = [
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("test")
        and len(node.args.posonlyargs + node.args.args) == len(node.args.defaults)
        and None not in node.args.kw_defaults
    ]
    functions.sort(key=lambda name: (name != "make_env", "make" not in name, "env" not in name))
    if functions:
        return f"name the function of {path} that makes one env, as in {path}:{functions[0]}"
    return (
        f"{path} has no function without arguments; write one that makes one env, and pass "
        f"{path}:FUNCTION"
    )


def _imported_file(path: str) -> Any:
    """Import a file as Python imports a module beside a program; or raise SourceError."""
    file = Path(path).resolve()
    if not file.is_file():
        raise SourceError(f"file not found: {path}")
    if (known := sys.modules.get(file.stem)) is not None:
        if Path(getattr(known, "__file__", None) or "").resolve() == file:
            return known
        raise SourceError(f"{path} has the name of an imported module; rename the file")
    sys.path.insert(0, str(file.parent))
    try:
        return importlib.import_module(file.stem)
    except Exception as error:
        raise SourceError(f"cannot import {path}: {line_of(error)}") from error


def named(text: str) -> Any:
    """Return the object that "module:name" or "file.py:name" names, or raise SourceError."""
    place, _, name = text.rpartition(":")
    found = _named(place, name)
    if found is None:
        raise SourceError(f"got {text!r}, expected module:name or file.py:name")
    return found


def _named(place: str, name: str) -> Any:
    """Return an object of a module or file; None if ``place`` is neither or lacks it."""
    if place.endswith(".py"):
        module = _imported_file(place)
        if not hasattr(module, name):
            raise SourceError(f"{place} has no function {name}")
        return getattr(module, name)
    if place:
        sys.path.insert(0, str(Path.cwd()))  # where python -m finds modules too
    if not (place and name.isidentifier()):
        return None
    try:
        return getattr(importlib.import_module(place), name, None)
    except Exception as error:
        raise SourceError(f"cannot import {place}: {line_of(error)}") from error


def _of_function(function: Any, place: str, name: str) -> EnvSource:
    if not callable(function):
        raise SourceError(f"{place} has no function {name}")
    module = Path(place).stem if place.endswith(".py") else place
    imported = "import pysampler"
    if all(part.isidentifier() for part in module.split(".")):
        imported += f"\nfrom {module} import {name}"
    return EnvSource(Call(f"pysampler.VectorEnv([{name}] * {{}}", imported), function)


def line_of(error: BaseException, longest: int | None = None) -> str:
    """Return an error as one line, with at most ``longest`` characters of its text."""
    kind = "" if isinstance(error, SourceError) else type(error).__name__
    return ": ".join(filter(None, [kind, " ".join(str(error).split())[:longest]]))
