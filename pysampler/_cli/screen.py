"""Tables on the terminal, with rich if it is installed, and as plain text otherwise."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Finding", "print_findings", "seconds"]

_STYLES = {"ok": "green", "look": "yellow", "broken": "bold red"}
_TOPIC, _VERDICT = 15, 8  # widths of the first columns
_NARROWEST = 60
_LONGEST = 3600  # seconds


@dataclass(frozen=True)
class Finding:
    """What was looked at, and what was found.

    Attributes:
        topic: What was looked at.
        verdict: "ok"; "look", if it may cost speed or surprise; or "broken".
        found: What was found.
        advice: What to do; empty if there is nothing to do.
    """

    topic: str
    verdict: str
    found: str
    advice: str = ""


def print_findings(findings: Iterable[Finding]) -> None:
    """Print each finding as soon as it is there."""
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    for finding in findings:
        lines = _lines(finding, width)
        if not (sys.stdout.isatty() and _print_coloured(finding, lines)):
            print("\n".join(lines), flush=True)


def _print_coloured(finding: Finding, lines: list[str]) -> bool:
    """Print the lines with rich; return False if it is not installed."""
    try:
        from rich.console import Console  # noqa: PLC0415 - of the extra "cli"
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    text = Text("\n".join(lines))
    text.stylize("bold", 0, _TOPIC)
    text.stylize(_STYLES[finding.verdict], _TOPIC, _TOPIC + len(finding.verdict))
    Console(soft_wrap=True, highlight=False).print(text)
    return True


def _lines(finding: Finding, width: int) -> list[str]:
    indent = " " * (_TOPIC + _VERDICT)
    text = textwrap.wrap(finding.found, width - len(indent))
    if finding.advice:
        text += textwrap.wrap(f"-> {finding.advice}", width - len(indent), subsequent_indent="   ")
    head = f"{finding.topic:<{_TOPIC}}{finding.verdict:<{_VERDICT}}"
    return [head + text[0], *(indent + line for line in text[1:])]


def seconds(text: str) -> float:
    """Return a number of seconds of the command line."""
    number = float(text)
    if not 0 < number <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text}, expected more than 0 and at most {_LONGEST}")
    return number
