"""Members of a run: envs whose calls it makes, and the results that it records."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import pickle
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler._common.torch import is_tensor, to_array
from pysampler._vector.env_calls import autoreset_of, expect_env, expect_whole, is_several
from pysampler._vector.native.known import name_of
from pysampler.envs.batch import BatchEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pysampler._workers.exceptions import Report

__all__ = ["BatchMadeError", "Member", "RunResult", "Value"]

_SHOWN = 64  # the largest number of bytes of an array that is recorded as it is
_DEPTH = 8  # of nested infos


@dataclass(frozen=True)
class Value:
    """A recorded value: its type, its bytes or a digest of them, and its text if it is short."""

    kind: str
    content: bytes
    text: str = ""
    opaque: bool = False  # its contents cannot be compared


@dataclass
class RunResult:
    """The results of a run.

    Attributes:
        name: The name of the env.
        records: For each call of the env, its name, and the values that it returned by their path,
            such as "infos['speed']".
        steps: How many steps the env made.
        second: The number of the step before which the env was reset once more.
        seconds: How long the run took.
        failed: What raised an exception, and the exception; None if nothing did.
        batch: The name of the class, if the function made a BatchEnv.
        causes: Shared state that the envs changed: its kind, and a sentence.
    """

    name: str = ""
    records: list[tuple[str, dict[str, Value]]] = field(default_factory=list)
    steps: int = 0
    second: int | None = None
    seconds: float = 0.0
    failed: tuple[str, Report] | None = None
    batch: str = ""
    causes: list[tuple[str, str]] = field(default_factory=list)


class BatchMadeError(Exception):
    """The function made a BatchEnv, which a run cannot step."""


class Member:
    """An env of a run, with its actions.

    Args:
        make: Makes the env.
        seed: The seed of its first reset, and of its actions.
        result: Where its results are recorded; None for a sibling.
    """

    def __init__(self, make: Callable[[], Any], seed: int, result: RunResult | None) -> None:
        env = make()
        if isinstance(env, BatchEnv):
            raise BatchMadeError(type(env).__name__)
        self.env = self.calls = env  # the second may swap generators around calls
        self.seed, self._result = seed, result
        self._closed = False
        (expect_whole if is_several(env) else expect_env)(env, 0)
        if result is not None:
            result.name = name_of(env)
        # Envs may share the space, such as an attribute of their class.
        self._actions = copy.deepcopy(env.action_space)
        self._actions.seed(seed)
        # A vector env resets its envs itself, unless it leaves this to its caller.
        self._resets = not isinstance(env, GymVectorEnv) or (
            autoreset_of(env) is AutoresetMode.DISABLED
        )
        self._draws = env.render_mode not in (None, "human")

    def reset(self, name: str, seed: int | None = None) -> None:
        observation, info = self.calls.reset(seed=seed)
        self._record(name, observations=observation, infos=info)

    def step(self, name: str) -> None:
        results = self.calls.step(self._actions.sample())
        names = "observations", "rewards", "terminated", "truncated", "infos"
        self._record(name, **dict(zip(names, results, strict=True)))
        if self._resets and (np.any(results[2]) or np.any(results[3])):
            self.reset(f"the reset after {name}")

    def render(self, name: str) -> None:
        if not self._draws:
            return
        try:
            frames = self.env.render()
        except Exception as error:  # it may do so alone too: many machines cannot render
            frames = f"raised {type(error).__name__}: {error}"
        self._record(name, frames=frames)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(Exception):  # it may close what a sibling has closed before
                self.env.close()

    def _record(self, name: str, **results: Any) -> None:
        if self._result is not None:
            values = {path: one for k, v in results.items() for path, one in _values(k, v)}
            self._result.records.append((name, values))


def _values(path: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Value]]:
    """Yield the parts of a result, each with its path."""
    if depth < _DEPTH and isinstance(value, Mapping):
        for key, part in value.items():
            yield from _values(f"{path}[{key!r}]", part, depth + 1)
    elif depth < _DEPTH and isinstance(value, (list, tuple, deque)):
        yield path, Value(f"{type(value).__name__} of {len(value)}", b"")
        for i, part in enumerate(value):
            yield from _values(f"{path}[{i}]", part, depth + 1)
    elif depth < _DEPTH and isinstance(value, np.ndarray) and value.dtype == object:
        yield path, Value(f"array of objects {value.shape}", b"")
        for i, part in enumerate(value.flat):
            yield from _values(f"{path}[{i}]", part, depth + 1)
    elif isinstance(value, (set, frozenset)):
        yield path, Value(type(value).__name__, repr(sorted(map(repr, value))).encode())
    else:
        yield path, _value(value)


def _value(value: Any) -> Value:
    kind = type(value).__qualname__
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        text = repr(value)
        return Value(kind, text.encode(), text if len(text) <= _SHOWN else "")
    if is_tensor(value):
        value = to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.hasobject:
        try:
            return Value(kind, pickle.dumps(value))
        except Exception:  # an object may raise any
            return Value(kind, b"", opaque=True)
    array = np.asarray(value)
    kind = f"{kind} {array.dtype} {array.shape}"
    if array.nbytes <= _SHOWN:
        return Value(kind, array.tobytes(), " ".join(np.array2string(array, threshold=8).split()))
    return Value(kind, hashlib.blake2b(array.tobytes(), digest_size=16).digest())
