"""Finds where a child process hangs: the parent asks by a signal before it kills the child."""

from __future__ import annotations

import linecache
import signal
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pysampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

__all__ = ["ASK", "PATIENCE", "own_frames", "report_hangs"]

ASK = signal.SIGUSR1
PATIENCE = 1.0  # seconds to wait for the answer: C code that never returns to Python sends none

_OURS = (str(Path(pysampler.__file__).parent), "<")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib"))
_PACKAGES = {"site-packages", "dist-packages"}  # folders of libraries in other places
_LONGEST = 60  # characters of a line


def report_hangs(report: Callable[[str], object]) -> None:
    """Make the signal ``ASK`` call ``report`` with the line that runs; "" if it is unknown."""

    def answer(_: int, frame: FrameType | None) -> None:
        report(_place_of(frame) if frame else "")

    signal.signal(ASK, answer)


def _place_of(frame: FrameType) -> str:
    """Return the line of the user's code that runs, as the end of a sentence."""
    frames = [one for one, _ in traceback.walk_stack(frame)]
    theirs = [one for one in frames if not one.f_code.co_filename.startswith(_OURS)]
    own = own_frames(theirs)
    if not (chosen := (own or theirs)[:1]):
        return ""
    path, number = chosen[0].f_code.co_filename, chosen[0].f_lineno
    text = linecache.getline(path, number).strip()[:_LONGEST]
    line = f"line {number} of {Path(path).name} runs: {text}"
    imported = [one for one in own if one.f_code.co_name == "<module>"]
    if not imported:
        return f"; {line}"
    name = Path(imported[0].f_code.co_filename).name
    guard = 'put code that only the program runs under if __name__ == "__main__"'
    return f" while {name} is imported; {line} ({guard})"


def own_frames(frames: Iterable[FrameType]) -> list[FrameType]:
    """Return the frames of the user's code, without those of libraries."""
    paths = [(one, one.f_code.co_filename) for one in frames]
    return [
        one
        for one, path in paths
        if not path.startswith((*_OURS, *_LIBRARIES)) and not _PACKAGES & {*Path(path).parts}
    ]
