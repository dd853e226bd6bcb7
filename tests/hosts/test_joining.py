"""``hosts="auto"``: simulated hosts that join and leave during sampling."""

import pytest
import ray.autoscaler.sdk
from hosts_in_tests import Continuity, rollouts

from pysampler.errors import HostLostError

SECOND = 1_000_000_000


@pytest.fixture
def auto(simulated):
    check = Continuity()

    def after(some, seconds):
        """Take rollouts for ``seconds``; return their hosts, sorted."""
        end, hosts = simulated.time + seconds * SECOND, set()
        while simulated.time < end:
            hosts.update(check.check(some.take(timeout=1)).hosts)
            simulated.sleep(0.5)
        return sorted(hosts)

    simulated.after = after
    return simulated


def test_auto_starts_a_host_on_each_node(auto):
    with rollouts(hosts="auto") as some:
        assert auto.after(some, 1) == [0, 1]
        assert len({one.node for one in some.take()}) == 2


def test_a_node_without_enough_cpus_gets_no_host(auto):
    auto.add_node(cpus=0)
    auto.add_node(cpus=3)
    with rollouts(hosts="auto", cpus_per_host=2) as some:
        assert auto.after(some, 1) == [0]
        [one] = some.take()
        assert one.node.startswith("10.0.0.3 ")


def test_a_joining_node_gets_a_host_with_the_next_seeds(auto):
    with rollouts(hosts="auto") as some:
        auto.after(some, 1)
        auto.add_node()
        assert auto.after(some, 10) == [0, 1, 2]
        seeds = {one.host: one.observations[0, :, 0].tolist() for one in some.take()}
        assert seeds == {0: [3, 4], 1: [5, 6], 2: [7, 8]}
        assert some.take().joined.rewards.shape == (5, 6)


def test_a_node_may_join_while_take_waits(auto):
    with rollouts(hosts="auto") as some:
        for node in auto.alive:
            node.seconds = 1000
        auto.at(5, auto.add_node)
        assert some.take(min_hosts=1, timeout=100).hosts == [2]


def test_the_constructor_waits_for_a_first_node(auto):
    for node in auto.alive:
        auto.remove_node(node)
    auto.sleep(10)
    auto.at(20, auto.add_node)
    began = auto.time
    with rollouts(hosts="auto") as some:
        assert auto.time >= began + 20 * SECOND
        assert some.take().hosts == [0]


def test_the_constructor_raises_if_no_node_joins_in_time(auto):
    for node in auto.alive:
        auto.remove_node(node)
    auto.sleep(10)
    began = auto.time
    with pytest.raises(HostLostError, match=r"start_timeout, 20 s: hosts=\"auto\" .* nothing"):
        rollouts(hosts="auto", start_timeout=20)
    assert auto.time >= began + 20 * SECOND


@pytest.mark.parametrize("mode", ["raise", "restart"])
def test_a_leaving_node_takes_its_host_along(auto, mode):
    with rollouts(hosts="auto", on_host_loss=mode) as some:
        auto.after(some, 1)
        auto.remove_node(auto.alive[0])
        if mode == "raise":
            with pytest.raises(HostLostError, match="^host 0 .*died") as caught:
                auto.after(some, 10)
            assert caught.value.host == 0
        assert auto.after(some, 10)[-1] == 1
        assert some.hosts == [1]
        stats = some.stats()
        assert stats.lost == 1
        assert (stats.hosts[0].gone, stats.hosts[1].gone) == (True, False)
        auto.add_node()
        assert auto.after(some, 10) == [1, 2]


@pytest.mark.parametrize("mode", ["raise", "restart"])
def test_sampling_continues_after_all_nodes_are_replaced(auto, mode):
    with rollouts(hosts="auto", on_host_loss=mode) as some:
        some.take()
        for node in auto.alive:
            auto.remove_node(node)
        for _ in range(2 * (mode == "raise")):
            with pytest.raises(HostLostError, match="^host"):
                some.take()
        auto.at(30, auto.add_node)
        assert some.take().hosts == [2]


def test_a_host_restarts_on_its_node(auto):
    with rollouts(hosts="auto", on_host_loss="restart") as some:
        auto.after(some, 1)
        auto.kill_process(auto.alive[0])
        auto.after(some, 10)
        assert auto.after(some, 2) == [0, 1]
        assert [host.restarts for host in some.stats().hosts] == [1, 0]


def test_max_hosts_limits_the_hosts(auto, monkeypatch):
    asked = []
    monkeypatch.setattr(ray.autoscaler.sdk, "request_resources", lambda **what: asked.append(what))
    auto.add_node()
    with rollouts(hosts="auto", max_hosts=2) as some:
        assert asked == [{"bundles": [{"CPU": 1}] * 2}]
        assert auto.after(some, 10) == [0, 1]
        auto.remove_node(auto.alive[0])
        with pytest.raises(HostLostError, match="^host 0"):
            auto.after(some, 10)
        # Another host replaces it.
        assert auto.after(some, 10) == [1, 2]
        auto.add_node()
        assert auto.after(some, 10) == [1, 2]
    assert asked[1:] == [{"bundles": []}]


@pytest.mark.slow
def test_a_host_waits_for_a_joined_node_that_is_busy(auto):
    with rollouts(hosts="auto", start_timeout=20) as some:
        node = auto.add_node()
        node.full = True
        assert auto.after(some, 60) == [0, 1]
        node.full = False
        auto.after(some, 10)
        assert auto.after(some, 1) == [0, 1, 2]
        assert some.stats().lost == 0


@pytest.mark.parametrize("mode", ["raise", "restart"])
def test_a_node_that_leaves_before_its_host_has_begun_takes_it_along(auto, mode):
    auto.start_seconds = 3.0
    with rollouts(hosts="auto", on_host_loss=mode) as some:
        node = auto.add_node()
        while len(some.stats().hosts) < 3:
            auto.after(some, 1)
        auto.remove_node(node)
        if mode == "raise":
            with pytest.raises(HostLostError, match="^host 2 lost: while it started"):
                auto.after(some, 20)
        assert auto.after(some, 20) == [0, 1]
        assert some.stats().hosts[2].gone
