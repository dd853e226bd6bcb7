"""Generate pysampler/_core.pyi from the module; --check reports whether it is up to date."""

import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "pysampler" / "_core.pyi"


def generate() -> str:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                *(sys.executable, "-m", "pybind11_stubgen", "pysampler._core"),
                *("-o", folder, "--numpy-array-use-type-var"),
            ],
            check=True,
            capture_output=True,
        )
        return (Path(folder) / "pysampler" / "_core.pyi").read_text()


def main() -> int:
    made = generate()
    if "--check" not in sys.argv:
        GOLDEN.write_text(made)
        return 0
    if GOLDEN.read_text() == made:
        return 0
    print("pysampler/_core.pyi is out of date: run `make stubs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
