"""Copies of policies: for another thread of this process, and for workers.

Each worker gets a copy, also where the workers are threads: a policy may keep state without saying
so. Those of Stable-Baselines3, for example, store the distribution of their last call.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from pysampler._common.torch import copy_of_module, is_module, is_script
from pysampler._policies.weights import has_weights, portable
from pysampler._workers.remote import copy_from, dumps_by_value

__all__ = ["PolicySource", "copied", "fingerprint", "for_first_call", "pickled", "source_of"]


@dataclass(frozen=True)
class PolicySource:
    """Where a worker gets its policy from: ``make`` returns it, given ``content``."""

    make: Callable[[Any], Any]
    content: Any

    def get(self) -> Any:
        """Return the policy."""
        return self.make(self.content)

    @property
    def copies(self) -> bool:
        """Whether each worker gets a copy, rather than all workers the policy of the program."""
        return self.make is not _itself


def source_of(policy: Any, *, in_processes: bool) -> PolicySource:
    """Return where workers get this policy from, or raise TypeError.

    Workers of this process share the parameters of a module. They share a policy that cannot be
    pickled, unless each must load weights into its own.
    """
    if in_processes:
        return PolicySource(pickle.loads, pickled(portable(policy)))
    if is_module(policy):
        return PolicySource(_with_same_parameters, portable(policy))
    try:
        return PolicySource(copy_from, pickled(policy))
    except TypeError:
        if has_weights(policy):
            raise
        return PolicySource(_itself, policy)


def for_first_call(policy: Any, *, in_processes: bool) -> Any:
    """Return a copy of a policy, which learns its outputs; the policy if the workers share it."""
    if not in_processes and not is_module(policy):
        with contextlib.suppress(TypeError):  # raised below with its reason
            if not source_of(policy, in_processes=False).copies:
                return policy
    return copied(policy)


def _itself(policy: Any) -> Any:
    return policy


def _with_same_parameters(module: Any) -> Any:
    """Return a copy of a module that uses the same parameters, but buffers of its own."""
    if is_script(module):
        return copy_of_module(module)
    return copy.deepcopy(module, {id(one): one for one in module.parameters()})


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
