"""The check whether envs may share a process, for ``doctor``, ``bench`` and ``tune``."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from pysampler._cli.screen import width
from pysampler._vector.isolation.check import check_envs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pysampler._vector.isolation.verdict import Isolation

__all__ = ["checked", "isolation_lines"]

_ENVS = 3  # of a run


def checked(function: Callable[[], Any], *, threads: bool) -> list[Isolation]:
    """Check the envs that a function makes; raise an exception if they do not run alone.

    Args:
        function: Makes one env.
        threads: Whether to check them in threads too.
    """
    return check_envs([function] * _ENVS, threads=(False, True) if threads else (False,))


def isolation_lines(isolation: Mapping[str, Any]) -> list[str]:
    """Return lines that say what a check has found; none if there was no check."""
    if not isolation:
        return []
    lines = [""]
    for found in (isolation, isolation.get("threads")):
        if found is not None:
            lines += textwrap.wrap(found["verdict"], width())
            for reason in found["reasons"]:
                lines += textwrap.wrap(f"- {reason}", width(), subsequent_indent="  ")
    return lines
