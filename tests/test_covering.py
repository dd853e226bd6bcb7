"""The choice of parametrized cases for the quick set and `make test-all`."""

import itertools

import pytest
from covering import covering

CASES = [
    dict(zip("abc", values, strict=True)) for values in itertools.product(range(5), "xy", range(3))
]


@pytest.mark.parametrize(("size", "count"), [(1, 5), (2, 15), (3, 30)])
def test_each_combination_of_values_is_covered(size, count):
    def combinations(cases):
        return {some for case in cases for some in itertools.combinations(case.items(), size)}

    chosen = [CASES[at] for at in covering(CASES, size)]
    assert combinations(chosen) == combinations(CASES)
    assert len(chosen) == count


def test_tests_with_fewer_parameters_keep_their_cases():
    assert covering([{}], 2) == [0]
    assert covering([{"a": 0}, {"a": 1}], 2) == [0, 1]


def test_missing_cases_are_replaced_by_others():
    assert covering([{"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 1, "b": 1}], 1) == [0, 2]
