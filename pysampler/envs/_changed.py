"""ChangedError: why a batch of envs cannot continue from the state of one of them."""

from __future__ import annotations

__all__ = ["ChangedError"]


class ChangedError(Exception):
    """A call changed an attribute of an env that its batch cannot have; this is its name."""
