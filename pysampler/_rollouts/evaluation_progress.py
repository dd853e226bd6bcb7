"""Progress of an evaluation: calls of the user's function, a bar of tqdm, or lines on stderr."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from pysampler._common.closing import Closing
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Progress"]

_LINES = 10  # for all episodes, without a bar


class Progress(Closing):
    """Shows how many episodes are over, their mean return and the time that is left.

    Args:
        advance: The user's function, which gets the number of further episodes; None: show it.
        total: The number of episodes.
        done: How many of them an earlier run has finished.
        noun: The word for them.
    """

    def __init__(
        self,
        advance: Callable[[int], Any] | None,
        total: int,
        done: int = 0,
        noun: str = "episodes",
    ) -> None:
        self._advance, self._total, self._noun = advance, total, noun
        self._done = self._before = done
        self._sum, self._began = 0.0, now()
        self._bar: Any = None
        if advance is not None:
            if done:
                advance(done)
        elif sys.stderr.isatty() or "ipykernel" in sys.modules:  # else it is a file or a pipe
            with contextlib.suppress(ImportError):
                from tqdm.auto import tqdm  # noqa: PLC0415 - an optional dependency

                self._bar = tqdm(total=total, initial=done, unit=f" {noun}")

    def add(self, value: float) -> None:
        """Count an episode with this return."""
        tenth = self._done * _LINES // self._total
        self._done += 1
        self._sum += value
        new = self._done - self._before
        mean = f"mean return {self._sum / new:.4g}"
        if self._advance is not None:
            self._advance(1)
        elif self._bar is not None:
            self._bar.set_postfix_str(mean, refresh=False)
            self._bar.update()
        elif self._done * _LINES // self._total > tenth:
            left = round((now() - self._began) / 1e9 / new * (self._total - self._done))
            how_far = f"{self._done} of {self._total} {self._noun}"
            time = f"{left // 60}:{left % 60:02} left"
            print(f"pysampler: {how_far}, {time}, {mean}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
