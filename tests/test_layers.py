"""Imports point one way."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Who may import what, of ours. The package itself names everything.
PYTHON = {
    "pysampler.errors": set(),
    "pysampler.closing": set(),
    "pysampler.numbers": set(),
    "pysampler.sync._segment": {"pysampler.closing", "pysampler.errors", "pysampler._core"},
    "pysampler.sync._wait": {"pysampler._core"},
    "pysampler.sync._flags": {"pysampler._core", "pysampler.sync._segment"},
    "pysampler.sync._rings": {"pysampler._core", "pysampler.errors", "pysampler.sync._segment"},
    "pysampler.sync._board": {
        *("pysampler._core", "pysampler.numbers", "pysampler.sync._segment"),
    },
    "pysampler.sync._watch": {"pysampler.closing", "pysampler._core"},
    "pysampler.spec": set(),
    "pysampler.frames": {"pysampler.spec", "pysampler.sync"},
    "pysampler.remote": {"pysampler.errors"},
    "pysampler.stats": {"pysampler._core"},
    "pysampler.files": set(),
    "pysampler.recording": {"pysampler.errors", "pysampler.files"},
    "pysampler.infos": {"pysampler._core", "pysampler.frames"},
    "pysampler.seeds": set(),
    "pysampler.policies": {"pysampler.frames", "pysampler.spec"},
    "pysampler.acting": {
        *("pysampler._core", "pysampler.frames", "pysampler.policies", "pysampler.seeds"),
        "pysampler.sync",
    },
    "pysampler.rollout": {"pysampler.numbers"},
    "pysampler.records": {
        *("pysampler.frames", "pysampler.numbers", "pysampler.policies", "pysampler.rollout"),
        *("pysampler.spec",),
    },
    "pysampler.alone": {
        *("pysampler._core", "pysampler.acting", "pysampler.closing", "pysampler.errors"),
        *("pysampler.frames", "pysampler.records", "pysampler.remote", "pysampler.sync"),
    },
    "pysampler.block": {
        *("pysampler._core", "pysampler.acting", "pysampler.alone", "pysampler.errors"),
        *("pysampler.frames", "pysampler.infos", "pysampler.remote", "pysampler.sync"),
    },
    "pysampler.mail": {"pysampler._core", "pysampler.errors"},
    "pysampler.nursery": {
        *("pysampler._core", "pysampler.errors", "pysampler.nursery_process"),
    },
    "pysampler.nursery_process": {"pysampler._core", "pysampler.worker"},
    "pysampler.lease": set(),
    "pysampler.worker": {
        *("pysampler._core", "pysampler.sync", "pysampler.frames"),
        *("pysampler.remote", "pysampler.block", "pysampler.mail", "pysampler.seeds"),
        "pysampler.stats",
    },
    "pysampler.processes": {
        *("pysampler._core", "pysampler.block", "pysampler.errors", "pysampler.frames"),
        *("pysampler.nursery", "pysampler.remote", "pysampler.sync", "pysampler.worker"),
    },
    "pysampler.pool": {
        *("pysampler._core", "pysampler.sync", "pysampler.errors"),
        *("pysampler.frames", "pysampler.remote", "pysampler.block", "pysampler.nursery"),
        *("pysampler.worker", "pysampler.mail", "pysampler.processes", "pysampler.stats"),
    },
    "pysampler.local": {
        *("pysampler.block", "pysampler.errors", "pysampler.frames", "pysampler.processes"),
        *("pysampler.remote", "pysampler.stats", "pysampler.sync"),
    },
    "pysampler.arguments": {
        "pysampler.numbers",
        *("pysampler.nursery", "pysampler.pool", "pysampler.processes", "pysampler.spec"),
        *("pysampler.sync",),
    },
    "pysampler.piped": set(),
    "pysampler.results": {
        *("pysampler._core", "pysampler.block", "pysampler.errors", "pysampler.frames"),
        *("pysampler.infos", "pysampler.spec"),
    },
    "pysampler.vector_env": {
        *("pysampler._core", "pysampler.arguments", "pysampler.block", "pysampler.closing"),
        *("pysampler.errors", "pysampler.frames", "pysampler.infos", "pysampler.lease"),
        "pysampler.numbers",
        *("pysampler.local", "pysampler.piped", "pysampler.pool", "pysampler.processes"),
        *("pysampler.recording", "pysampler.results", "pysampler.spec", "pysampler.stats"),
        *("pysampler.sync",),
    },
    "pysampler.make": {"pysampler.numbers", "pysampler.vector_env"},
    "pysampler.replay": {
        *("pysampler.closing", "pysampler.errors", "pysampler.files", "pysampler.numbers"),
        "pysampler.sync",
    },
    "pysampler.tally": {
        *("pysampler.acting", "pysampler.frames", "pysampler.infos", "pysampler.results"),
        *("pysampler.rollout",),
    },
    "pysampler.places": {
        *("pysampler._core", "pysampler.acting", "pysampler.block", "pysampler.errors"),
        "pysampler.frames",
        *("pysampler.policies", "pysampler.processes", "pysampler.remote"),
        *("pysampler.results", "pysampler.seeds", "pysampler.sync", "pysampler.vector_env"),
    },
    "pysampler.borrowing": {
        *("pysampler.closing", "pysampler.errors", "pysampler.frames", "pysampler.lease"),
        *("pysampler.make", "pysampler.nursery", "pysampler.policies"),
        *("pysampler.sync", "pysampler.vector_env"),
    },
    "pysampler.rollouts": {
        *("pysampler._core", "pysampler.numbers"),
        *("pysampler.acting", "pysampler.borrowing", "pysampler.errors", "pysampler.places"),
        *("pysampler.policies", "pysampler.rollout", "pysampler.seeds", "pysampler.spec"),
        "pysampler.sync",
        *("pysampler.tally", "pysampler.vector_env"),
    },
    "pysampler.detached": {
        *("pysampler._core", "pysampler.errors", "pysampler.processes"),
        *("pysampler.acting", "pysampler.block", "pysampler.borrowing", "pysampler.places"),
        *("pysampler.policies", "pysampler.results", "pysampler.seeds", "pysampler.sync"),
        "pysampler.vector_env",
    },
    "pysampler.actors": {
        "pysampler.numbers",
        *("pysampler.alone", "pysampler.borrowing", "pysampler.detached", "pysampler.errors"),
        *("pysampler.arguments", "pysampler.policies", "pysampler.records", "pysampler.sync"),
        *("pysampler._core", "pysampler.vector_env"),
    },
    "pysampler.phases": {
        *("pysampler.actors", "pysampler.numbers", "pysampler.records", "pysampler.sync"),
    },
    "pysampler.watcher": {
        *("pysampler.arguments", "pysampler.numbers"),
        *("pysampler.actors", "pysampler.alone", "pysampler.borrowing", "pysampler.detached"),
        *("pysampler.errors", "pysampler.policies", "pysampler.sync", "pysampler.vector_env"),
    },
    "pysampler.checkpoints": {
        *("pysampler.errors", "pysampler.files", "pysampler.numbers", "pysampler.replay"),
    },
    "pysampler.trainers": {
        *("pysampler.block", "pysampler.frames", "pysampler.processes", "pysampler.remote"),
        *("pysampler.spec", "pysampler.sync", "pysampler.worker"),
    },
    "pysampler.averaging": {
        *("pysampler._core", "pysampler.arguments", "pysampler.numbers"),
        *("pysampler.block", "pysampler.closing", "pysampler.errors", "pysampler.frames"),
        *("pysampler.local", "pysampler.nursery", "pysampler.pool", "pysampler.processes"),
        *("pysampler.remote", "pysampler.spec", "pysampler.sync", "pysampler.trainers"),
    },
    "pysampler.evaluation": {"pysampler.numbers", "pysampler.rollouts"},
    "pysampler.envs.meta.tasks": set(),
    "pysampler.envs.meta.mujoco": {"pysampler.envs.meta.tasks"},
    "pysampler.envs.meta.plain": {"pysampler.envs.meta.tasks"},
    "pysampler.tasks": {
        "pysampler.numbers",
        *("pysampler.closing",),
        *("pysampler.arguments", "pysampler.envs.meta.tasks", "pysampler.errors"),
        *("pysampler.make", "pysampler.places", "pysampler.policies", "pysampler.rollout"),
        *("pysampler.rollouts", "pysampler.seeds", "pysampler.spec", "pysampler.vector_env"),
    },
    "pysampler.adapters.sb3": {"pysampler.vector_env"},
}
# In C++ a header may include those before it in this order.
CPP = [
    *("layout", "clock", "cgroup", "process", "futex", "wait", "waiter", "position"),
    *("flag", "doorbell", "ring", "shared_ring", "byte_ring", "board", "segment", "watch"),
    *("meter", "command", "block"),
]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names if node.module == "pysampler" else {node.module}
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("module", PYTHON)
def test_a_python_module_imports_only_what_lies_below_it(module):
    path = ROOT / (module.replace(".", "/") + ".py")
    ours = {name for name in imported(path) if name.startswith("pysampler")}
    assert ours <= PYTHON[module]


def test_every_python_module_has_its_place():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "pysampler").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert modules == PYTHON.keys()


@pytest.mark.parametrize("name", CPP)
def test_a_header_includes_only_those_below_it(name):
    included = re.findall(r'#include "(\w+)\.h"', (ROOT / "csrc" / f"{name}.h").read_text())
    assert all(CPP.index(other) < CPP.index(name) for other in included)


def test_every_header_has_its_place():
    assert {path.stem for path in (ROOT / "csrc").glob("*.h")} == set(CPP)


def test_no_python_below_the_bindings():
    for path in (ROOT / "csrc").glob("*.*"):
        assert not re.search(r"pybind11|Python\.h", path.read_text()), path.name
