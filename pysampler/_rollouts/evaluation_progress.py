"""Progress of an evaluation: a bar of tqdm, or lines on stderr, with the time that is left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pysampler._common.closing import Closing
from pysampler.sync import now

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Progress"]

_EVERY = 0.1  # seconds between two updates of a line
_LINES = 10  # lines for all episodes, if stderr is no terminal


class Progress(Closing):
    """Shows how many episodes are over, their mean return and the time that is left.

    Args:
        total: The number of episodes.
        done: How many of them an earlier run has finished.
    """

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._before = total, done, done
        self._sum = 0.0
        self._began = self._shown = now()
        self._tenth = done * _LINES // total
        self._filmed = 0
        self._rewrites = sys.stderr.isatty()
        self._open = False  # whether a line has no end yet
        self._bar: Any = None
        if not self._rewrites and "ipykernel" not in sys.modules:  # a file or a pipe
            return
        try:
            from tqdm.auto import tqdm  # noqa: PLC0415 - an optional dependency
        except ImportError:
            return
        self._bar = tqdm(total=total, initial=done, unit="episode")

    def read(self, path: Path) -> None:
        """Say how many episodes an earlier run has written to a file."""
        text = f"pysampler: {self._done} of {self._total} episodes were read from {path}\n"
        sys.stderr.write(text)

    def add(self, value: float) -> None:
        """Count an episode with this return."""
        self._done += 1
        self._sum += value
        mean = f"mean return {self._sum / (self._done - self._before):.4g}"
        if self._bar is not None:
            self._bar.set_postfix_str(mean, refresh=False)
            self._bar.update()
            return
        time, over = now(), self._done == self._total
        tenth = self._done * _LINES // self._total
        due = time - self._shown >= _EVERY * 1e9 if self._rewrites else tenth > self._tenth
        if not (due or over):
            return
        self._shown, self._tenth = time, tenth
        seconds = (time - self._began) / 1e9 / (self._done - self._before)
        left = round(seconds * (self._total - self._done))
        self._write(
            f"{self._done} of {self._total} episodes, {left // 60}:{left % 60:02} left, {mean} "
        )

    def film(self, total: int) -> None:
        """Count an episode that was filmed.

        Args:
            total: How many episodes are filmed.
        """
        self._filmed += 1
        text = f"filmed {self._filmed} of {total} episodes "
        if self._bar is not None:
            self._bar.set_postfix_str(text.strip())
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        before, after = ("\r", "\x1b[K") if self._rewrites else ("", "\n")
        sys.stderr.write(f"{before}pysampler: {text}{after}")
        sys.stderr.flush()
        self._open = self._rewrites

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
        elif self._open:
            sys.stderr.write("\n")
