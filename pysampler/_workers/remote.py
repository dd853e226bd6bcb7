"""Pickles of objects that are sent to other processes.

``dumps`` tries plain pickle first, since it is fast, then cloudpickle. ``dumps_by_value`` sends the
user's functions and classes by value if a clean interpreter could not import them. ``loads`` never
alters a class that the process already has, which cloudpickle alone would do. ``collected`` notes
which shared memory pickles refer to: its descriptors travel beside them.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

import cloudpickle
from cloudpickle import cloudpickle as _cloudpickle

from pysampler._common.torch import is_script, script_bytes, script_from
from pysampler._workers.surroundings import import_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    Memories = dict[bytes, Any]  # SealedMemory by its token

__all__ = ["collected", "copy_from", "dumps", "dumps_by_value", "loads", "memories_of_pickle"]

_here = threading.local()


def memories_of_pickle() -> Memories | None:
    """Return the memory that this thread's pickle refers to; None: it must not refer to any."""
    return getattr(_here, "memories", None)


@contextlib.contextmanager
def collected() -> Iterator[Memories]:
    """Let this thread pickle shared arrays; yield the memory that the pickles refer to."""
    before = memories_of_pickle()
    found: Memories = {}
    _here.memories = found
    try:
        yield found
    finally:
        _here.memories = before


def dumps(obj: Any) -> bytes:
    """Return a pickle of an object whose type the other process can usually import."""
    try:
        return pickle.dumps(obj, protocol=5)
    except Exception:  # a lambda, a class of __main__, ...
        return bytes(cloudpickle.dumps(obj, protocol=5))


