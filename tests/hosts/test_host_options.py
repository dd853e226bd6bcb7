"""Options of samplers on many hosts; bad ones are refused in the driver before a host starts."""

import re

import gymnasium as gym
import pytest
from hosts_in_tests import Life, actors, idle, rollouts

import pysampler
from pysampler.errors import ClosedError, HostLostError

SECOND = 1_000_000_000

BOTH = [
    ({"hosts": 0}, 'hosts 0, expected a whole number of at least 1, or "auto"'),
    ({"hosts": 1.5}, "hosts 1.5, expected a whole number"),
    ({"hosts": "all"}, "hosts 'all', expected"),
    ({"hosts": True}, "hosts True, expected"),
    ({"max_hosts": 3}, 'max_hosts 3, expected None, unless hosts is "auto"'),
    ({"hosts": "auto", "max_hosts": 0}, "max_hosts 0, expected"),
    ({"cpus_per_host": 0}, "cpus_per_host 0, expected"),
    ({"cpus_per_host": 0.5}, "cpus_per_host 0.5, expected"),
    ({"spread": "WIDE"}, "spread 'WIDE', expected one of 'STRICT_SPREAD', 'SPREAD', 'PACK'"),
    ({"in_flight": 0}, "in_flight 0, expected"),
    ({"max_lag": -1}, "max_lag -1, expected"),
    ({"on_host_loss": "retry"}, "on_host_loss 'retry', expected one of 'raise', 'restart'"),
    ({"max_restarts": -1}, "max_restarts -1, expected"),
    ({"restart_window": -1}, "restart_window -1, expected seconds >= 0"),
    ({"restart_window": None}, "restart_window None, expected seconds"),
    ({"host_timeout": 0}, "host_timeout 0, expected seconds > 0 or None"),
    ({"host_timeout": float("nan")}, "host_timeout nan, expected"),
    ({"start_timeout": -1}, "start_timeout -1, expected seconds > 0 or None"),
    ({"start_timeout": "soon"}, "start_timeout 'soon', expected"),
    ({"actor_options": ["num_gpus"]}, r"actor_options \['num_gpus'\], expected a dict"),
    ({"num_envs": 0}, "num_envs 0, expected a whole number of at least 1"),
    ({"num_envs": None}, "num_envs is missing, expected the number of envs of each host"),
    ({"seed": -1}, "seed -1, expected a whole number of at least 0"),
    ({"seed": [1, 2]}, r"seed \[1, 2\], expected"),
]
OF_ROLLOUTS = [
    ({"horizon": 0}, "horizon 0, expected"),
    ({"policy_in": "learner"}, 'policy_in \'learner\', expected one of "main", "workers"'),
    ({"min_envs": 0}, "min_envs 0, expected"),
    ({"timeout": -1}, "timeout -1, expected"),
    ({"info_keys": "life"}, "info_keys 'life', expected a list of keys"),
    ({"threads": 0}, "threads 0, expected"),
]
OF_ACTORS = [
    ({"steps": 0}, "steps 0, expected"),
    ({"high": 0}, "high 0, expected"),
    ({"low": -1}, "low -1, expected"),
    ({"high": 4, "low": 5}, "low 5, expected less than high, 4"),
    ({"send_every": -1}, "send_every -1, expected seconds >= 0"),
    ({"refresh_share": 7}, "refresh_share 7, expected more than 0 and at most 1"),
    ({"settings": {"epsilon": [1, 2, 3]}}, "setting 'epsilon'.*one for each of 4 envs"),
    ({"settings": {"epsilon": "much"}}, "setting 'epsilon' 'much', expected a number"),
    ({"settings": [1]}, r"settings \[1\], expected a dict of numbers by name"),
    ({"settings": {"state": 1}}, "expected names other than 'state'"),
]


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        *((rollouts, *case) for case in BOTH + OF_ROLLOUTS),
        *((actors, *case) for case in BOTH + OF_ACTORS),
    ],
)
def test_bad_option_values_are_refused(simulated, make, options, expected):
    doing = "act" if make is actors else "sample rollouts"
    with pytest.raises(ValueError, match=f"cannot {doing}: .*{expected}"):
        make(**options)
    assert simulated.processes == []
    assert simulated.groups == []


