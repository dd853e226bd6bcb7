"""SharedState: notes what the envs of a process change that all of them see.

It looks at states between the calls of a run, so a change that a call undoes is not noted.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import sys
import types
from collections import deque
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from pysampler._common.torch import loaded_torch
from pysampler._vector.env_calls import layers_of
from pysampler._vector.isolation.verdict import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["LIBRARIES", "SharedState", "namespaces_of", "package_of"]

_DEPTH = 3  # of containers that are looked into
_MOST = 1000  # elements of a container that are compared
_MOST_BYTES = 1 << 20  # of an array that are compared
# Packages whose attributes are not looked at: they have many, which change for good reasons.
LIBRARIES = {*sys.stdlib_module_names, "cloudpickle", "gymnasium", "numpy", "pysampler", "torch"}
_VALUES = bool, int, float, complex, str, bytes, bytearray, type(None), np.generic, itertools.count
_SENTENCES = {
    "generators": "the env uses global random generators: {}",
    "directory": "the env changes the {}",
    "environment": "the env changes environment variables: {}",
    "attributes": "the env changes attributes of modules or classes: {}",
    "captured": "the env changes objects that env_fns capture, one for all envs: {}. Create them "
    "inside of env_fns",
}


class SharedState:
    """What the envs of this process share, and which of it they change.

    Args:
        env_fns: The function that makes the env, and those that make its siblings. The objects that
            they capture are looked at, and the global variables of the first.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]]) -> None:
        by_function = [{id(value): (name, value) for name, value in _captured(f)} for f in env_fns]
        of_others = {address for found in by_function[1:] for address in found}
        self._captured = [one for key, one in by_function[0].items() if key in of_others]
        # By address: a function that was pickled by value has a copy of its module's variables.
        self._namespaces = {id(found): (name, found) for name, found in _of_function(env_fns[0])}
        self._packages = {package_of(name) for name, _ in self._namespaces.values()} - LIBRARIES
        self._classes: dict[int, tuple[str, type]] = {}
        self._changed: dict[str, dict[str, None]] = {}  # names, by what they are
        self._before = self._all()
        self._modules = set(sys.modules)

    def look(self, env: Any = None) -> None:
        """Note what has changed since the last look; from now on, look at this env's classes."""
        after = self._all()
        modules = set(sys.modules)
        imported, self._modules = modules - self._modules, modules
        for kind, states in after.items():
            if imported and kind in ("generators", "environment"):
                continue  # imports change them, but only once in a process
            before = self._before[kind]
            for name in {**states, **before} if kind == "environment" else states:
                # Attributes of modules that were imported since are new, others are not.
                addressed = isinstance(name, tuple)
                if states.get(name) != before.get(name, states.get(name) if addressed else None):
                    self._changed.setdefault(kind, {})[name[1] if addressed else name] = None
        self._before = after
        if env is not None:
            self._add_classes_of(env)
            self._before["attributes"] = self._attributes()

    def causes(self) -> list[tuple[str, str]]:
        """Return what the envs changed: its kind, and a sentence."""
        return [
            (kind, text.format(listed(list(self._changed[kind]))))
            for kind, text in _SENTENCES.items()
            if kind in self._changed
        ]

    # -- states ----------------------------------------------------------------------------------

    def _all(self) -> dict[str, dict[Any, Any]]:
        """Return all states by kind and name."""
        directory = ""
        with contextlib.suppress(OSError):
            directory = os.getcwd()  # noqa: PTH109
        return {
            "generators": _generators(),
            "directory": {"working directory": directory},
            "environment": dict(os.environ),
            "attributes": self._attributes(),
            "captured": self._captured_states(),
        }

    def _captured_states(self) -> dict[tuple[int, str], Any]:
        states: dict[tuple[int, str], Any] = {}
        for name, value in self._captured:
            with contextlib.suppress(Exception):  # of a proxy, see below
                states[id(value), name] = self._state(value)
        return states

    def _attributes(self) -> dict[tuple[int, str], Any]:
        """Return a state for each attribute of the env's modules and classes.

        The keys are the address of the module's variables or of the class, and the name.
        """
        spaces = dict(self._namespaces)
        for name, module in list(sys.modules.items()):
            if package_of(name) in self._packages and isinstance(module, types.ModuleType):
                spaces[id(vars(module))] = name, vars(module)
        classes = {address: (path, vars(one)) for address, (path, one) in self._classes.items()}
        states: dict[tuple[int, str], Any] = {}
        for address, (path, attributes) in {**spaces, **classes}.items():
            for name, value in list(attributes.items()):
                # A proxy of another object may raise whatever it is asked for.
                with contextlib.suppress(Exception):
                    if isinstance(value, (types.ModuleType, types.FunctionType, type)):
                        continue
                    if not name.startswith(("__", "_abc_")) and not callable(value):
                        states[address, f"{path}.{name}"] = self._state(value)
        return states

    def _state(self, value: Any, depth: int = 0) -> Any:
        """Return an object that compares unequal once the value has changed."""
        if isinstance(value, _VALUES):
            return type(value), repr(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return value.dtype, value.shape, value.nbytes <= _MOST_BYTES and hash(value.tobytes())
        if isinstance(value, np.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, np.random.RandomState):
            return repr(value.get_state())
        if isinstance(value, random.Random):
            return value.getstate()
        if depth < _DEPTH:
            if isinstance(value, (list, tuple, deque, set, frozenset, dict)):
                if len(value) > _MOST:
                    return len(value)
                parts = [*value, *value.values()] if isinstance(value, dict) else list(value)
                return type(value), [self._state(part, depth + 1) for part in parts]
            if package_of(type(value).__module__) in self._packages and hasattr(value, "__dict__"):
                return id(value), self._state(vars(value), depth + 1)
        return id(value)

    def _add_classes_of(self, env: Any) -> None:
        for layer in _all_layers_of(env):
            for one in type(layer).__mro__:
                if (package := package_of(one.__module__)) not in LIBRARIES:
                    self._packages.add(package)
                if one.__module__.partition(".")[0] != "builtins":
                    self._classes[id(one)] = f"{one.__module__}.{one.__qualname__}", one
        self._namespaces.update((id(found), (name, found)) for name, found in namespaces_of(env))


def _captured(function: Any, depth: int = 9) -> Iterator[tuple[str, Any]]:
    """Yield the objects that a function refers to, except by global variables: name and object.

    Functions that these refer to count too, down to a depth: they may refer to each other.
    """
    given: list[tuple[str, Any]] = []
    if isinstance(function, functools.partial):
        given = [(type(function.func).__name__, function.func), *function.keywords.items()]
        given += [(f"argument {i}", value) for i, value in enumerate(function.args, 1)]
    elif isinstance(function, types.MethodType):
        given = [(type(function.__self__).__name__, function.__self__)]
    elif isinstance(function, types.FunctionType):
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # it is empty
                given.append((name, cell.cell_contents))
        defaults = function.__defaults__ or ()
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        given += zip(names[len(names) - len(defaults) :], defaults, strict=True)
    elif not isinstance(function, type):
        given = [(type(function).__name__, function)]
    for name, value in given:
        if issubclass(type(value), (functools.partial, types.FunctionType, types.MethodType)):
            yield from _captured(value, depth - 1) if depth > 0 else ()
        elif not issubclass(type(value), (types.ModuleType, type)):
            yield name, value


def package_of(module: str) -> str:
    """Return the name of the package that a module belongs to."""
    return module.partition(".")[0]


def _generators() -> dict[str, Any]:
    numpys: dict[str, Any] = np.random.get_state(legacy=False)["state"]
    states = {"random": random.getstate(), "np.random": (numpys["key"].tobytes(), numpys["pos"])}
    if (torch := loaded_torch()) is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _of_function(function: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the global variables of a function, with the name of its module."""
    function = getattr(function, "func", function)  # of a partial
    found = getattr(function, "__globals__", None)
    if isinstance(found, dict):
        name = found.get("__name__") or getattr(function, "__module__", "") or ""
        if package_of(name) not in LIBRARIES:
            yield name, found


def _all_layers_of(env: Any) -> Iterator[Any]:
    """Yield the layers of an env, and those of the envs in it if it is a vector env."""
    for layer in layers_of(env):
        yield layer
    inner = getattr(layer, "envs", ())
    for one in inner if isinstance(inner, (list, tuple)) else ():
        if isinstance(one, gym.Env):
            yield from _all_layers_of(one)


def namespaces_of(env: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the global variables of functions of an env and of its wrappers, such as methods.

    Each comes with the name of its module, and may come several times.
    """
    for layer in _all_layers_of(env):
        for one in (layer, *type(layer).__mro__):
            for function in list(getattr(one, "__dict__", {}).values()):
                yield from _of_function(function)
