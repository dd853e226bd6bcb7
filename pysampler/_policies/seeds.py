"""Seeds of policies, and of samplers that are restarted."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.torch import loaded_torch
from pysampler._workers.seeds import number_from

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["entropy_from", "restart_entropy", "seed_from", "seed_policy"]


def entropy_from(seed: int | Sequence[int | None] | None) -> int | list[int]:
    """Return entropy from a seed or from the seeds of envs; fresh entropy if there are none."""
    seeds = [seed] if seed is None or isinstance(seed, (int, np.integer)) else list(seed)
    if all(one is None for one in seeds):
        return int(np.random.SeedSequence().generate_state(4, np.uint64)[0])
    entropy = [0 if one is None else int(one) + 1 for one in seeds]
    return entropy[0] - 1 if isinstance(seed, (int, np.integer)) else entropy


def restart_entropy(entropy: int | list[int], restarts: int) -> int | list[int]:
    """Return the entropy of a sampler after this many restarts, different each time."""
    own = entropy if isinstance(entropy, list) else [entropy]
    return [*own, restarts] if restarts else entropy


def seed_from(entropy: int | list[int]) -> int:
    """Return a seed for envs."""
    return number_from(np.random.SeedSequence(entropy))


def seed_policy(policy: Any, seeds: np.random.SeedSequence, *, own_process: bool) -> None:
    """Seed a copy of a policy by its method ``seed``, or else all generators that it refers to.

    With ``own_process`` the generators of modules are seeded too; otherwise the user's code shares
    them.
    """
    owner = policy.__self__ if isinstance(policy, MethodType) else policy
    if callable(own := getattr(owner, "seed", None)):
        own(number_from(seeds))
        return
    for generator in _generators_of(policy, own_process=own_process):
        number = number_from(seeds.spawn(1)[0])
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(number).state
        elif isinstance(generator, (np.random.RandomState, random.Random)):
            generator.seed(number)
        else:
            generator.manual_seed(number)


# Modules whose classes and functions are not searched for a policy's generators.
_FOREIGN = sys.stdlib_module_names | {"gymnasium", "numpy", "pysampler", "torch"}


def _generators_of(policy: Any, *, own_process: bool) -> list[Any]:
    """Return all generators that a policy or its functions refer to."""
    kinds: tuple[type, ...] = np.random.Generator, np.random.RandomState, random.Random
    if (torch := loaded_torch()) is not None:
        kinds = *kinds, torch.Generator
    found: list[Any] = []
    seen: dict[int, Any] = {}
    left = [policy]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (ModuleType, np.ndarray, str, bytes, int, float)):
            continue
        seen[id(one)] = one
        if isinstance(one, kinds):
            found.append(one)
        else:
            left += reversed(_held_by(one, own_process=own_process))
    return found


def _held_by(one: Any, *, own_process: bool) -> list[Any]:
    """Return objects to which an object refers and in which generators of a policy may be."""
    if isinstance(one, Mapping):
        return list(one.values())
    if isinstance(one, (list, tuple, set, frozenset)):
        return list(one)
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, (MethodType, classmethod, staticmethod)):
        return [one.__func__, getattr(one, "__self__", None)]
    if str(getattr(one, "__module__", None)).partition(".")[0] in _FOREIGN:
        return list(getattr(one, "__dict__", {}).values()) if not isinstance(one, type) else []
    if isinstance(one, FunctionType):
        held = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        for cell in one.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                held.append(cell.cell_contents)
        if own_process or not _is_home(one):
            held += [one.__globals__.get(name) for name in _names(one.__code__)]
        return held
    if isinstance(one, type):
        home = sys.modules.get(one.__module__)
        if not own_process and getattr(home, one.__name__, None) is one:
            return []
        return [value for kind in one.__mro__[:-1] for value in vars(kind).values()]
    slots = [getattr(one, name, None) for name in getattr(type(one), "__slots__", ())]
    return [*getattr(one, "__dict__", {}).values(), *slots, type(one)]


def _is_home(function: FunctionType) -> bool:
    """Return whether a function uses the globals of its module, rather than copies of them."""
    home = sys.modules.get(function.__module__)
    return home is not None and function.__globals__ is vars(home)


def _names(code: CodeType) -> list[str]:
    """Return the global names that code uses, including the functions inside it."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one)]
    return [*code.co_names, *inner]