@pytest.mark.parametrize("make", [rollouts, actors])
@pytest.mark.parametrize(
    ("options", "kind", "expected"),
    [
        ({"env": []}, ValueError, "no env_fns, expected at least one"),
        ({"env": 3}, TypeError, "cannot "),
        ({"env": [1, 2]}, TypeError, "expected a function that makes an env"),
        ({"env": [Life], "num_envs": 2}, ValueError, "num_envs requires an env id or function"),
        ({"policy": 3}, TypeError, "the policy is a int, expected a function of observations"),
        ({"policy": None}, TypeError, "the policy is a NoneType, expected"),
        ({"vector_kwargs": {"workers": 2}}, TypeError, "workers"),
        ({"vector_kwargs": 3}, (TypeError, ValueError), "vector_kwargs"),
        ({"actor_options": {"gpus": 1}}, ValueError, "gpus"),
    ],
)
def test_bad_envs_policies_and_kwargs_are_refused(simulated, make, options, kind, expected):
    options = dict(options)
    if isinstance(options.get("env"), list) and make is actors:
        options.setdefault("num_envs", None)
    with pytest.raises(kind, match=expected) as caught:
        make(**options)
    assert "host" not in str(caught.value).partition(":")[0]
    assert simulated.processes == []
    assert simulated.groups == []


@pytest.mark.parametrize("make", [rollouts, actors])
def test_a_vector_env_is_refused(simulated, make):
    with (
        pysampler.VectorEnv([Life], num_workers=0) as envs,
        pytest.raises(TypeError, match="is in this process, and each host makes its own envs"),
    ):
        make(envs, num_envs=None)
    with pytest.raises(TypeError, match="each host makes its own envs"):
        make(gym.make_vec("CartPole-v1", 2), num_envs=None)
    assert simulated.processes == []


@pytest.mark.parametrize("make", [rollouts, actors])
def test_an_option_error_on_a_host_ends_all_hosts(simulated, make):
    with pytest.raises(Exception, match="host 0: .*leave_out has 'mission'"):
        make(leave_out=("mission",))
    assert simulated.groups == []


# -- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [rollouts, actors])
def test_the_constructor_raises_if_ray_finds_no_places(simulated, make, caplog):
    for node in simulated.alive:
        node.reserved = True
    began = simulated.time
    doing = "act" if make is actors else "sample rollouts"
    with pytest.raises(
        HostLostError,
        match=f"cannot {doing}: Ray has found no places within start_timeout, 20 s: hosts=2 with "
        r"1 CPU each \(STRICT_SPREAD\); Ray has nodes with 1 CPU \| 1 CPU, of which 0 CPU are free",
    ) as caught:
        make(hosts=2, start_timeout=20)
    assert caught.value.host is None
    assert simulated.time >= began + 20 * SECOND
    [message] = caplog.messages  # logged early, and once
    assert message.startswith("pysampler: waiting for places: hosts=2 with 1 CPU each")


@pytest.mark.parametrize(
    ("nodes", "options", "expected"),
    [
        (
            [8],
            {},
            '2 hosts need 2 nodes; Ray has 1. On one machine pass spread="PACK", cpus_per_host=1.',
        ),
        (
            [0, 8],
            {},
            (
                "2 hosts need 2 nodes with 8 CPU; Ray has 1. "
                'On one machine pass spread="PACK", cpus_per_host=1.'
            ),
        ),
        (
            [8],
            {"spread": "PACK"},
            "2 hosts need 8 CPU each; Ray has nodes with 8 CPU. Pass a smaller cpus_per_host.",
        ),
        (
            [4],
            {"spread": "STRICT_PACK", "cpus_per_host": 3},
            "2 hosts need 3 CPU each; Ray has nodes with 4 CPU. Pass a smaller cpus_per_host.",
        ),
        (
            [4, 4],
            {"hosts": 1, "cpus_per_host": 9},
            "1 host needs 9 CPU; Ray has nodes with 4 CPU | 4 CPU. Pass a smaller cpus_per_host.",
        ),
    ],
)
def test_hosts_that_fit_on_no_node_are_reported_at_once(
    simulated, caplog, nodes, options, expected
):
    for node in simulated.alive:
        simulated.remove_node(node)
    simulated.sleep(10)
    for count in nodes:
        simulated.add_node(count)
    began, reported = simulated.time, []
    simulated.at(1, lambda: reported.extend(caplog.messages))
    with pytest.raises(HostLostError, match=f"start_timeout, 20 s: {re.escape(expected)}$"):
        rollouts(start_timeout=20, **options)
    assert simulated.time >= began + 20 * SECOND
    assert reported == caplog.messages == [f"pysampler: waiting for places: {expected}"]


