"""Run the recipes of examples/recipes, each in a new environment with its dependencies.

    python tests/recipes.py dist/pysampler-*.whl          # all of them: `make recipes`
    python tests/recipes.py dist/pysampler-*.whl sb3 rllib envs_minigrid

It also runs the checks of tests/libraries: training libraries' own test suites on our vector env,
and other libraries' envs against gymnasium's SyncVectorEnv.

A recipe is a program that shows one library on pysampler. It begins with inline script metadata
(PEP 723) that lists its dependencies besides pysampler, runs in seconds by default, and prints its
result as the last line. Its file must not be named like the library's module, which it would hide:
tianshou_dqn.py.
"""

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.py"))
CHECKS = sorted((ROOT / "tests" / "libraries").glob("*_*.py"))
BLOCK = re.compile(r"^# /// script\n((?:#.*\n)+?)# ///\n", re.MULTILINE)
# The torch version of the tests; pip applies it only if a dependency needs torch.
CONSTRAINTS = ["torch==2.13.0"]
LIMIT = 600  # seconds a recipe may take


def dependencies(recipe: Path) -> list[str]:
    """Return the dependencies that a recipe declares."""
    found = BLOCK.match(recipe.read_text())
    if found is None:
        raise ValueError(f"cannot read {recipe.name}: no block of script metadata at its beginning")
    block = "".join(line[2:] or "\n" for line in found[1].splitlines(keepends=True))
    declared = tomllib.loads(block)["dependencies"]
    assert isinstance(declared, list)
    return declared


def missing(requirements: list[str], extra: str = "") -> list[str]:
    """Return the requirements that this interpreter does not meet."""
    absent = []
    for text in requirements:
        one = Requirement(text)
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        try:
            installed = importlib.metadata.distribution(one.name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(text)
            continue
        if not one.specifier.contains(installed.version, prereleases=True):
            absent.append(f"{text} (not {installed.version})")
        for name in one.extras:
            of_extra = [r for r in installed.requires or () if "extra" in r.partition(";")[2]]
            absent += missing(of_extra, name)
    return absent


def run(python: str | Path, recipe: Path) -> str:
    """Run a recipe and return the last line it prints, or raise RuntimeError."""
    # Threads of torch wait by spinning, which takes CPUs from the workers.
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(python), str(recipe)]
    try:
        with tempfile.TemporaryDirectory() as folder:  # libraries leave files in it
            done = subprocess.run(
                command,
                cwd=folder,
                env=one_thread,
                timeout=LIMIT,
                capture_output=True,
                text=True,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{recipe.name} has not ended after {LIMIT} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{recipe.name} ended with {done.returncode}:\n{done.stderr}")
    return lines[-1]


def environment(recipe: Path, wheel: Path) -> Path:
    """Create a recipe's environment under build/recipes; return its interpreter."""
    home = ROOT / "build" / "recipes" / recipe.stem
    subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
    constraints = home / "constraints.txt"
    constraints.write_text("\n".join(CONSTRAINTS))
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install", "-c", constraints]
    subprocess.run([*pip, wheel, *dependencies(recipe)], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="the wheel of pysampler to install")
    parser.add_argument("names", nargs="*", help="recipes to run; by default all")
    options = parser.parse_args()
    chosen = [one for one in RECIPES + CHECKS if not options.names or one.stem in options.names]
    rows, failed = [], False
    for recipe in chosen:
        begun = time.perf_counter()
        try:
            python = environment(recipe, options.wheel.resolve())
            begun = time.perf_counter()
            result = run(python, recipe)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            result, failed = "FAILED", True
        rows.append((recipe.stem, f"{time.perf_counter() - begun:.1f}", result))
    print(f"\n{'recipe':20} {'seconds':>8}  result")
    for name, seconds, result in rows:
        print(f"{name:20} {seconds:>8}  {result}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
