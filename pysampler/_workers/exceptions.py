"""Exceptions sent to another process, and raised there as ``EnvError``.

pickle calls the type of an exception with its ``args``. That fails, or makes a different exception,
if the constructor takes other arguments; and a single attribute that cannot be pickled loses all.
So an exception is sent twice: as a pickle, if that restores the same exception, and as its types,
arguments and attributes, each pickled separately, from which the other process rebuilds as much as
it can without calling the constructor.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
import traceback
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pysampler._workers.remote import dumps, loads
from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Forwarded", "Raised", "Report", "error_from", "report"]


class Raised(Exception):  # noqa: N818 - not an error itself: it carries one
    """Carries an exception as its cause, with the env that raised it.

    ``env`` is None if something else raised it. ``doing`` names the activity.
    """

    def __init__(self, env: int | None, doing: str) -> None:
        super().__init__(env, doing)
        self.env = env
        self.doing = doing


class _Part:
    """A type, an argument or an attribute of an exception, pickled separately."""

    def __init__(self, value: Any) -> None:
        self.kind = type(value).__name__
        self._pickled: bytes | None = None
        with contextlib.suppress(Exception):
            pickled = dumps(value)
            loads(pickled)
            self._pickled = pickled

    def value(self) -> Any:
        """Return the value in another process, or raise."""
        if self._pickled is None:
            raise TypeError(f"cannot send {self.kind}: it cannot be pickled")
        return loads(self._pickled)


class _Sent:
    """An exception in transit."""

    def __init__(self, error: BaseException, text: str) -> None:
        self._pickled: bytes | None = None  # None: pickle does not restore the same exception
        with contextlib.suppress(Exception):
            pickled = dumps(error)
            restored = loads(pickled)
            if type(restored) is type(error) and _text_of(restored) == text:
                self._pickled = pickled
        self._types = [(kind.__qualname__, _Part(kind)) for kind in type(error).__mro__]
        self._args = [_Part(value) for value in error.args]
        self._attributes = {name: _Part(value) for name, value in _attributes(error).items()}

    def received(self) -> _Received:
        """Return the exception, as far as this process can rebuild it."""
        kinds, unknown = [], []
        for name, part in self._types:
            try:
                kinds.append(part.value())
            except Exception:
                unknown.append(name)
        if self._pickled is not None:
            with contextlib.suppress(Exception):
                error = loads(self._pickled)
                return _Received(error, kinds, unknown, error.args, _attributes(error), [])
        lost: list[str] = []
        args: list[Any] = []
        attributes: dict[str, Any] = {}
        for i, part in enumerate(self._args):
            try:
                args.append(part.value())
            except Exception:
                args.append(f"<{part.kind}>")
                lost.append(f"args[{i}] ({part.kind})")
        for name, part in self._attributes.items():
            try:
                attributes[name] = part.value()
            except Exception:
                lost.append(f"{name} ({part.kind})")
        error = None
        if not unknown:
            with contextlib.suppress(Exception):
                error = _rebuilt(kinds[0], args, attributes)
        return _Received(error, kinds, unknown, args, attributes, lost)


class _Received(NamedTuple):
    """An exception of another process, as far as this one can rebuild it."""

    error: BaseException | None
    kinds: list[type]  # its type and all bases
    unknown: list[str]  # names of the types that this process cannot import
    args: Sequence[Any]
    attributes: dict[str, Any]
    lost: list[str]  # arguments and attributes that could not be pickled or unpickled


@dataclass(frozen=True)
class Report:
    """An exception in the form that another process receives."""

    kind: str  # name of its type
    text: str
    traceback: str
    error: BaseException | None  # None: it was raised in another process
    sent: _Sent | None = None

    def __reduce__(self) -> tuple[type[Report], tuple[Any, ...]]:
        sent = self.sent if self.error is None else _Sent(self.error, self.text)
        return Report, (self.kind, self.text, self.traceback, None, sent)


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback of an exception in another process, as the cause of that exception here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Forwarded(Exception):  # noqa: N818 - not an error itself: it carries one
    """Carries the report of an exception of another process, which ``report`` returns."""

    def __init__(self, carried: Report) -> None:
        super().__init__(carried.kind, carried.text)
        self.carried = carried


def report(error: BaseException) -> Report:
    """Return a report of an exception, to send to another process."""
    if isinstance(error, Forwarded):
        return error.carried
    try:
        lines = traceback.format_exception(type(error), error, _user_traceback(error))
    except Exception:
        lines = [f"{type(error).__qualname__}: its traceback cannot be formatted\n"]
    return Report(type(error).__qualname__, _text_of(error), "".join(lines), error)


def _text_of(error: BaseException) -> str:
    """Return the message of an exception, whose ``__str__`` may be the user's and raise."""
    try:
        return str(error)
    except Exception as another:
        return f"<its __str__ raised {type(another).__name__}>"


def _user_traceback(error: BaseException) -> types.TracebackType | None:
    """Return the traceback without its leading frames of pysampler."""
    start = error.__traceback__
    while start is not None and start.tb_frame.f_globals.get("__name__", "").startswith(
        "pysampler."
    ):
        start = start.tb_next
    return start if start is not None else error.__traceback__


