"""What a space is in the frames: a tree of Dict and Tuple over fields of fixed shape.

Leaves whose values have no fixed shape (Text, Sequence, Graph, OneOf, spaces of the user's) are
*odd*: they go through the side channel, as the objects they are.

A tree is ``("leaf", i)``, ``("unshaped", i)``, ``("dict", ((key, tree), ...))`` or
``("tuple", (tree, ...))``; the leaves are numbered from left to right, the odd ones apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

__all__ = ["Field", "Spaces", "Spec", "spec_of"]

Tree = tuple[str, Any]


@dataclass(frozen=True)
class Field:
    """One array in the frames: what one env has of it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Spec:
    """The fields of an env's observations and actions, and the trees they are the leaves of."""

    observation_tree: Tree
    observations: tuple[Field, ...]
    odd_observations: int
    action_tree: Tree
    actions: tuple[Field, ...]
    odd_actions: int


def spec_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Spec:
    """What these spaces are in the frames."""
    observation_tree, observations, odd_observations = _tree_of(observation)
    action_tree, actions, odd_actions = _tree_of(action)
    return Spec(observation_tree, observations, odd_observations, action_tree, actions, odd_actions)


def _tree_of(space: spaces.Space[Any]) -> tuple[Tree, tuple[Field, ...], int]:
    fields: list[Field] = []
    odd = 0

    def visit(space: spaces.Space[Any]) -> Tree:
        nonlocal odd
        if isinstance(space, spaces.Dict):
            return "dict", tuple((key, visit(child)) for key, child in space.spaces.items())
        if isinstance(space, spaces.Tuple):
            return "tuple", tuple(visit(child) for child in space.spaces)
        if (
            isinstance(
                space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
            )
            and not np.dtype(space.dtype).hasobject
        ):
            fields.append(Field(tuple(space.shape or ()), np.dtype(space.dtype)))
            return "leaf", len(fields) - 1
        odd += 1
        return "unshaped", odd - 1

    return visit(space), tuple(fields), odd


@dataclass(frozen=True)
class Spaces:
    """Those of a vector env."""

    single_observation: spaces.Space[Any]
    observations: spaces.Space[Any]
    single_action: spaces.Space[Any]
    actions: spaces.Space[Any]

    @classmethod
    def of(
        cls,
        observations: Sequence[spaces.Space[Any]],
        actions: Sequence[spaces.Space[Any]],
        mode: str | tuple[spaces.Space[Any], spaces.Space[Any]],
    ) -> Spaces:
        """From the spaces of its envs, by gymnasium's ``observation_mode``."""
        if isinstance(mode, tuple) and len(mode) == 2:
            if not all(isinstance(space, spaces.Space) for space in mode):
                raise TypeError(
                    "Expected both elements of observation_mode to be Spaces, got "
                    f"{type(mode[0])} and {type(mode[1])}"
                )
            batched, single = mode
        elif mode == "same":
            single = observations[0]
            batched = batch_space(single, len(observations))
        elif mode == "different":
            single = observations[0]
            batched = batch_differing_spaces(list(observations))
        else:
            raise ValueError(
                "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single "
                f"and batch observation space, actual got {mode}"
            )
        for env, space in enumerate(observations):
            if space is single:
                continue
            if mode == "same" and space != single:
                raise RuntimeError(
                    "cannot batch observations: the sub-environments observation spaces are not "
                    f"equivalent. Env {env} has {space}, env 0 {single}. If this is intentional, "
                    "use `observation_mode='different'` instead."
                )
            if mode != "same" and not is_space_dtype_shape_equiv(space, single):
                raise RuntimeError(
                    "cannot batch observations: the sub-environments observation spaces do not "
                    f"share a common shape and dtype. Env {env} has {space}, expected one like "
                    f"{single}."
                )
        for env, space in enumerate(actions):
            if space is not actions[0] and space != actions[0]:
                raise RuntimeError(
                    f"cannot batch actions: env {env} has the action space {space}, env 0 "
                    f"{actions[0]}; expected the same for all"
                )
        return cls(single, batched, actions[0], batch_space(actions[0], len(actions)))


def build(tree: Tree, leaf: Callable[[int], Any], odd: Callable[[int], Any]) -> Any:
    """A batch: dicts and tuples as in the tree, with what the two functions make of its leaves."""
    kind, content = tree
    if kind == "leaf":
        return leaf(content)
    if kind == "unshaped":
        return odd(content)
    if kind == "dict":
        return {key: build(child, leaf, odd) for key, child in content}
    return tuple(build(child, leaf, odd) for child in content)


def leaves(tree: Tree, batch: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a batch, in order, each with its place in it (as in ``["a"][0]``).

    TypeError or ValueError if it has not the structure of the tree.
    """
    yield from _leaves(tree, batch, "")


def _leaves(tree: Tree, batch: Any, place: str) -> Iterator[tuple[str, Any]]:
    kind, content = tree
    if kind == "dict":
        if not isinstance(batch, Mapping):
            raise TypeError(f"{type(batch).__name__}{_at(place)}, expected a dict")
        missing = [key for key, _ in content if key not in batch]
        if missing:
            raise ValueError(f"no {missing[0]!r}{_at(place)}, expected {[k for k, _ in content]}")
        for key, child in content:
            yield from _leaves(child, batch[key], f"{place}[{key!r}]")
    elif kind == "tuple":
        if not isinstance(batch, (tuple, list)):
            raise TypeError(f"{type(batch).__name__}{_at(place)}, expected a tuple")
        if len(batch) != len(content):
            raise ValueError(f"{len(batch)} parts{_at(place)}, expected {len(content)}")
        for i, child in enumerate(content):
            yield from _leaves(child, batch[i], f"{place}[{i}]")
    else:
        yield place, batch


def places(tree: Tree) -> list[str]:
    """The place of each leaf, in order; empty where it is the only one."""
    kind, content = tree
    if kind == "dict":
        return [f"[{key!r}]{place}" for key, child in content for place in places(child)]
    if kind == "tuple":
        return [f"[{i}]{place}" for i, child in enumerate(content) for place in places(child)]
    return [""]


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def checked_actions(spec: Spec, num_envs: int, actions: Any) -> Sequence[npt.NDArray[Any]] | None:
    """The arrays of a batch of actions, leaf by leaf; None if it is not made of arrays.

    ValueError or TypeError if they have another shape, length or kind of dtype than expected.
    """
    arrays = []
    if spec.odd_actions:
        return None
    try:
        for (place, value), field in zip(
            leaves(spec.action_tree, actions), spec.actions, strict=True
        ):
            if isinstance(value, np.ndarray):
                array = value
            elif hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
                array = np.asarray(value)
            elif isinstance(value, (list, tuple)):
                if len(value) != num_envs:
                    raise ValueError(f"{len(value)} of them{_at(place)}, expected {num_envs}")
                return None
            else:
                raise TypeError(f"{type(value).__name__}{_at(place)}, expected an array")
            expected = (num_envs, *field.shape)
            if array.shape != expected:
                raise ValueError(f"shape {array.shape}{_at(place)}, expected {expected}")
            if array.dtype != field.dtype:
                if array.dtype.hasobject or not array.dtype.isnative:
                    return None
                if not np.can_cast(array.dtype, field.dtype, "same_kind"):
                    raise TypeError(f"dtype {array.dtype}{_at(place)}, expected {field.dtype}")
                if array.dtype.num > np.dtype(np.complex128).num or array.dtype.itemsize > 8:
                    return None
            arrays.append(array)
    except (TypeError, ValueError) as error:
        raise type(error)(f"cannot send actions: {error}") from None
    return arrays
