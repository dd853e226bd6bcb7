"""Trees of arrays: dicts, tuples and lists of any depth.

The structure of a space is known in advance (``_frames/spec.py``); that of a policy's state is
determined here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._frames.spec import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pysampler._frames.spec import Tree

__all__ = ["batch_from", "concatenated", "leaves_in", "mapped", "structure_of", "tree_from"]


def mapped(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to the leaves at each place of one or more trees, and return the results.

    Lists become tuples. The first tree determines the structure and its order.
    """
    if isinstance(tree, Mapping):
        return {key: mapped(function, tree[key], *(one[key] for one in others)) for key in tree}
    if isinstance(tree, (tuple, list)):
        return tuple(mapped(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def structure_of(tree: Any) -> Any:
    """Return a tree with "array" for each leaf. Trees of the same structure compare equal."""
    return mapped(lambda _: "array", tree)


def leaves_in(structure: Any, tree: Any) -> list[Any]:
    """Return the leaves of a tree in the order of its structure."""
    leaves: list[Any] = []
    mapped(lambda _, leaf: leaves.append(leaf), structure, tree)
    return leaves


def tree_from(structure: Any, leaves: Iterable[Any]) -> Any:
    """Return a tree of a structure, with these leaves in its order."""
    rest = iter(leaves)
    return mapped(lambda _: next(rest), structure)


def batch_from(tree: Tree, leaf: Callable[[int], Any]) -> Any:
    """Return a batch of a space without unshaped parts, with ``leaf(i)`` as leaf i."""
    return build(tree, leaf, _unshaped)


def _unshaped(_: int) -> Any:
    raise AssertionError("samplers refuse spaces that have parts without a fixed shape")


def concatenated(trees: list[Any], counts: list[int]) -> Any:
    """Join the rows of trees, with zeros for the rows that a dict lacks, unless it is the last."""
    last = trees[-1]
    if last is None:
        return None
    if isinstance(last, dict):
        return {key: concatenated([(t or {}).get(key) for t in trees], counts) for key in last}
    if isinstance(last, tuple):
        return tuple(concatenated([*each], counts) for each in zip(*trees, strict=True))
    shape = last.shape[1:]
    known = (
        np.zeros((count, *shape), last.dtype) if one is None else one
        for one, count in zip(trees, counts, strict=True)
    )
    return np.concatenate([*known])
