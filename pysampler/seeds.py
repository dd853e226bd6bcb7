"""Seeds of what draws random numbers beside envs: policies, and the processes that act."""

from __future__ import annotations

import contextlib
import random
import sys
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["again", "entropy_of", "number_of", "seed_globals", "seed_own"]


def entropy_of(seed: int | Sequence[int | None] | None) -> int | list[int]:
    """Return what random numbers are drawn from, of a seed or seeds of envs; fresh without one."""
    seeds = [seed] if seed is None or isinstance(seed, (int, np.integer)) else list(seed)
    if all(one is None for one in seeds):
        return int(np.random.SeedSequence().generate_state(4, np.uint64)[0])
    entropy = [0 if one is None else int(one) + 1 for one in seeds]
    return entropy[0] - 1 if isinstance(seed, (int, np.integer)) else entropy


def again(entropy: int | list[int], times: int) -> int | list[int]:
    """Return other entropy for what begins anew, the same for a seed every time."""
    return [*(entropy if isinstance(entropy, list) else [entropy]), times] if times else entropy


def number_of(entropy: int | list[int]) -> int:
    """Return a seed for envs."""
    return _number(np.random.SeedSequence(entropy))


def seed_globals(seeds: np.random.SeedSequence) -> None:
    """Seed the generators that a process has from the first."""
    number = _number(seeds)
    random.seed(number)
    np.random.seed(number)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(number)


def seed_own(policy: Any, seeds: np.random.SeedSequence) -> None:
    """Seed the generators of a copy of a policy: by its method ``seed``, or each that is found."""
    owner = policy.__self__ if isinstance(policy, MethodType) else policy
    if callable(own := getattr(owner, "seed", None)):
        own(_number(seeds))
        return
    for generator in _generators_of(owner):
        number = _number(seeds.spawn(1)[0])
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(number).state
        elif isinstance(generator, (np.random.RandomState, random.Random)):
            generator.seed(number)
        else:
            generator.manual_seed(number)


def _generators_of(owner: Any) -> list[Any]:
    """Those that it holds, or of a function its closure, and the globals that came with it."""
    held = list(getattr(owner, "__dict__", {}).values())
    if isinstance(owner, FunctionType):
        for cell in owner.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                held.append(cell.cell_contents)
        home = sys.modules.get(owner.__module__)
        if home is None or owner.__globals__ is not vars(home):
            held += [owner.__globals__.get(name) for name in owner.__code__.co_names]
    kinds: tuple[type, ...] = np.random.Generator, np.random.RandomState, random.Random
    if (torch := sys.modules.get("torch")) is not None:
        kinds = *kinds, torch.Generator
    return [one for one in held if isinstance(one, kinds)]


def _number(seeds: np.random.SeedSequence) -> int:
    return int(seeds.generate_state(1)[0])
