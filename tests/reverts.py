"""Check that the tests still notice faults that were mended once: put each fault back.

    python tests/reverts.py                    # all of them: `make reverts`
    python tests/reverts.py --only 47933ed3    # those of some commits
    python tests/reverts.py --list

`tests/reverts.toml` has a row for each fault: the commit that mended it, what it mended, the file
in which the text `old` becomes `new`, which brings the fault back, and the tests that must then
fail: files, and the words `k` that choose from them. In a copy of this tree, all these tests run
without a fault, then each row's with its fault. The module is compiled again for a fault in C++.
The script fails if a fault is not noticed, or if its row no longer fits: then write the row anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "reverts.toml"
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    commit: str
    mends: str
    file: str
    old: str
    new: str
    tests: str
    k: str


class Copy:
    """A copy of this tree, with an interpreter that imports the package from the copy.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-co", "--exclude-standard"]
        found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(lambda name: (ROOT / name).is_file(), found.stdout.splitlines()):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        # Of this environment it has the packages, but not what makes them import ROOT's.
        venv.create(folder / ".venv", symlinks=True)
        self._python = str(folder / ".venv" / "bin" / "python")
        [packages] = folder.glob(".venv/lib/*/site-packages")
        (packages / "copy.pth").write_text(f"{folder}\n{sysconfig.get_path('purelib')}\n")
        spec = importlib.util.find_spec("pysampler._core")
        assert spec is not None
        assert spec.origin is not None
        self._built = Path(spec.origin)
        self._module = folder / "pysampler" / self._built.name
        self._take(self._built)
        which = [self._python, "-c", "import pysampler._core as core; print(core.__file__)"]
        printed = subprocess.run(which, cwd="/", check=True, capture_output=True, text=True).stdout
        assert Path(printed.strip()) == self._module, printed

    def outcome(self, fault: Fault) -> str:
        """Put a fault back, run its tests, and return whether they notice it."""
        file = self.folder / fault.file
        text = file.read_text() if file.exists() else ""
        if text.count(fault.old) != 1:
            return f"GONE: {fault.file} has its text {text.count(fault.old)} times; write it anew"
        file.write_text(text.replace(fault.old, fault.new))
        try:
            if file.suffix != ".py":
                self._compile()
            code, first = self.tested([fault])
        finally:
            file.write_text(text)
            self._take(self._built)
        if code == pytest.ExitCode.NO_TESTS_COLLECTED:
            return "GONE: it has no tests; write it anew"
        return "NOT NOTICED" if code == 0 else f"noticed: {first}"

    def tested(self, faults: Sequence[Fault]) -> tuple[int, str]:
        """Run the tests of rows; return the exit code, and the first that failed."""
        files = sorted({file for one in faults for file in one.tests.split()})
        words = " or ".join(f"({one.k})" for one in faults)
        done = subprocess.run(
            [self._python, *PYTEST, "-k", words, *files],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        first = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.*)", done.stdout, re.MULTILINE)
        last = done.stdout.strip().rpartition("\n")[2].strip("+ ")  # such as Timeout
        return done.returncode, first[1] if first else last

    def _compile(self) -> None:
        cmake = shutil.which("cmake", path=Path(sys.executable).parent) or "cmake"
        where = [sys.executable, "-m", "pybind11", "--cmakedir"]
        found = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
        configure = [cmake, "-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug"]
        configure += ["-DCMAKE_CXX_FLAGS=-O1 -g0", f"-DPython_EXECUTABLE={sys.executable}"]
        build = [cmake, "--build", "build", "--target", "_core", "-j", str(os.cpu_count())]
        for command in ([*configure, f"-Dpybind11_DIR={found}"], build):
            subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        self._take(next((self.folder / "build").glob("_core*.so")))

    def _take(self, module: Path) -> None:
        self._module.unlink(missing_ok=True)  # processes may still run the old one
        shutil.copy(module, self._module)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="COMMIT", help="the faults of these commits")
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    options = parser.parse_args()
    faults = [Fault(**row) for row in tomllib.loads(TABLE.read_text())["fault"]]
    faults = [one for one in faults if not options.only or one.commit in options.only]
    if options.list:
        for one in faults:
            print(f"{one.commit}  {one.mends}\n          {one.file}: {one.tests} -k {one.k!r}")
        return 0
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="reverts-") as folder:
        copy = Copy(Path(folder).resolve())
        code, first = copy.tested(faults)
        if code != 0:
            raise SystemExit(f"without a fault fails {first}")
        for one in faults:
            outcome = copy.outcome(one)
            outcomes[outcome.partition(":")[0]] += 1
            print(f"{one.commit}  {one.mends}\n          {outcome}", flush=True)
    print(*(f"{count} {outcome}" for outcome, count in outcomes.items()), sep=", ")
    return int(outcomes.keys() != {"noticed"})


if __name__ == "__main__":
    sys.exit(main())
