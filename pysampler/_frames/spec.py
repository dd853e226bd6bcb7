"""The layout of spaces in the frames: a tree of dicts and tuples, whose leaves are arrays.

Leaves whose values have no fixed shape (Text, Sequence, Graph, OneOf, user-defined spaces) are
*unshaped*: their values are pickled and sent by mail.

A tree is ``("leaf", i)``, ``("unshaped", i)``, ``("dict", ((key, tree), ...))`` or
``("tuple", (tree, ...))``. Leaves are numbered from left to right, unshaped ones separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from pysampler._common.numbers import is_masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

__all__ = ["Field", "Spaces", "Spec", "build", "checked_actions", "leaf_paths", "leaves", "spec_of"]

Tree = tuple[str, Any]


@dataclass(frozen=True)
class Field:
    """An array in the frames: shape and dtype of the row of one env."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Spec:
    """The observation and action space of an env: their trees, fields, and unshaped leaves.

    ``rewards`` is the shape of a reward: () for a number.
    """

    observation_tree: Tree
    observations: tuple[Field, ...]
    unshaped_observations: int
    action_tree: Tree
    actions: tuple[Field, ...]
    unshaped_actions: int
    rewards: tuple[int, ...] = ()

    @property
    def unshaped_parts(self) -> list[str]:
        """The names of the unshaped parts of observations: keys and indices, joined by dots."""
        return [".".join(path) for path in _unshaped_paths(self.observation_tree)]

    @property
    def shaped(self) -> Spec:
        """The spec without unshaped parts of observations; other leaves keep their numbers."""
        if not self.unshaped_observations:
            return self
        tree = _shaped(self.observation_tree) or ("tuple", ())
        return replace(self, observation_tree=tree, unshaped_observations=0)


def spec_of(
    observation: spaces.Space[Any], action: spaces.Space[Any], rewards: tuple[int, ...] = ()
) -> Spec:
    """Return the layout of these spaces, and of rewards of a shape, in the frames."""
    observation_tree, observations, unshaped_observations = _tree_of(observation)
    action_tree, actions, unshaped_actions = _tree_of(action)
    return Spec(
        observation_tree,
        observations,
        unshaped_observations,
        action_tree,
        actions,
        unshaped_actions,
        rewards,
    )


def _tree_of(space: spaces.Space[Any]) -> tuple[Tree, tuple[Field, ...], int]:
    """Return a space's tree, the fields of its leaves, and its number of unshaped leaves."""
    fields: list[Field] = []
    unshaped = 0

    def visit(space: spaces.Space[Any]) -> Tree:
        nonlocal unshaped
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
        unshaped += 1
        return "unshaped", unshaped - 1

    return visit(space), tuple(fields), unshaped


def _unshaped_paths(tree: Tree) -> list[tuple[str, ...]]:
    kind, content = tree
    if kind == "leaf":
        return []
    if kind == "unshaped":
        return [()]
    children = content if kind == "dict" else enumerate(content)
    return [(str(key), *path) for key, child in children for path in _unshaped_paths(child)]


def _shaped(tree: Tree) -> Tree | None:
    """Return a tree without its unshaped leaves; None if nothing is left."""
    kind, content = tree
    if kind == "leaf":
        return tree
    if kind == "unshaped":
        return None
    if kind == "dict":
        parts = [(key, part) for key, child in content if (part := _shaped(child)) is not None]
    else:
        parts = [part for child in content if (part := _shaped(child)) is not None]
    return (kind, tuple(parts)) if parts else None


@dataclass(frozen=True)
class Spaces:
    """The spaces of a vector env and of each of its envs."""

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
        """Return a vector env's spaces, given its envs' spaces and ``observation_mode``."""
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
        before = single
        for env, space in enumerate(observations):
            if space is before:  # the envs of a worker share it
                continue
            before = space
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
        before = actions[0]
        for env, space in enumerate(actions):
            if space is before:
                continue
            before = space
            if space != actions[0]:
                raise RuntimeError(
                    f"cannot batch actions: env {env} has the action space {space}, env 0 "
                    f"{actions[0]}; expected the same for all"
                )
        return cls(single, batched, actions[0], batch_space(actions[0], len(actions)))


