"""Objects and exceptions on their way to another process: pickles, reports with tracebacks."""

from __future__ import annotations

import io
import linecache
import pickle
import re
import sys
import traceback
import types
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Raised", "Report", "dumps", "dumps_by_value", "error_from", "report"]


def dumps(obj: Any) -> bytes:
    """Return a pickle of an object whose type the other process can import, as a rule."""
    try:
        return pickle.dumps(obj, protocol=5)
    except Exception:  # a lambda, a class of __main__, ...
        return bytes(cloudpickle.dumps(obj, protocol=5))


_NO_FILE = "<dynamic-code>"  # cloudpickle's name for every file


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles by value what a clean interpreter cannot import: functions, classes."""

    def __init__(
        self, file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._registered: list[types.ModuleType] = []  # by this pickler, to be pickled by value
        self._seen: set[str] = set()

    def register(self, module: types.ModuleType) -> None:
        """Pickle what a module defines by value until ``unregister``."""
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._registered.append(module)

    def unregister(self) -> None:
        """Undo ``register``."""
        while self._registered:
            cloudpickle.unregister_pickle_by_value(self._registered.pop())

    def reducer_override(self, obj: Any) -> Any:
        """Register the module of a function or class if it cannot be imported elsewhere.

        Code keeps the name of its file, which tracebacks show and newer cloudpickles leave out.
        """
        if isinstance(obj, types.CodeType):
            make, arguments = self.dispatch_table[types.CodeType](obj)
            at = [i for i, one in enumerate(arguments) if isinstance(one, str)]
            names = {i: obj.co_filename for i in at if arguments[i] == _NO_FILE}
            return make, tuple(names.get(i, one) for i, one in enumerate(arguments))
        if isinstance(obj, (types.FunctionType, type)):
            name = getattr(obj, "__module__", None)
            if isinstance(name, str) and name not in self._seen:
                self._seen.add(name)
                if name.startswith("pysampler."):  # which every worker has
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
    """Return a pickle of what the user wrote, which need not be importable anywhere else.

    Args:
        obj: What to pickle.
        buffer_callback: As for pickle: arrays for which it returns something false are left out.
        home: A module whose functions and classes are pickled by value in any case.
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


# Modules that were found: by which name, on which path. A policy is pickled for every rollout.
_found: weakref.WeakKeyDictionary[types.ModuleType, tuple[str, list[str]]] = (
    weakref.WeakKeyDictionary()
)


def _importable(name: str, module: types.ModuleType) -> bool:
    """Return whether a clean interpreter can import a module."""
    if _found.get(module) == (name, sys.path):
        return True
    if not _can_be_found(name, module):
        return False
    _found[module] = name, sys.path.copy()
    return True


def _can_be_found(name: str, module: types.ModuleType) -> bool:
    if name == "__main__":  # which cloudpickle handles
        return True
    if name in sys.builtin_module_names:
        return True
    # Through the finders, not sys.modules: a clean interpreter has only the former. Parents first,
    # since a package that cannot be found has no findable modules.
    parent = name.rpartition(".")[0]
    if parent:
        package = sys.modules.get(parent)
        if package is None or not _importable(parent, package):
            return False
    try:
        path = getattr(sys.modules[parent], "__path__", None) if parent else None
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
        return getattr(module, "__file__", None) is None and not hasattr(module, "__path__")
    origin = getattr(module, "__file__", None)
    return origin is None or spec.origin == origin


class Raised(Exception):  # noqa: N818 - not an error of its own: it carries one
    """Carries an exception as its cause, and says which member of a group (an env) raised it.

    ``member`` is None if something else did. ``doing`` is what was being done.
    """

    def __init__(self, member: int | None, doing: str) -> None:
        super().__init__(member, doing)
        self.member = member
        self.doing = doing


@dataclass(frozen=True)
class Report:
    """An exception as it is sent to another process."""

    kind: str  # name of its type
    text: str
    traceback: str
    pickled: bytes | None


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback of an exception in another process; raised here as its cause."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def report(error: BaseException) -> Report:
    """Return a report of an exception, for another process."""
    try:
        lines = traceback.format_exception(type(error), error, _user_traceback(error))
    except Exception:
        lines = [f"{type(error).__qualname__}: no traceback of it can be made\n"]
    pickled = None
    try:
        plain = dumps(error)
        if isinstance(pickle.loads(plain), BaseException):
            pickled = plain
    except Exception:
        pass
    return Report(type(error).__qualname__, _text_of(error), "".join(lines), pickled)


def _text_of(error: BaseException) -> str:
    """Return the message of an exception, whose ``__str__`` may be code of the user."""
    try:
        return str(error)
    except Exception as another:
        return f"<its __str__ raised {type(another).__name__}>"


def _user_traceback(error: BaseException) -> types.TracebackType | None:
    """Return the traceback from the first frame on that is not of pysampler."""
    start = error.__traceback__
    while start is not None and start.tb_frame.f_globals.get("__name__", "").startswith(
        "pysampler."
    ):
        start = start.tb_next
    return start if start is not None else error.__traceback__


def error_from(remote: Report, message: str, original: BaseException | None = None) -> EnvError:
    """Return an ``EnvError`` that is also an instance of the type of an exception, where possible.

    Its cause is the exception, whose own cause is the traceback in the worker, unless the exception
    was raised in this process: then it is ``original``.
    """
    here = original is not None
    if not here and remote.pickled is not None:
        try:
            original = pickle.loads(remote.pickled)
        except Exception:
            original = None
    text = f"{message}: {remote.text}" if remote.text else message
    if remote.kind == "BdbQuit" and not here:
        text += "; breakpoint() needs the terminal, which a worker has not: pass num_workers=0"
    error = EnvError(text)
    if isinstance(original, Exception):
        error = _as_both(type(original), text, original)
    error.__cause__ = original
    if not here:
        cause = RemoteTraceback(_with_lines(remote.traceback))
        (error if original is None else original).__cause__ = cause
    return error


# A frame of a traceback without its line of source.
_BARE_FRAME = re.compile(r'^( *)File "([^"]+)", line (\d+), in .*\n(?!\1  )', re.MULTILINE)


def _with_lines(traceback_text: str) -> str:
    """Return a traceback of a worker with lines that only this process knows: of notebook cells."""

    def line(match: re.Match[str]) -> str:
        source = linecache.getline(match[2], int(match[3])).strip()
        return f"{match[0]}{match[1]}  {source}\n" if source else match[0]

    return _BARE_FRAME.sub(line, traceback_text)


_env_errors: dict[type, type[EnvError]] = {}  # types, by the type of the exception


def _as_both(kind: type[Exception], text: str, original: Exception) -> EnvError:
    """Return an ``EnvError`` that is also of type ``kind``, if there can be such a type."""
    try:
        if kind not in _env_errors:
            if issubclass(kind, EnvError):
                _env_errors[kind] = kind
            else:
                namespace = {
                    "__module__": EnvError.__module__,
                    "__init__": Exception.__init__,
                    "__str__": Exception.__str__,
                }
                _env_errors[kind] = type(f"EnvError[{kind.__name__}]", (EnvError, kind), namespace)
        error = _env_errors[kind](text)
        error.__dict__.update(
            {k: v for k, v in original.__dict__.items() if not k.startswith("__")}
        )
        str(error)
    except Exception:  # a type that cannot be subclassed, or made with a message
        return EnvError(text)
    return error
