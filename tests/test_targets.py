"""The list of make targets that CI runs in clones of their own is complete."""

import re
from pathlib import Path

import pytest
import targets

ROOT = Path(__file__).parents[1]
RULES = dict(re.findall(r"^([a-z-]+):([^=\n#]*)", (ROOT / "Makefile").read_text(), re.MULTILINE))
# These take hours, and make an environment for each recipe, and a Python.
NIGHTLY = {"recipes", "sanitize-nogil"}


def prerequisites(name):
    """Return the targets that make makes before this one, and the stamps of its environment."""
    found = set(RULES.get(name, "").split())
    return found.union(*map(prerequisites, found))


def stamps(name):
    return {one for one in prerequisites(name) if one.endswith(".stamp")}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_ci_runs_each_target_that_a_page_names(page):
    text = (ROOT / page).read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    run = {name for command in targets.COMMANDS for name in targets.targets(command)}
    assert {"demo", "test"} <= named
    assert named - run.union(*map(prerequisites, run)) - NIGHTLY == set()


def test_ci_and_the_nightly_run_call_these_targets():
    assert "\npython3 tests/targets.py\n" in (ROOT / ".ci/run").read_text()
    nightly = (ROOT / ".github/workflows/nightly.yml").read_text()
    assert all(re.search(rf"run: make .*\b{name}\b", nightly) for name in NIGHTLY)


@pytest.mark.parametrize("command", targets.COMMANDS)
def test_targets_that_share_a_clone_have_the_same_environment(command):
    stamps_of = [{*stamps(name)} for name in targets.targets(command)]
    same = {"$(VENV)/$(TEST_GROUP).stamp", "$(VENV)/test.stamp"}  # test is the default group
    assert all(one - same == stamps_of[0] - same for one in stamps_of), stamps_of
