"""The package's uses of torch, which is optional: it is imported only where needed."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "copy_of_module",
    "drawing_from",
    "generator_from",
    "get_torch_threads",
    "is_distribution",
    "is_module",
    "is_script",
    "is_tensor",
    "loaded_torch",
    "needs_torch",
    "script_bytes",
    "script_from",
    "set_torch_threads",
    "tensor_from",
    "to_array",
]


def loaded_torch() -> Any:
    """Return torch if this process has imported it, else None."""
    return sys.modules.get("torch")


def is_module(policy: Any) -> bool:
    """Return whether a policy is a ``torch.nn.Module``."""
    torch = loaded_torch()
    return torch is not None and isinstance(policy, torch.nn.Module)


def is_script(policy: Any) -> bool:
    """Return whether a policy is a module of TorchScript."""
    torch = loaded_torch()
    return torch is not None and isinstance(policy, torch.jit.ScriptModule)


def script_bytes(script: Any) -> bytes:
    """Return a module of TorchScript as the bytes of a file."""
    file = io.BytesIO()
    loaded_torch().jit.save(script, file)
    return file.getvalue()


def script_from(content: bytes) -> Any:
    """Return the module of TorchScript that ``script_bytes`` saved."""
    import torch  # noqa: PLC0415 - torch is optional

    return torch.jit.load(io.BytesIO(content))


def copy_of_module(module: Any) -> Any:
    """Return a copy of a module.

    ``deepcopy`` of TorchScript would make parameters that are no leaves.
    """
    return script_from(script_bytes(module)) if is_script(module) else copy.deepcopy(module)


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor, of torch or a similar library."""
    return hasattr(value, "detach")


def is_distribution(value: Any) -> bool:
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.distributions.Distribution)


def generator_from(seed: int) -> Any:
    """Return a torch generator with this seed if torch is imported, else None."""
    torch = loaded_torch()
    return None if torch is None else torch.Generator().manual_seed(seed)


def drawing_from(generator: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which distributions that this thread samples draw from a generator.

    None stands for torch's global generator, which all threads of a process share.
    """
    return contextlib.nullcontext() if generator is None else _drawing()(generator)


@functools.cache
def _drawing() -> Any:
    """Return the class of that context: distributions have no argument for a generator."""
    import torch  # noqa: PLC0415 - torch is optional
    from torch.overrides import TorchFunctionMode  # noqa: PLC0415

    own = "exponential_", "normal_", "cauchy_", "uniform_"  # methods
    names = "multinomial", "normal", "bernoulli", "binomial", "poisson", "rand", "randn"
    drawing = {getattr(torch.Tensor, name) for name in own}
    drawing |= {getattr(torch, name) for name in (*names, "_standard_gamma", "_sample_dirichlet")}

    class Drawing(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, generator: Any) -> None:
            super().__init__()
            self._generator = generator

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            tensors = [one for one in args if isinstance(one, torch.Tensor)]
            if function in drawing and all(one.device.type == "cpu" for one in tensors):
                given = {"generator": self._generator, **given}
            return function(*args, **given)

    return Drawing


def to_array(value: Any) -> npt.NDArray[Any]:
    """Return a tensor, or anything that NumPy can convert, as an array on the CPU."""
    return np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)


def tensor_from(array: npt.NDArray[Any], device: Any = None, *, non_blocking: bool = False) -> Any:
    """Return a tensor that shares the array's memory, or a copy on ``device``."""
    import torch  # noqa: PLC0415 - torch is optional

    tensor = torch.from_numpy(array)
    return tensor if device is None else tensor.to(device, non_blocking=non_blocking)


def needs_torch(policy: Any) -> bool:
    """Return whether unpickling a policy imports torch: it is a module, or its file imports it."""
    home = getattr(policy, "__module__", None)
    if home == "__main__" or home not in sys.modules:  # pickled by value
        return is_module(policy)
    imported = [one for one in vars(sys.modules[home]).values() if isinstance(one, ModuleType)]
    return is_module(policy) or any(one.__name__.split(".")[0] == "torch" for one in imported)


def get_torch_threads() -> int | None:
    """Return torch's number of CPU threads; None if torch is not imported."""
    torch = loaded_torch()
    return None if torch is None else int(torch.get_num_threads())


def set_torch_threads(count: int | None) -> None:
    """Set torch's number of CPU threads, if torch is imported. None changes nothing."""
    if count is not None and (torch := loaded_torch()) is not None:
        torch.set_num_threads(count)
