"""Imports point one way."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Who may import what, of ours. The package itself names everything.
PYTHON = {
    "pysampler.errors": set(),
    "pysampler._closing": set(),
    "pysampler._numbers": set(),
    "pysampler.sync._segment": {"pysampler._closing", "pysampler.errors", "pysampler._core"},
    "pysampler.sync._wait": {"pysampler._core"},
    "pysampler.sync._flags": {"pysampler._core", "pysampler.sync._segment"},
    "pysampler.sync._rings": {"pysampler._core", "pysampler.errors", "pysampler.sync._segment"},
    "pysampler.sync._board": {
        *("pysampler._core", "pysampler._numbers", "pysampler.sync._segment"),
    },
    "pysampler.sync._watch": {"pysampler._closing", "pysampler._core"},
    "pysampler._frames.spec": set(),
    "pysampler._frames.frames": {"pysampler._frames.spec", "pysampler.sync"},
    "pysampler._workers.remote": {"pysampler.errors"},
    "pysampler._workers.counters": {"pysampler._core"},
    "pysampler._files": set(),
    "pysampler._vector.recording": {"pysampler.errors", "pysampler._files"},
    "pysampler._frames.infos": {"pysampler._core", "pysampler._frames.frames"},
    "pysampler._policies.seeds": set(),
    "pysampler._policies.policies": {"pysampler._frames.frames", "pysampler._frames.spec"},
    "pysampler._policies.acting": {
        *(
            "pysampler._core",
            "pysampler._frames.frames",
            "pysampler._policies.policies",
            "pysampler._policies.seeds",
        ),
        "pysampler.sync",
    },
    "pysampler._rollouts.rollout": {"pysampler._numbers"},
    "pysampler._actors.records": {
        *(
            "pysampler._frames.frames",
            "pysampler._numbers",
            "pysampler._policies.policies",
            "pysampler._rollouts.rollout",
        ),
        *("pysampler._frames.spec",),
    },
    "pysampler._actors.alone": {
        *(
            "pysampler._core",
            "pysampler._policies.acting",
            "pysampler._closing",
            "pysampler.errors",
        ),
        *(
            "pysampler._frames.frames",
            "pysampler._actors.records",
            "pysampler._workers.remote",
            "pysampler.sync",
        ),
    },
    "pysampler._vector.host": {
        *(
            "pysampler._core",
            "pysampler._policies.acting",
            "pysampler._actors.alone",
            "pysampler.errors",
        ),
        *(
            "pysampler._frames.frames",
            "pysampler._frames.infos",
            "pysampler._workers.remote",
            "pysampler.sync",
        ),
    },
    "pysampler._workers.mail": {"pysampler._core", "pysampler.errors"},
    "pysampler._workers.nursery": {
        *("pysampler._core", "pysampler.errors", "pysampler._workers.nursery_process"),
    },
    "pysampler._workers.nursery_process": {"pysampler._core", "pysampler._workers.worker"},
    "pysampler._vector.lease": set(),
    "pysampler._workers.worker": {
        *("pysampler._core", "pysampler.sync", "pysampler._frames.frames"),
        *(
            "pysampler._workers.remote",
            "pysampler._vector.host",
            "pysampler._workers.mail",
            "pysampler._policies.seeds",
        ),
        "pysampler._workers.counters",
    },
    "pysampler._workers.processes": {
        *(
            "pysampler._core",
            "pysampler._vector.host",
            "pysampler.errors",
            "pysampler._frames.frames",
        ),
        *(
            "pysampler._workers.nursery",
            "pysampler._workers.remote",
            "pysampler.sync",
            "pysampler._workers.worker",
        ),
    },
    "pysampler._workers.pool": {
        *("pysampler._core", "pysampler.sync", "pysampler.errors"),
        *(
            "pysampler._frames.frames",
            "pysampler._workers.remote",
            "pysampler._vector.host",
            "pysampler._workers.nursery",
        ),
        *(
            "pysampler._workers.worker",
            "pysampler._workers.mail",
            "pysampler._workers.processes",
            "pysampler._workers.counters",
        ),
    },
    "pysampler._workers.local": {
        *(
            "pysampler._vector.host",
            "pysampler.errors",
            "pysampler._frames.frames",
            "pysampler._workers.processes",
        ),
        *("pysampler._workers.remote", "pysampler._workers.counters", "pysampler.sync"),
    },
    "pysampler._vector.arguments": {
        "pysampler._numbers",
        *(
            "pysampler._workers.nursery",
            "pysampler._workers.pool",
            "pysampler._workers.processes",
            "pysampler._frames.spec",
        ),
        *("pysampler.sync",),
    },
    "pysampler._vector.piped": set(),
    "pysampler._vector.results": {
        *(
            "pysampler._core",
            "pysampler._vector.host",
            "pysampler.errors",
            "pysampler._frames.frames",
        ),
        *("pysampler._frames.infos", "pysampler._frames.spec"),
    },
    "pysampler._vector.vector_env": {
        *(
            "pysampler._core",
            "pysampler._vector.arguments",
            "pysampler._vector.host",
            "pysampler._closing",
        ),
        *(
            "pysampler.errors",
            "pysampler._frames.frames",
            "pysampler._frames.infos",
            "pysampler._vector.lease",
        ),
        "pysampler._numbers",
        *(
            "pysampler._workers.local",
            "pysampler._vector.piped",
            "pysampler._workers.pool",
            "pysampler._workers.processes",
        ),
        *(
            "pysampler._vector.recording",
            "pysampler._vector.results",
            "pysampler._frames.spec",
            "pysampler._workers.counters",
        ),
        *("pysampler.sync",),
    },
    "pysampler._vector.make": {"pysampler._numbers", "pysampler._vector.vector_env"},
    "pysampler._learning.replay": {
        *("pysampler._closing", "pysampler.errors", "pysampler._files", "pysampler._numbers"),
        "pysampler.sync",
    },
    "pysampler._rollouts.tally": {
        *(
            "pysampler._policies.acting",
            "pysampler._frames.frames",
            "pysampler._frames.infos",
            "pysampler._vector.results",
        ),
        *("pysampler._rollouts.rollout",),
    },
    "pysampler._rollouts.places": {
        *(
            "pysampler._core",
            "pysampler._policies.acting",
            "pysampler._vector.host",
            "pysampler.errors",
        ),
        "pysampler._frames.frames",
        *(
            "pysampler._policies.policies",
            "pysampler._workers.processes",
            "pysampler._workers.remote",
        ),
        *(
            "pysampler._vector.results",
            "pysampler._policies.seeds",
            "pysampler.sync",
            "pysampler._vector.vector_env",
        ),
    },
    "pysampler._policies.borrowing": {
        *(
            "pysampler._closing",
            "pysampler.errors",
            "pysampler._frames.frames",
            "pysampler._vector.lease",
        ),
        *("pysampler._vector.make", "pysampler._workers.nursery", "pysampler._policies.policies"),
        *("pysampler.sync", "pysampler._vector.vector_env"),
    },
    "pysampler._rollouts.rollouts": {
        *("pysampler._core", "pysampler._numbers"),
        *(
            "pysampler._policies.acting",
            "pysampler._policies.borrowing",
            "pysampler.errors",
            "pysampler._rollouts.places",
        ),
        *(
            "pysampler._policies.policies",
            "pysampler._rollouts.rollout",
            "pysampler._policies.seeds",
            "pysampler._frames.spec",
        ),
        "pysampler.sync",
        *("pysampler._rollouts.tally", "pysampler._vector.vector_env"),
    },
    "pysampler._actors.detached": {
        *("pysampler._core", "pysampler.errors", "pysampler._workers.processes"),
        *(
            "pysampler._policies.acting",
            "pysampler._vector.host",
            "pysampler._policies.borrowing",
            "pysampler._rollouts.places",
        ),
        *(
            "pysampler._policies.policies",
            "pysampler._vector.results",
            "pysampler._policies.seeds",
            "pysampler.sync",
        ),
        "pysampler._vector.vector_env",
    },
    "pysampler._actors.actors": {
        "pysampler._numbers",
        *(
            "pysampler._actors.alone",
            "pysampler._policies.borrowing",
            "pysampler._actors.detached",
            "pysampler.errors",
        ),
        *(
            "pysampler._vector.arguments",
            "pysampler._policies.policies",
            "pysampler._actors.records",
            "pysampler.sync",
        ),
        *("pysampler._core", "pysampler._vector.vector_env"),
    },
    "pysampler._actors.phases": {
        *(
            "pysampler._actors.actors",
            "pysampler._numbers",
            "pysampler._actors.records",
            "pysampler.sync",
        ),
    },
    "pysampler._actors.watcher": {
        *("pysampler._vector.arguments", "pysampler._numbers"),
        *(
            "pysampler._actors.actors",
            "pysampler._actors.alone",
            "pysampler._policies.borrowing",
            "pysampler._actors.detached",
        ),
        *(
            "pysampler.errors",
            "pysampler._policies.policies",
            "pysampler.sync",
            "pysampler._vector.vector_env",
        ),
    },
    "pysampler._learning.checkpoints": {
        *(
            "pysampler.errors",
            "pysampler._files",
            "pysampler._numbers",
            "pysampler._learning.replay",
        ),
    },
    "pysampler._learning.trainers": {
        *(
            "pysampler._vector.host",
            "pysampler._frames.frames",
            "pysampler._workers.processes",
            "pysampler._workers.remote",
        ),
        *("pysampler._frames.spec", "pysampler.sync", "pysampler._workers.worker"),
    },
    "pysampler._learning.averaging": {
        *("pysampler._core", "pysampler._vector.arguments", "pysampler._numbers"),
        *(
            "pysampler._vector.host",
            "pysampler._closing",
            "pysampler.errors",
            "pysampler._frames.frames",
        ),
        *(
            "pysampler._workers.local",
            "pysampler._workers.nursery",
            "pysampler._workers.pool",
            "pysampler._workers.processes",
        ),
        *(
            "pysampler._workers.remote",
            "pysampler._frames.spec",
            "pysampler.sync",
            "pysampler._learning.trainers",
        ),
    },
    "pysampler._rollouts.evaluation": {"pysampler._numbers", "pysampler._rollouts.rollouts"},
    "pysampler.envs.meta.tasks": set(),
    "pysampler.envs.meta.mujoco": {"pysampler.envs.meta.tasks"},
    "pysampler.envs.meta.plain": {"pysampler.envs.meta.tasks"},
    "pysampler._rollouts.tasks": {
        "pysampler._numbers",
        *("pysampler._closing",),
        *("pysampler._vector.arguments", "pysampler.envs.meta.tasks", "pysampler.errors"),
        *(
            "pysampler._vector.make",
            "pysampler._rollouts.places",
            "pysampler._policies.policies",
            "pysampler._rollouts.rollout",
        ),
        *(
            "pysampler._rollouts.rollouts",
            "pysampler._policies.seeds",
            "pysampler._frames.spec",
            "pysampler._vector.vector_env",
        ),
    },
    "pysampler.adapters.sb3": {"pysampler._vector.vector_env"},
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
