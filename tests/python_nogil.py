"""Build a free-threaded Python from Debian's sources: `make python-nogil`.

    python tests/python_nogil.py build/python-nogil

Takes the newest release from 3.13 on whose sources the mirror has, checks their hash, and installs
it into the folder. It takes about seven minutes on two CPUs, and needs a C compiler and the
headers of libffi, OpenSSL and zlib.
"""

import argparse
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SUITES = "sid", "forky", "trixie"
OLDEST = 13  # Python 3.13 is the first that has no lock


class Source(NamedTuple):
    """The sources of a release."""

    version: tuple[int, ...]
    path: str  # on the mirror
    sha256: str


def sources() -> set[Source]:
    """Return the sources that the mirror lists."""
    found = set()
    for suite in SUITES:
        with urllib.request.urlopen(f"{MIRROR}/dists/{suite}/main/source/Sources.xz") as answer:
            listed = lzma.decompress(answer.read()).decode()
        for entry in listed.split("\n\n"):
            package = re.match(r"Package: python3\.(\d+)\n", entry)
            folder = re.search(r"^Directory: (.+)$", entry, re.MULTILINE)
            name = re.search(
                r"^ ([0-9a-f]{64}) \d+ (\S+_([\d.]+)\.orig\.tar\.xz)$", entry, re.MULTILINE
            )
            if package and folder and name and int(package[1]) >= OLDEST:
                version = tuple(map(int, name[3].split(".")))
                found.add(Source(version, f"{folder[1]}/{name[2]}", name[1]))
    return found


def fetched(source: Source) -> bytes | None:
    """Return the archive; None if the mirror lists it and does not have it."""
    try:
        with urllib.request.urlopen(f"{MIRROR}/{source.path}") as answer:
            archive: bytes = answer.read()
    except urllib.error.HTTPError as error:
        print(f"{source.path}: {error}", file=sys.stderr)
        return None
    if hashlib.sha256(archive).hexdigest() != source.sha256:
        raise SystemExit(f"cannot use {source.path}: its hash is not the listed one")
    return archive


def build(archive: bytes, home: Path, *options: str) -> None:
    """Build the sources, and install them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "python.tar.xz").write_bytes(archive)
        with tarfile.open(Path(folder, "python.tar.xz")) as unpacked:
            unpacked.extractall(folder, filter="data")
        [tree] = Path(folder).glob("[Pp]ython*/")
        run = lambda *command: subprocess.run(command, cwd=tree, check=True)  # noqa: E731
        run("./configure", "-q", f"--prefix={home}", "--disable-gil", *options)
        run("make", "-s", f"-j{os.cpu_count()}")
        # Compiles no modules of the library: an instrumented Python takes long for all of them.
        run("make", "-s", "install", "COMPILEALL_OPTS=--help")
        shutil.copy(tree / "Tools/tsan/suppressions_free_threading.txt", home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path, help="the folder to install into")
    parser.add_argument("--instrumented", action="store_true", help="for ThreadSanitizer")
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    options = ["--with-ensurepip=install"]
    if arguments.instrumented:
        options += ["--with-thread-sanitizer"]
    begun = time.perf_counter()
    for source in sorted(sources(), reverse=True):
        if (archive := fetched(source)) is not None:
            build(archive, home, *options)
            break
    else:
        raise SystemExit("cannot build Python: the mirror has no sources of 3.13 or later")
    version = ".".join(map(str, source.version))
    print(f"{home}: Python {version} in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
