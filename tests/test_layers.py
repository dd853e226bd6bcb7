"""Imports point down."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The rooms of the package, each of which imports those before it and its own modules. The package
# itself names everything.
ROOMS = [
    *("errors", "_numbers", "_files", "_closing", "_torch", "_core", "envs", "sync"),
    *("_workers", "_frames", "_vector", "_policies", "_rollouts", "_actors", "_learning"),
    *("adapters", "ray", "_cli", "__main__"),
]
# Who may import the C++ module.
NATIVE = set(ROOMS) - {"errors", "_numbers", "_files", "_closing", "_torch", "envs", "adapters"}
# In C++ a header may include those before it in this order.
CPP = [
    *("layout", "clock", "cgroup", "process", "futex", "deadline", "wait", "waiter", "position"),
    *(
        "flag",
        "doorbell",
        "ring",
        "producers",
        "shared_ring",
        "byte_ring",
        "board",
        "descriptor",
        "segment",
        "loan",
    ),
    *(
        "pulse",
        "watch",
        "trace",
        "meter",
        "command",
        "command_sender",
        "pool",
        "pool_worker",
        "block",
        "simulations",
    ),
]
MODULES = sorted(
    path.relative_to(ROOT / "pysampler")
    for path in (ROOT / "pysampler").rglob("*.py")
    if path != ROOT / "pysampler/__init__.py"
)


def room_of(path):
    return path.parts[0].removesuffix(".py")


def imported(path):
    """The modules of the package that a file imports, as dotted names without ``pysampler.``."""
    for node in ast.walk(ast.parse((ROOT / "pysampler" / path).read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if (ROOT / (node.module or "").replace(".", "/")).is_dir():
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (
            name.removeprefix("pysampler.") for name in names if name.startswith("pysampler.")
        )


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_nothing_above_its_room(path):
    room = room_of(path)
    for name in imported(path):
        other = name.partition(".")[0]
        assert ROOMS.index(other) <= ROOMS.index(room), f"{path} imports {name}"
        assert other != "_core" or room in NATIVE, f"{path} imports {name}"


def test_modules_of_a_room_do_not_import_one_another_in_circles():
    """At run time: what is imported for type checkers alone may be anywhere."""
    graph = {}
    for path in MODULES:
        tree = ast.parse((ROOT / "pysampler" / path).read_text())
        names = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pysampler"):
                if (ROOT / node.module.replace(".", "/")).is_dir():
                    names |= {f"{node.module}.{alias.name}" for alias in node.names}
                else:
                    names.add(node.module)
        graph["pysampler." + ".".join(path.with_suffix("").parts)] = names
    order = []

    def visit(name, above):
        assert name not in above, f"a circle: {' -> '.join([*above, name])}"
        if name in order:
            return
        for other in sorted(graph.get(name, ())):
            visit(other, [*above, name])
        order.append(name)

    for name in graph:
        visit(name, [])


def private_names(path):
    """The private names that a module defines, and those of other objects that it uses."""
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


def test_no_module_uses_a_private_name_of_an_object_of_another_module():
    names = {path: private_names(path) for path in MODULES}
    for path, (defined, used) in names.items():
        others = set().union(*(own for other, (own, _) in names.items() if other != path))
        foreign = {name: line for name, line in used.items() if name in others - defined}
        assert not foreign, f"{path}: private names of other modules, and the lines: {foreign}"


def test_every_room_says_what_it_knows():
    rooms = {room_of(path) for path in MODULES}
    assert rooms == set(ROOMS) - {"_core"}
    assert len([room for room in rooms if (ROOT / "pysampler" / room).is_dir()]) <= 12
    for room in rooms:
        path = ROOT / "pysampler" / room
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert ast.get_docstring(ast.parse(path.read_text())), path


@pytest.mark.parametrize("name", CPP)
def test_a_header_includes_only_those_below_it(name):
    included = re.findall(r'#include "(\w+)\.h"', (ROOT / "csrc" / f"{name}.h").read_text())
    assert all(CPP.index(other) < CPP.index(name) for other in included)


def test_every_header_has_its_place():
    assert {path.stem for path in (ROOT / "csrc").glob("*.h")} == set(CPP)


def test_no_python_below_the_bindings():
    for path in (ROOT / "csrc").glob("*.*"):
        assert not re.search(r"pybind11|Python\.h", path.read_text()), path.name
