"""Trees of arrays, tensors and numbers as JSON, with the arrays beside it: nothing is pickled.

What JSON has no word for is a list that begins with its kind: ``["tuple", 1, ["array", "0"]]``.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._files import stored_dtype
from pysampler._torch import loaded_torch, tensor_from

if TYPE_CHECKING:
    import numpy.typing as npt

    Arrays = dict[str, npt.NDArray[Any]]

__all__ = ["packed", "unpacked"]

_DICTS = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_METADATA = "_metadata"  # what torch hangs onto the state of a module: versions of its parts
_MAX_DEPTH = 100  # far below what Python and its JSON can do


def packed(value: Any, arrays: Arrays, where: tuple[Any, ...]) -> Any:
    """Return what JSON can hold of a tree, and put its arrays among the others, by a number.

    ``where`` says for errors where the tree lies: the keys that lead there.
    """

    def put(array: npt.NDArray[Any]) -> str:
        arrays[name := str(len(arrays))] = array
        return name

    def child(key: Any, one: Any) -> Any:
        return packed(one, arrays, (*where, key))

    kind = type(value)
    if len(where) > _MAX_DEPTH:
        raise _refusal(where[:4], "nested without end", f"at most {_MAX_DEPTH} levels")
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return ["int", hex(value)]  # which has no limit, where decimals have one
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
        # NumPy has no such numbers, bfloat16 for one: their bits, and what they are called.
        bits = value.view(getattr(torch, f"int{8 * value.element_size()}"))
        return ["tensor", put(bits.numpy()), str(value.dtype).removeprefix("torch.")]
    raise _refusal(
        where,
        f"a {kind.__name__}",
        "dicts, lists and tuples of arrays, tensors, numbers, bools, str and None",
    )


def unpacked(tree: Any, arrays: Arrays) -> Any:
    """Return what was packed, or raise some Exception if it makes no sense. Uses up the arrays."""
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
