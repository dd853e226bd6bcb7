"""Run make targets as in a new checkout: in a clone and an environment of their own.

    python3 tests/targets.py              # all, in random order
    python3 tests/targets.py docs lint

README.md and CONTRIBUTING.md name these targets, and people call one in a checkout in which no
other ran before. `tests/test_targets.py` checks that the list is complete. Clones hold what is
committed. Those of targets that pass are removed: each has an environment of up to 3 GB.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLONES = ROOT / "build" / "clones"
# What is typed after make. Targets in one line have the same stamps in the Makefile, that is, the
# same environment. Those that take long, or that CI runs elsewhere too, only show that it is
# complete (SMOKE=1).
COMMANDS = [
    *("bench bench-history SMOKE=1", "demo", "docs docs-open", "format", "lint", "models"),
    *("quickstart", "sanitize", "test test-all test-faults reverts SMOKE=1"),
    *("test-python TEST_GROUP=test-light TESTS=tests/test_smoke.py", "wheels"),
]


def targets(command: str) -> list[str]:
    return [word for word in command.split() if "=" not in word]


def clone(name: str) -> Path:
    folder = CLONES / name
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    return folder


def compiled() -> Path:
    """Return a module for all clones: of this checkout, unless its native code has changed."""
    same = ["git", "diff", "--quiet", "HEAD", "--", "csrc", "CMakeLists.txt", "pyproject.toml"]
    is_committed = subprocess.run(same, cwd=ROOT, check=False).returncode == 0
    folder = ROOT if is_committed else clone("package")
    subprocess.run(["make", "-s", ".venv/package.stamp"], cwd=folder, check=True)
    [module] = folder.glob(".venv/lib/*/site-packages/pysampler/_core*.so")
    return module


def run(command: str, module: Path) -> bool:
    """Run a command in a clone, print how it ended, and return whether it passed."""
    begun = time.monotonic()
    folder = clone(targets(command)[0])
    shutil.copy(module, folder / "pysampler")
    words = command.split()
    random.shuffle(words)
    # Builds the package without the module. A browser called true shows nothing.
    words += ["PACKAGE=-e . -Cwheel.cmake=false"]
    log = folder.with_suffix(".log")
    with log.open("w") as file:
        output = {"cwd": folder, "stdout": file, "stderr": file, "check": False}
        environment = {**os.environ, "BROWSER": "true"}
        if "SMOKE=1" in words:  # imports each module at most once
            environment["PIP_NO_COMPILE"] = "1"
        made = subprocess.run(["make", *words], env=environment, **output).returncode == 0
        # `make format` changes no committed file.
        passed = made and subprocess.run(["git", "diff", "--exit-code"], **output).returncode == 0
    if passed:
        if "wheels" in words:  # for the targets that install a wheel
            shutil.rmtree(ROOT / "dist", ignore_errors=True)
            shutil.move(folder / "dist", ROOT / "dist")
        shutil.rmtree(folder)
    else:
        print(log.read_text()[-10_000:])
    outcome = "passed" if passed else f"FAILED in {folder}"
    print(f"make {command}: {outcome}, {time.monotonic() - begun:.0f} s", flush=True)
    return passed


def main() -> None:
    chosen = [one for one in COMMANDS if not sys.argv[1:] or {*sys.argv[1:]} & {*targets(one)}]
    random.shuffle(chosen)
    shutil.rmtree(CLONES, ignore_errors=True)
    module = compiled()
    with ThreadPoolExecutor(2) as pool:  # half of the time installs packages, on one CPU
        passed = list(pool.map(lambda command: run(command, module), chosen))
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
