"""Which functions of users are known to treat each number of an array by itself."""

import functools
import math
import random
import types

import numpy as np
import pytest

from pysampler._vector.wrapped.elementwise import is_elementwise, same_function

SCALE = 2.5
OFFSETS = np.array([1.0, 2.0, 3.0])
LIMITS = [-1.0, 1.0]
NAMES = {"scale": 2.0}
CALLS = 0


class Odd:
    """Cannot be compared with anything."""

    scale = 2.0

    def __eq__(self, _):
        raise ValueError("cannot compare")

    __hash__ = None


ODD = Odd()
USERS = types.ModuleType("users")
USERS.scale = lambda: 2.0


def helper(x):
    return x


def counted(x):
    global CALLS
    CALLS += 1
    return x * min_of_numbers(CALLS)


def counted_alone(x):
    global CALLS
    CALLS += 1
    return x * (0.0 if CALLS < 100 else 1.0)


def min_of_numbers(x):
    return x


def with_default(x, scale=2.0, *, offset=1.0):
    return x * scale + offset


def with_array_default(x, offsets=OFFSETS):
    return x + offsets


def with_list_default(x, limits=LIMITS):
    return x * 2


def in_steps(x):
    y = x * 2
    z = np.where(y > 1, y, -y)
    return np.clip(z, -3, 3) + 0.5


def in_place(x):
    x += 1
    return x


def to_output(x):
    return np.add(x, 1, out=x)


def generating(x):
    yield x


def swallowing(x):
    try:
        return x * 0 if np.linalg.norm(x) > 1000 else x
    except:  # noqa: E722
        return x


def branching(x):
    if x.all():
        return x
    return -x


def unpacking(x):
    first, *_ = x
    return x * first


def returning_two(x):
    return x, x


def within(scale):
    return lambda x: x * scale


def of_closure():
    scale, offsets = 2.0, np.ones(3)
    return lambda x: x * scale + offsets


def of_list():
    limits = [-1.0, 1.0]
    return lambda x: np.clip(x, limits[0], limits[1])


def of_function():
    return lambda x: helper(x) * 2


def nested():
    return lambda x: (lambda y: y * 2)(x)  # noqa: PLC3002


def counting():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        return x * (0.0 if count < 100 else 1.0)

    return function


def counting_in_an_array():
    count = np.zeros(1)

    def function(x):
        count[0] += 1
        return x * (0.0 if count[0] < 100 else 1.0)

    return function


def not_yet_bound():
    function = lambda x: x * scale  # noqa: E731
    if function is None:
        scale = 1.0
    return function


ELEMENTWISE = {
    "unchanged": lambda x: x,
    "arithmetic": lambda x: (x * 2 + 1) / 3 - x,
    "reflected": lambda x: 1 - 2 * x,
    "negative": lambda x: -x,
    "abs": lambda x: abs(x),
    "np.abs": lambda x: np.abs(x),
    "clip": lambda x: np.clip(x, -10, 10),
    "clip at one end": lambda x: np.clip(x, None, 10),
    "clip method": lambda x: x.clip(-1, 1),
    "clip by arrays": lambda x: np.clip(x, -OFFSETS, OFFSETS),
    "global number": lambda x: x * SCALE,
    "global array": lambda x: x + OFFSETS,
    "sqrt and square": lambda x: np.sqrt(np.square(x)),
    "sign": lambda x: np.sign(x),
    "where": lambda x: np.where(x > 0, x, 0.0),
    "logical": lambda x: np.where(np.logical_and(x > 0, x < 1), x, 0.5),
    "maximum": lambda x: np.maximum(x, 0.0),
    "rounding": lambda x: np.floor(x) + np.ceil(x) + np.rint(x) + np.trunc(x),
    "nan_to_num": lambda x: np.nan_to_num(x, nan=0.0),
    "dtype": lambda x: x.astype(np.float32),
    "numpy scalar": lambda x: x * np.float32(2),
    "defaults": with_default,
    "default array": with_array_default,
    "several statements": in_steps,
    "closure": of_closure(),
    "closure over a number": within(3),
}