class _Reader:
    """A file over existing bytes: ``io.BytesIO`` would copy them, and they may be large images."""

    def __init__(self, content: Buffer) -> None:
        self._left = memoryview(content)

    def _next(self, size: int) -> memoryview:
        part, self._left = self._left[:size], self._left[size:]
        return part

    def read(self, size: int) -> bytes:
        return bytes(self._next(size))

    def readinto(self, buffer: memoryview) -> int:
        part = self._next(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def readline(self) -> bytes:
        at = bytes(self._left).find(b"\n")  # the unpickler needs it for protocol 0
        return self.read(at + 1 if at >= 0 else len(self._left))


class _LeavesClasses(pickle.Unpickler):
    """An unpickler that changes no class that this process has.

    If a process knows a class that was pickled by value, cloudpickle returns the known class, and
    overwrites its methods and attributes with those of the pickle, which may be old.

    Args:
        pickled: The pickle.
        anew: Whether to make new classes even of those that are known.
    """

    def __init__(self, pickled: Buffer, *, anew: bool) -> None:
        file = io.BytesIO(pickled) if isinstance(pickled, bytes) else _Reader(pickled)
        super().__init__(file)
        self._anew = anew
        self._made: set[type] = set()  # made by this unpickler, not known before

    def find_class(self, module: str, name: str) -> Any:
        """Return a global that the pickle refers to, replacing cloudpickle's class factories."""
        found = super().find_class(module, name)
        if module == _cloudpickle.__name__:
            if name in ("_make_skeleton_class", "_make_skeleton_enum"):
                return functools.partial(self._make, found)
            if name == "_class_setstate":
                return functools.partial(self._set_state, found)
        return found

    def _make(self, make: Callable[..., type], *arguments: Any) -> type:
        *first, tracker_id, extra = arguments
        is_new = self._anew or tracker_id not in _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        made = make(*first, None if self._anew else tracker_id, extra)
        if is_new:
            self._made.add(made)
        return made

    def _set_state(self, set_state: Callable[..., Any], made: type, state: Any) -> type:
        if made in self._made:
            set_state(made, state)
        return made


def loads(pickled: Buffer) -> Any:
    """Return an object pickled by another process. This process's classes stay unchanged."""
    return _LeavesClasses(pickled, anew=False).load()


def copy_from(pickled: Buffer) -> Any:
    """Return a copy of an object that this process pickled by value, with separate classes."""
    return _LeavesClasses(pickled, anew=True).load()


_NO_FILE = "<dynamic-code>"  # cloudpickle's name for every file


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes by value if a clean interpreter cannot import them."""

    def __init__(
        self, file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._registered: list[types.ModuleType] = []  # by this pickler, to be pickled by value
        self._seen: set[str] = set()

    def register(self, module: types.ModuleType) -> None:
        """Pickle the functions and classes of a module by value until ``unregister``."""
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)

    def unregister(self) -> None:
        """Undo ``register``."""
        while self._registered:
            cloudpickle.unregister_pickle_by_value(self._registered.pop())

    def reducer_override(self, obj: Any) -> Any:
        """Register the module of a function or class if it cannot be imported elsewhere.

        TorchScript, which does not pickle, is saved as in a file. Code keeps its file name, which
        tracebacks show but newer versions of cloudpickle omit.
        """
        if is_script(obj):
            return script_from, (script_bytes(obj),)
        if isinstance(obj, types.CodeType):
            make, arguments = self.dispatch_table[types.CodeType](obj)
            at = [i for i, one in enumerate(arguments) if isinstance(one, str)]
            names = {i: obj.co_filename for i in at if arguments[i] == _NO_FILE}
            return make, tuple(names.get(i, one) for i, one in enumerate(arguments))
        if isinstance(obj, (types.FunctionType, type)):
            name = getattr(obj, "__module__", None)
            if isinstance(name, str) and name not in self._seen:
                self._seen.add(name)
                if name.startswith("pysampler."):  # every worker has it
                    return super().reducer_override(obj)
                module = sys.modules.get(name)
                if module is not None and not _importable(name, module):
                    self.register(module)
        return super().reducer_override(obj)


def dumps_by_value(
    obj: Any,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    *,
    home: str | None = None,
) -> bytes:
    """Return a pickle of a user's object, whose code need not be importable elsewhere.

    Args:
        obj: The object.
        buffer_callback: As in ``pickle``: arrays for which it returns a false value are left out.
        home: A module whose functions and classes are always pickled by value.
    """
    file = io.BytesIO()
    pickler = _ByValue(file, buffer_callback)
    try:
        if home != "__main__" and (module := sys.modules.get(home or "")) is not None:
            pickler.register(module)
        pickler.dump(obj)
    finally:
        pickler.unregister()
    return file.getvalue()


# Importable modules, with the name and path they were found by: cached, since a policy is pickled
# for every rollout.
_found: weakref.WeakKeyDictionary[types.ModuleType, tuple[str, list[str]]] = (
    weakref.WeakKeyDictionary()
)


def _importable(name: str, module: types.ModuleType) -> bool:
    """Return whether a clean interpreter can import a module."""
    path = import_path()
    if _found.get(module) == (name, path):
        return True
    if not _can_be_found(name, module):
        return False
    _found[module] = name, path
    return True


def _can_be_found(name: str, module: types.ModuleType) -> bool:
    if name == "__main__":  # cloudpickle handles it
        return True
    if name in sys.builtin_module_names:
        return True
    # Use the finders, not sys.modules: a clean interpreter has only the former. Parents come first:
    # if a package cannot be found, neither can its modules.
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        package = sys.modules.get(parent)
        if package is None or not _importable(parent, package):
            return False
        path = getattr(package, "__path__", None)
        if path is None:  # an extension module, which makes it when imported
            return True
    try:
        spec = next(
            (
                found
                for finder in sys.meta_path
                if (found := finder.find_spec(name, path)) is not None
            ),
            None,
        )
    except Exception:
        return True
    if spec is None:
        return False
    own = getattr(module, "__spec__", None)
    if own is not None and own.name != name:  # collections.abc is _collections_abc in Python 3.13
        return _can_be_found(own.name, module)
    # Python's own frozen modules, such as abc, have a file too.
    return spec.origin in (getattr(module, "__file__", None), getattr(own, "origin", None))
