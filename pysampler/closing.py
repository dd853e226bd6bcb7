"""What has a ``close`` and may stand in a ``with`` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Closing"]


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
