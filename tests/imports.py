"""Import all that a script imports, also inside functions, and do not run it.

    python tests/imports.py benchmarks/vector.py --out benchmarks/results

`make TARGET SMOKE=1` calls this for each script of the target. Benchmarks import a peer only where
they measure it, so that even `--help` does not show that the environment lacks one.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where scripts find modules that are not installed.
FOLDERS = [ROOT / name for name in ("benchmarks", "examples", "tests/faults", "tests/support")]


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield import statements, except optional ones and those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not (
            isinstance(child, ast.Try)
            or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
        ):
            yield from statements(child)


def modules(path: Path, seen: set[Path]) -> set[str]:
    """Return the installed modules that a script needs, and its local modules need."""
    seen.add(path)
    found: set[str] = set()
    for one in statements(ast.parse(path.read_text())):
        names = [one.module] if isinstance(one, ast.ImportFrom) else [a.name for a in one.names]
        for name in filter(None, names):
            local = [file for folder in FOLDERS if (file := folder / f"{name}.py").exists()]
            if not local:
                found.add(name)
            elif local[0] not in seen:
                found |= modules(local[0], seen)
    return found


def main() -> None:
    script = Path(sys.argv[1])
    for name in sorted(modules(script.resolve(), set())):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SystemExit(f"cannot run {script}: {error}") from error


if __name__ == "__main__":
    main()
