"""Recipes run with their defaults if their dependencies are installed."""

import importlib.util
import sys

import pytest
import recipes
from packaging.requirements import Requirement


@pytest.mark.long
@pytest.mark.timeout(recipes.LIMIT + 60)
@pytest.mark.parametrize("recipe", recipes.RECIPES, ids=lambda recipe: recipe.stem)
def test_recipes_run_and_print_a_result(recipe):
    if absent := recipes.missing(recipes.dependencies(recipe)):
        pytest.skip(f"needs {', '.join(absent)}: run by `make recipes`")
    assert recipes.run(sys.executable, recipe)


@pytest.mark.parametrize("recipe", recipes.RECIPES, ids=lambda recipe: recipe.stem)
def test_recipes_have_a_steps_option(recipe):
    assert '"--steps"' in recipe.read_text()


@pytest.mark.parametrize("recipe", recipes.RECIPES + recipes.CHECKS, ids=lambda recipe: recipe.stem)
def test_recipes_do_not_shadow_modules(recipe):
    """Python looks for modules first in the script's folder."""
    assert importlib.util.find_spec(recipe.stem) is None
    named = [Requirement(one).name for one in recipes.dependencies(recipe)]
    assert recipe.stem not in [name.replace("-", "_").lower() for name in named]


def test_checks_run_only_as_main():
    for check in recipes.CHECKS:
        assert 'if __name__ == "__main__":' in check.read_text(), check.name


def test_missing_names_unmet_requirements():
    needs = ["numpy>=1", "numpy<1", "no-such-thing[all]>=2", "nothing; python_version < '3'"]
    wrong, absent = recipes.missing(needs)
    assert wrong.startswith("numpy<1 (not ")
    assert absent == "no-such-thing[all]>=2"


def test_missing_includes_requirements_of_extras(monkeypatch):
    class Installed:
        version = "1.0"
        requires = ("numpy", 'no-such-thing; extra == "more"', 'nothing; extra == "other"')

    monkeypatch.setattr(recipes.importlib.metadata, "distribution", lambda name: found[name])
    found = {"one": Installed}
    with pytest.raises(KeyError, match="no-such-thing"):
        recipes.missing(["one[more]"])
    assert recipes.missing(["one"]) == []


def test_recipes_without_metadata_are_refused(tmp_path):
    (tmp_path / "bare.py").write_text("print(1)\n")
    with pytest.raises(ValueError, match=r"cannot read bare\.py: no block"):
        recipes.dependencies(tmp_path / "bare.py")


def test_a_failing_recipe_shows_its_error(tmp_path):
    (tmp_path / "bad.py").write_text("raise OSError('gone')\n")
    with pytest.raises(RuntimeError, match=r"bad\.py ended with 1:\n(.*\n)*OSError: gone"):
        recipes.run(sys.executable, tmp_path / "bad.py")
