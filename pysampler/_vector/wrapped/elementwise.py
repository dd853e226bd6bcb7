"""Decides whether a function is elementwise, so that it can be called with many rows at once.

First its bytecode is checked: it may name only NumPy, numbers and arrays, and may not branch, store
anything but local names, or index. So a call has no side effects and always runs the same code.
Then it is called once with a stand-in for an array. The stand-in allows only operations that NumPy
applies to each element and that IEEE 754 rounds exactly. Anything else raises, such as a sum, or a
transcendental function, whose last bit may depend on the position in an array. A trial with numbers
would not suffice: ``lambda x: x / max(1, abs(x).max())`` is elementwise until a number is large.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from pysampler._vector.same import same

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bound_names", "bound_values", "is_elementwise", "same_function"]

_ARITHMETIC = {
    *(np.add, np.subtract, np.multiply, np.divide, np.negative, np.positive, np.absolute),
    *(np.fabs, np.sign, np.sqrt, np.square, np.maximum, np.minimum),
    *(np.floor, np.ceil, np.trunc, np.rint),
}
_TESTS = {
    *(np.isnan, np.isinf, np.isfinite),
    *(np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal),
}
_LOGIC = {np.logical_and, np.logical_or, np.logical_not}
# By function, the number of positional arguments and the names of the other arguments.
_FUNCTIONS: dict[Any, tuple[range, set[str]]] = {
    np.clip: (range(1, 4), {"a", "a_min", "a_max", "min", "max"}),
    np.nan_to_num: (range(1, 2), {"x", "nan", "posinf", "neginf"}),
    np.where: (range(3, 4), set()),
}
_CALLABLE = [*_ARITHMETIC, *_TESTS, *_LOGIC, *_FUNCTIONS, abs]
_ATTRIBUTES = {
    *(one.__name__ for one in _CALLABLE),
    *("abs", "clip", "astype", "float32", "float64", "inf", "nan", "pi", "e"),
}
_NUMBERS = int, float, bool, type(None), np.number, np.bool_
# Bytecode that computes, calls, loads, and stores local names; no branches or other stores.
_CODES = {
    *("RESUME", "COPY_FREE_VARS", "NOP", "CACHE", "EXTENDED_ARG", "PUSH_NULL", "PRECALL"),
    *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST", "STORE_FAST"),
    *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),
    *("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"),
    *("BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE", "CALL", "CALL_KW", "KW_NAMES", "COPY", "SWAP"),
    *("RETURN_VALUE", "RETURN_CONST", "BUILD_TUPLE"),
}


class _NotElementwiseError(Exception):
    pass


class _StandIn(NDArrayOperatorsMixin):
    """Stands for a row: an allowed operation on it returns another stand-in, others raise.

    Args:
        shape: The shape of the row.
        test: Whether its elements are results of a comparison. Arithmetic on these differs between
            Python's and NumPy's.
    """

    def __init__(self, shape: tuple[int, ...], *, test: bool = False) -> None:
        self._shape = shape
        self._test = test

    def _expect(self, operands: Any, *, tests: bool = False) -> None:
        for one in operands:
            if isinstance(one, _StandIn):
                if one._test and not tests:
                    raise _NotElementwiseError
            elif isinstance(one, np.ndarray):
                # It must broadcast to each row without changing the result's shape.
                if (
                    one.dtype == object
                    or np.broadcast_shapes(one.shape, self._shape) != self._shape
                ):
                    raise _NotElementwiseError
            elif not isinstance(one, _NUMBERS):
                raise _NotElementwiseError
            # With a reward that is a number of Python, the result would have this dtype.
            dtype = getattr(one, "dtype", np.dtype(float))
            if self._shape == () and dtype.kind == "f" and dtype != np.float64:
                raise _NotElementwiseError

    def _expect_array(self) -> None:
        """Raise unless this is an array: a reward may be a number of Python instead.

        Such a number has no methods of arrays, and dividing it by zero raises.
        """
        if self._shape == ():
            raise _NotElementwiseError

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, _StandIn) or not np.all(other):
            self._expect_array()
        return np.divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        self._expect_array()
        return np.divide(other, self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # NumPy squares arrays, but not numbers, if the exponent is 2.
        square = ufunc is np.power and self._shape != () and inputs[1:] == (2,)
        if method != "__call__" or kwargs or not (square or ufunc in _CALLABLE):
            raise _NotElementwiseError
        self._expect(inputs, tests=ufunc in _LOGIC)
        return _StandIn(self._shape, test=ufunc in _TESTS or ufunc in _LOGIC)

    def __array_function__(self, func: Any, _: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        counts, names = _FUNCTIONS.get(func, (range(0), set()))
        if len(args) not in counts or kwargs.keys() - names:
            raise _NotElementwiseError
        if func is np.where:
            self._expect(args[:1], tests=True)
            args = args[1:]
        self._expect((*args, *kwargs.values()))
        return _StandIn(self._shape)

    def clip(self, *args: Any, **kwargs: Any) -> Any:
        self._expect_array()
        return np.clip(self, *args, **kwargs)

    def astype(self, dtype: Any) -> Any:
        self._expect_array()
        if np.dtype(dtype) not in (np.float32, np.float64):  # other dtypes overflow differently
            raise _NotElementwiseError
        self._expect([self])
        return _StandIn(self._shape)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _NotElementwiseError

    def __bool__(self) -> bool:
        raise _NotElementwiseError


def is_elementwise(function: Callable[[Any], Any], shape: tuple[int, ...]) -> bool:
    """Return whether a function of arrays of this shape is known to be elementwise."""
    try:
        if not _is_plain(function):
            return False
        result = function(_StandIn(shape))
        return isinstance(result, _StandIn) and not result._test
    except Exception:  # from the function, or from NumPy, since a stand-in is no array
        return False


def _is_plain(function: Any) -> bool:
    """Return whether calls of a function have no side effects and always run the same code."""
    if not isinstance(function, types.FunctionType) or not _has_no_effects(function.__code__):
        return False
    named = [value for _, _, value in bound_names(function)]
    return all(
        one is np
        or isinstance(one, (np.ndarray, *_NUMBERS))
        or any(one is known for known in _CALLABLE)
        for one in named
    ) and all(isinstance(one, (np.ndarray, *_NUMBERS)) for one in bound_values(function))


@functools.lru_cache  # all envs of a batch have functions with the same code
def _has_no_effects(code: types.CodeType) -> bool:
    for one in dis.get_instructions(code):
        if one.opname not in _CODES:
            return False
        # "+=" changes its operand, and indexing is not elementwise.
        if one.opname == "BINARY_OP" and one.argrepr.endswith(("=", "]")):
            return False
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval not in _ATTRIBUTES:
            return False
    return True


@functools.lru_cache
def _global_names(code: types.CodeType) -> list[str]:
    return [one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]


def bound_names(function: types.FunctionType) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the globals that a function reads: the dict, the name and the value of each."""
    scopes = function.__globals__, vars(builtins)
    found = []
    for name in _global_names(function.__code__):
        where = scopes[0] if name in scopes[0] else scopes[1]
        found.append((where, name, where.get(name)))
    return found


def same_function(a: Any, b: Any, *, equal_arrays: bool = False) -> bool:
    """Return whether two functions have the same code and refer to the same constants.

    Args:
        a: A function.
        b: Another function.
        equal_arrays: Accept two arrays with equal numbers as the same constant. Pass False if users
            can reach the arrays, since their numbers may change.
    """
    if a is b:
        return True
    if not (isinstance(a, types.FunctionType) and isinstance(b, types.FunctionType)):
        return False
    one, other = bound_values(a), bound_values(b)
    return (
        a.__code__ == b.__code__
        and a.__globals__ is b.__globals__
        and len(one) == len(other)
        and all(
            x is y or (same(x, y) and (equal_arrays or not isinstance(x, np.ndarray)))
            for x, y in zip(one, other, strict=True)
        )
    )


def bound_values(function: types.FunctionType) -> list[Any]:
    """Return a function's defaults, and the values of its closure."""
    defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    return [*defaults, *(cell.cell_contents for cell in function.__closure__ or ())]
