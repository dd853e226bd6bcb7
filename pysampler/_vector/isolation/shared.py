"""SharedState: notes what the envs of a process change that all of them see.

It looks at states between the calls of a run, so a change that a call undoes is not noted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import threading
import types
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from pysampler._torch import loaded_torch
from pysampler._vector.env_calls import layers_of
from pysampler._vector.isolation.captured import captured_by_all
from pysampler._vector.isolation.verdict import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["LIBRARIES", "SharedState", "namespaces_of", "package_of"]

_DEPTH = 3  # of containers that are looked into
_MOST = 1000  # elements of a container that are compared
_MOST_BYTES = 1 << 20  # of an array that are compared
# Packages whose attributes are not looked at: they have many, which change for good reasons.
LIBRARIES = {*sys.stdlib_module_names, "cloudpickle", "gymnasium", "numpy", "pysampler", "torch"}
_CONSTANT = bool, int, float, complex, str, bytes, type(None), np.generic
_PLAIN = *_CONSTANT, itertools.count
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_IGNORED = "/dev/", "/proc/", "/sys/"


class SharedState:
    """What the envs of this process share, and which of it they change.

    Args:
        env_fns: The function that makes the env, and those that make its siblings. The objects that
            they share are looked at, and the global variables of the first.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]]) -> None:
        self._env_fns = env_fns
        # By address: a function that was pickled by value has a copy of its module's variables.
        self._namespaces = {id(found): (name, found) for name, found in _of_function(env_fns[0])}
        self._packages = {package_of(name) for name, _ in self._namespaces.values()} - LIBRARIES
        self._classes: dict[int, tuple[str, type]] = {}
        self._now = threading.local()  # its `env` is the one that this thread calls
        self._users: dict[str, set[Any]] = {}  # of files and addresses
        self._changed: dict[str, dict[str, None]] = {}  # names, by what they are
        self._before = self._all()
        self._modules = set(sys.modules)
        sys.addaudithook(self._audit)  # for good: the process ends after the run

    @contextlib.contextmanager
    def of(self, env: int) -> Iterator[None]:
        """Attribute files that are opened in this context to an env."""
        self._now.env = env
        try:
            yield
        finally:
            del self._now.env

    def look(self, env: Any = None) -> None:
        """Note what has changed since the last look; from now on, look at this env's classes."""
        after = self._all()
        modules = set(sys.modules)
        imported, self._modules = modules - self._modules, modules
        for kind, states in after.items():
            if imported and kind in ("generators", "environment"):
                continue  # imports change them, but only once in a process
            before = self._before[kind]
            for name, state in states.items():
                # Attributes of modules that were imported since are new, others are not.
                addressed = isinstance(name, tuple)
                if state != before.get(name, state if addressed else None):
                    shown = name[1] if addressed else name
                    self._changed.setdefault(kind, {})[shown] = None
            if kind == "environment":
                gone = before.keys() - states.keys()
                self._changed.setdefault(kind, {}).update(dict.fromkeys(sorted(gone)))
        self._before = after
        if env is not None:
            self._add_classes_of(env)
            self._before["attributes"] = self._attributes()

    def causes(self) -> list[tuple[str, str]]:
        """Return what the envs changed: its kind, and a sentence."""
        changed = {kind: listed(list(names)) for kind, names in self._changed.items() if names}
        sentences = {
            "generators": "the env uses global random generators: {}",
            "directory": "the env changes the {}",
            "environment": "the env changes environment variables: {}",
            "attributes": "the env changes attributes of modules or classes: {}",
            "captured": "the env changes objects that env_fns capture, one for all envs: {}. "
            "Create them inside of env_fns",
        }
        causes = [
            (kind, text.format(changed[kind]))
            for kind, text in sentences.items()
            if kind in changed
        ]
        if shared := [name for name, users in self._users.items() if len(users) > 1]:
            text = (
                f"envs use files or ports of the same name: {listed(shared)}. Processes share "
                "these too, so give each env its own"
            )
            causes.append(("files", text))
        return causes

    def captured(self) -> list[str]:
        """Return the names of objects that env_fns refer to and envs may change."""
        found = captured_by_all(self._env_fns, globals_too=True)
        names = (name for _, name, value in found if not issubclass(type(value), _CONSTANT))
        return list(dict.fromkeys(names))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        env = getattr(self._now, "env", None)
        if env is None or event not in ("open", "socket.bind"):
            return
        with contextlib.suppress(Exception):
            if event == "open":
                path, _, flags = arguments
                if not isinstance(path, (str, bytes)) or not flags & _WRITES:
                    return
                name = str(Path(os.fsdecode(path)).absolute())
                if name.startswith(_IGNORED) or "__pycache__" in name:
                    return
            else:
                name = f"address {arguments[1]}"
            self._users.setdefault(name, set()).add(env)

    # -- states ----------------------------------------------------------------------------------

    def _all(self) -> dict[str, dict[Any, Any]]:
        """Return all states by kind and name."""
        try:
            directory = str(Path.cwd())
        except OSError:
            directory = ""
        return {
            "generators": _generators(),
            "directory": {"working directory": directory, "umask": _umask()},
            "environment": dict(os.environ),
            "attributes": self._attributes(),
            "captured": self._captured_states(),
        }

    def _captured_states(self) -> dict[tuple[int, str], Any]:
        states: dict[tuple[int, str], Any] = {}
        for address, name, value in captured_by_all(self._env_fns):
            with contextlib.suppress(Exception):
                states[address, name] = self._state(value)
        return states

    def _attributes(self) -> dict[tuple[int, str], Any]:
        """Return a state for each attribute of the env's modules and classes.

        The keys are the address of the module's variables or of the class, and the name.
        """
        spaces = dict(self._namespaces)
        for name, module in list(sys.modules.items()):
            if package_of(name) in self._packages and isinstance(module, types.ModuleType):
                spaces[id(vars(module))] = name, vars(module)
        states: dict[tuple[int, str], Any] = {}
        classes = dict(self._classes)
        for address, (space, attributes) in spaces.items():
            for name, value in list(attributes.items()):
                # A proxy of another object may raise whatever it is asked for.
                with contextlib.suppress(Exception):
                    if isinstance(value, type):
                        if package_of(value.__module__) in self._packages:
                            classes[id(value)] = f"{space}.{name}", value
                    elif not isinstance(value, (types.ModuleType, types.FunctionType)):
                        self._add_state(states, address, space, name, value)
        for address, (path, one) in classes.items():
            for name, value in list(vars(one).items()):
                with contextlib.suppress(Exception):
                    if isinstance(value, types.FunctionType):
                        defaults = value.__defaults__, value.__kwdefaults__
                        states[address, f"defaults of {path}.{name}"] = self._state(defaults)
                    elif not callable(value):
                        self._add_state(states, address, path, name, value)
        return states

    def _add_state(
        self, states: dict[tuple[int, str], Any], address: int, path: str, name: str, value: Any
    ) -> None:
        if not name.startswith(("__", "_abc_")):
            states[address, f"{path}.{name}"] = self._state(value)

    def _state(self, value: Any, depth: int = 0) -> Any:
        """Return an object that compares unequal once the value has changed."""
        if isinstance(value, (*_PLAIN, bytearray)):
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


def package_of(module: str) -> str:
    """Return the name of the package that a module belongs to."""
    return module.partition(".")[0]


def _generators() -> dict[str, Any]:
    numpys: dict[str, Any] = np.random.get_state(legacy=False)["state"]
    states = {"random": random.getstate(), "np.random": (numpys["key"].tobytes(), numpys["pos"])}
    if (torch := loaded_torch()) is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _umask() -> str:
    # os.umask() would have to change it, which other threads could see.
    status = Path("/proc/self/status").read_text().splitlines()
    return next((line for line in status if line.startswith("Umask:")), "")


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
