"""Base classes of objects that own processes or memory: closed by ``with``, never copied."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn, Self

__all__ = [
    "Closing",
    "Interruptible",
    "Released",
    "Uncopyable",
    "comes_true",
    "ends_by_signal",
]


_LOOK = 0.0005  # seconds to sleep between two checks


def comes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition that another thread fulfils is true; return whether it is in time."""
    while not condition():
        if seconds <= 0:
            return False
        began = time.monotonic()
        time.sleep(_LOOK)
        # Another thread may have kept the GIL; what took longer was a suspension of this process.
        seconds -= min(time.monotonic() - began, 0.1)
    return True


class Uncopyable:
    """Base class of objects that own processes or memory: they cannot be copied or pickled."""

    def __copy__(self: object) -> NoReturn:
        raise TypeError(f"cannot copy {type(self).__name__}: it owns processes or shared memory")

    def __deepcopy__(self: object, memo: Any) -> NoReturn:
        Uncopyable.__copy__(self)

    def __reduce__(self: object) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__}: it owns processes or shared memory")


class Released:
    """Takes the place of what a closed object has released: any use of it raises an error.

    Args:
        error: Makes the error.
    """

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error()


def ends_by_signal(kind: type[BaseException] | None) -> bool:
    """Return whether a ``with`` block was ended by Ctrl-C or an exit, not by an error."""
    return kind is not None and not issubclass(kind, Exception)


class Closing:
    """Base class of objects that a ``with`` block closes, whether or not it raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()  # type: ignore[attr-defined]


class Interruptible(Closing):
    """Base class of objects whose ``close()`` hurries if Ctrl-C or an exit ended the block."""

    _interrupted = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._interrupted = ends_by_signal(kind)
        super().__exit__(kind, error, traceback)
