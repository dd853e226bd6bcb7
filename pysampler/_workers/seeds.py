"""The random numbers of a process: no two workers draw the same."""

from __future__ import annotations

import random

import numpy as np

from pysampler._torch import loaded_torch

__all__ = ["number_from", "seed_globals"]


def seed_globals(seeds: np.random.SeedSequence) -> None:
    """Seed the global generators of this process: of Python, NumPy, and torch if it is imported."""
    number = number_from(seeds)
    random.seed(number)
    np.random.seed(number)
    if (torch := loaded_torch()) is not None:
        torch.manual_seed(number)


def number_from(seeds: np.random.SeedSequence) -> int:
    """Return a seed of 32 bits."""
    return int(seeds.generate_state(1)[0])
