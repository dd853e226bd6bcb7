"""Copies of policies: for another thread of this process, and for workers."""

from __future__ import annotations

import contextlib
import copy
import functools
from dataclasses import replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from pysampler._torch import copy_of_module, is_module
from pysampler._workers.remote import copy_from, dumps_by_value

if TYPE_CHECKING:
    from pysampler._policies.worker_policy import PolicySetup, TakePolicy
    from pysampler._workers.pool import Pool

__all__ = ["copied", "fingerprint", "pickled", "send_policy"]


def copied(policy: Any) -> Any:
    """Return a copy of a policy; a function is copied with the objects that it refers to."""
    try:
        return copy_of_module(policy) if is_module(policy) else copy_from(_by_value(policy))
    except Exception as error:
        with contextlib.suppress(Exception):
            if (own := copy.deepcopy(policy)) is not policy:
                return own
        raise TypeError(
            f"cannot copy the policy: {type(error).__name__}: {error}; create what it needs inside "
            "the policy, or leave it in the main process, without overlap"
        ) from error


def pickled(policy: Any) -> bytes:
    """Return a policy pickled for workers, or raise TypeError."""
    try:
        return _by_value(policy)
    except Exception as error:
        raise TypeError(
            f"cannot send the policy to workers: {type(error).__name__}: {error}; create what it "
            'needs inside the policy, or pass policy_in="main"'
        ) from error


def fingerprint(policy: Any) -> bytes | None:
    """Return bytes that change with the policy, or None if it cannot be pickled."""
    try:
        return _by_value(policy)
    except Exception:
        return None


def _by_value(policy: Any) -> bytes:
    """Pickle a policy; a function with the current globals of its module that it uses."""
    function = policy
    while isinstance(function, (functools.partial, MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if isinstance(function, FunctionType):
        with contextlib.suppress(Exception):  # otherwise the worker imports it
            return dumps_by_value(policy, home=function.__module__)
    return dumps_by_value(policy)


def send_policy(pool: Pool, note: type[TakePolicy], setup: PolicySetup) -> None:
    """Send a policy to the workers of a pool, and later to replacements of lost ones."""
    pool.note(lambda envs: note(replace(setup, first_env=envs.start)), standing=True)
