"""The check whether envs may share a process, for ``doctor``, ``bench`` and ``tune``."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from pysampler._cli.screen import width
from pysampler._vector.isolation.check import Isolation, check_envs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pysampler._cli.sources import EnvSource

__all__ = ["ISOLATE", "checked", "isolation_lines"]

ISOLATE = "isolate"  # the option of the vector env
_ENVS = 3  # of a run


def checked(source: EnvSource) -> Isolation:
    """Check envs of a source; raise an exception if they do not run alone."""
    options = source.options
    return check_envs(
        source.env_fns(_ENVS),
        worker_init=options.get("worker_init"),
        seed_globals=options.get("seed_globals", False),
    )


def isolation_lines(isolation: Mapping[str, Any]) -> list[str]:
    """Return lines that say what a check has found; none if there was no check."""
    if not isolation:
        return []
    lines = textwrap.wrap(isolation["verdict"], width())
    for reason in isolation["reasons"]:
        lines += textwrap.wrap(f"- {reason}", width(), subsequent_indent="  ")
    return ["", *lines]
