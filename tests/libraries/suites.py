"""Runs pytest for the programs in this folder."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def run_tests(arguments: list[str], folder: Path) -> str:
    """Run pytest in a folder and return its summary; end this program if a test fails."""
    # -P: import the installed package, not the one in the folder.
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    return done.stdout.strip().splitlines()[-1]


def run_ours(name: str) -> str:
    """Run our tests of an adapter with the installed version of its library."""
    return run_tests([f"tests/adapters/{name}"], TESTS.parent)
