"""Seeds of what draws random numbers beside envs: policies, and the processes that act."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["entropy_of", "seed_globals", "seed_own"]


def entropy_of(seed: int | Sequence[int | None] | None) -> int | list[int]:
    """Return what random numbers are drawn from, of a seed or seeds of envs; fresh without one."""
    seeds = [seed] if seed is None or isinstance(seed, (int, np.integer)) else list(seed)
    if all(one is None for one in seeds):
        return int(np.random.SeedSequence().generate_state(4, np.uint64)[0])
    entropy = [0 if one is None else int(one) + 1 for one in seeds]
    return entropy[0] - 1 if isinstance(seed, (int, np.integer)) else entropy


def seed_globals(seeds: np.random.SeedSequence) -> None:
    """Seed the generators that a process has from the first."""
    number = _number(seeds)
    random.seed(number)
    np.random.seed(number)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(number)


def seed_own(policy: Any, seeds: np.random.SeedSequence) -> None:
    """Seed the generators of a copy of a policy, if it has a method for that."""
    if callable(own := getattr(policy, "seed", None)):
        own(_number(seeds))


def _number(seeds: np.random.SeedSequence) -> int:
    return int(seeds.generate_state(1)[0])
