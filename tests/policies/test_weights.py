"""Weights: arrays by name, from torch modules and other objects with a ``state_dict``."""

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

from pysampler._policies.copying import copied, pickled
from pysampler._policies.weights import (
    arrays_of,
    chosen_weights,
    copy_weights,
    has_weights,
    load_weights,
    portable,
    weights_of,
)
from pysampler._workers.remote import loads


class Net(torch.nn.Module):
    def __init__(self, fill=0.0):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)
        torch.nn.init.constant_(self.layer.weight, fill)
        torch.nn.init.constant_(self.layer.bias, -fill)
        self.register_buffer("calls", torch.tensor(int(fill)))


class Table:
    """A policy without torch."""

    def __init__(self, values):
        self.values = values

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values = state


WEIGHT = np.full((3, 2), 5, np.float32)
GIVEN = {
    "layer.weight": WEIGHT,
    "layer.bias": np.full(3, -5, np.float32),
    "calls": np.array(5),
}


def assert_same(weights, expected):
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        assert type(array) is np.ndarray, name
        assert array.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(array, expected[name], err_msg=name, strict=True)


def test_weights_need_state_dict_and_load_state_dict():
    assert has_weights(Net())
    assert has_weights(Table({}))
    reading = Table({})
    reading.load_state_dict = None
    for policy in (reading, lambda observations: observations, None):
        assert not has_weights(policy)


# -- to arrays ------------------------------------------------------------------------------------


def test_module_weights_are_parameters_and_buffers():
    assert_same(weights_of(Net(5)), GIVEN)


def test_module_weights_are_views_without_gradients():
    net = Net(5)
    weights = weights_of(net)
    net.layer.weight.data.fill_(6)
    assert (weights["layer.weight"] == 6).all()


def test_other_weights_are_converted_by_numpy():
    weights = weights_of(Table({"list": [1.0, 2.0], "n": 3, "tensor": torch.ones(2)}))
    expected = {"list": np.array([1.0, 2.0]), "n": np.array(3), "tensor": np.ones(2, np.float32)}
    assert_same(weights, expected)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "bool", "complex64"])
def test_arrays_keep_the_dtype_of_tensors(dtype):
    [array] = arrays_of({"x": torch.ones(2, dtype=getattr(torch, dtype))}).values()
    assert array.dtype == dtype
    assert array.tolist() == [1, 1]


@pytest.mark.parametrize("make", [arrays_of, lambda state: weights_of(Table(state))])
def test_dtypes_that_numpy_lacks_are_refused_by_name(make):
    with pytest.raises(
        TypeError,
        match="^cannot send weights: half is torch.bfloat16, expected a tensor of a dtype that ",
    ):
        make({"whole": torch.ones(1), "half": torch.ones(1, dtype=torch.bfloat16)})


def test_dicts_to_publish_may_contain_tensors():
    net = Net(5)
    state = dict(net.named_parameters()) | {"calls": 5}
    assert_same(arrays_of(chosen_weights(state, net)), GIVEN)
    with pytest.raises(TypeError, match="^cannot send weights: half is torch.bfloat16"):
        chosen_weights({"half": torch.ones(1, dtype=torch.bfloat16)}, net)


def test_extra_state_of_a_module_is_refused():
    class Noting(Net):
        def get_extra_state(self):
            return "a note"

    with pytest.raises(TypeError, match="^cannot send weights: _extra_state is str, expected"):
        weights_of(Noting())


# -- from arrays ----------------------------------------------------------------------------------


def given():
    return {name: array.copy() for name, array in GIVEN.items()}


def test_loaded_modules_share_memory_with_the_arrays():
    net, weights = Net(), given()
    load_weights(net, weights)
    assert_same(weights_of(net), GIVEN)
    weights["layer.weight"][:] = 0
    weights["layer.bias"][:] = [1, 2, 3]
    weights["calls"][...] = 9
    assert net.layer(torch.ones(2)).tolist() == [1, 2, 3]
    assert net.calls.item() == 9
    assert net.layer.weight.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("layer.bias"), 'Missing key.*"layer.bias"'),
        (lambda weights: weights.update(other=WEIGHT), 'Unexpected key.*"other"'),
        (lambda weights: weights.update({"layer.weight": WEIGHT.T.copy()}), "size mismatch"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_a_module_refuses_weights_that_do_not_fit(change, message):
    weights = given()
    change(weights)
    with pytest.raises(RuntimeError, match=message):
        load_weights(Net(), weights)


def test_other_policies_get_a_new_dict_of_the_same_arrays():
    table, weights = Table({}), given()
    load_weights(table, weights)
    assert table.values is not weights
    assert table.values["calls"] is weights["calls"]
    assert_same(weights_of(table), GIVEN)


# -- copies ---------------------------------------------------------------------------------------


def test_copied_weights_share_no_memory():
    net, other = Net(), Net(5)
    parameter, memory = net.layer.weight, net.layer.weight.data_ptr()
    copy_weights(net, other)
    assert_same(weights_of(net), GIVEN)
    assert net.layer.weight is parameter
    assert parameter.data_ptr() == memory
    assert parameter.grad_fn is None  # no step of a graph
    other.layer.weight.data.fill_(1)
    assert_same(weights_of(net), GIVEN)


def test_copy_weights_refuses_missing_weights():
    class Larger(Net):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(3, 1)

    with pytest.raises(KeyError, match=r"head\.weight"):
        copy_weights(Larger(), Net())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_copied_and_travels():
    script = torch.jit.script(Net(5))
    for copy in (portable(script), copied(script), loads(pickled(script))):
        assert_same(weights_of(copy), GIVEN)
        assert all(one.is_leaf and one.requires_grad for one in copy.parameters())
        load_weights(copy, {**GIVEN, "calls": np.array(6)})
    assert_same(weights_of(script), GIVEN)


def test_portable_copies_modules_and_returns_other_policies_unchanged():
    net, table = Net(5), Table({})
    sent = portable(net)
    assert type(sent) is Net
    assert sent is not net
    net.layer.weight.data.fill_(1)
    assert_same(weights_of(sent), GIVEN)
    assert portable(table) is table
