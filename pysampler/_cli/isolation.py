"""The check whether envs may share a process, for ``doctor``, ``bench`` and ``tune``."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from pysampler._cli.screen import width
from pysampler._vector.isolation.check import check_envs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pysampler._cli.sources import EnvSource
    from pysampler._vector.isolation.verdict import Isolation

__all__ = ["ISOLATE", "checked", "isolation_lines"]

ISOLATE = "isolate"  # the option of the vector env
_ENVS = 3  # of a run


def checked(source: EnvSource, *, threads: bool) -> list[Isolation]:
    """Check envs of a source; raise an exception if they do not run alone.

    Args:
        source: The source.
        threads: Whether to check them in threads too, unless its options refuse threads.
    """
    options = source.options
    seed_globals = options.get("seed_globals", False)
    return check_envs(
        source.env_fns(_ENVS),
        threads=(False, True) if threads and not seed_globals else (False,),
        worker_init=options.get("worker_init"),
        seed_globals=seed_globals,
    )


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