def build(tree: Tree, leaf: Callable[[int], Any], unshaped: Callable[[int], Any]) -> Any:
    """Return a tree as dicts and tuples, calling the two functions with each leaf's number."""
    kind, content = tree
    if kind == "leaf":
        return leaf(content)
    if kind == "unshaped":
        return unshaped(content)
    if kind == "dict":
        return {key: build(child, leaf, unshaped) for key, child in content}
    return tuple(build(child, leaf, unshaped) for child in content)


def leaves(tree: Tree, batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path (such as ``["a"][0]``) and value of each leaf of a batch, in order.

    Raises TypeError or ValueError if the structure of the batch differs from the tree.
    """
    yield from _leaves(tree, batch, "")


def _leaves(tree: Tree, batch: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of ``batch``, which is at ``path`` in the whole one."""
    kind, content = tree
    if kind == "dict":
        if not isinstance(batch, Mapping):
            raise TypeError(f"{type(batch).__name__}{_at(path)}, expected a dict")
        missing = [key for key, _ in content if key not in batch]
        if missing:
            raise ValueError(f"no {missing[0]!r}{_at(path)}, expected {[k for k, _ in content]}")
        for key, child in content:
            yield from _leaves(child, batch[key], f"{path}[{key!r}]")
    elif kind == "tuple":
        if not isinstance(batch, (tuple, list)):
            raise TypeError(f"{type(batch).__name__}{_at(path)}, expected a tuple")
        if len(batch) != len(content):
            raise ValueError(f"{len(batch)} parts{_at(path)}, expected {len(content)}")
        for i, child in enumerate(content):
            yield from _leaves(child, batch[i], f"{path}[{i}]")
    else:
        yield path, batch


def leaf_paths(tree: Tree) -> list[str]:
    """Return the paths of all leaves, in order: ``[""]`` for a tree that is one leaf."""
    kind, content = tree
    if kind == "dict":
        return [f"[{key!r}]{path}" for key, child in content for path in leaf_paths(child)]
    if kind == "tuple":
        return [f"[{i}]{path}" for i, child in enumerate(content) for path in leaf_paths(child)]
    return [""]


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def checked_actions(spec: Spec, num_envs: int, actions: Any) -> Sequence[npt.NDArray[Any]] | None:
    """Return the arrays of a batch of actions, by leaf; None if they cannot be copied to frames.

    That holds for lists, unshaped leaves and some dtypes. Raises ValueError or TypeError if an
    array has an unexpected shape, length or kind of dtype, or a mask.
    """
    arrays = []
    if spec.unshaped_actions:
        return None
    try:
        for (path, value), field in zip(
            leaves(spec.action_tree, actions), spec.actions, strict=True
        ):
            if is_masked(value):  # frames have no room for a mask
                raise ValueError(f"masked{_at(path)}, expected an array without a mask")
            if isinstance(value, np.ndarray):
                array = value
            elif hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
                array = np.asarray(value)
            elif isinstance(value, (list, tuple)):
                if len(value) != num_envs:
                    raise ValueError(f"{len(value)} of them{_at(path)}, expected {num_envs}")
                return None
            else:
                raise TypeError(f"{type(value).__name__}{_at(path)}, expected an array")
            expected = (num_envs, *field.shape)
            if array.shape != expected:
                raise ValueError(f"shape {array.shape}{_at(path)}, expected {expected}")
            if array.dtype != field.dtype:
                if array.dtype.hasobject or not array.dtype.isnative:
                    return None
                if not np.can_cast(array.dtype, field.dtype, "same_kind"):
                    raise TypeError(f"dtype {array.dtype}{_at(path)}, expected {field.dtype}")
                if array.dtype.num > np.dtype(np.complex128).num or array.dtype.itemsize > 8:
                    return None
            arrays.append(array)
    except (TypeError, ValueError) as error:
        raise type(error)(f"cannot send actions: {error}") from None
    return arrays
