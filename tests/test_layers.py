"""Imports point down: each module and header uses only layers below its own."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The packages of pysampler, each of which imports those before it and its own modules. pysampler
# itself names everything.
PACKAGES = [
    *("errors", "_common", "_core", "envs", "sync", "_workers", "_frames", "_vector", "_policies"),
    *("_rollouts", "_actors", "_learning", "adapters", "ray", "_cli", "__main__"),
]
# Packages that may import the C++ module.
PLAIN = {"errors", "_common", "adapters"}
NATIVE = set(PACKAGES) - PLAIN
# In C++ a header may include those before it in this order.
CPP = [
    *("layout", "shown", "clock", "cgroup", "process", "futex", "deadline", "wait", "waiter"),
    *("position", "flag", "doorbell", "ring", "producers", "shared_ring", "byte_ring", "board"),
    *("descriptor", "segment", "loan", "pulse", "watch", "trace", "meter", "command"),
    *("command_sender", "pool", "pool_worker", "block", "simulations"),
]
MODULES = sorted(
    path.relative_to(ROOT / "pysampler")
    for path in (ROOT / "pysampler").rglob("*.py")
    if path != ROOT / "pysampler/__init__.py"
)


def package_of(path):
    return path.parts[0].removesuffix(".py")


@functools.cache
def imported(path):
    """Return the modules of the package that a file names, as dotted names without ``pysampler.``.

    It finds imports at the top, in functions and for type checkers, and names in strings, such as
    arguments of ``importlib.import_module`` or code for another interpreter, but not logger names.
    """
    tree = ast.parse((ROOT / "pysampler" / path).read_text())
    passed_by, modules = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
            passed_by.update(map(id, node.args))
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            passed_by.add(id(body[0].value))  # a docstring
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if (ROOT / (node.module or "").replace(".", "/")).is_dir():
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = () if id(node) in passed_by else re.findall(r"pysampler(?:\.\w+)+", node.value)
            names = [name for name in found if is_module(name)]
        else:
            continue
        modules += (
            name.removeprefix("pysampler.") for name in names if name.startswith("pysampler.")
        )
    return modules


def is_module(name):
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_modules_import_nothing_above_their_package(path):
    package = package_of(path)
    for name in imported(path):
        other = name.partition(".")[0]
        assert PACKAGES.index(other) <= PACKAGES.index(package), f"{path} imports {name}"
        assert other != "_core" or package in NATIVE, f"{path} imports {name}"


def test_modules_have_no_import_cycles():
    """Not for type checkers either: modules in a cycle can only be read together."""
    graph = {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): names
        for path in MODULES
        if (names := set(imported(path)))
    }
    order = []

    def visit(name, above):
        assert name not in above, f"a circle: {' -> '.join([*above, name])}"
        if name in order:
            return
        for other in sorted(graph.get(name, set()) - {name}):
            visit(other, [*above, name])
        order.append(name)

    for name in graph:
        visit(name, [])


@pytest.mark.parametrize(
    "line",
    [
        *("from pysampler._cli.main import main", "def f():\n    import pysampler._cli.main"),
        *("if TYPE_CHECKING:\n    from pysampler._cli import main", "f('pysampler._cli.main')"),
        "CODE = 'from pysampler._cli.main import main; main()'",
    ],
)
def test_imported_finds_every_form_of_import(line, tmp_path, monkeypatch):
    (tmp_path / "pysampler").mkdir()
    (tmp_path / "pysampler" / "one.py").write_text(line)
    for package in ("pysampler/_cli",):
        (tmp_path / package).mkdir()
        (tmp_path / package / "main.py").touch()
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert "_cli.main" in set(imported(Path("one.py")))


def private_names(path):
    """Return a module's private names, and those it uses of other objects, by line."""
    defined, used = set(), {}
    for node in ast.walk(ast.parse((ROOT / "pysampler" / path).read_text())):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                defined.add(node.attr)
            else:
                used[node.attr] = node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined.add(node.target.id)
    return defined, used


def test_modules_do_not_use_private_names_of_others():
    names = {path: private_names(path) for path in MODULES}
    for path, (defined, used) in names.items():
        others = set().union(*(own for other, (own, _) in names.items() if other != path))
        foreign = {name: line for name, line in used.items() if name in others - defined}
        assert not foreign, f"{path}: private names of other modules, and the lines: {foreign}"


def test_every_package_has_a_docstring():
    packages = {package_of(path) for path in MODULES}
    assert packages == set(PACKAGES) - {"_core"}
    assert len([package for package in packages if (ROOT / "pysampler" / package).is_dir()]) <= 13
    for package in packages:
        path = ROOT / "pysampler" / package
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize("name", CPP)
def test_headers_include_only_those_below(name):
    included = re.findall(r'#include "(\w+)\.h"', (ROOT / "csrc" / f"{name}.h").read_text())
    assert all(CPP.index(other) < CPP.index(name) for other in included)


def test_every_header_is_listed():
    assert {path.stem for path in (ROOT / "csrc").glob("*.h")} == set(CPP)


def test_csrc_outside_the_bindings_does_not_use_python():
    for path in (ROOT / "csrc").glob("*.*"):
        assert not re.search(r"pybind11|Python\.h", path.read_text()), path.name
