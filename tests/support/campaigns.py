"""What the fault campaigns have in common: their command line, and the files of their results."""

import argparse
import json
import os
import random
import time
from pathlib import Path


def parser(about, seconds):
    """Return the parser of a campaign's command line; ``about`` is its docstring."""
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("--seconds", type=float, default=seconds)
    made.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    made.add_argument("--case", type=int, help="only the case of this seed")
    made.add_argument("--out", type=Path, help="folder to write the table to")
    return made


def write(out, name, title, text, report=None):
    """Write a table to a folder, if there is one, and a report as JSON beside it."""
    if out is None:
        return
    date = time.strftime("%Y-%m-%d")
    machine = f"{os.cpu_count()} CPUs, Linux {os.uname().release}"
    (out / f"{date}-{name}.md").write_text(f"# {title}, {date}, {machine}\n\n{text}")
    if report is not None:
        (out / f"{date}-{name}.json").write_text(json.dumps(vars(report), indent=1))
