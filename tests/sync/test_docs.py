"""Every example in a docstring of pysampler.sync runs, and says what it says."""

import doctest

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
