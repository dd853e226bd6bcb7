"""What fault campaigns share: command line, loop over cases, answers of forks, tables, results."""

import argparse
import contextlib
import faulthandler
import itertools
import json
import os
import random
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MACHINE = f"{os.cpu_count()} CPUs, Linux {os.uname().release}"


class Wrong(Exception):  # noqa: N818
    """Raised for a violation."""


def expect(true, what):
    """Raise ``Wrong(what)`` unless ``true``."""
    if not true:
        raise Wrong(what)


@dataclass
class Report:
    """Counts of a campaign."""

    cases: int = 0
    wrong: list = field(default_factory=list)  # violations: (seed, text)


# -- cases -----------------------------------------------------------------------------------------


def parser(about, seconds, case="--case", *, out=True):
    """Return a parser for a campaign's command line.

    Args:
        about: The campaign's docstring.
        seconds: The default of ``--seconds``.
        case: The option that repeats a single case; None if the campaign has no such option.
        out: Whether the campaign writes its table to a folder.
    """
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("--seconds", type=float, default=seconds)
    made.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    if case is not None:
        made.add_argument(case, dest="case", type=int, help="only the case of this seed")
    if out:
        made.add_argument("--out", type=Path, help="folder to write the table to")
    return made


def seeds(args, step=1, hang=None):
    """Yield the seeds of cases until the time is over, or only that of ``--case``.

    Args:
        args: The arguments of the command line.
        step: The difference between two seeds.
        hang: Seconds after which a case ends this process with a traceback. None if cases fork and
            the forks set this watchdog themselves: they cannot stop the one of this process.
    """
    end = time.monotonic() + args.seconds
    many = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(args.seed, step))
    for seed in many if args.case is None else [args.case]:
        if hang is not None:
            faulthandler.dump_traceback_later(hang, exit=True)
        yield seed
    faulthandler.cancel_dump_traceback_later()


def answer(out, hang, run):
    """Call ``run`` in a fork, write its dict or a traceback to the pipe ``out``, and end the fork.

    The fork starts a new session, so that signals to this process's group do not reach it. If
    ``run`` takes longer than ``hang`` seconds, the fork ends with a traceback on stderr.
    """
    os.setsid()
    faulthandler.dump_traceback_later(hang, exit=True)
    try:
        result = {"wrong": None, **run()}
    except BaseException:
        result = {"wrong": traceback.format_exc()}
    with contextlib.suppress(OSError):
        os.write(out, json.dumps(result).encode())
    os._exit(0)


def answer_of(answers, text=b""):
    """Return what a fork writes with ``answer``; ``text`` was read from the pipe before."""
    while part := os.read(answers, 1 << 16):
        text += part
    os.close(answers)
    try:
        return json.loads(text)
    except ValueError:
        return {"wrong": "it hung, or ended without an answer"}


# -- processes -------------------------------------------------------------------------------------


def is_worker(process):
    """Return whether a process is a worker of a pool."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[:1] != [] and "pysampler: worker" in process.cmdline()[0]
    return False


def marked(mark, but=None):
    """Return the other processes whose environment has this process's pid as ``mark``.

    Args:
        mark: The name of the environment variable.
        but: Leave out processes with this text in their command lines.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.environ().get(mark) != str(os.getpid()):
                continue
            if but is None or but not in " ".join(process.cmdline()):
                found.append(process)
    return found


def left_after(look, seconds):
    """Return the results of ``look`` that remain after processes had some seconds to end."""
    end = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < end:
        time.sleep(0.01)  # poll: they are not our children
    return left


# -- results ---------------------------------------------------------------------------------------


def say_wrong(seed, what):
    """Print a violation, and how to repeat its case."""
    print(f"WRONG: {what}; repeat it with --case {seed}", file=sys.stderr, flush=True)


def table(rows, head="| | |"):
    """Return a table in Markdown: the row ``head``, then these rows of texts."""
    line = "| --- " * (head.count("|") - 1) + "|"
    return "\n".join([head, line, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def headed(title, text, *more):
    """Return a text below a heading: the title, the date, the machine, and more."""
    return ", ".join([f"# {title}", time.strftime("%Y-%m-%d"), MACHINE, *more]) + f"\n\n{text}"


def write(out, name, text, record=None):
    """Write a text to the folder ``out``, if given, and the dict ``record`` as JSON beside it."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y-%m-%d')}-{name}"
    (out / f"{name}.md").write_text(text)
    if record is not None:
        (out / f"{name}.json").write_text(json.dumps(record, indent=1))


def finish(args, name, title, text, report, *, shown=None, file=None):
    """Print a table and the violations, write them to files; return whether there are violations.

    Args:
        args: The arguments of the command line.
        name: The name of the files.
        title: The title of the table.
        text: The table.
        report: The ``Report``.
        shown: How many violations to print; None for all.
        file: Where to print the table; None for stdout.
    """
    print(text, file=file)
    for seed, what in report.wrong[:shown]:
        say_wrong(seed, what)
    write(args.out, name, headed(title, text), vars(report))
    return bool(report.wrong)
