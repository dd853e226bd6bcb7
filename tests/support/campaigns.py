"""The command line and result files of the fault campaigns."""

import argparse
import json
import os
import random
import time
from pathlib import Path


def parser(about, seconds):
    """Return a parser for a campaign's command line; ``about`` is the campaign's docstring."""
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("--seconds", type=float, default=seconds)
    made.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    made.add_argument("--case", type=int, help="only the case of this seed")
    made.add_argument("--out", type=Path, help="folder to write the table to")
    return made


def write(out, name, title, text, report=None):
    """Write a table to the folder ``out``, if given, and ``report`` as JSON beside it."""
    if out is None:
        return
    date = time.strftime("%Y-%m-%d")
    machine = f"{os.cpu_count()} CPUs, Linux {os.uname().release}"
    (out / f"{date}-{name}.md").write_text(f"# {title}, {date}, {machine}\n\n{text}")
    if report is not None:
        (out / f"{date}-{name}.json").write_text(json.dumps(vars(report), indent=1))
