"""Seeding the global random generators of a process, so that no two workers draw the same."""

from __future__ import annotations

import random

import numpy as np

from pysampler._common.torch import loaded_torch

__all__ = ["number_from", "seed_globals"]


def seed_globals(seeds: np.random.SeedSequence) -> None:
    """Seed this process's global generators: Python's, NumPy's, and torch's if it is imported."""
    number = number_from(seeds)
    random.seed(number)
    np.random.seed(number)
    if (torch := loaded_torch()) is not None:
        torch.manual_seed(number)


def number_from(seeds: np.random.SeedSequence) -> int:
    """Return a 32-bit seed."""
    return int(seeds.generate_state(1)[0])
