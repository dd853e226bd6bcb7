"""What crosses between processes: pickles of anything, exceptions with their tracebacks."""

from __future__ import annotations

import io
import linecache
import pickle
import re
import sys
import traceback
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Raised", "Report", "dumps", "dumps_by_value", "error_from", "report"]


def dumps(obj: Any) -> bytes:
    """Pickle of what a process sends that both sides can import, as a rule."""
    try:
        return pickle.dumps(obj, protocol=5)
    except Exception:  # a lambda, a class of __main__, ...
        return bytes(cloudpickle.dumps(obj, protocol=5))


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Functions and classes of modules that a clean interpreter cannot import go by value."""

    def __init__(
        self, file: io.BytesIO, apart: Callable[[pickle.PickleBuffer], Any] | None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=apart)
        self.registered: list[types.ModuleType] = []
        self._seen: dict[str, bool] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (types.FunctionType, type)):
            name = getattr(obj, "__module__", None)
            if isinstance(name, str) and name not in self._seen:
                self._seen[name] = True
                if name.startswith("pysampler."):  # which every worker has
                    return super().reducer_override(obj)
                module = sys.modules.get(name)
                if module is not None and not _importable(name, module):
                    cloudpickle.register_pickle_by_value(module)
                    self.registered.append(module)
        return super().reducer_override(obj)


def dumps_by_value(
    obj: Any,
    apart: Callable[[pickle.PickleBuffer], Any] | None = None,
    *,
    home: str | None = None,
) -> bytes:
    """Pickle of what the user wrote, which need not be importable anywhere else.

    Memory of arrays is not in it for which ``apart`` returns something false. Functions and classes
    of the module ``home`` go by value in any case.
    """
    file = io.BytesIO()
    pickler = _ByValue(file, apart)
    module = sys.modules.get(home or "")
    if module is not None and home not in (
        "__main__",
        *cloudpickle.list_registry_pickle_by_value(),
    ):
        cloudpickle.register_pickle_by_value(module)
        pickler.registered.append(module)
    try:
        pickler.dump(obj)
    finally:
        for module in pickler.registered:
            cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


def _importable(name: str, module: types.ModuleType) -> bool:
    if name == "__main__":  # cloudpickle's own business
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
    """Carries an exception of a member of a group, an env say, as its cause.

    ``member``: which raised it; None if that was something else. ``doing``: in what.
    """

    def __init__(self, member: int | None, doing: str) -> None:
        super().__init__(member, doing)
        self.member = member
        self.doing = doing


@dataclass(frozen=True)
class Report:
    """An exception on its way to another process."""

    kind: str  # the type's name
    text: str
    traceback: str
    pickled: bytes | None


class RemoteTraceback(Exception):  # noqa: N818
    """The cause of an exception that came from another process: its traceback there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def report(error: BaseException) -> Report:
    """The exception, for another process."""
    try:
        lines = traceback.format_exception(type(error), error, _own_frames_off(error))
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
    """What it says, which is the user's code too."""
    try:
        return str(error)
    except Exception as another:
        return f"<its __str__ raised {type(another).__name__}>"


def _own_frames_off(error: BaseException) -> types.TracebackType | None:
    """The traceback from the first frame that is not pysampler's."""
    start = error.__traceback__
    while start is not None and start.tb_frame.f_globals.get("__name__", "").startswith(
        "pysampler."
    ):
        start = start.tb_next
    return start if start is not None else error.__traceback__


def error_from(remote: Report, message: str, original: BaseException | None = None) -> EnvError:
    """An ``EnvError`` that is also an instance of the exception's own type, where that can be.

    Its cause is the exception, whose own is the traceback in the worker; or just the exception if
    it was raised in this process.
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
_BARE = re.compile(r'^( *)File "([^"]+)", line (\d+), in .*\n(?!\1  )', re.MULTILINE)


def _with_lines(traceback_text: str) -> str:
    """A worker's traceback, with lines that only this process knows: of a notebook's cells."""

    def line(match: re.Match[str]) -> str:
        source = linecache.getline(match[2], int(match[3])).strip()
        return f"{match[0]}{match[1]}  {source}\n" if source else match[0]

    return _BARE.sub(line, traceback_text)


_both: dict[type, type[EnvError]] = {}


def _as_both(kind: type[Exception], text: str, original: Exception) -> EnvError:
    try:
        if kind not in _both:
            if issubclass(kind, EnvError):
                _both[kind] = kind
            else:
                namespace = {
                    "__module__": EnvError.__module__,
                    "__init__": _init_plain,
                    "__str__": Exception.__str__,
                }
                _both[kind] = type(f"EnvError[{kind.__name__}]", (EnvError, kind), namespace)
        error = _both[kind](text)
        error.__dict__.update(
            {k: v for k, v in original.__dict__.items() if not k.startswith("__")}
        )
        str(error)
    except Exception:  # a type that cannot be subclassed, or not be made so
        return EnvError(text)
    return error


def _init_plain(self: Exception, text: str) -> None:
    Exception.__init__(self, text)
