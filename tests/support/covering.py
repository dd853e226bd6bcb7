"""Selects cases of parametrized tests that cover each value, or each pair of values, once."""

import itertools
from collections import Counter

import pytest


def covering(cases, size):
    """Return the indices of cases that together cover each combination of ``size`` values.

    ``cases``: for each case a dict from parameters to values. Tests with fewer parameters than
    ``size`` keep all their cases.
    """
    left = []
    for case in cases:
        count = min(size, len(case))
        left.append(set(itertools.combinations(sorted(case.items()), count)))
    chosen, used = [], Counter()

    def worth(at):  # breaks ties by values that were chosen least
        return len(left[at]), -sum(used[value] for value in cases[at].items())

    while any(left):
        best = max(range(len(left)), key=worth)
        chosen.append(best)
        used.update(cases[best].items())
        covered = left[best].copy()
        for combinations in left:
            combinations -= covered
    return sorted(chosen)


def ways(options):
    """Return parameters from dicts of options that cover each pair of options.

    Those that are not needed to cover each option once are marked slow.
    """
    cases = [{name: repr(value) for name, value in one.items()} for one in options]
    quick = covering(cases, 1)
    return [
        pytest.param(options[at], marks=[] if at in quick else [pytest.mark.slow])
        for at in sorted({*quick, *covering(cases, 2)})
    ]
