"""The state of this process on which imports and relative paths depend."""

from __future__ import annotations

import os
import sys

__all__ = ["current_directory", "import_path"]


def current_directory() -> str | None:
    """Return the current directory; None if it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib is slow to import
    except FileNotFoundError:
        return None


def import_path() -> list[str]:
    """Return ``sys.path`` with absolute entries, for imports by a process in any directory.

    Relative entries without a known directory are left out.
    """
    directory = current_directory()
    places = (_place_of(entry, directory) for entry in sys.path if isinstance(entry, str))
    return [place for place in places if place is not None]


def _place_of(entry: str, directory: str | None) -> str | None:
    if os.path.isabs(entry):  # noqa: PTH117
        return entry
    if not entry:  # searched in the current directory, whichever that is
        return directory
    # A finder searches in the directory that was the current one when the entry was first used.
    found = getattr(sys.path_importer_cache.get(entry), "path", None)
    if isinstance(found, str) and os.path.isabs(found):  # noqa: PTH117
        return found
    return None if directory is None else os.path.join(directory, entry)  # noqa: PTH118
