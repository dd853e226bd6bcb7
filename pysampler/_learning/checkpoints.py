"""A training on disk, to go on from: modules, optimizers, replays, generators and numbers.

A checkpoint is a directory::

    checkpoint-000000012345/
        state.npz              arrays and tensors, and as JSON the trees they are leaves of
        <name>.replay.npz      a replay, as it saves itself

It is written under another name and renamed when all of it is on the disk; it is renamed again
before it is removed. So whatever has the name of a checkpoint is whole.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shutil
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._files import (
    fingerprint,
    open_regular,
    read_arrays,
    stored_dtype,
    sync_directory,
    write_arrays,
)
from pysampler._learning.replay import ReplayBuffer
from pysampler._numbers import is_whole, whole_number
from pysampler.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

__all__ = ["Checkpoints"]

_FORMAT = "pysampler checkpoint 2"
_SAVING, _REMOVING = ".saving", ".removing"
_NAME = re.compile("checkpoint-([0-9]{12}|[1-9][0-9]{12,})")
_DICTS = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_METADATA = "_metadata"  # what torch hangs onto the state of a module: versions of its parts
_DEEPEST = 100  # far below what Python and its JSON can do


class Checkpoints:
    """The newest ``keep`` checkpoints of a training, in a directory of their own.

    A part of a checkpoint is what has a ``state_dict`` (a torch module, an optimizer, whatever has
    ``load_state_dict`` too), a ``ReplayBuffer``, a ``numpy.random.Generator``, or a tree: dicts (by
    str or int), lists and tuples of arrays, tensors, numbers, bools, str and None. Nothing is
    pickled.

    A checkpoint is whole or not there at all, whatever ends the process that saves. One process
    saves at a time.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> checkpoints = Checkpoints(directory.name, keep=2)
    >>> random = np.random.default_rng(1)
    >>> checkpoints.restore(random=random) is None  # nothing to go on from
    True
    >>> checkpoints.save(500, random=random, best={"return": 12.5}).name
    'checkpoint-000000000500'
    >>> drawn = random.random()
    >>> checkpoints.restore(random=random)
    {'best': {'return': 12.5}, 'step': 500}
    >>> random.random() == drawn
    True
    >>> directory.cleanup()
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2) -> None:
        self.directory = Path(directory)
        self.keep = whole_number("keep checkpoints", "keep", keep, 1)

    def steps(self) -> list[int]:
        """Of the checkpoints there are, ascending."""
        try:
            names = [path.name for path in self.directory.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    @property
    def latest(self) -> int | None:
        """The newest step; None if there is no checkpoint."""
        return max(self.steps(), default=None)

    def save(self, step: int, /, **parts: Any) -> Path:
        """One checkpoint, newer than those there are. Returns its directory."""
        newest = self.latest
        if not is_whole(step, 0) or (newest is not None and step <= newest):
            expected = "at least 0" if newest is None else f"more than {newest}, the newest there"
            raise ValueError(
                f"cannot save checkpoint: step {step!r}, expected a whole number of {expected}"
            )
        for name in parts:
            if not name.isidentifier() or name == "step":
                raise ValueError(
                    f"cannot save checkpoint: part {name!r}, expected a name other than 'step'"
                )
        replays = {name: part for name, part in parts.items() if isinstance(part, ReplayBuffer)}
        arrays: dict[str, npt.NDArray[Any]] = {}
        trees = {
            name: _packed(_state(part), arrays, (name,))
            for name, part in parts.items()
            if name not in replays
        }
        about = {"format": _FORMAT, "step": int(step), "trees": trees}
        self._write(self._path(step), about, arrays, replays)
        return self._path(step)

    def _write(
        self,
        path: Path,
        about: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[Any]],
        replays: Mapping[str, ReplayBuffer],
    ) -> None:
        saving, removing = self.directory / _SAVING, self.directory / _REMOVING
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._clear()
            saving.mkdir()
            prints = {}
            for name, replay in replays.items():
                replay.save(_replay(saving, name))
                prints[name] = fingerprint(_replay(saving, name))
            text = json.dumps({**about, "replays": prints}).encode()
            with (saving / "state.npz").open("wb") as file:
                write_arrays(file, {**arrays, "about": np.frombuffer(text, np.uint8)})
                file.flush()
                os.fsync(file.fileno())
            sync_directory(saving)
            saving.rename(path)
            sync_directory(self.directory)
            for step in self.steps()[: -self.keep]:
                self._path(step).rename(removing)
                _remove(removing)
        except BaseException:
            self._clear()
            raise

    def _clear(self) -> None:
        """Away with what a save has left that was killed."""
        for name in (_SAVING, _REMOVING):
            with contextlib.suppress(OSError):
                _remove(self.directory / name)

    def restore(self, /, *, step: int | None = None, **parts: Any) -> dict[str, Any] | None:
        """The newest checkpoint, or that of a step; None if there is none at all.

        What is given gets its state: by its ``load_state_dict``, or as a generator. All else is
        returned by name: replays, trees (tensors on the CPU), and "step". LayoutError if anything
        of the checkpoint is damaged, ValueError if a part does not take its state: then everything
        is as it was.
        """
        there = self.steps()
        if not there:
            return None
        if step is None:
            step = there[-1]
        elif step not in there:
            raise ValueError(f"cannot restore checkpoint: no step {step}, expected one of {there}")
        saved = self._load(step)
        for name, part in parts.items():
            if name not in saved:
                raise ValueError(
                    f"cannot restore {name}: not in the checkpoint of step {step}, expected one of "
                    f"{sorted(saved)}"
                )
            _check(name, part, saved[name])
        before: list[tuple[Any, Any]] = []
        try:
            for name, part in parts.items():
                before.append((part, copy.deepcopy(_state(part))))
                _give(part, saved.pop(name))
        except BaseException as error:
            for part, state in reversed(before):
                with contextlib.suppress(Exception):
                    _give(part, state)
            if not isinstance(error, Exception):
                raise
            raise ValueError(
                f"cannot restore {name}: {type(error).__name__}: {error}; everything is as it was"
            ) from error
        return {**saved, "step": int(step)}

    def _load(self, step: int) -> dict[str, Any]:
        state = self._path(step) / "state.npz"
        with _whole(state):
            with open_regular(state, ValueError) as file:
                arrays = read_arrays(file)
            about = json.loads(arrays.pop("about").tobytes())
            got, expected = (about["format"], about["step"]), (_FORMAT, step)
            if got != expected:
                raise ValueError(f"format and step {got}, expected {expected}")
            saved = {name: _unpacked(tree, arrays) for name, tree in about["trees"].items()}
            prints = dict(about["replays"])
            if wrong := [name for name in (*saved, *prints) if not name.isidentifier()]:
                raise ValueError(f"a part {wrong[0]!r}")
        for name, expected in prints.items():
            replay = _replay(self._path(step), name)
            with _whole(replay):
                saved[name] = ReplayBuffer.load(replay)
                if fingerprint(replay) != expected:
                    raise ValueError("of another checkpoint")
        return saved

    def _path(self, step: int) -> Path:
        return self.directory / f"checkpoint-{step:012d}"


