"""Every example in a docstring of pysampler.sync runs, and so do those of the README."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pysampler import sync

DOCUMENTED = [name for name in sync.__all__ if ">>>" in (getattr(sync, name).__doc__ or "")]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_does_what_it_says(name):
    names = {**vars(sync), "np": np}
    test = doctest.DocTestParser().get_doctest(getattr(sync, name).__doc__, names, name, None, 0)
    said: list[str] = []
    results = doctest.DocTestRunner().run(test, out=said.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(said)


def test_every_primitive_has_an_example():
    assert {
        "Segment",
        "Array",
        "Flag",
        "Doorbell",
        "Ring",
        "SharedRing",
        "ByteRing",
        "Board",
    } <= set(DOCUMENTED)


EXAMPLES = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL
)


@pytest.mark.parametrize(("number", "lines"), [(0, 0), (1, 1), (2, 3)])
def test_the_examples_of_the_readme_run(number, lines, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number])
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == lines
