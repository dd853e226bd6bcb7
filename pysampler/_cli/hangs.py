"""Finds where a child process hangs: the parent asks by a signal before it kills the child."""

from __future__ import annotations

import linecache
import signal
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pysampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["ASK", "PATIENCE", "report_hangs"]

ASK = signal.SIGUSR1
PATIENCE = 1.0  # seconds to wait for the answer: C code that never returns to Python sends none

_OURS = (str(Path(pysampler.__file__).parent), "<")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))
_LONGEST = 60  # characters of a line


def report_hangs(report: Callable[[str], None]) -> None:
    """Make the signal ``ASK`` call ``report`` with the line that runs; "" if it is unknown."""

    def answer(_: int, frame: FrameType | None) -> None:
        report(_place_of(frame))

    signal.signal(ASK, answer)


def _place_of(frame: FrameType | None) -> str:
    """Return the line of the user's code that runs, as the end of a sentence."""
    theirs = [one for one in _frames(frame) if not one.f_code.co_filename.startswith(_OURS)]
    own = [one for one in theirs if not one.f_code.co_filename.startswith(_LIBRARIES)]
    if not (chosen := (own or theirs)[:1]):
        return ""
    path, number = chosen[0].f_code.co_filename, chosen[0].f_lineno
    text = linecache.getline(path, number).strip()[:_LONGEST]
    line = f"line {number} of {Path(path).name} runs: {text}"
    imported = [one for one in own if one.f_code.co_name == "<module>" and not _is_main(one)]
    if not imported:
        return f"; {line}"
    name = Path(imported[0].f_code.co_filename).name
    guard = 'code that only the program should run belongs under if __name__ == "__main__"'
    return f" while {name} is imported; {line} ({guard})"


def _frames(frame: Any) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_main(frame: FrameType) -> bool:
    return bool(frame.f_globals.get("__name__") == "__main__")
