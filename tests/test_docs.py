"""Every example in a docstring runs, and so do those of the README."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import reference

import pysampler
from pysampler import sync
from pysampler.envs import meta
from pysampler.envs.meta import plain

ROOT = Path(__file__).parents[1]
DOCUMENTED = (
    {
        f"{module.__name__}.{name}": (module, getattr(module, name).__doc__)
        for module in (pysampler, sync, meta, plain)
        for name in module.__all__
        if ">>>" in (getattr(module, name).__doc__ or "")
    }
    | {
        f"pysampler.{kind.__name__}.{name}": (
            sys.modules[kind.__module__],
            getattr(kind, name).__doc__,
        )
        for kind in (pysampler.VectorEnv, pysampler.Actors)
        for name in vars(kind)
        if ">>>" in (getattr(kind, name).__doc__ or "")
    }
    | {"pysampler.envs.meta": (meta, meta.__doc__)}
)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_does_what_it_says(name):
    module, text = DOCUMENTED[name]
    names = {**vars(module), "np": np, "gym": gym, "pysampler": pysampler}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    said: list[str] = []
    results = doctest.DocTestRunner().run(test, out=said.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(said)


def test_every_primitive_and_every_sampler_has_an_example():
    assert {
        *("pysampler.sync.Segment", "pysampler.sync.Array", "pysampler.sync.Flag"),
        *("pysampler.sync.Doorbell", "pysampler.sync.Ring", "pysampler.sync.SharedRing"),
        *("pysampler.sync.ByteRing", "pysampler.sync.Board"),
        *("pysampler.VectorEnv", "pysampler.make_vec", "pysampler.Rollouts", "pysampler.gae"),
        *("pysampler.evaluate", "pysampler.MultiTaskSampler", "pysampler.Actors"),
        *("pysampler.Actors.phases", "pysampler.Watcher", "pysampler.Checkpoints"),
        "pysampler.ReplayBuffer",
    } <= DOCUMENTED.keys()


EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("number", "lines"), [(0, 0), (1, 1), (2, 1), (3, 0), (4, 3)])
def test_the_examples_of_the_readme_run(number, lines, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number])
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == lines


def test_the_reference_lists_the_public_names_and_what_they_are():
    assert reference.PAGE.read_text() == reference.text(), "run python tests/reference.py"


def test_every_public_name_is_in_the_reference():
    """Of every module whose path has no underscore."""
    listed = {name for package in reference.PACKAGES for name in sys.modules[package].__all__}
    root = Path(pysampler.__file__).parent
    for path in root.rglob("*.py"):
        name = ".".join(("pysampler", *path.relative_to(root).with_suffix("").parts))
        if "._" not in name:
            assert set(getattr(importlib.import_module(name), "__all__", ())) <= listed, name


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_is_there(page):
    """Files that it links to or names, and tests."""
    text = page.read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.*"))
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert "://" in link or (page.parent / link).exists(), link
    for name in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|h|cpp|md))`", text):
        assert [*ROOT.glob(f"*/**/{name}"), *ROOT.glob(name)], name
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests or f"TEST({name})" in tests, name
