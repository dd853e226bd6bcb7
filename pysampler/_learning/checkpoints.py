"""Checkpoints of a training: modules, optimizers, replay buffers, generators and numbers.

A checkpoint is one file, ``checkpoint-000000012345.npz``: a zip archive of arrays in NumPy's
format, and a JSON text with the trees that hold them. The archive has a checksum for each part. It
is written under a temporary name and renamed when all of it is on the disk: a file with the name of
a checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._common.files import atomic_write, open_regular, read_arrays, write_arrays
from pysampler._common.numbers import is_whole, whole_number
from pysampler._learning.packing import packed, unpacked
from pysampler._learning.replay import ReplayBuffer
from pysampler.errors import LayoutError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Checkpoints"]

_FORMAT = "pysampler checkpoint 3"
_NAME = re.compile(r"checkpoint-([0-9]{12}|[1-9][0-9]{12,})\.npz")


class Checkpoints:
    """Save and restore checkpoints of a training; a directory keeps the newest ones.

    A checkpoint is complete or absent, even if the process is killed while it saves. Only one
    process may save to a directory at a time. Nothing is pickled.

    Args:
        directory: A directory for checkpoints only; the first ``save`` creates it.
        keep: How many of the newest checkpoints to keep; ``save`` deletes older ones.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> checkpoints = Checkpoints(directory.name, keep=2)
    >>> random = np.random.default_rng(1)
    >>> checkpoints.restore(random=random) is None  # there is no checkpoint yet
    True
    >>> checkpoints.save(500, random=random, best={"return": 12.5}).name
    'checkpoint-000000000500.npz'
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
        """Return the steps of the existing checkpoints, ascending."""
        try:
            names = [path.name for path in self.directory.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    @property
    def latest(self) -> int | None:
        """The step of the newest checkpoint; None if there are no checkpoints."""
        return max(self.steps(), default=None)

    def save(self, step: int, /, **parts: Any) -> Path:
        """Save a checkpoint, and delete old ones beyond ``keep``.

        Args:
            step: The progress of the training: greater than the step of any existing checkpoint.
            **parts: The objects to save, by name. Each is an object with ``state_dict`` and
                ``load_state_dict`` (a torch module, an optimizer), a ``ReplayBuffer``, a
                ``numpy.random.Generator``, or a tree: dicts (with str or int keys), lists and
                tuples of arrays, tensors, numbers, bools, str and None.

        Returns:
            The path of the file.

        Raises:
            ValueError: The step is not new, or the name of a part is not an identifier.
            TypeError: A part is not one of these.
        """
        newest = self.latest
        if not is_whole(step, 0) or (newest is not None and step <= newest):
            expected = "at least 0" if newest is None else f"more than {newest}, the newest there"
            raise ValueError(
                f"cannot save checkpoint: step {step!r}, expected a whole number of {expected}"
            )
        arrays: dict[str, npt.NDArray[Any]] = {}
        trees: dict[str, Any] = {}
        replays: list[str] = []
        for name, part in parts.items():
            if not name.isidentifier() or name == "step":
                raise ValueError(
                    f"cannot save checkpoint: part {name!r}, expected a name other than 'step'"
                )
            if isinstance(part, ReplayBuffer):
                replays.append(name)
                arrays |= {f"{name}/{key}": array for key, array in part.to_arrays().items()}
            else:
                trees[name] = packed(_state(part), arrays, (name,))
        about = {"format": _FORMAT, "step": int(step), "trees": trees, "replays": replays}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(".checkpoint-*.saving"):  # by a process that was killed
            left.unlink()
        path = self._path(step)
        with atomic_write(
            path, lambda what: ValueError(f"cannot save checkpoint: {path} is {what}")
        ) as file:
            write_arrays(file, arrays)
        for old in self.steps()[: -self.keep]:
            with contextlib.suppress(IsADirectoryError):
                self._path(old).unlink()
        return path

    def restore(self, /, *, step: int | None = None, **parts: Any) -> dict[str, Any] | None:
        """Restore the newest checkpoint.

        Args:
            step: The step of the checkpoint to restore; None: the newest.
            **parts: The objects to load saved states into, by name: generators, or objects with
                ``load_state_dict``.

        Returns:
            A dict of all other saved parts by name: replay buffers, and trees (with tensors on the
            CPU); and "step". None if there are no checkpoints.

        Raises:
            LayoutError: The checkpoint is damaged, in any part.
            ValueError: There is no such step or part, or loading a state failed; then all parts are
                unchanged.
            TypeError: A part cannot load a state.
        """
        existing = self.steps()
        if not existing:
            return None
        if step is None:
            step = existing[-1]
        elif step not in existing:
            raise ValueError(
                f"cannot restore checkpoint: no step {step}, expected one of {existing}"
            )
        saved = self._load(step)
        for name, part in parts.items():
            if name not in saved:
                raise ValueError(
                    f"cannot restore {name}: not in the checkpoint of step {step}, expected one of "
                    f"{sorted(saved)}"
                )
            _expect_restorable(name, part, saved[name])
        before: list[tuple[Any, Any]] = []
        try:
            for name, part in parts.items():
                before.append((part, copy.deepcopy(_state(part))))
                _load_state(part, saved.pop(name))
        except BaseException as error:
            for part, state in reversed(before):
                with contextlib.suppress(Exception):
                    _load_state(part, state)
            if not isinstance(error, Exception):
                raise
            raise ValueError(
                f"cannot restore {name}: {type(error).__name__}: {error}; all parts are unchanged"
            ) from error
        return {**saved, "step": int(step)}

    def _load(self, step: int) -> dict[str, Any]:
        """Return all parts of a checkpoint by name, or raise LayoutError."""
        path = self._path(step)
        try:
            with open_regular(path, ValueError) as file:
                arrays = read_arrays(file)
            about = json.loads(arrays.pop("about").tobytes())
            got, expected = (about["format"], about["step"]), (_FORMAT, step)
            if got != expected:
                raise ValueError(f"format and step {got}, expected {expected}")
            trees, replays = about["trees"], about["replays"]
            if wrong := [name for name in (*trees, *replays) if not name.isidentifier()]:
                raise ValueError(f"a part {wrong[0]!r}")
            saved = {name: unpacked(tree, arrays) for name, tree in trees.items()}
            for name in replays:
                keys = [key for key in arrays if key.startswith(f"{name}/")]
                own = {key.removeprefix(f"{name}/"): arrays.pop(key) for key in keys}
                saved[name] = ReplayBuffer.from_arrays(own)
        except (ImportError, PermissionError, MemoryError):  # not damage: torch may be missing
            raise
        except Exception as error:  # damaged data may raise anything
            raise LayoutError(
                f"cannot restore checkpoint: {os.fspath(path)!r} is missing, damaged, or of "
                f"another version: {type(error).__name__}: {error}"
            ) from error
        return saved

    def _path(self, step: int) -> Path:
        return self.directory / f"checkpoint-{step:012d}.npz"


def _state(part: Any) -> Any:
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    return part.state_dict() if hasattr(part, "state_dict") else part


def _load_state(part: Any, state: Any) -> None:
    if isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    else:
        part.load_state_dict(state)


def _expect_restorable(name: str, part: Any, state: Any) -> None:
    """Raise TypeError or ValueError if a part cannot load a state, judging by their types."""
    if isinstance(part, np.random.Generator):
        expected = part.bit_generator.state["bit_generator"]
        got = state.get("bit_generator") if isinstance(state, dict) else type(state).__name__
        if got != expected:
            raise ValueError(f"cannot restore {name}: state of {got!r}, expected {expected!r}")
    elif isinstance(state, ReplayBuffer) or not hasattr(part, "load_state_dict"):
        raise TypeError(
            f"cannot restore {name}: a {type(state).__name__} into a {type(part).__name__}, "
            "expected a load_state_dict or a Generator; parts not passed are returned"
        )
