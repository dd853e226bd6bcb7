"""The arguments of a policy, read from its signature."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pysampler._common.torch import is_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "GENERATORS",
    "PREVIOUS_ACTIONS",
    "PREVIOUS_REWARDS",
    "STATE",
    "PolicyElsewhere",
    "PolicySignature",
    "signature_of",
    "takes_by_name",
    "takes_nothing",
]

STATE = "state"
GENERATORS = "generators"
PREVIOUS_ACTIONS = "previous_actions"
PREVIOUS_REWARDS = "previous_rewards"
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_VARIABLE = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


@dataclass(frozen=True)
class PolicySignature:
    """The arguments of a policy in addition to observations and settings."""

    state: Literal["by name", "by position"] | None
    generators: bool
    requires_state: bool = False  # the state has no default
    previous: frozenset[str] = frozenset()  # a subset of PREVIOUS_ACTIONS and PREVIOUS_REWARDS


class PolicyElsewhere:
    """Replaces a policy in processes that do not call it: has only the policy's parameters."""

    def __init__(self, policy: Any) -> None:
        parameters = (_parameters_of(policy) or {}).values()
        has_default = [one.default is not one.empty for one in parameters]
        self.__signature__ = inspect.Signature(
            [
                one.replace(annotation=one.empty, default=None if default else one.empty)
                for one, default in zip(parameters, has_default, strict=True)
            ]
        )
        self.recurrent = getattr(policy, "recurrent", None)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("this policy acts in another process")


def takes_by_name(policy: Any, name: str, place: int) -> bool:
    """Return whether a policy has a parameter ``name`` that is not the one at ``place``."""
    parameters = _parameters_of(policy) or {}
    positional = [one for one, kind in parameters.items() if kind.kind in _POSITIONAL]
    return name in parameters and positional[place : place + 1] != [name]


def takes_nothing(policy: Any) -> bool:
    """Return whether a policy takes no arguments, as functions that make envs."""
    parameters = _parameters_of(policy) if callable(policy) else None
    return parameters is not None and not parameters


def _parameters_of(policy: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a policy; None if they are unknown."""
    try:
        # A compiled module has the signature of its original.
        function = getattr(policy, "_orig_mod", policy).forward if is_module(policy) else policy
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled, or written in C
        return None


def signature_of(
    policy: Any, positional: Sequence[str], settings: Iterable[str]
) -> PolicySignature:
    """Return the arguments to call a policy with; TypeError if it requires any others.

    ``positional`` are always passed by position, and ``settings`` by name.
    """
    if not callable(policy):
        raise TypeError(
            f"cannot act: the policy is a {type(policy).__name__}, expected a function of "
            "observations, or a torch module"
        )
    recurrent = getattr(policy, "recurrent", None)  # a module may have a layer of this name
    recurrent = bool(recurrent) if isinstance(recurrent, (bool, np.bool_)) else None
    by_position: Literal["by position"] | None = "by position" if recurrent else None
    parameters = _parameters_of(policy)
    if parameters is None:
        return PolicySignature(by_position, generators=False)
    names = [name for name, one in parameters.items() if one.kind in _POSITIONAL]
    # `def policy(observations, state, /)` cannot be called with a state by name.
    only = [name for name, one in parameters.items() if one.kind is _POSITIONAL[0]]
    if recurrent is None and STATE in only:
        recurrent = names.index(STATE) == len(positional)
        by_position = "by position" if recurrent else None
    given = names[: len(positional) + bool(recurrent)]
    bound = policy.keywords if isinstance(policy, functools.partial) else ()
    rest = {n: one for n, one in parameters.items() if n not in given and n not in bound}
    takes_any = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in rest.values())
    by_keyword = {n for n in rest if n not in only}
    previous = by_keyword & ({PREVIOUS_ACTIONS, PREVIOUS_REWARDS} - {*settings})
    known = {STATE, GENERATORS, *previous, *settings}
    if (len(names) < len(positional) and not takes_any) or any(
        one.default is one.empty
        and one.kind not in _VARIABLE
        and (name not in known or name in only)
        for name, one in rest.items()
    ):
        raise TypeError(
            f"cannot act: the policy takes ({', '.join(parameters)}), expected "
            f"({', '.join(positional)}) and parameters with a default; with one named 'state', or "
            "the attribute recurrent = True, if it is recurrent; 'generators', 'previous_actions', "
            "'previous_rewards' and the `settings` of actors are given by name"
        )
    by_name = STATE in rest and recurrent is not False
    state = parameters.get(names[len(positional)] if by_position else STATE)
    requires = bool(by_name or recurrent) and (state is None or state.default is state.empty)
    return PolicySignature(
        "by name" if by_name else by_position, GENERATORS in rest, requires, frozenset(previous)
    )
