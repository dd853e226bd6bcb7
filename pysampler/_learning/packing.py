"""Converts trees of arrays, tensors and numbers to JSON and separate arrays, without pickling.

Types that JSON lacks become a list that begins with their kind: ``["tuple", 1, ["array", "0"]]``.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.files import stored_dtype
from pysampler._common.torch import loaded_torch, tensor_from

if TYPE_CHECKING:
    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[Any]]

__all__ = ["packed", "unpacked"]

_DICTS = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_METADATA = "_metadata"  # an attribute that torch adds to a module's state: versions of its parts
_MAX_DEPTH = 100  # far below the limits of Python and its JSON


def packed(value: Any, arrays: Arrays, where: tuple[Any, ...]) -> Any:
    """Return a tree as JSON values, and add its arrays to ``arrays`` under numbers.

    ``where`` is the path of the tree, as keys, for errors.
    """

    def put(array: npt.NDArray[Any]) -> str:
        arrays[name := str(len(arrays))] = array
        return name

    def child(key: Any, one: Any) -> Any:
        return packed(one, arrays, (*where, key))

    kind = type(value)
    if len(where) > _MAX_DEPTH:
        raise _refusal(where[:4], "nested too deeply", f"at most {_MAX_DEPTH} levels")
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return ["int", hex(value)]  # Python limits the length of decimal integers only
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind in (list, tuple):
        return [kind.__name__, *(child(at, one) for at, one in enumerate(value))]
    if kind in _DICTS.values():
        for key in value:
            if type(key) not in (int, str):
                raise _refusal(where, f"a dict with the key {key!r}", "keys that are str or int")
        pairs = [[packed(key, arrays, where), child(key, one)] for key, one in value.items()]
        return [kind.__name__, pairs, child(_METADATA, getattr(value, _METADATA, None))]
    if kind is np.ndarray or isinstance(value, (np.number, np.bool_)):
        if value.dtype.hasobject or stored_dtype(value.dtype) != value.dtype:
            raise _refusal(where, f"an array of {value.dtype}", "one of numbers or text")
        return ["array" if kind is np.ndarray else "number", put(np.asarray(value))]
    torch = loaded_torch()
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise _refusal(where, "a sparse, quantized or meta tensor", "a dense one")
        value = value.detach().cpu().resolve_conj().resolve_neg()
        with contextlib.suppress(TypeError):
            return ["tensor", put(value.numpy())]
        # NumPy lacks the dtype, such as bfloat16: store the bits, and the name of the dtype.
        bits = value.view(getattr(torch, f"int{8 * value.element_size()}"))
        return ["tensor", put(bits.numpy()), str(value.dtype).removeprefix("torch.")]
    raise _refusal(
        where,
        f"a {kind.__name__}",
        "dicts, lists and tuples of arrays, tensors, numbers, bools, str and None",
    )


def unpacked(tree: Any, arrays: Arrays) -> Any:
    """Return the tree that was packed; any Exception means damage. Removes used arrays."""
    match tree:
        case ["int", digits]:
            return int(digits, 16)
        case ["complex", real, imag]:
            return complex(real, imag)
        case ["list", *values]:
            return [unpacked(one, arrays) for one in values]
        case ["tuple", *values]:
            return tuple(unpacked(one, arrays) for one in values)
        case ["array", name]:
            return arrays.pop(name)
        case ["number", name]:
            return arrays.pop(name)[()]
        case ["tensor", name, *dtype]:
            tensor = tensor_from(arrays.pop(name))
            return tensor.view(getattr(loaded_torch(), dtype[0])) if dtype else tensor
        case [kind, pairs, metadata]:
            made = _DICTS[kind]({unpacked(k, arrays): unpacked(v, arrays) for k, v in pairs})
            if metadata is not None:
                setattr(made, _METADATA, unpacked(metadata, arrays))
            return made
        case list():
            raise ValueError(f"a node {tree!r}")
    return tree


def _refusal(where: tuple[Any, ...], got: str, expected: str) -> TypeError:
    place = where[0] + "".join(f"[{key!r}]" for key in where[1:])
    return TypeError(f"cannot save checkpoint: {place} is {got}, expected {expected}")