def error_from(remote: Report, message: str) -> EnvError:
    """Return an ``EnvError`` that is also an instance of the exception's type.

    Its cause is the exception, whose own cause is the traceback in the worker, unless the exception
    was raised in this process. Notes name the types and attributes that this process cannot have.
    """
    text = f"{message}: {remote.text}" if remote.text else message
    if (original := remote.error) is not None:
        kinds = list(type(original).__mro__)
        error = _env_error(text, kinds, original.args, _attributes(original))
        error.__cause__ = original
        return error
    assert remote.sent is not None
    # Since Python 3.14, pdb exits at the end of its input.
    if remote.kind == "BdbQuit" or (remote.kind == "SystemExit" and "pdb.py" in remote.traceback):
        text += "; breakpoint() needs a terminal, which workers do not have: pass num_workers=0"
    got = remote.sent.received()
    error = _env_error(text, got.kinds, got.args, got.attributes)
    cause = RemoteTraceback(_with_lines(remote.traceback))
    error.__cause__ = cause if got.error is None else got.error
    if got.error is not None:
        BaseException.__setattr__(got.error, "__cause__", cause)  # its type may forbid plain ``=``
    if got.unknown:
        names = " and ".join(got.unknown)
        error.add_note(f"it is not an instance of {names}, which this process cannot import")
    if got.lost:
        names = " and ".join(f"{remote.kind}.{name}" for name in got.lost)
        error.add_note(f"{names} could not be sent to this process")
    return error


# A traceback frame without its source line.
_BARE_FRAME = re.compile(r'^( *)File "([^"]+)", line (\d+), in .*\n(?!\1  )', re.MULTILINE)


def _with_lines(traceback_text: str) -> str:
    """Return a worker's traceback with source lines that only this process has: notebook cells."""

    def line(match: re.Match[str]) -> str:
        source = linecache.getline(match[2], int(match[3])).strip()
        return f"{match[0]}{match[1]}  {source}\n" if source else match[0]

    return _BARE_FRAME.sub(line, traceback_text)


_env_types: dict[tuple[type, ...], type[EnvError]] = {}  # by the types of exceptions


def _env_error(
    text: str, kinds: list[type], args: Sequence[Any], attributes: dict[str, Any]
) -> EnvError:
    """Return an ``EnvError`` that is also an instance of as many of these types as possible.

    Args:
        text: The message of the error.
        kinds: The type of an exception, and its bases, in method resolution order.
        args: The arguments of the exception.
        attributes: The attributes of the exception, which the error gets too.
    """
    if Exception not in kinds:  # such as SystemExit, which would end the program
        return EnvError(text)
    own = {name: value for name, value in attributes.items() if not name.startswith("__")}
    for at, kind in enumerate(kinds):
        with contextlib.suppress(Exception):
            error: EnvError = _rebuilt(_env_type(tuple(kinds[at:])), args, own)
            error.args = (text,)
            str(error)
            if at:
                refused = " and ".join(one.__qualname__ for one in kinds[:at])
                error.add_note(f"it is not an instance of {refused}, which cannot be subclassed")
            return error
        if kind is Exception:
            break
    return EnvError(text)


def _env_type(kinds: tuple[type, ...]) -> type[EnvError]:
    """Return an exception type that is a subclass of ``EnvError`` and of all these."""
    if kinds not in _env_types:
        every = dict.fromkeys((EnvError, *kinds))
        bases = tuple(
            kind for kind in every if not any(kind in other.__mro__[1:] for other in every)
        )
        namespace = {
            "__module__": EnvError.__module__,
            "__init__": Exception.__init__,
            "__str__": Exception.__str__,
            "__setattr__": Exception.__setattr__,
        }
        # An EnvError keeps its type.
        made = type(f"EnvError[{kinds[0].__name__}]", bases, namespace) if bases[1:] else bases[0]
        _env_types[kinds] = made
    return _env_types[kinds]


# The descriptors of attributes kept by C or by __slots__.
_MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)
# ``args`` are sent separately; ``obj`` may be a whole env.
_LEFT_OUT = (BaseException.args, AttributeError.obj)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not one of Python's built-in types


def _attributes(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an exception that have a value, wherever they are stored."""
    found: dict[str, Any] = {}
    for kind in type(error).__mro__:
        for name, member in vars(kind).items():
            if not isinstance(member, _MEMBERS) or name.startswith("__") or member in _LEFT_OUT:
                continue
            with contextlib.suppress(Exception):
                if (value := member.__get__(error)) is not None:
                    found.setdefault(name, value)
    with contextlib.suppress(Exception):
        found.update(vars(error))
    return found


def _rebuilt(kind: type, args: Iterable[Any], attributes: dict[str, Any]) -> Any:
    """Return an exception of this type without calling its constructor, which may take anything."""
    base: Any = kind
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    error = base.__new__(kind, *args)
    BaseException.args.__set__(error, tuple(args))  # type: ignore[attr-defined]
    for name, value in attributes.items():
        member = inspect.getattr_static(kind, name, None)
        if isinstance(member, _MEMBERS):
            with contextlib.suppress(AttributeError):  # C has set it by the arguments
                member.__set__(error, value)
        else:
            vars(error)[name] = value
    return error
