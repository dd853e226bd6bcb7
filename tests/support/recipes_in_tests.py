"""Recipes of examples/recipes as modules."""

import importlib.util
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


def recipe(name):
    """Return the module of a recipe, newly imported."""
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
