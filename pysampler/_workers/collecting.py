"""Which shared memory a pickle refers to: its descriptors travel beside the pickle."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    Memories = dict[bytes, Any]  # SealedMemory by its token

__all__ = ["collected", "memories"]

_here = threading.local()


def memories() -> Memories | None:
    """Return the memory that this thread's pickle refers to; None: it must not refer to any."""
    return getattr(_here, "memories", None)


@contextlib.contextmanager
def collected() -> Iterator[Memories]:
    """Let this thread pickle shared arrays; yield the memory that the pickles refer to."""
    before = memories()
    found: Memories = {}
    _here.memories = found
    try:
        yield found
    finally:
        _here.memories = before
