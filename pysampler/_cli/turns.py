"""Contenders that take turns: each in a separate process, which rests while others are at work.

A slice of a contender is compared with the slices of the reference before and after it, because
other load on the machine slows both alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pysampler._cli.hangs import ASK, PATIENCE
from pysampler._cli.kernel import busy_seconds
from pysampler._common.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "LEAST_TURNS",
    "Answerer",
    "Contender",
    "MeasureError",
    "Measured",
    "Spread",
    "make",
    "rate_of",
    "started",
    "take_turns",
    "turns_until",
]

LEAST_TURNS = 4  # fewer have no meaningful quartiles
_REST = 0.05  # seconds before each round of turns in which the CPU use of others is measured
_PROGRAM = "from pysampler._cli.contenders import main; main()"


class MeasureError(Exception):
    """Why an env cannot be measured, in one line."""


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of some numbers."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Return the spread of one or more numbers."""
        if len(values) == 1:
            values = values * 2
        return cls(*statistics.quantiles(values, method="inclusive"))

    def __str__(self) -> str:
        """Return the median [and the quartiles]."""
        digits = 2 if self.high < 10 else 1 if self.high < 100 else 0
        low, middle, high = (f"{n:.{digits}f}" for n in (self.low, self.middle, self.high))
        return f"{middle} [{low}, {high}]"


@dataclass
class Measured:
    """The results of a contender's slices.

    Attributes:
        rates: Env steps per second, of each slice.
        fractions: The same, as fractions of the reference's rate before and after.
        about: The contender's description of itself.
        trouble: Why it does not run (any more); empty if it does.
        others: For the reference: the CPUs that other programs used before each round of turns.
    """

    rates: list[float] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    others: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The median of env steps per second."""
        return statistics.median(self.rates)

    def rate_beside(self, reference: Measured) -> float:
        """Return env steps per second, scaled to the median speed of the reference."""
        return reference.rate * self.fraction.middle

    @property
    def fraction(self) -> Spread:
        """The spread of the fractions of the reference."""
        return Spread.of(self.fractions)

    def to_dict(self, reference: Measured) -> dict[str, Any]:
        """Return the results, for JSON."""
        if self.trouble or not self.rates:
            return {"trouble": self.trouble or "not measured"}
        spread = self.fraction
        return {
            "steps_per_second": self.rate_beside(reference),
            "fraction": spread.middle,
            "quartiles": [spread.low, spread.high],
            "slices": len(self.rates),
            **self.about,
        }


class Answerer(Closing):
    """A Python process that answers each line of JSON with another; it ends with its session.

    Args:
        arguments: The arguments of Python.
        limit: Seconds within which it must answer.
    """

    def __init__(self, arguments: Sequence[str], limit: float) -> None:
        self._limit = limit
        self._rest = b""
        # A file, because a full pipe would block the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            start_new_session=True,
        )

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, or end the process and raise MeasureError."""
        assert self._process.stdin is not None
        own = request.get("seconds", 0.0) + request.get("warm", 0.0)  # which it takes in any case
        with contextlib.suppress(BrokenPipeError):  # it has ended: ``line`` raises this
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.line(self._limit + own))
        if "error" in answer:
            self.end()
            raise MeasureError(answer["error"])
        return answer

    def line(self, limit: float) -> bytes:
        """Return the next line that it prints, or raise MeasureError."""
        line = self._line_until(time.monotonic() + limit)
        if line is None:
            place = self._where()
            self.end()
            raise MeasureError(f"it hangs: no answer within {limit:.3g} s{place}")
        if not line:
            raise MeasureError(self._why_ended())
        return line

    def _line_until(self, deadline: float) -> bytes | None:
        """Return the next line; empty if the process has ended, None if the line is late."""
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                return None
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                return b""
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _where(self) -> str:
        """Return where the process hangs, if it can still report that."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, ASK)
        line = self._line_until(time.monotonic() + PATIENCE)
        return str(json.loads(line).get("hangs", "")) if line else ""

    def _why_ended(self) -> str:
        status = self._process.wait()  # the process alone: others of its session may still run
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self.end()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return f"its process ended with {how}" + (f": {lines[-1][:200]}" if lines else "")

    def end(self) -> None:
        """End the process and all others of its session. May be repeated."""
        if not self._errors.closed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(BrokenPipeError), self._process:
                pass  # it closes its pipes, and waits
            self._errors.close()

    close = end


class Contender(Answerer):
    """A process that makes and steps envs on request.

    Args:
        name: Its name.
        source: The source of the envs, as the process reads it.
        limit: Seconds within which it must answer.
    """

    def __init__(self, name: str, source: str, limit: float) -> None:
        self.name = name
        super().__init__(["-P", "-c", _PROGRAM, str(os.getpid()), source], limit)

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request, or end the process and raise MeasureError."""
        return self.request({"do": do, **request})


@contextlib.contextmanager
def started(names: Sequence[str], source: str, limit: float) -> Iterator[dict[str, Contender]]:
    """Start the processes of all contenders, and end them with the block."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Contender(name, source, limit)) for name in names}


def make(contender: Contender, order: Mapping[str, Any], measured: Mapping[str, Measured]) -> None:
    """Have a contender make what it steps; note why if it does not run."""
    try:
        measured[contender.name].about = contender.ask("make", **order)
    except MeasureError as error:
        measured[contender.name].trouble = str(error)


def rate_of(answer: Mapping[str, Any]) -> float:
    """Return env steps per second."""
    return float(answer["steps"] / answer["seconds"])


def used_by_others(seconds: float) -> float:
    """Sleep while all contenders rest; return the number of CPUs that other programs used."""
    cpus = os.sched_getaffinity(0)
    begun, before = time.monotonic(), busy_seconds(cpus)
    time.sleep(seconds)
    return (busy_seconds(cpus) - before) / (time.monotonic() - begun)


def turns_until(
    end: float,
    reference: Contender,
    contenders: Mapping[str, Contender],
    measured: Mapping[str, Measured],
    seconds: float,
    before_each: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Take turns until a time, ``LEAST_TURNS`` or more; yield after each slice how far they are."""
    turn = 0
    while turn < LEAST_TURNS or time.monotonic() < end:
        turn += 1
        before_each()
        for name in take_turns(reference, contenders, measured, seconds):
            yield f"turn {turn}: {name}; {max(0.0, end - time.monotonic()):.0f} s left"


def take_turns(
    reference: Contender,
    running: Mapping[str, Contender],
    measured: Mapping[str, Measured],
    seconds: float,
) -> Iterator[str]:
    """Measure a slice of each contender between two of the reference; yield each name when done.

    Args:
        reference: The contender that the others are compared with.
        running: The contenders by name; the reference may be one of them.
        measured: Gets the results of ``reference.name`` and of each contender.
        seconds: The length of a slice.
    """

    def next_reference() -> float:
        try:
            rate = rate_of(reference.ask("run", seconds=seconds))
        except MeasureError as error:
            raise MeasureError(f"{reference.name}: {error}") from None
        measured[reference.name].rates.append(rate)
        measured[reference.name].fractions.append(1.0)
        return rate

    measured[reference.name].others.append(used_by_others(min(_REST, seconds)))
    before = next_reference()
    yield reference.name
    for name, contender in running.items():
        if measured[name].trouble or contender is reference:
            continue
        try:
            rate = rate_of(contender.ask("run", seconds=seconds))
        except MeasureError as error:
            measured[name].trouble = str(error)
            continue
        after = next_reference()
        measured[name].rates.append(rate)
        measured[name].fractions.append(rate / statistics.mean((before, after)))
        before = after
        yield name
