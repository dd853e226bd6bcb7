"""Specs of spaces: trees, fields, the order and paths of leaves; action checks; batch spaces."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from pysampler._frames.spec import (
    Field,
    Spaces,
    build,
    checked_actions,
    leaf_paths,
    leaves,
    spec_of,
)


def box(*shape, dtype=np.float32):
    return spaces.Box(-1, 1, shape, dtype)


class Own(spaces.Space):
    """A user-defined space."""

    def __init__(self):
        super().__init__((2,), np.float32)


class ObjectBox(spaces.Box):
    """A box whose elements are Python objects."""

    def __init__(self):
        super().__init__(0, 1, (2,), np.float32)
        self.dtype = np.dtype(object)


# -- trees and fields -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (box(2, 3), (2, 3), np.float32),
        (box(dtype=np.float64), (), np.float64),
        (spaces.Discrete(3), (), np.int64),
        (spaces.MultiDiscrete([2, 3]), (2,), np.int64),
        (spaces.MultiBinary([2, 2]), (2, 2), np.int8),
    ],
    ids=str,
)
def test_space_of_fixed_shape_becomes_a_field(space, shape, dtype):
    spec = spec_of(space, spaces.Discrete(2))
    assert (spec.observation_tree, spec.unshaped_observations) == (("leaf", 0), 0)
    assert spec.observations == (Field(shape, np.dtype(dtype)),)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(box(1)),
        spaces.Graph(box(1), None),
        spaces.OneOf([box(1), box(2)]),
        Own(),
        ObjectBox(),
    ],
    ids=lambda space: type(space).__name__,
)
def test_space_without_a_fixed_shape_is_unshaped(space):
    spec = spec_of(spaces.Discrete(2), space)
    assert (spec.action_tree, spec.actions, spec.unshaped_actions) == (("unshaped", 0), (), 1)


NESTED = spaces.Dict(
    z=box(1),
    a=spaces.Tuple([spaces.Discrete(2), spaces.Text(1), spaces.Dict(k=box(2))]),
    m=spaces.Text(2),
    b=spaces.Tuple([]),
)


def test_leaves_and_unshaped_parts_are_numbered_separately():
    spec = spec_of(NESTED, spaces.Discrete(2))
    inner = ("tuple", (("leaf", 1), ("unshaped", 0), ("dict", (("k", ("leaf", 2)),))))
    parts = [("z", ("leaf", 0)), ("a", inner), ("m", ("unshaped", 1)), ("b", ("tuple", ()))]
    assert spec.observation_tree == ("dict", tuple(parts))
    assert [field.shape for field in spec.observations] == [(1,), (), (2,)]
    assert spec.unshaped_observations == 2


names = st.sampled_from(["a", "b", "it's"])
nested = st.recursive(
    st.just(spaces.Discrete(2)) | st.just(spaces.Text(1)),
    lambda inner: (
        st.dictionaries(names, inner, max_size=3).map(spaces.Dict)
        | st.lists(inner, max_size=3).map(spaces.Tuple)
    ),
    max_leaves=6,
)


@settings(max_examples=40, derandomize=True)
@given(nested)
def test_leaf_paths_are_in_the_order_of_leaves(space):
    tree = spec_of(space, space).action_tree
    batch = build(tree, lambda i: f"leaf {i}", lambda i: f"unshaped {i}")
    found = list(leaves(tree, batch))
    assert [path for path, _ in found] == leaf_paths(tree)
    assert [eval(f"batch{path}", {"batch": batch}) for path, _ in found] == [v for _, v in found]
    for kind in ("leaf", "unshaped"):
        values = [value for _, value in found if value.startswith(kind)]
        assert values == [f"{kind} {i}" for i in range(len(values))]


# -- actions --------------------------------------------------------------------------------------

SPEC = spec_of(spaces.Discrete(2), spaces.Dict(a=spaces.Tuple([box(2), spaces.Discrete(3)])))
FORCE, CHOICE = np.ones((4, 2), np.float32), np.zeros(4, np.int64)


def refusal(actions):
    with pytest.raises((TypeError, ValueError)) as caught:
        checked_actions(SPEC, 4, actions)
    return f"{type(caught.value).__name__}: {caught.value}".replace(": cannot send actions", "")


def test_valid_actions_are_returned_without_copies():
    given = {"a": (FORCE, CHOICE)}
    force, choice = checked_actions(SPEC, 4, given)
    assert force is FORCE
    assert choice is CHOICE


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([FORCE, CHOICE], "TypeError: list, expected a dict"),
        ({"b": 1}, "ValueError: no 'a', expected ['a']"),
        ({"a": FORCE}, "TypeError: ndarray at ['a'], expected a tuple"),
        ({"a": (FORCE,)}, "ValueError: 1 parts at ['a'], expected 2"),
        ({"a": (FORCE, 1)}, "TypeError: int at ['a'][1], expected an array"),
        ({"a": (FORCE, [1, 2, 3])}, "ValueError: 3 of them at ['a'][1], expected 4"),
        ({"a": (FORCE[:3], CHOICE)}, "ValueError: shape (3, 2) at ['a'][0], expected (4, 2)"),
        ({"a": (FORCE, CHOICE + 0.5)}, "TypeError: dtype float64 at ['a'][1], expected int64"),
        ({"a": (FORCE * 1j, CHOICE)}, "TypeError: dtype complex64 at ['a'][0], expected float32"),
    ],
)
def test_invalid_actions_error_names_the_fault_and_its_path(actions, expected):
    assert refusal(actions) == expected


def test_actions_of_another_dtype_of_the_same_kind_are_kept():
    arrays = checked_actions(SPEC, 4, {"a": (FORCE.astype(np.float64), CHOICE.astype(np.int8))})
    assert [array.dtype for array in arrays] == [np.float64, np.int8]


@pytest.mark.parametrize(
    "force",
    [
        FORCE.tolist(),
        FORCE.astype(object),
        FORCE.astype(">f4"),
        FORCE.astype(np.longdouble),
        FORCE.astype(np.float16),
    ],
    ids=["list", "objects", "foreign bytes", "longdouble", "half"],
)
def test_actions_that_do_not_fit_the_frame_are_pickled(force):
    assert checked_actions(SPEC, 4, {"a": (force, CHOICE)}) is None


def test_unshaped_actions_are_not_checked():
    assert checked_actions(spec_of(box(1), spaces.Text(1)), 4, "anything") is None


# -- the spaces of a vector env -------------------------------------------------------------------

LOW, HIGH = spaces.Box(0, 1, (2,)), spaces.Box(0, 9, (2,))


def test_equal_spaces_are_batched():
    made = Spaces.of([LOW, spaces.Box(0, 1, (2,))], [spaces.Discrete(3)] * 2, "same")
    assert made.single_observation is LOW
    assert made.observations == spaces.Box(0, 1, (2, 2))
    assert made.single_action == spaces.Discrete(3)
    assert made.actions == spaces.MultiDiscrete([3, 3])


def test_different_bounds_are_batched_in_different_mode():
    made = Spaces.of([LOW, HIGH], [box(1)] * 2, "different")
    assert made.single_observation is LOW
    assert made.observations.high.tolist() == [[1, 1], [9, 9]]


def test_given_batch_space_is_used():
    batch = spaces.Box(0, 9, (2, 2))
    made = Spaces.of([LOW, HIGH], [box(1)] * 2, (batch, HIGH))
    assert made.observations is batch
    assert made.single_observation is HIGH


@pytest.mark.parametrize(
    ("observations", "actions", "mode", "error", "message"),
    [
        ([LOW, HIGH], [box(1)] * 2, "same", RuntimeError, "Env 1 has Box.*9.0.*, env 0 Box"),
        ([LOW, box(3)], [box(1)] * 2, (LOW, LOW), RuntimeError, r"dtype. Env 1 has .*\(3,\)"),
        ([LOW, LOW], [box(1), box(2)], "same", RuntimeError, "actions: env 1 has .* env 0 Box"),
        ([LOW, LOW], [box(1)] * 2, (LOW, 3), TypeError, "both elements of observation_mode"),
        ([LOW, LOW], [box(1)] * 2, "equal", ValueError, "actual got equal"),
    ],
    ids=["bounds", "shapes", "actions", "no space", "mode"],
)
def test_incompatible_spaces_raise(observations, actions, mode, error, message):
    with pytest.raises(error, match=message):
        Spaces.of(observations, actions, mode)
