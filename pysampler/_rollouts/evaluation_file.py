"""EvaluationFile: the results of an evaluation, written as they come, to continue it later.

A file has a JSON object a line: a header that identifies the episodes, then a result for each that
is over. A line is written at once, so that whatever ends the program leaves whole lines and at most
one half, which the next run drops.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pysampler._closing import Closing
from pysampler._rollouts.evaluation_results import EpisodeResult

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from pysampler._rollouts.episodes import Start

__all__ = ["EvaluationFile"]

_HEADER = "pysampler evaluation"


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
        self._digest: str | None = None
        self._file: IO[str] | None = None
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        with self.path.open() as file:
            text = file.read()
        *lines, _ = text.split("\n")  # the last one is empty, or half a line
        self._whole = len("".join(line + "\n" for line in lines).encode())
        try:
            header, *rows = map(json.loads, lines)
            self.seed, self._digest = header[_HEADER]["seed"], header[_HEADER]["episodes"]
            for row in rows:
                index = row.pop("index")
                self.results[index] = EpisodeResult(**row)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"cannot resume evaluation: {self.path} is not the file of an evaluation"
            ) from error

    def open(self, seed: int, starts: Sequence[Start]) -> None:
        """Open the file to append results; raise ValueError if it has other episodes."""
        digest = _digest_of(starts)
        if self._digest is None:
            self._file = self.path.open("w")
            self._write({_HEADER: {"seed": seed, "episodes": digest}})
            return
        if self._digest != digest:
            raise ValueError(
                f"cannot resume evaluation: {self.path} has other episodes (seed {self.seed}, got "
                f"{seed}), expected the same seed and the same list; remove the file to begin again"
            )
        with self.path.open("r+") as file:
            file.truncate(self._whole)
        self._file = self.path.open("a")

    def add(self, index: int, result: EpisodeResult) -> None:
        """Append the result of an episode."""
        row = {name: value for name, value in dataclasses.asdict(result).items() if name != "task"}
        self._write({"index": index, **row})

    def _write(self, content: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _digest_of(starts: Sequence[Start]) -> str:
    content = [(start.seed, start.options) for start in starts]
    text = json.dumps(content, default=_plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)
