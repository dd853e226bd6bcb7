"""Docstring examples and code of all pages run; pages agree with code and results."""

import ast
import doctest
import functools
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import pysampler
from pysampler import sync
from pysampler.envs import meta, mujoco
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
    | {
        f"pysampler.envs.mujoco.{name}": (
            sys.modules[getattr(mujoco, name).__module__],
            getattr(mujoco, name).__doc__,
        )
        for name in mujoco.__all__
        if ">>>" in (getattr(mujoco, name).__doc__ or "")
    }
)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_examples_run(name):
    module, text = DOCUMENTED[name]
    names = {**vars(module), "np": np, "gym": gym, "pysampler": pysampler}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    output: list[str] = []
    results = doctest.DocTestRunner().run(test, out=output.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(output)


def test_primitives_and_samplers_have_examples():
    assert {
        *("pysampler.sync.Segment", "pysampler.sync.Array", "pysampler.sync.Flag"),
        *("pysampler.sync.Doorbell", "pysampler.sync.Ring", "pysampler.sync.SharedRing"),
        *("pysampler.sync.ByteRing", "pysampler.sync.Board", "pysampler.VectorEnv"),
        *("pysampler.make_vec", "pysampler.Rollouts", "pysampler.gae", "pysampler.evaluate"),
        *("pysampler.MultiTaskSampler", "pysampler.Actors", "pysampler.Actors.phases"),
        *("pysampler.Watcher", "pysampler.Checkpoints", "pysampler.ReplayBuffer"),
    } <= DOCUMENTED.keys()


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def fences(page, language):
    """Return the blocks of code of a page in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(300)  # one page starts hosts on Ray five times
@pytest.mark.parametrize(
    "page", [page for page in PAGES if fences(page, "python")], ids=lambda page: page.name
)
def test_code_of_each_page_runs(page, tmp_path):
    """``python`` blocks run as one program; ``py`` blocks use other libraries and only parse."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(fences(page, "python")))
    result = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    for block in fences(page, "py"):
        ast.parse(block)


def test_ray_accepts_the_cluster_file_of_the_guide():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    [text] = fences(ROOT / "docs" / "guides" / "many-hosts.md", "yaml")
    config = prepare_config(yaml.safe_load(text))
    validate_config(config)
    [kind] = config["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == 2
    for command in (*config["head_start_ray_commands"], *config["worker_start_ray_commands"]):
        assert command == "ray stop" or command.startswith("ray start --")


def test_every_public_name_is_in_the_reference():
    """Every name of modules without an underscore in their path, and no other."""
    listed = set()
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        module = ""
        for line in page.read_text().splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split()[-1]
            elif found := re.match(r"\.\. (?:auto|py:)\w+:: (\w+)$", line):
                listed.add(f"{module}.{found[1]}")
    public = set()
    root = Path(pysampler.__file__).parent
    for path in root.rglob("*.py"):
        name = ".".join(("pysampler", *path.relative_to(root).with_suffix("").parts))
        name = name.removesuffix(".__init__")
        if "._" in name:
            continue
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            thing = getattr(module, exported)
            if not exported.startswith("__") and not inspect.ismodule(thing):
                public.add((name, exported))
    names = {exported for _, exported in public}
    assert {name.rpartition(".")[2] for name in listed} == names
    things = []
    for name in listed:  # at the path that the page gives
        module, _, exported = name.rpartition(".")
        assert hasattr(importlib.import_module(module), exported), name
        things.append(getattr(importlib.import_module(module), exported))
    for module, exported in public:  # also names that exist twice, such as ray.Rollouts
        thing = getattr(importlib.import_module(module), exported)
        assert any(thing is one for one in things), f"{module}.{exported}"


@functools.cache
def files():
    """Return the paths of all files except built and installed ones."""
    folders = [p for p in ROOT.iterdir() if p.is_dir() and p.name[0] != "." and p.name != "build"]
    found = [*ROOT.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    return [str(path) for path in found]


@functools.cache
def text_of_tests():
    """Return the text of all tests."""
    found = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("test_*.cpp")]
    return "".join(path.read_text() for path in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_named_by_a_page_exist(page):
    """Linked files, named files and tests."""
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert "://" in link or (page.parent / link).exists(), link
    for name in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|h|cpp|md))`", text):
        assert any(path.endswith(f"/{name}") for path in files()), name
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in text_of_tests() or f"TEST({name})" in text_of_tests(), name


def test_functions_of_a_step_are_in_the_files_that_the_architecture_names():
    page = ROOT / "docs" / "design" / "architecture.md"
    rows = re.findall(r"^\|[^|\n]*\| (\[`.*?) \| (`.*?) \|$", page.read_text(), re.MULTILINE)
    assert len(rows) == 8
    for files_of_row, functions in rows:
        for link in re.findall(r"\]\(([^)]+)", files_of_row):
            code = (page.parent / link).read_text()
            for name in re.findall(r"`(\w+)`", functions):
                assert re.search(rf"\b{name}\(", code), (link, name)


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pages")


def test_commands_of_the_systems_page_have_their_options():
    text = (ROOT / "docs" / "systems.md").read_text()
    commands = re.findall(r"`python (\S+\.py)([^`]*)`", text)
    commands += re.findall(r"`python (examples/dqn.py) --save best.pt`, then `([^`]+)`", text)
    assert len(commands) > 10
    shared = (ROOT / "examples" / "common.py").read_text()
    shared += (ROOT / "benchmarks" / "running.py").read_text()
    for program, options in commands:
        source = (ROOT / program).read_text() + shared
        for option in re.findall(r"--[\w-]+", options):
            name = option.removeprefix("--")
            assert (
                f'"{option}"' in source
                or f'"{name.replace("-", "_")}"' in source
                or (f"    {name.replace('-', '_')}:" in source)
            ), f"{program} {option}"


def test_pages_show_the_newest_results(pages):
    assert {path.name for path in pages.pages()} >= {"README.md", "cleanrl.md", "vector.md"}
    for page in pages.pages():
        assert page.read_text() == pages.written(page), f"run python benchmarks/pages.py ({page})"


def test_the_readme_has_no_other_numbers(pages):
    """No thousands separators, factors or percentages."""
    rest = (ROOT / "README.md").read_text().replace(pages.speeds(), "")
    assert re.findall(r"\d,\d{3}|\d(?:\.\d)? ?(?:x|times)\b|\d ?%", rest) == []


def test_the_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["speed", "round", "loss", "mechanism"])
def test_pictures_show_the_newest_results(name, theme, pages):
    drawn = pages.pictures.DRAWN[name](theme)
    assert (pages.pictures.PICTURES / f"{name}-{theme}.svg").read_text() == drawn, (
        "run python benchmarks/pages.py"
    )


def test_ages_count_the_lines_that_changed_since_a_result(pages, tmp_path, monkeypatch):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(**files):
        for name, lines in files.items():
            path = tmp_path / "pysampler" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text("line\n" * lines)
        git("add", ".")
        git("commit", "-qm", "a change")
        return git("rev-parse", "--short", "HEAD")

    git("init", "-q")
    first, second = commit(a=1), commit(a=2, _cli=1)
    commit(a=4, _cli=9)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    for name, measured in {"old": first, "new": f"{second}+", "elsewhere": "fade0bad"}.items():
        (tmp_path / "docs" / "results" / f"{name}.md").touch()
        about = json.dumps({"machine": {"commit": measured}})
        (tmp_path / f"2026-01-02-{name}.json").write_text(about)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "CODE", ["pysampler", ":!pysampler/_cli"])
    assert pages.ages() == [
        ["new", "2026-01-02", second, "2"],
        ["old", "2026-01-02", first, "3"],
        ["elsewhere", "2026-01-02", "fade0bad", "unknown"],
    ]


def test_result_pages_include_results(pages):
    for page in (ROOT / "docs" / "results").glob("*.md"):
        (shown,) = re.findall(r"{include} \.\./\.\./(.*)", page.read_text())
        assert (ROOT / shown).exists()
        assert f"`{shown}`" in page.read_text()  # code hosts show no {include}


def source_texts():
    """Return the source's string literals, one per line, with an ellipsis for variable parts."""
    texts = []
    for path in (ROOT / "pysampler").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    for path in [*(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "csrc").rglob("*.h")]:
        statements = re.sub(r'"\s*"', "", path.read_text()).split(";\n")
        texts += ["…".join(re.findall(r'"((?:[^"\\]|\\.)*)"', one)) for one in statements]
    return "\n".join(text for text in texts if "\n" not in text)


@pytest.mark.slow
def test_quoted_messages_are_in_the_source():
    """The constant parts of each quoted message occur in order in one string of the source."""
    _, _, page = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## By message\n")
    quoted = [found[2] for found in re.finditer(r"^(?:### |\| )(`+)(.+?)\1", page, re.MULTILINE)]
    assert len(quoted) > 100
    texts = source_texts()
    for message in quoted:
        parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
        assert len("".join(parts)) > 5, f"too little to look for: {message}"
        found = re.search(".*?".join(parts), texts)
        assert found is not None, f"not in the source: {message}"
