"""Tables on the terminal, with rich if it is installed, and as plain text otherwise."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

__all__ = [
    "Display",
    "Finding",
    "bar",
    "count",
    "positive",
    "print_finding",
    "printing_to_stderr",
    "reason_of",
    "rich_modules",
    "seconds",
    "width",
]

_STYLES = {"ok": "green", "look": "yellow", "broken": "bold red"}
_TOPIC, _VERDICT = 15, 8  # widths of the first columns
_NARROWEST = 60
_LONGEST = 3600  # seconds
_SAY_EVERY = 2.0  # seconds between two lines of progress on stderr
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        topic: The subject of the check.
        verdict: "ok"; "look", if it may cost speed or surprise; or "broken".
        found: The result.
        advice: How to improve it; empty if nothing needs to be done.
    """

    topic: str
    verdict: str
    found: str
    advice: str = ""


def rich_modules() -> Any:
    """Return the package rich, of the extra "cli", with its modules; None if it is missing."""
    try:
        import rich.console  # noqa: PLC0415
        import rich.live  # noqa: PLC0415
        import rich.text  # noqa: PLC0415
    except ImportError:
        return None
    return rich


def print_finding(finding: Finding) -> None:
    """Print a finding, coloured on a terminal."""
    start = _TOPIC + _VERDICT
    lines = textwrap.wrap(finding.found, width() - start)
    if finding.advice:
        lines += textwrap.wrap(f"-> {finding.advice}", width() - start, subsequent_indent="   ")
    head = f"{finding.topic:<{_TOPIC}}{finding.verdict:<{_VERDICT}}"
    shown = head + f"\n{'':{start}}".join(lines)
    if not sys.stdout.isatty() or (rich := rich_modules()) is None:
        print(shown, flush=True)
        return
    text = rich.text.Text(shown)
    text.stylize("bold", 0, _TOPIC)
    text.stylize(_STYLES[finding.verdict], _TOPIC, _TOPIC + len(finding.verdict))
    rich.console.Console(soft_wrap=True, highlight=False).print(text)


def count(text: str) -> int:
    """Return the whole number above 0 in an argument of the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text}")
    return int(text)


def positive(text: str, most: float = math.inf) -> float:
    """Return the number above 0 in an argument of the command line."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 < number <= most and math.isfinite(number)):
        limit = f" and <= {most:g}" if math.isfinite(most) else ""
        raise argparse.ArgumentTypeError(f"must be a number > 0{limit}, got {text}")
    return number


def seconds(text: str) -> float:
    """Return the number of seconds in an argument of the command line."""
    return positive(text, _LONGEST)


def reason_of(error: OSError) -> str:
    """Return the file and the reason of an error, such as "run.json: No space left on device"."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send the output of imports, envs and policies to stderr: stdout is for the JSON."""
    out = os.dup(1)
    os.dup2(1 if sys.stderr is None else 2, 1)  # None: closed
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what C code has printed
        os.dup2(out, 1)
        os.close(out)


def width() -> int:
    """Return the largest width of lines."""
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def bar(share: float, cells: int) -> str:
    """Return a share from 0 to 1 as a bar of at most ``cells`` characters."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


class Display:
    """Shows changing results while a command runs, and prints the final ones at the end.

    With rich on a terminal they change in place. Otherwise only the progress goes to stderr.

    Args:
        quiet: Print nothing on stdout.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._printed = 0.0  # when progress was last printed

    def __enter__(self) -> Self:
        if self._quiet or not sys.stdout.isatty() or (rich := rich_modules()) is None:
            return self
        console = rich.console.Console(highlight=False, soft_wrap=True)
        self._live = rich.live.Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, lines: Sequence[str], progress: str) -> None:
        """Show the current results and the progress."""
        if self._live is not None:
            shown = [*lines, "", progress][1 - self._live.console.height :]
            self._live.update(rich_modules().text.Text("\n".join(shown)), refresh=True)
        elif time.monotonic() - self._printed >= _SAY_EVERY:
            self._printed = time.monotonic()
            print(progress, file=sys.stderr, flush=True)

    def end(self, lines: Sequence[str]) -> None:
        """Print the last lines."""
        self.__exit__()
        if not self._quiet:
            print("\n".join(lines), flush=True)