def test_the_constructor_waits_for_nodes_that_join_later(simulated):
    simulated.at(30, simulated.add_node)
    with rollouts(hosts=3, start_timeout=None) as some:
        assert some.take().hosts == [0, 1, 2]


def test_hosts_that_start_too_slowly_raise(simulated):
    simulated.alive[1].full = True
    with pytest.raises(
        HostLostError, match="1 of 2 hosts have not started within start_timeout, 20 s: hosts=2"
    ):
        rollouts(start_timeout=20)


@pytest.mark.parametrize(
    ("nodes", "hosts", "cpus"),
    [([4, 8], 2, 4), ([8, 4], 1, 8), ([0, 2, 6], 2, 2), ([3], "auto", 3)],
)
def test_a_host_defaults_to_the_cpus_of_the_smallest_needed_node(simulated, nodes, hosts, cpus):
    for node in simulated.alive:
        simulated.remove_node(node)
    simulated.sleep(10)
    for count in nodes:
        simulated.add_node(count)
    with rollouts(hosts=hosts) as some:
        some.take()
        process = simulated.running[0]
        assert process.options["num_cpus"] == cpus


def test_options_reach_ray(simulated):
    options = {"num_gpus": 1, "resources": {"sampler": 2}, "num_cpus": 3, "memory": 100}
    ours = {"max_restarts": 3}
    for node in simulated.alive:
        node.cpus = 3
    with rollouts(actor_options=options | ours, spread="SPREAD", cpus_per_host=2) as some:
        some.take()
        [group] = simulated.groups
        assert group.strategy == "SPREAD"
        assert group.bundles[0]["GPU"] == 1
        assert group.bundles[0]["sampler"] == 2
        for process in simulated.running:
            assert process.options.items() >= options.items()
            assert process.options["max_restarts"] == 0


# -- the object ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [rollouts, actors])
def test_closed_samplers_raise_closed_error(simulated, make):
    import copy
    import pickle

    some = make()
    for refused in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="it owns processes or shared memory"):
            refused(some)
    assert not some.closed
    some.close()
    some.close()
    assert some.closed
    assert some.hosts == []
    assert "closed" in repr(some)
    with pytest.raises(ClosedError):
        some.take(1)
    assert all(host.gone for host in some.stats().hosts)


@pytest.mark.parametrize("make", [rollouts, actors])
def test_a_dropped_sampler_leaves_no_host(simulated, make):
    some = make()
    some.take(1)
    assert len(simulated.running) == 2
    del some  # the fixture checks for leftovers


def test_policies_and_envs_travel_by_value(simulated):
    factor = 3

    class Own(Life):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, reward * factor, *rest

    with rollouts(Own, lambda observations: idle(observations) + factor) as some:
        [one, _] = some.take()
        assert (one.actions == 3).all()
        assert (one.rewards[:, 0] == [3, 6, 9, 12, 15]).all()


@pytest.mark.parametrize("make", [rollouts, actors])
def test_functions_that_make_several_envs_are_refused(simulated, make):
    with pytest.raises(ValueError, match="the functions make 6 envs, expected 2: one each"):
        make(lambda: gym.vector.SyncVectorEnv([Life] * 3))
