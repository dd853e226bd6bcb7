"""Trees of arrays: structure, order, mapping and mismatches."""

import types
from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from pysampler._frames.spec import spec_of
from pysampler._policies.trees import batch_from, leaves_in, mapped, structure_of, tree_from

keys = st.sampled_from(["a", "b", 3])
trees = st.recursive(
    st.integers(),
    lambda inner: (
        st.dictionaries(keys, inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)
quick = settings(max_examples=40, derandomize=True)


def with_tuples(tree):
    """Return the tree with lists as tuples."""
    if isinstance(tree, dict):
        return {key: with_tuples(part) for key, part in tree.items()}
    return tuple(map(with_tuples, tree)) if isinstance(tree, (list, tuple)) else tree


def with_reversed_dicts(tree):
    """Return the tree with its dicts reversed."""
    if isinstance(tree, dict):
        return {key: with_reversed_dicts(tree[key]) for key in reversed(tree)}
    return tuple(map(with_reversed_dicts, tree)) if isinstance(tree, (list, tuple)) else tree


def numbers_in(tree):
    """Return the leaves in written order, from left to right."""
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in numbers_in(part)]
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in numbers_in(part)]
    return [tree]


@quick
@given(trees)
def test_a_tree_is_rebuilt_from_structure_and_leaves(tree):
    structure = structure_of(tree)
    leaves = leaves_in(structure, tree)
    assert leaves == numbers_in(tree)
    assert tree_from(structure, leaves) == with_tuples(tree)


@quick
@given(trees)
def test_leaves_follow_the_order_of_the_structure(tree):
    structure = structure_of(tree)
    assert structure_of(with_reversed_dicts(tree)) == structure
    assert leaves_in(structure, with_reversed_dicts(tree)) == numbers_in(tree)


@quick
@given(trees)
def test_structures_ignore_leaf_values_and_lists(tree):
    assert structure_of(mapped(str, tree)) == structure_of(tree)
    assert set(numbers_in(structure_of(tree))) <= {"array"}


@quick
@given(trees)
def test_mapped_passes_corresponding_leaves(tree):
    twice = mapped(lambda leaf: 2 * leaf, tree)
    assert mapped(lambda *leaves: leaves[1] - leaves[0], tree, twice) == with_tuples(tree)


def test_a_tree_may_be_one_leaf():
    assert mapped(str, 3) == "3"
    assert structure_of(np.zeros(3)) == "array"
    assert leaves_in("array", 5) == [5]
    assert tree_from("array", [5]) == 5


@pytest.mark.parametrize("kind", [OrderedDict, types.MappingProxyType])
def test_any_mapping_counts_as_a_dict(kind):
    assert mapped(lambda leaf: -leaf, kind({"b": 1, "a": 2})) == {"b": -1, "a": -2}


@pytest.mark.parametrize("text", ["ab", b"ab", {1, 2}], ids=str)
def test_other_iterables_are_leaves(text):
    assert leaves_in("array", text) == [text]
    assert structure_of((text, np.zeros((2, 2)))) == ("array", "array")


@pytest.mark.parametrize(
    ("first", "other", "error"),
    [
        ((1, 2), (1,), ValueError),
        ((1,), (1, 2), ValueError),
        ({"a": 1}, {"b": 1}, KeyError),
        ({"a": {"b": 1}}, {"a": 3}, TypeError),
        ((1, 2), 3, TypeError),
    ],
)
def test_mapped_refuses_different_structures(first, other, error):
    with pytest.raises(error):
        mapped(lambda *leaves: leaves, first, other)


# -- batches of a space ---------------------------------------------------------------------------


def test_a_batch_has_the_structure_of_the_space():
    space = spaces.Dict(b=spaces.Discrete(2), a=spaces.Tuple([spaces.Discrete(2)] * 2))
    tree = spec_of(space, space).observation_tree
    assert batch_from(tree, str) == {"b": "0", "a": ("1", "2")}


def test_spaces_without_a_fixed_shape_have_no_batch():
    tree = spec_of(spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), spaces.Discrete(2))
    with pytest.raises(AssertionError, match="without a fixed shape"):
        batch_from(tree.observation_tree, str)
