"""Progress of an evaluation: a bar of tqdm, or a line on stderr, with the time that is left."""

from __future__ import annotations

import sys
from typing import Any

from pysampler._closing import Closing
from pysampler.sync import now

__all__ = ["Progress"]

_EVERY = 0.1  # seconds between two lines


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
        self._bar: Any = None
        try:
            from tqdm.auto import tqdm  # noqa: PLC0415 - an optional dependency
        except ImportError:
            return
        self._bar = tqdm(total=total, initial=done, unit="episode")

    def add(self, value: float) -> None:
        """Count an episode with this return."""
        self._done += 1
        self._sum += value
        mean = f"mean return {self._sum / (self._done - self._before):.4g}"
        if self._bar is not None:
            self._bar.set_postfix_str(mean, refresh=False)
            self._bar.update()
            return
        time = now()
        if time - self._shown < _EVERY * 1e9 and self._done < self._total:
            return
        self._shown = time
        seconds = (time - self._began) / 1e9 / (self._done - self._before)
        left = round(seconds * (self._total - self._done))
        text = (
            f"pysampler: {self._done} of {self._total} episodes, {left // 60}:{left % 60:02} left"
        )
        sys.stderr.write(f"\r{text}, {mean} ")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
        elif self._done > self._before:
            sys.stderr.write("\n")
