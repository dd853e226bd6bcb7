"""Settings and fixtures for all tests, and the sets of tests that the Makefile runs.

``pytest`` runs every case (``make test-faults``). ``--pairs`` (``make test-all``) covers each pair
of values of two parameters, and each value in slow tests, and skips long tests. ``--quick`` (``make
test``) covers each value, and skips slow tests. ``--rest`` runs what ``--pairs`` has beyond it.
"""

import os
import signal
from collections import defaultdict

import hypothesis
import pytest
from covering import covering

# Tests run in parallel. Threads of a matrix product wait for each other by spinning, which takes
# twenty times as long if other programs use their CPUs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without these, hypothesis fails tests for being slow.
hypothesis.settings.register_profile(
    "slow machines",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("slow machines")

# Seconds after which a test of the quick set fails. Unset, none fails for being slow; CI sets a
# limit that no slow machine reaches.
LIMIT = float(os.environ.get("PYSAMPLER_QUICK_LIMIT", "inf"))


def pytest_addoption(parser):
    group = parser.getgroup("sets of tests")
    group.addoption(
        "--quick",
        action="store_true",
        help="no slow tests, each value of a parameter once",
    )
    group.addoption(
        "--pairs",
        action="store_true",
        help="each pair of values of two parameters once, of slow tests each value, no long tests",
    )
    group.addoption("--rest", action="store_true", help="--pairs without the cases of --quick")


def pytest_configure():
    # A shell without job control starts background programs with SIGINT ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _values(item):
    """Return a case's value of each parameter; names of one ``parametrize`` count as one."""
    params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    values = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = tuple(names.replace(" ", "").split(",") if isinstance(names, str) else names)
        values[names] = tuple(id(params.pop(name)) for name in names)
    return values | {(name,): id(value) for name, value in params.items()}  # parametrized fixtures


def _chosen(items, size, *, slow):
    """Return the cases that cover combinations of ``size`` values in tests that are slow or not."""
    cases = defaultdict(list)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "long" not in marks and ("slow" in marks) == slow:
            cases[item.nodeid.partition("[")[0]].append(item)
    return {
        same[at]
        for same in cases.values()
        for at in covering([_values(item) for item in same], size)
    }


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    quick, pairs, rest = map(config.getoption, ("quick", "pairs", "rest"))
    if not (quick or pairs or rest):
        return
    kept = _chosen(items, 1, slow=False) if quick or rest else set()
    if pairs or rest:
        of_pairs = _chosen(items, 2, slow=False) | _chosen(items, 1, slow=True)
        kept = of_pairs - kept
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    limited = item.config.getoption("quick") and report.when == "call" and report.passed
    if limited and report.duration > LIMIT:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {report.duration:.1f} s, expected at most {LIMIT:g} s in the "
            "quick set: mark it slow, and only `make test-all` runs it"
        )
    return report


def _signals():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return mask, {n: signal.getsignal(n) for n in signal.valid_signals()}


@pytest.fixture(autouse=True)
def signals_are_unchanged():
    """Check that a test leaves no signal blocked or ignored: later programs would inherit it."""
    before = _signals()
    yield
    assert _signals() == before