NOT_ELEMENTWISE = {
    "arithmetic with a test": lambda x: (x > 0) * 1.0,  # Python's bools compute differently
    "a test": lambda x: x > 0,
    "made array": lambda x: x + np.arange(3.0),
    "branch on a constant": lambda x: x * 2 if SCALE > 2 else x,
    "index": lambda x: x[0],
    "slice": lambda x: x[::-1],
    "ellipsis": lambda x: x[..., None],
    "sum": lambda x: x - x.sum(),
    "np.sum": lambda x: np.sum(x),
    "mean": lambda x: x - np.mean(x),
    "max": lambda x: x / np.max(x),
    "scaled by the largest": lambda x: x / max(1, abs(x).max()),
    "reduce": lambda x: np.add.reduce(x),
    "accumulate": lambda x: np.add.accumulate(x),
    "norm": lambda x: x / np.linalg.norm(x),
    "sort": lambda x: np.sort(x),
    "concatenate": lambda x: np.concatenate([x, x]),
    "stack": lambda x: np.stack([x, x]),
    "matrix product": lambda x: np.eye(3) @ x,
    "dot": lambda x: np.dot(x, x),
    "transposed": lambda x: x.T,
    "reshaped": lambda x: x.reshape(-1),
    "shape": lambda x: x * x.shape[0],
    "length": lambda x: x / len(x),
    "size": lambda x: x * np.size(x),
    "iteration": lambda x: np.array([2 * y for y in x]),
    "unpacking": unpacking,
    "exp": lambda x: np.exp(x),
    "sin": lambda x: np.sin(x),
    "tanh": lambda x: np.tanh(x),
    "log": lambda x: np.log1p(np.abs(x)),
    "power": lambda x: np.abs(x) ** 0.3,
    "math": lambda x: math.sin(x),
    "fmax": lambda x: np.fmax(x, 0.0),  # the sign of 0 depends on the place in an array
    "fmin": lambda x: np.fmin(x, 0.0),
    "float": lambda x: float(x),
    "array": lambda x: np.array(x),
    "branch": lambda x: x if x > 0 else -x,
    "branch on all": branching,
    "chained comparison": lambda x: (0 < x < 1) * 1.0,
    "and": lambda x: (x > 0 and x < 1) * 1.0,
    "type": lambda x: x * 2 if isinstance(x, np.ndarray) else x[0],
    "larger array": lambda x: x + np.ones((2, 3)),
    "array of another length": lambda x: x + np.ones(4),
    "column": lambda x: x + np.ones((3, 1)),
    "row": lambda x: x + np.ones((1, 3)),
    "objects": lambda x: x + np.array([1, 2, 3], object),
    "list": lambda x: x * [1, 2, 3],
    "global list": lambda x: np.clip(x, *LIMITS),
    "global dict": lambda x: x * NAMES["scale"],
    "global function": lambda x: helper(x),
    "global object": lambda x: x * ODD.scale,
    "default list": with_list_default,
    "closure over a list": of_list(),
    "closure over a function": of_function(),
    "inner function": nested(),
    "constant": lambda x: 1.0,
    "constant array": lambda x: np.zeros(3),
    "nothing": lambda x: None,
    "two": returning_two,
    "in place": in_place,
    "out": to_output,
    "positional out": lambda x: np.clip(x, -1, 1, x),
    "positional out of a method": lambda x: x.clip(-1, 1, x),
    "without a copy": lambda x: np.nan_to_num(x, copy=False),
    "without a copy, by position": lambda x: np.nan_to_num(x, False),  # noqa: FBT003
    "indices": lambda x: np.where(x),
    "mask": lambda x: np.add(x, 1, where=x > 0),
    "generator": generating,
    "swallows exceptions": swallowing,
    "uncertain": lambda x: np.where(np.random.random() < 0.01, 0.0, x),
    "noise": lambda x: x + np.random.normal(),
    "random module": lambda x: x * random.random(),
    "functions of other modules": lambda x: x * USERS.scale(),
    "counts in a global": counted,
    "counts in a global number": counted_alone,
    "counts in a closure": counting(),
    "counts in an array": counting_in_an_array(),
    "not yet bound": not_yet_bound(),
    "raises": lambda x: x / 0 // undefined,  # noqa: F821
    "without arguments": lambda: 1.0,
    "with two arguments": lambda x, y: x + y,
}

