"""EvaluationFile: the results of an evaluation, written as they come, to continue it later.

A file has a JSON object a line: a header that identifies the episodes, then a result for each that
is over. A line is written at once, so that whatever ends the program leaves whole lines and at most
one half, which the next run drops.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import re
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv as GymVectorEnv

from pysampler._common.closing import Closing
from pysampler._rollouts.episodes import EpisodeResult

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from pysampler._rollouts.episode_recorder import Describes
    from pysampler._rollouts.episodes import Start

__all__ = ["EvaluationFile", "identity_of"]

_HEADER = "pysampler evaluation"
_BEGIN = f'{{"{_HEADER}"'.encode()
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class EvaluationFile(Closing):
    """Reads the results of an interrupted evaluation, and appends further ones.

    Args:
        path: The file; it is made if it does not exist.

    Attributes:
        path: The file.
        seed: The seed of the evaluation in the file; None for a new file.
        results: The results in it, by the index of the episode.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.results: dict[int, EpisodeResult] = {}
        self.seed: int | None = None
        # Of the episodes in the last header: a longer list has appended another one.
        self._digest: str | None = None
        self._count = 0
        self._new: dict[str, Any] | None = None  # what a header to write says of the episodes
        self._envs: dict[str, str] = {}
        self._file: IO[str] | None = None
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        *lines, half = self.path.read_bytes().split(b"\n")  # the last one is empty, or half a line
        if not lines and (_BEGIN.startswith(half) or half.startswith(_BEGIN)):
            return  # the first run ended before it had written the header
        self._whole = sum(len(line) + 1 for line in lines)
        if not lines:
            raise self._unreadable(1)
        for number, line in enumerate(lines, 1):
            try:
                self._read_row(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise self._unreadable(number) from error

    def _read_row(self, row: dict[str, Any]) -> None:
        if _HEADER in row or self._digest is None:
            header = row[_HEADER]
            self.seed, self._digest = header["seed"], header["episodes"]
            self._count, self._envs = header["count"], header["envs"]
            return
        index, result = row.pop("index"), EpisodeResult(**row)
        numbers = [index, result.length, result.return_, result.seconds]
        fits = all(isinstance(one, (int, float)) for one in numbers) and index in range(self._count)
        if not (fits and isinstance(result.statistics, dict)):
            raise ValueError
        self.results[index] = result

    def _unreadable(self, line: int) -> ValueError:
        damaged = f"is damaged: line {line} is no result; remove this line to run its episode"
        why = damaged if line > 1 else "is not the file of an evaluation"
        return ValueError(f"cannot resume evaluation: {self.path} {why}")

    def open(
        self, seed: int, starts: Sequence[Start], envs: Any, statistics: Describes | None
    ) -> None:
        """Open the file to append results.

        Args:
            seed: The seed of the evaluation.
            starts: Its episodes.
            envs: Its envs, or how to make them.
            statistics: Its statistics.

        Raises:
            ValueError: The file is of another evaluation, or another process writes to it.
        """
        header = {"seed": seed, "count": len(starts), "episodes": _digest_of(starts)}
        self._file = self.path.open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"cannot resume evaluation: another evaluation writes to {self.path} now"
            ) from error
        except OSError:
            pass  # a file system without locks
        self._read()  # another process may have written meanwhile
        self._source = identity_of(envs)
        if self._digest is None:
            self._file.truncate(0)
            self._new = header
            return
        if self._count > len(starts) or self._digest != _digest_of(starts[: self._count]):
            why = "other seeds, options, tasks or states"
            if self.seed != seed:
                why = f"seed {self.seed}, got {seed}"
            elif self._count != len(starts):
                why = f"{self._count}, got {len(starts)}"
            raise ValueError(
                f"cannot resume evaluation: {self.path} has other episodes ({why}), expected the "
                "same seed and the same list, or a longer one; remove the file to begin again"
            )
        self._file.truncate(self._whole)
        if self._count < len(starts):
            self._new = header
        self._expect(self._source, is_all=len(self.results) == len(starts))
        self._expect_names([] if statistics is None else None)

    def begin(self, envs: GymVectorEnv[Any, Any, Any]) -> None:
        """Write the header of a new file for this vector env, or compare that of another one.

        Raises:
            ValueError: The file has results of other envs.
        """
        found = {**identity_of(envs), **self._source}
        if self._digest is not None:
            self._expect(found)
        if self._new is not None:
            self._write({_HEADER: {**self._new, "envs": found}})
            self._new = None

    def _expect(self, envs: dict[str, str], *, is_all: bool = False) -> None:
        """Raise ValueError if the results are of other envs; ``is_all``: or if that is unknown."""
        for name, value in envs.items():
            if self._envs.get(name, value) != value:
                raise ValueError(
                    f"cannot resume evaluation: {self.path} has results of envs with the {name} "
                    f"{self._envs[name]}, got {value}; remove the file to begin again"
                )
        if is_all and not (self._envs.keys() & envs.keys()):
            raise ValueError(
                f"cannot resume evaluation: {self.path} has all results, of {self._envs}, got "
                f"{envs or 'other envs'}; pass what the file names, or remove it to begin again"
            )

    def _expect_names(self, names: Iterable[str] | None) -> None:
        """Raise ValueError if the results have other statistics; None: any, but not none."""
        if not self.results:
            return
        own = sorted(next(iter(self.results.values())).statistics)
        if own != sorted(names) if names is not None else not own:
            raise ValueError(
                f"cannot resume evaluation: {self.path} has the statistics {own}, expected "
                f"{'some' if names is None else sorted(names)}; remove the file to begin again"
            )

    def add(self, index: int, result: EpisodeResult) -> None:
        """Append the result of an episode; raise ValueError if it has other statistics."""
        self._expect_names(result.statistics)
        row = {name: value for name, value in dataclasses.asdict(result).items() if name != "task"}
        self._write({"index": index, **row})

    def _write(self, content: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and not self._file.closed:
            for call in (
                self._file.flush,  # a line that was not flushed has raised already
                lambda: fcntl.flock(self._file, fcntl.LOCK_UN),  # forks have the file, too
                self._file.close,
            ):
                with contextlib.suppress(OSError):
                    call()


def identity_of(envs: Any) -> dict[str, str]:
    """Return what is known of envs before they are made, or of a vector env."""
    found = {}
    if isinstance(envs, (list, tuple)) and envs:
        envs = envs[0]
    function = getattr(envs, "func", envs)  # of a partial function
    if callable(function) and hasattr(function, "__qualname__"):
        found["function"] = f"{function.__module__}.{function.__qualname__}"
    spec = getattr(envs, "spec", None) or envs
    if isinstance(spec, str):
        with contextlib.suppress(gym.error.Error):
            spec = gym.spec(spec.rpartition(":")[2])
    if isinstance(spec, EnvSpec):
        found["id"] = spec.id
    if isinstance(envs, GymVectorEnv):
        found["observation space"] = str(envs.single_observation_space)
        found["action space"] = str(envs.single_action_space)
    return found


def _digest_of(starts: Sequence[Start]) -> str:
    content = [(start.seed, start.options) for start in starts]
    try:
        text = json.dumps(content, default=_for_json, sort_keys=True)
    except TypeError as error:
        raise ValueError(
            f"cannot resume evaluation: the options, tasks and states of episodes: {error}"
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def _for_json(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if _ADDRESS.search(text := repr(value)):
        raise ValueError(
            f"cannot resume evaluation: an episode has {text}, whose repr differs in the next run; "
            f"expected {type(value).__name__} to define __repr__"
        )
    return text
