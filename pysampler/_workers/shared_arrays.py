"""Read-only arrays in shared memory, which are pickled by descriptor.

``share`` copies arrays once into a memfd and seals it, so that no process can change it. Workers
map the same pages: n workers need the memory of one. The mapping is private, since kernels before
6.7 refuse shared mappings of what is sealed; a private one that is never written shares its pages.

A pickle names the memory; its descriptor travels beside the pickle. So only picklers that send
descriptors take such arrays: that of the env servers (setup.py), and that of multiprocessing.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pysampler._workers import children
from pysampler._workers.header import LINE
from pysampler._workers.remote import memories_of_pickle
from pysampler.errors import ClosedError
from pysampler.sync._segment import plain_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Tree = TypeVar("Tree")

__all__ = ["SealedMemory", "SharedArray", "share"]

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_TOKEN_BYTES = 16


def share(arrays: Tree) -> Tree:
    """Copy arrays into sealed shared memory; return read-only arrays for all workers to read.

    Use it for a table or a data set that every env needs: all workers together then hold it once,
    instead of once each. The arrays reach workers by descriptor, in ``env_fns`` or ``worker_init``,
    however workers start, and also the workers that replace lost ones. ``multiprocessing`` can send
    them too. Nothing else can: pickling them raises TypeError.

    Args:
        arrays: An array, or a dict, list or tuple of arrays, nested to any depth.

    Returns:
        The same with read-only arrays. Their memory is freed with the last of them.

    Raises:
        TypeError: Something else than an array is in it.
        MemoryError: The machine has too little memory left.

    >>> import gymnasium as gym
    >>> prices = share({"open": np.arange(3.0), "close": np.ones(3)})
    >>> envs = VectorEnv([lambda: gym.make("CartPole-v1")] * 2, num_workers=1)
    >>> prices["open"].flags.writeable
    False
    >>> envs.close()
    """
    found: list[tuple[int, npt.NDArray[Any]]] = []
    end = 0

    def place(array: npt.NDArray[Any], path: str) -> int:
        nonlocal end
        # Other subclasses have more than the numbers, such as a mask.
        if type(array) not in (np.ndarray, np.memmap, SharedArray):
            raise TypeError(
                f"cannot share arrays: {path or 'it'} is a {type(array).__name__}, expected an "
                "array, or a dict, list or tuple of arrays"
            )
        plain_dtype(array.dtype, "shared array")
        found.append((end, array))
        end += -(-array.nbytes // LINE) * LINE
        return len(found) - 1

    places = _mapped(place, arrays, "")
    memory = SealedMemory.filled(found, end)
    shared = [
        SharedArray.at(memory, offset, array.dtype, array.shape, None) for offset, array in found
    ]
    return _mapped(lambda number, _: shared[number], places, "")


def _mapped(function: Callable[[Any, str], Any], tree: Any, path: str) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, one, f"{path}[{key!r}]") for key, one in tree.items()}
    if isinstance(tree, (list, tuple)):
        each = [_mapped(function, one, f"{path}[{i}]") for i, one in enumerate(tree)]
        return type(tree)(*each) if hasattr(tree, "_fields") else type(tree)(each)
    return function(tree, path)


class SealedMemory:
    """Memory that no process can write to any more: one memfd.

    Args:
        token: Names it in pickles, in all processes.
        fd: Its descriptor, which this object owns.
    """

    def __init__(self, token: bytes, fd: int) -> None:
        self.token = token
        self._fd = fd
        self._identity = children.identity(fd)
        weakref.finalize(self, _close, fd, self._identity)
        memory = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
        self.bytes = np.frombuffer(memory, np.uint8)
        self.begin: int = self.bytes.ctypes.data
        _known[token] = self

    @property
    def fd(self) -> int:
        """Its descriptor; raise ClosedError if the program has closed it."""
        if not children.is_own(self._fd, self._identity):
            raise ClosedError("cannot send shared arrays: this program has closed their descriptor")
        return self._fd

    @classmethod
    def filled(cls, arrays: list[tuple[int, npt.NDArray[Any]]], size: int) -> SealedMemory:
        """Return new memory of this size with copies of arrays, each at its offset."""
        fd = os.memfd_create("pysampler shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            try:
                os.posix_fallocate(fd, 0, max(size, 1))
            except OSError as error:
                raise MemoryError(f"cannot share arrays: {size} bytes: {error.strerror}") from error
            for offset, array in arrays:
                rest = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                while len(rest):  # the system writes up to 2 GB at once
                    written = os.pwrite(fd, rest, offset)
                    offset, rest = offset + written, rest[written:]
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(fd)
            raise
        return cls(os.urandom(_TOKEN_BYTES), fd)

    @classmethod
    def received(cls, token: bytes, fd: int) -> SealedMemory:
        """Return the memory of a descriptor that another process sent, and own the descriptor."""
        known = _known.get(token)
        if known is None:
            return cls(token, fd)
        os.close(fd)
        return known


def _close(fd: int, known: tuple[int, int]) -> None:
    if children.is_own(fd, known):
        os.close(fd)


# The memory that this process has, by token.
_known: weakref.WeakValueDictionary[bytes, SealedMemory] = weakref.WeakValueDictionary()


class SharedArray(np.ndarray[Any, Any]):
    """A read-only array in sealed memory, or a view of one. Results of its operations are plain."""

    _memory: SealedMemory | None = None

    @classmethod
    def at(
        cls,
        memory: SealedMemory,
        offset: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
    ) -> SharedArray:
        """Return the array at an offset of some memory."""
        made = super().__new__(cls, shape, dtype, memory.bytes.data, offset, strides)
        made._memory = memory
        return made

    def __array_finalize__(self, base: Any) -> None:
        self._memory = getattr(base, "_memory", None)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: Any = False) -> Any:  # noqa: FBT002
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    @property
    def _offset(self) -> int | None:
        """The place of the array in its memory; None if it is a copy elsewhere."""
        if self._memory is None or self.flags.writeable:
            return None
        offset = int(self.ctypes.data) - self._memory.begin
        steps = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low = offset + sum(step for step in steps if step < 0)
        high = offset + sum(step for step in steps if step > 0) + self.itemsize
        inside = self.size == 0 or 0 <= low < high <= self._memory.bytes.nbytes
        return offset if inside else None

    def __deepcopy__(self, memo: Any) -> Any:
        return self if self._offset is not None else np.array(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        offset = self._offset
        if offset is None:
            return np.asarray(self).__reduce_ex__(protocol)
        assert self._memory is not None
        memories = memories_of_pickle()
        if memories is None:
            raise TypeError(
                "cannot pickle a shared array: its memory travels by descriptor, in env_fns and "
                "worker_init of workers on this machine; pickle a copy, numpy.array(array)"
            )
        memories[self._memory.token] = self._memory
        return _from_token, (self._memory.token, offset, self.dtype, self.shape, self.strides)


def _from_token(token: bytes, *place: Any) -> SharedArray:
    """Return an array in memory that this process has received before."""
    return SharedArray.at(_known[token], *place)


def _reduce_for_child(array: SharedArray) -> Any:
    """Reduce an array for multiprocessing, which sends descriptors."""
    offset = array._offset
    if offset is None:
        return np.asarray(array).__reduce__()
    assert array._memory is not None
    memory = array._memory
    sent = memory.token, reduction.DupFd(memory.fd)
    return _receive, (*sent, offset, array.dtype, array.shape, array.strides)


def _receive(token: bytes, sent: Any, *place: Any) -> SharedArray:
    return SharedArray.at(SealedMemory.received(token, sent.detach()), *place)


reduction.ForkingPickler.register(SharedArray, _reduce_for_child)
