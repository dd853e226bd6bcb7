"""Sources of the envs to measure: an id, a function of a module or a file, or a training script."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import json
import math
import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import VectorizeMode

import pysampler
from pysampler._vector.env_maker import EnvMaker
from pysampler._vector.registry import register, registered
from pysampler._workers.remote import dumps_by_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium.envs.registration import EnvSpec

__all__ = [
    "Call",
    "EnvSource",
    "SourceError",
    "from_calls",
    "load",
    "made_by_class",
    "named",
    "save",
    "source_of",
    "written",
]

_LONG = 200  # characters of an argument
_SB3_MAKE = "from stable_baselines3.common.env_util import make_vec_env"
_SB3 = "from pysampler.adapters.sb3 import VecEnv"


class SourceError(Exception):
    """Why there are no envs to measure, in one line."""


_UNKNOWN = gym.error.NamespaceNotFound, gym.error.NameNotFound
_MODULES = {"ALE": "ale_py"}  # the modules that register namespaces
_MODE = "vectorization_mode"  # the option that is an argument of make_vec, not of VectorEnv


@dataclass(frozen=True)
class Call:
    """The call by which a program makes a vector env.

    Attributes:
        text: The call up to its options; "{}" stands for the number of envs.
        keyword: The argument that takes the options as a dict; empty if they are arguments of the
            call itself.
        imported: The imports that the call needs.
        by_steps: Whether Stable-Baselines3 calls the vector env: only ``step``, not ``send``,
            ``recv`` or samplers.
    """

    text: str
    keyword: str = ""
    imported: str = "import pysampler"
    by_steps: bool = False

    def written(self, envs: int, options: Mapping[str, str]) -> str:
        """Return the call with its options, whose values are source code."""
        own = {_MODE} if self.keyword else options.keys()  # the others go into the dict
        arguments = [f"{name}={text}" for name, text in options.items() if name in own]
        inner = ", ".join(f'"{name}": {text}' for name, text in options.items() if name not in own)
        if inner:
            arguments.append(f"{self.keyword}={{{inner}}}")
        return ", ".join([self.text.format(envs), *arguments]) + ")"


@dataclass(frozen=True)
class EnvSource:
    """Makes the envs to measure, alone or as a vector env.

    Attributes:
        call: The call by which a program makes a vector env of them.
        function: Makes one env; None if the envs differ.
        functions: The function of each env, if they differ.
        count: The number of envs that the program makes.
        made_by: The arguments of ``make_vec`` if it makes the envs: id, wrappers, arguments of the
            env.
        options: Arguments of ``VectorEnv`` that are kept from the program.
        found: Where a script makes its vector env, and of which class.
        as_found: Makes the vector env of a script from the functions of its envs, as the script
            does.
    """

    call: Call
    function: Callable[[], Any] | None = None
    functions: Sequence[Callable[[], Any]] = ()
    count: int | None = None
    made_by: tuple[Any, Any, dict[str, Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    found: tuple[str, str] | None = None
    as_found: Callable[[Sequence[Callable[[], Any]]], Any] | None = None

    def env_fns(self, count: int) -> list[Callable[[], Any]]:
        """Return a function for each env."""
        return list(self.functions) or [self.function] * count  # type: ignore[list-item]

    @property
    def has_vector_class(self) -> bool:
        """Whether a vector env class is registered for the id of the envs."""
        if self.made_by is None or self.made_by[1]:
            return False
        spec = self.made_by[0]
        if isinstance(spec, str):
            spec = gym.registry.get(spec.rpartition(":")[2])
        return getattr(spec, "vector_entry_point", None) is not None

    def vector_env(self, count: int, **options: Any) -> Any:
        """Make a vector env, as a program would; for Stable-Baselines3 one of its own class."""
        if self.call.by_steps:
            from pysampler.adapters.sb3 import VecEnv  # noqa: PLC0415 - an extra

            options.pop("autoreset_mode", None)  # always SAME_STEP there
            return VecEnv(self.env_fns(count), **options)
        if self.made_by is not None:
            name, wrappers, kwargs = self.made_by
            mode = options.pop(_MODE, None)
            return pysampler.make_vec(
                name, count, mode, vector_kwargs=options, wrappers=wrappers, **kwargs
            )
        return pysampler.VectorEnv(self.env_fns(count), **options)


def source_of(text: str) -> EnvSource:
    """Return the source that an argument of the command names, or raise SourceError.

    Args:
        text: "CartPole-v1", "module:Id-v0", "package.module:function" or "file.py:function".
    """
    place, _, name = text.rpartition(":")
    if (found := _named(place, name)) is not None:
        return _of_function(found, place, name)
    try:
        if place:
            importlib.import_module(place)
        gym.spec(name)
    except Exception as error:
        if not name or not name.strip(":"):
            expected = "expected an id, module:function or file.py:function"
            raise SourceError(f"got {text!r}, {expected}") from error
        if place and name.isidentifier():
            raise SourceError(f"{place} has no function or env {name}") from error
        if not place and isinstance(error, _UNKNOWN):
            registers = _MODULES.get(name.partition("/")[0], "MODULE")
            hint = f"To import the module that registers it, pass {registers}:{name}"
            raise SourceError(f"{_line(error)} {hint}") from error
        raise SourceError(_line(error)) from error
    call = _make_vec(f"{json.dumps(text)}, num_envs={{}}")
    return EnvSource(call, function=functools.partial(gym.make, text), made_by=(text, None, {}))


def _make_vec(arguments: str) -> Call:
    return Call(f"pysampler.make_vec({arguments}")


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
        raise SourceError(f"cannot import {path}: {_line(error)}") from error


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
        raise SourceError(f"cannot import {place}: {_line(error)}") from error


def _of_function(function: Any, place: str, name: str) -> EnvSource:
    if not callable(function):
        raise SourceError(f"{place} has no function {name}")
    call = Call(f"pysampler.VectorEnv([{name}] * {{}}")
    module = Path(place).stem if place.endswith(".py") else place
    if all(part.isidentifier() for part in module.split(".")):
        call = dataclasses.replace(call, imported=f"{call.imported}\nfrom {module} import {name}")
    return EnvSource(call, function=function)


def from_calls(
    functions: Sequence[Callable[[], Any]],
    options: dict[str, Any],
    *,
    sb3: bool = False,
    env_id: Any = None,
    made_by: tuple[Any, Any, dict[str, Any]] | None = None,
) -> EnvSource:
    """Return the source of the envs of a program's vector env.

    Args:
        functions: One for each env.
        options: Arguments of ``VectorEnv`` that are kept.
        sb3: Whether it is a VecEnv of Stable-Baselines3, or ``pysampler.adapters.sb3.VecEnv``.
        env_id: The first argument of ``make_vec`` or of Stable-Baselines3's ``make_vec_env``, if
            the program called one.
        made_by: The spec, wrappers and keywords of gymnasium's ``make_vec``, if it was called.
    """
    if not functions:
        raise SourceError("its vector env has 0 envs, expected at least 1")
    first, count = functions[0], len(functions)
    one = first if all(function is first for function in functions) else None
    envs: dict[str, Any] = {"count": count, "options": options, "function": one}
    if one is None:
        envs["functions"] = functions
    if sb3:
        call = Call("VecEnv(env_fns", imported=_SB3, by_steps=True)
        if env_id is not None:
            named = json.dumps(env_id) if isinstance(env_id, str) else _name_of(env_id)
            begun = f"make_vec_env({_escaped(named)}, n_envs={{}}, vec_env_cls=VecEnv"
            imported = f"{_SB3_MAKE}\n{_SB3}"
            call = dataclasses.replace(
                call, text=begun, keyword="vec_env_kwargs", imported=imported
            )
        return EnvSource(call, **envs)
    if isinstance(one, EnvMaker) and one.kwargs.get("id") is not None:
        kwargs = {name: value for name, value in one.kwargs.items() if name != "id"}
        made_by = one.kwargs["id"], one.wrappers, kwargs
    if made_by is None:
        return EnvSource(Call("pysampler.VectorEnv(env_fns"), **envs)
    spec, wrappers, kwargs = made_by
    if isinstance(env_id, str) and ":" in env_id:  # programs must import the module, too
        spec = f"{env_id.rpartition(':')[0]}:{spec.id}"
        made_by = spec, wrappers, kwargs
    more = "".join(f", {name}={written(value)}" for name, value in kwargs.items())
    if wrappers:
        more += ", wrappers=[...]"
    named = json.dumps(spec if isinstance(spec, str) else spec.id)
    call = _make_vec(f"{_escaped(named)}, num_envs={{}}{_escaped(more)}")
    return EnvSource(call, made_by=made_by, **envs)


def made_by_class(
    spec: EnvSpec,
    kwargs: dict[str, Any],
    options: dict[str, Any] | None,
    functions: Sequence[Callable[[], Any]],
) -> Any:
    """Make a vector env of the class that is registered for an env, as a program does.

    Args:
        spec: The spec of the env.
        kwargs: Arguments of the class.
        options: Options of pysampler's vector env; None makes one of the class itself.
        functions: One for each env; only their number matters.
    """
    make_vec: Any = gym.make_vec if options is None else pysampler.make_vec
    mode = VectorizeMode.VECTOR_ENTRY_POINT
    return make_vec(spec, len(functions), mode, vector_kwargs=options, **kwargs)


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "..."


def written(value: Any) -> str:
    """Return an argument as source code; "..." if that is unknown or too long."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    try:
        text = json.dumps(value) if isinstance(value, str) else repr(value)
        ast.literal_eval(text)
    except Exception:  # a __repr__ may raise anything
        return "..."
    return text if len(text) <= _LONG else "..."


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _line(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def save(path: Path, source: EnvSource) -> None:
    """Write a source to a file, for other processes."""
    places = [str(Path(place).absolute()) for place in sys.path if isinstance(place, str)]
    about = places, dict(os.environ), Path.cwd(), registered()
    path.write_bytes(pickle.dumps((about, dumps_by_value(source))))


def load(path: Path) -> EnvSource:
    """Read a source from a file, and set up this process like the one that called ``save``."""
    (places, variables, folder, specs), pickled = pickle.loads(path.read_bytes())
    sys.path[:] = places  # first: the functions import modules from there
    os.environ.update(variables)
    os.chdir(folder)
    if specs:
        register(specs)
    source: EnvSource = cloudpickle.loads(pickled)
    return source
