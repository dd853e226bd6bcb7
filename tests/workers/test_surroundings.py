"""The paths of imports, for processes in other directories."""

import importlib
import sys

import pytest

import pysampler
from pysampler._workers.surroundings import current_directory, import_path

SOURCE = "from made_up import TellingEnv\n\nclass Mine(TellingEnv):\n    file = __file__\n"


@pytest.fixture
def enter(tmp_path, monkeypatch):
    """Return a function that makes a directory with a module in it, enters it and returns it."""
    monkeypatch.setattr(sys, "path_importer_cache", {})
    yield lambda name: _entered(tmp_path / name, monkeypatch)
    sys.modules.pop("found_by_a_relative_path", None)


def _entered(folder, monkeypatch):
    (folder / "mods").mkdir(parents=True)
    for place in (folder, folder / "mods"):
        (place / "found_by_a_relative_path.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    return folder


def prepend(monkeypatch, *entries):
    monkeypatch.setattr(sys, "path", [*entries, *sys.path])


def test_relative_entry_is_searched_where_it_was_first_used(enter, monkeypatch):
    first = enter("first")
    prepend(monkeypatch, "mods")
    importlib.import_module("found_by_a_relative_path")
    enter("second")
    assert import_path() == [str(first / "mods"), *sys.path[1:]]


def test_unused_relative_entries_are_searched_in_the_current_directory(enter, monkeypatch):
    prepend(monkeypatch, "", "unused")
    for name in ("first", "second"):
        folder = enter(name)
        assert import_path() == [str(folder), str(folder / "unused"), *sys.path[2:]]


def test_relative_entries_are_left_out_after_the_directory_was_removed(enter, monkeypatch):
    prepend(monkeypatch, "", "unused")
    folder = enter("first")
    (folder / "none").mkdir()
    monkeypatch.chdir(folder / "none")
    (folder / "none").rmdir()
    assert current_directory() is None
    assert import_path() == sys.path[2:]
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    "context", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow), "fork"]
)
@pytest.mark.parametrize("entry", ["", "mods"])
def test_vector_envs_after_a_change_of_directory_get_the_same_class(
    enter, monkeypatch, entry, context
):
    prepend(monkeypatch, entry)
    first = enter("first")
    mine = importlib.import_module("found_by_a_relative_path").Mine
    for folder in (first, enter("second")):
        monkeypatch.chdir(folder)
        with pysampler.VectorEnv([mine], num_workers=1, context=context) as envs:
            assert envs.get_attr("file") == (mine.file,)
