"""What has a ``close`` and may stand in a ``with`` block, and what there is only one of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn, Self

__all__ = ["Closing", "Single", "ends_by_signal"]


class Single:
    """Owns processes or memory: neither copied nor pickled."""

    def __copy__(self: object) -> NoReturn:
        raise TypeError(f"cannot copy {type(self).__name__}: it owns processes or shared memory")

    def __deepcopy__(self: object, memo: Any) -> NoReturn:
        Single.__copy__(self)

    def __reduce__(self: object) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__}: it owns processes or shared memory")


def ends_by_signal(kind: type[BaseException] | None) -> bool:
    """Return whether a ``with`` block ends by Ctrl-C or the like, and not by an error."""
    return kind is not None and not issubclass(kind, Exception)


class Closing:
    """Closed at the end of a ``with`` block, however that ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()  # type: ignore[attr-defined]
