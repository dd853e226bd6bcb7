"""Global random generators by env: ``random``, ``np.random`` and torch, as if each env were alone.

An env may draw from the global generators of its process, which several envs share. With
``seed_globals`` each env has its own states of them: they are swapped in around its steps and
resets, so that neither other envs nor the policy of a sampler draw from them.

Python's generator returns its state as 625 numbers, which takes 10 us, and NumPy's takes 200 us to
get and set. So memory is copied instead, if it has the expected layout: all of Python's generator,
and of NumPy's the normal number that it keeps, since it makes them in pairs.
"""

from __future__ import annotations

import _random
import ctypes
import random
from typing import Any

import numpy as np

from pysampler._common.torch import loaded_torch

__all__ = ["GlobalsOf"]

_get_bits, _set_bits = np.random.mtrand.get_bit_generator, np.random.mtrand.set_bit_generator
_generator: random.Random = random._inst
# Behind the head of the object: the place of the next number, and the numbers.
_WORDS = 625


def _memory_of(generator: random.Random) -> Any:
    return (ctypes.c_char * (4 * _WORDS)).from_address(id(generator) + object.__basicsize__)


_memory = _memory_of(_generator)


def _has_known_layout() -> bool:
    if _random.Random.__basicsize__ < object.__basicsize__ + len(_memory):
        return False
    place, *numbers = np.frombuffer(_memory.raw, np.uint32).tolist()
    return _random.Random.getstate(_generator) == (*numbers, place)


def _get_random() -> Any:
    return _memory.raw, _generator.gauss_next  # type: ignore[attr-defined]


def _set_random(state: Any) -> None:
    _memory.raw, _generator.gauss_next = state  # type: ignore[attr-defined]


def _state_of(generator: random.Random) -> Any:
    return _memory_of(generator).raw, generator.gauss_next  # type: ignore[attr-defined]


if not _has_known_layout():
    _get_random, _set_random = random.getstate, random.setstate
    _state_of = random.Random.getstate  # type: ignore[assignment]


def _memory_of_normal() -> Any:
    """Return the memory of the global generator's normal number; None if it cannot be found."""
    some = np.random.RandomState(1)
    some.normal()
    kept = some.get_state(legacy=False)["gauss"]
    memory = (ctypes.c_char * type(some).__basicsize__).from_address(id(some)).raw
    # Whether there is a number comes first.
    at = memory.find(np.array([1], np.int64).tobytes() + np.array([kept]).tobytes())
    return None if at < 0 else (ctypes.c_char * 16).from_address(id(np.random.mtrand._rand) + at)


_normal = _memory_of_normal()
_NO_NORMAL = bytes(16)


def _get_numpy() -> Any:
    return _get_bits(), None if _normal is None else _normal.raw


def _set_numpy(state: Any) -> None:
    _set_bits(state[0])  # drops the normal number
    if _normal is not None:
        _normal.raw = state[1]


def _seeded(seed: int | None) -> Any:
    """Return the state of Python's generator after a seed; None: a random one."""
    return _state_of(random.Random(seed))


class GlobalsOf:
    """Stands in for an env or vector env when it is stepped or reset.

    Args:
        env: The env. An attribute, as of a wrapper, so that time limits within are found.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._random = _seeded(None)
        self._numpy: Any = np.random.MT19937(), _NO_NORMAL
        self._torch: Any = None  # None until the env has had a turn after torch was imported
        self._seed: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, *args: Any) -> Any:
        """Step the env with its generators."""
        return self._with_globals(self.env.step, args, {})

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env; seed its generators first if the reset has a seed."""
        seed = kwargs.get("seed")
        if isinstance(seed, (list, tuple)):  # of a vector env, which counts as one env
            seed = next((one for one in seed if one is not None), None)
        if seed is not None:
            self._seed = abs(int(seed))
            self._random = _seeded(self._seed)
            self._numpy[0]._legacy_seeding(self._seed % 2**32)  # as np.random.seed does
            self._numpy = self._numpy[0], _NO_NORMAL
            self._torch = None
        return self._with_globals(self.env.reset, (), kwargs)

    def _with_globals(self, function: Any, args: Any, kwargs: Any) -> Any:
        torch, inside = loaded_torch(), False
        outer = _get_random(), _get_numpy(), torch and torch.get_rng_state()

        def leave() -> None:
            nonlocal inside
            if inside:  # otherwise the env has drawn nothing
                self._random, self._numpy = _get_random(), _get_numpy()
                self._torch = torch and torch.get_rng_state()
                inside = False
            _set_random(outer[0])
            _set_numpy(outer[1])
            if torch is not None:
                torch.set_rng_state(outer[2])

        try:
            _set_random(self._random)
            _set_numpy(self._numpy)
            if torch is not None:
                if self._torch is not None:
                    torch.set_rng_state(self._torch)
                elif self._seed is not None:
                    torch.default_generator.manual_seed(self._seed)
            inside = True
            return function(*args, **kwargs)
        finally:
            try:
                leave()
            except BaseException:  # of a signal handler
                leave()
                raise
