"""Print the lines of code of each package, of C++ and of tests.

Blank lines, comments, docstrings and the generated ``pysampler/_core.pyi`` do not count.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
# The most lines of code of each package. These numbers only go down.
MOST = {
    "csrc (C++)": 3_568,
    "csrc/bindings (C++)": 8_515,
    "pysampler": 218,
    "pysampler/_actors": 1_893,
    "pysampler/_cli": 3_200,
    "pysampler/_common": 402,
    "pysampler/_frames": 532,
    "pysampler/_learning": 1_562,
    "pysampler/_policies": 2_151,
    "pysampler/_rollouts": 3_715,
    "pysampler/_vector": 9_136,
    "pysampler/_workers": 4_222,
    "pysampler/adapters": 639,
    "pysampler/envs": 1_731,
    "pysampler/ray": 2_060,
    "pysampler/sync": 443,
}
WITH_DOCSTRING = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def lines_of_python(source: str) -> int:
    """Return a Python module's lines of code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def lines_of_cpp(source: str) -> int:
    """Return a C++ file's lines of code; our code does not use ``/* */`` comments."""
    lines = map(str.strip, source.splitlines())
    return sum(bool(line) and not line.startswith("//") for line in lines)


def package_of(path: Path) -> str:
    """Return the table row of a file, or an empty string."""
    name = path.as_posix()
    if path.suffix in {".h", ".cpp"}:
        parts = [part for part in ("csrc/bindings", "csrc", "tests") if name.startswith(part)]
        return f"{parts[0]} (C++)" if parts else ""
    if path.suffix != ".py":
        return ""
    if path.parts[0] == "pysampler":
        return "/".join(path.parts[:2] if len(path.parts) > 2 else path.parts[:1])
    return path.parts[0]


def sizes() -> Counter[str]:
    """Return the lines of code of each table row."""
    found: Counter[str] = Counter()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for path in map(Path, listed.splitlines()):
        if (part := package_of(path)) and (ROOT / path).exists():
            count = lines_of_python if path.suffix == ".py" else lines_of_cpp
            found[part] += count((ROOT / path).read_text())
    return found


def main() -> int:
    found = sizes()
    package = sum(lines for part, lines in found.items() if part.startswith("pysampler"))
    for part, lines in sorted(found.items()):
        print(f"{part:24} {lines:7,}")
    print(f"{'pysampler in all':24} {package:7,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