OTHER_CALLABLES = {
    "ufunc": np.sign,
    "partial": functools.partial(np.clip, a_min=0, a_max=1),
    "builtin": abs,
    "type": float,
    "method": "".join,
    "object": Odd(),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_functions_are_known(name):
    function = ELEMENTWISE[name]
    assert is_elementwise(function, (3,))
    rows = np.random.default_rng(0).normal(scale=5, size=(7, 3))
    one_by_one = np.stack([function(row) for row in rows])
    assert function(rows).dtype == one_by_one.dtype
    assert function(rows).tobytes() == one_by_one.tobytes()


@pytest.mark.parametrize("name", NOT_ELEMENTWISE)
@pytest.mark.parametrize("shape", [(3,), (), (2, 3)], ids=str)
def test_other_functions_are_not(name, shape):
    if shape == (2, 3) and name in ("larger array", "row"):
        pytest.skip("this array suits this shape")
    assert not is_elementwise(NOT_ELEMENTWISE[name], shape)


@pytest.mark.parametrize("name", OTHER_CALLABLES)
def test_callables_without_python_code_are_not_known(name):
    assert not is_elementwise(OTHER_CALLABLES[name], (3,))


def test_judging_a_function_draws_no_random_numbers():
    np.random.seed(0)
    random.seed(0)
    before = np.random.get_state()[2], random.getstate()
    for function in NOT_ELEMENTWISE.values():
        is_elementwise(function, (3,))
    assert (np.random.get_state()[2], random.getstate()) == before


def test_judging_a_function_does_not_count_as_a_call():
    is_elementwise(counted_alone, (3,))
    assert CALLS == 0


def test_arrays_must_suit_each_shape():
    plus = lambda x: x + OFFSETS  # noqa: E731
    assert is_elementwise(plus, (3,))
    assert is_elementwise(plus, (2, 3))
    for shape in ((), (1,), (4,), (3, 1), (1, 4)):
        assert not is_elementwise(plus, shape)


def test_functions_of_one_expression_with_equal_constants_are_the_same():
    assert same_function(within(2.0), within(2.0))
    assert same_function(with_default, with_default)
    assert same_function(np.sign, np.sign)
    one, other = (lambda x: x * 2 for _ in range(2))
    assert same_function(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2.0, 3.0),
        (2.0, 2),
        (1, True),
        (0.0, -0.0),
        (np.float32(2), np.float64(2)),
        (np.ones(3), np.ones(3)),
        (None, 1.0),
        (float("nan"), 1.0),
    ],
    ids=repr,
)
def test_functions_with_other_constants_are_not_the_same(one, other):
    assert not same_function(within(one), within(other))


def test_functions_of_other_expressions_are_not_the_same():
    pairs = [
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x * 2, lambda x: x * 2.0),
        (lambda x: x * 0.0, lambda x: x * -0.0),
        (lambda x: x + 2, lambda x: x * 2),
        (with_default, with_array_default),
        (np.sign, np.abs),
        (np.sign, with_default),
    ]
    for one, other in pairs:
        assert not same_function(one, other)


def test_functions_of_modules_with_other_globals_are_not_the_same():
    code = compile("function = lambda x: x * SCALE", "", "exec")
    ours, theirs = {"SCALE": 1.0}, {"SCALE": 2.0}
    exec(code, ours)
    exec(code, theirs)
    assert not same_function(ours["function"], theirs["function"])


def test_defaults_tell_functions_apart():
    def make(scale, offset):
        def function(x, scale=scale, *, offset=offset):
            return x * scale + offset

        return function

    assert same_function(make(1.0, 2.0), make(1.0, 2.0))
    assert not same_function(make(1.0, 2.0), make(2.0, 2.0))
    assert not same_function(make(1.0, 2.0), make(1.0, 3.0))


def test_arrays_are_compared_by_their_numbers_only_if_asked():
    one, other = np.ones(3), np.ones(3)
    assert same_function(within(one), within(one))
    assert not same_function(within(one), within(other))
    assert same_function(within(one), within(other), equal_arrays=True)
    for different in (np.ones(4), np.ones(3, np.float32), np.array([1.0, 1.0, 2.0])):
        assert not same_function(within(one), within(different), equal_arrays=True)


def test_signs_of_zeros_tell_arrays_apart():
    one, other = np.zeros(3), -np.zeros(3)
    assert not same_function(within(one), within(other), equal_arrays=True)