def _replay(directory: Path, name: str) -> Path:
    return directory / f"{name}.replay.npz"


def _remove(path: Path) -> None:
    """Remove a checkpoint: of one that was moved elsewhere, the link in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Read a file: whatever is wrong with it, or with what it holds, is a LayoutError."""
    try:
        yield
    except (ImportError, PermissionError, MemoryError):  # no torch for the tensors: no damage
        raise
    except Exception as error:  # whatever garbage leads to
        raise LayoutError(
            f"cannot restore checkpoint: {os.fspath(path)!r} is missing, damaged, or of another "
            f"version: {type(error).__name__}: {error}"
        ) from error


def _state(part: Any) -> Any:
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    return part.state_dict() if hasattr(part, "state_dict") else part


def _give(part: Any, state: Any) -> None:
    if isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    else:
        part.load_state_dict(state)


def _check(name: str, part: Any, state: Any) -> None:
    """Whether it can be given this state, as far as can be told beforehand."""
    if isinstance(part, np.random.Generator):
        expected = part.bit_generator.state["bit_generator"]
        got = state.get("bit_generator") if isinstance(state, dict) else type(state).__name__
        if got != expected:
            raise ValueError(f"cannot restore {name}: state of {got!r}, expected {expected!r}")
    elif isinstance(state, ReplayBuffer) or not hasattr(part, "load_state_dict"):
        raise TypeError(
            f"cannot restore {name}: a {type(state).__name__} into a {type(part).__name__}, "
            "expected a load_state_dict or a Generator; what is not given is returned"
        )


# -- trees as JSON: what that has no word for is a list that begins with its kind ------------------


def _packed(value: Any, arrays: dict[str, npt.NDArray[Any]], where: tuple[Any, ...]) -> Any:
    """What JSON can hold of a tree. Its arrays go among the others, each by a number."""

    def put(array: npt.NDArray[Any]) -> str:
        arrays[at := str(len(arrays))] = array
        return at

    def child(key: Any, one: Any) -> Any:
        return _packed(one, arrays, (*where, key))

    kind = type(value)
    if len(where) > _DEEPEST:
        raise _refusal(where[:4], "nested without end", f"at most {_DEEPEST} levels")
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
        pairs = [[_packed(key, arrays, where), child(key, one)] for key, one in value.items()]
        return [kind.__name__, pairs, child(_METADATA, getattr(value, _METADATA, None))]
    if kind is np.ndarray or isinstance(value, (np.number, np.bool_)):
        if value.dtype.hasobject or stored_dtype(value.dtype) != value.dtype:
            raise _refusal(where, f"an array of {value.dtype}", "one of numbers or text")
        return ["array" if kind is np.ndarray else "number", put(np.asarray(value))]
    torch = sys.modules.get("torch")
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


def _unpacked(packed: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """What was packed. Each array is a leaf once."""
    match packed:
        case ["int", digits]:
            return int(digits, 16)
        case ["complex", real, imag]:
            return complex(real, imag)
        case ["list", *values]:
            return [_unpacked(one, arrays) for one in values]
        case ["tuple", *values]:
            return tuple(_unpacked(one, arrays) for one in values)
        case ["array", at]:
            return arrays.pop(at)
        case ["number", at]:
            return arrays.pop(at)[()]
        case ["tensor", at, *dtype]:
            import torch  # noqa: PLC0415 - only where there are tensors

            tensor = torch.from_numpy(arrays.pop(at))
            return tensor.view(getattr(torch, dtype[0])) if dtype else tensor
        case [kind, pairs, metadata]:
            made = _DICTS[kind]({_unpacked(k, arrays): _unpacked(v, arrays) for k, v in pairs})
            if metadata is not None:
                setattr(made, _METADATA, _unpacked(metadata, arrays))
            return made
        case list():
            raise ValueError(f"a node {packed!r}")
    return packed


def _refusal(where: tuple[Any, ...], got: str, expected: str) -> TypeError:
    place = where[0] + "".join(f"[{key!r}]" for key in where[1:])
    return TypeError(f"cannot save checkpoint: {place} is {got}, expected {expected}")
