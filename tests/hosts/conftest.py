"""Fixtures for tests of samplers on many hosts."""

import pytest
from hosts_in_tests import assert_nothing_left, cluster_of
from simulated_ray import SimulatedRay, installed


@pytest.fixture
def simulated(monkeypatch):
    """A Ray in this process with two nodes."""
    with installed(SimulatedRay(), monkeypatch) as ray:
        yield ray


@pytest.fixture(scope="session")
def whole_cluster():
    with cluster_of(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster):
    """A real Ray with a head and three nodes of one CPU each; a test must leave no host on it."""
    yield whole_cluster
    assert_nothing_left()


def pytest_collection_modifyitems(config, items):
    """Put tests that need a cluster into one pytest-xdist group, so that they share it."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if "cluster" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group("ray"))
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(300))  # Ray starts many processes
