"""Samplers on a real Ray, with three nodes on this machine."""

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
import ray
from gymnasium import spaces
from hosts_in_tests import (
    MARK,
    Continuity,
    HasWeights,
    Life,
    actors,
    assert_equal,
    assert_nothing_left,
    idle,
    local,
    processes_of_hosts,
    rollouts,
)
from ray._private.internal_api import memory_summary

import pysampler
import pysampler.ray
from pysampler.errors import ClosedError, EnvError, HostLostError, WorkerLostError
from pysampler.ray._host_memory import HostMemory

pytestmark = pytest.mark.slow

WORKERS = {"num_workers": 1}


class Tree(gym.Env):
    """Observes a dict; its infos hold its step count, on the second host only from step 7 on."""

    observation_space = spaces.Dict(
        {
            "vector": spaces.Box(-1e9, 1e9, (3,), np.float32),
            "pair": spaces.Tuple([spaces.Discrete(1000), spaces.Box(0, 1, (2, 2), np.float64)]),
        }
    )
    action_space = spaces.Box(-10, 10, (2,), np.float32)

    def __init__(self, ends):
        self.ends, self.life, self.first = ends, 0, None

    def _observe(self):
        draw = self.np_random.normal(size=3).astype(np.float32)
        return {"vector": draw, "pair": (self.life % 1000, self.np_random.random((2, 2)))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first = seed if self.first is None else self.first
        return self._observe(), {}

    def step(self, action):
        self.life += 1
        late = self.first >= 5 and self.life < 7
        info = {} if late else {"life": self.life, "in": {"sum": float(np.sum(action))}}
        over = self.life % self.ends == 0
        return self._observe(), float(np.sum(action)), over, False, info


class RecurrentPolicy:
    """A recurrent policy with extras."""

    def initial_state(self, count):
        return {"seen": np.full((count, 3), 0.5, np.float32)}

    def __call__(self, observations, state):
        seen = state["seen"] * 0.5 + observations["vector"]
        actions = np.tanh(seen[:, :2])
        return actions, {"value": seen.sum(axis=1), "state": {"seen": seen}}


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_rollouts_equal_local_samplers(cluster, policy_in):
    envs = [functools.partial(Tree, 4), functools.partial(Tree, 6)]
    kwargs = {"policy_in": policy_in, "info_keys": ("life", "in"), "vector_kwargs": WORKERS}
    own = [local(envs, RecurrentPolicy(), host=host, **kwargs) for host in range(2)]
    with rollouts(envs, RecurrentPolicy(), **kwargs) as some:
        for n in range(4):
            taken = some.take()
            assert sorted(taken.hosts) == [0, 1]
            for one in taken:
                assert_equal(one, next(own[one.host]))
                assert (one.number, one.restarts, one.lag) == (n, 0, 0)
        assert len({host.node for host in some.stats().hosts}) == 2
    for one in own:
        one.close()


class Weighted(HasWeights):
    """Returns its weight and setting as extras."""

    def __init__(self):
        super().__init__(w=np.zeros(50_000))  # too large for Ray to send without its store

    def __call__(self, observations, epsilon):
        w = self.weights["w"]
        assert (w == w[0]).all(), "torn"
        return idle(observations), {"w": np.full(len(observations), w[0]), "epsilon": epsilon}


def until(so, seconds=60):
    """Yield until ``so()`` is true."""
    end = time.monotonic() + seconds
    while not so():
        yield
        assert time.monotonic() < end


def test_actors_equal_local_actors_and_follow_published_weights(cluster):
    acts, numbers, rows = Weighted(), {}, {}

    def taken(count):
        records = some.take(count, min_records=count)
        for row in records.rows:
            env, number = int(row["env"]), int(row["number"])
            assert number == numbers.get(env, -1) + 1
            numbers[env] = number
            rows[env, number] = row.copy()
        assert (records.w == records.version - 1).all()
        return records

    settings = {"epsilon": [0.1, 0.2, 0.3, 0.4]}
    kwargs = {"vector_kwargs": WORKERS, "refresh_share": 1}
    with actors(policy=acts, settings=settings, **kwargs) as some:
        while len(numbers) < 4 or min(numbers.values()) < 30:  # a host may start late
            records = taken(200)
            assert (records.version == 1).all()
            assert (records.epsilon == np.array([0.1, 0.2, 0.3, 0.4])[records.env]).all()
            assert (records.host == records.env // 2).all()
        for version in (2, 3):
            acts.weights["w"] += 1
            assert some.publish() == version
            for _ in until(lambda v=version: (taken(64).version == v).all()):
                pass
        some.settings["epsilon"] = [5, 6, 7, 8]
        for _ in until(lambda: (taken(64).epsilon >= 5).all()):
            pass
        some.stop()
        for records in some.batches(64):
            numbers.update(zip(records.env.tolist(), records.number.tolist(), strict=True))
        assert some.stats().taken == sum(number + 1 for number in numbers.values())
    for host in range(2):
        with pysampler.Actors(
            *(Life, Weighted()),
            num_envs=2,
            settings={"epsilon": 0},
            seed=3 + 2 * host,
            vector_kwargs=WORKERS,
        ) as expected:
            for row in expected.take(30, min_records=30).rows:
                own = rows[int(row["env"]) + 2 * host, int(row["number"])]
                for name in set(row.dtype.names) - {"env", "version", "w", "epsilon"}:
                    np.testing.assert_array_equal(own[name], row[name], err_msg=name)


def test_training_a_network_equals_local_training(cluster):
    torch = pytest.importorskip("torch")

    def network():
        torch.manual_seed(1)
        module = torch.nn.Linear(2, 1000)  # too large for Ray to send without its store
        return module, torch.optim.SGD(module.parameters(), 1e-4)

    def learn(rollout, module, optimizer):
        observations = torch.from_numpy(rollout.observations[:-1].astype(np.float32))
        loss = (module(observations) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    class Acting(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, observations):
            return self.module(observations.float()).argmax(dim=1)

    (here, first), (there, second) = network(), network()
    with (
        local(Life, Acting(here), host=0) as expected,
        rollouts(policy=Acting(there), hosts=1, in_flight=1) as some,
    ):
        for n in range(4):
            one, [taken] = next(expected), some.take()
            assert_equal(taken, one)
            assert (taken.version, taken.lag) == (n + 1, 0)
            learn(one, here, first)
            learn(taken, there, second)
        assert len({rollout.actions.tobytes() for rollout in (one, taken)}) == 1


# -- memory --------------------------------------------------------------------------------------


class Large(Life):
    """Observes 100 KB."""

    observation_space = spaces.Box(-1, 1e9, (12_500,), np.float64)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return np.resize(observation, 12_500), info

    def step(self, action):
        observation, *rest = super().step(action)
        return np.resize(observation, 12_500), *rest


def stored():
    """Return the MiB stored on all nodes and the MiB spilled."""
    text = memory_summary(stats_only=True)
    used = float(text.partition("Plasma memory usage ")[2].partition(" MiB")[0])
    spilled = text.partition("Spilled ")[2].partition(" MiB")[0]
    return used, float(spilled or 0)


# From another machine, results of 2 MB arrive with the host's answer and bypass the store; those of
# 5.4 MB pass through it and add up to six times the capacity of the three nodes' stores.
@pytest.mark.parametrize(
    ("horizon", "takes", "size"), [(9, 20, 0), pytest.param(27, 60, 6, marks=pytest.mark.long)]
)
def test_the_object_store_never_spills_and_is_emptied(cluster, monkeypatch, horizon, takes, size):
    monkeypatch.setattr(HostMemory, "map", lambda _: None)
    before, spilled = stored()
    kept = []
    with rollouts(Large, horizon=horizon, vector_kwargs=WORKERS) as some:
        for n in range(takes):
            taken = some.take()
            if n % 10 == 0:
                kept += [taken[0].ended, taken[1].copy(), taken.joined.ended]
                kept += [one.copy() for one in taken] if n % 50 == 0 else []
        received = some.stats().bytes_received
        assert received > takes * 2 * 2 * horizon * 100_000
        assert received > size * 100e6
        assert stored()[1] == spilled == 0
        # Results under way and ready ones: two of each host at most. Ray frees taken results up
        # to a second later.
        for _ in until(lambda: stored()[0] - before <= 2 * 2 * size + 1):
            pass
    del some
    for _ in until(lambda: stored()[0] <= before):
        pass
    assert len(kept) == 3 * takes // 10 + 2 * (1 + takes // 51)


def mapped_segments():
    """Return the number of segments of this process."""
    return len(
        {
            line.split()[4]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "memfd:pysampler" in line
        }
    )


def test_rollouts_of_a_killed_host_are_read_in_its_memory_or_lost(cluster):
    check, before = Continuity(), mapped_segments()
    kwargs = {"on_host_loss": "restart", "max_restarts": 5, "vector_kwargs": WORKERS}
    with rollouts(Life, **kwargs) as some:
        for restarts in range(1, 4):
            for _ in range(4):
                check.check(some.take())
            assert mapped_segments() == before + 2
            os.kill(some.stats().hosts[0].pid, signal.SIGKILL)  # with rollouts in flight
            while some.stats().hosts[0].restarts < restarts or 0 not in some.hosts:
                check.check(some.take(timeout=1))
        assert some.stats().lost == 3
    assert min(check.counts.values()) >= 12
    del some
    assert mapped_segments() == before


# -- errors and losses ---------------------------------------------------------------------------


class ReportsPid(Life):
    """Also observes its worker's pid; raises at step ``raises_at``."""

    observation_space = spaces.Box(-1, 2.0**40, (3,), np.float64)

    def __init__(self, raises_at=0):
        super().__init__()
        self.raises_at = raises_at

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return np.append(observation, os.getpid()), info

    def step(self, action):
        observation, *rest = super().step(action)
        if self.life == self.raises_at and self.number == 3:
            raise ZeroDivisionError("told to")
        return np.append(observation, os.getpid()), *rest


class Pids(Continuity):
    """Also records the pids of hosts' workers."""

    def __init__(self):
        super().__init__()
        self.workers = {}

    def check(self, rollouts):
        for one in rollouts:
            self.workers[one.host] = int(one.observations[-1, 0, 2])
        return super().check(rollouts)


def test_an_env_error_is_raised_and_other_hosts_continue(cluster):
    check = Continuity()
    with rollouts(lambda: ReportsPid(raises_at=13), vector_kwargs=WORKERS) as some:
        with pytest.raises(ZeroDivisionError, match=r"^host 0 .*: env 0 .*raised") as caught:
            for _ in range(3):
                check.check(some.take())
        assert isinstance(caught.value, EnvError)
        assert "told to" in str(caught.value.__cause__)
        taken = {one.host: one for one in some.take(min_hosts=2)}
        assert taken[0].starts[0].all()
        check.check([taken[1]])
        assert some.hosts == [0, 1]


def test_a_failing_env_constructor_leaves_no_host(cluster):
    def unmakeable():
        raise FileNotFoundError(2, "no such level")

    with pytest.raises(FileNotFoundError, match=r"^host \d: .*no such level") as caught:
        rollouts(unmakeable, vector_kwargs=WORKERS)
    assert isinstance(caught.value, EnvError)
    assert_nothing_left()  # although the error and its frames still exist


def lose(how, some, check, host):
    """Kill or stop a host or its worker; return the processes that must end."""
    process = psutil.Process(some.stats().hosts[host].pid)
    worker = psutil.Process(check.workers[host])
    ending = [worker] if how == "worker killed" else [process, *process.children(recursive=True)]
    if how == "worker killed":
        worker.kill()
    elif how == "host killed":
        process.kill()
    else:
        process.suspend()
    return ending


def test_each_lost_host_is_raised_and_the_others_continue(cluster):
    check = Pids()
    with rollouts(ReportsPid, hosts=3, host_timeout=2, vector_kwargs=WORKERS) as some:
        check.check(some.take())
        for host, how in enumerate(["worker killed", "host killed", "host stopped"]):
            ending = lose(how, some, check, host)
            with pytest.raises(HostLostError, match=rf"^host {host} \(pid \d+ on ") as caught:
                for _ in until(lambda: False):
                    check.check(some.take())
            assert caught.value.host == host
            if how == "worker killed":
                assert "worker 0" in str(caught.value)
            assert some.hosts == [0, 1, 2][host + 1 :]
            for _ in range(3 * (host < 2)):
                assert check.check(some.take()).hosts == some.hosts
            _, left = psutil.wait_procs(ending, 30)
            assert left == []
        with pytest.raises(HostLostError, match="all hosts are gone"):
            some.take()
        assert some.stats().lost == 3


def test_each_lost_host_restarts(cluster):
    check = Pids()
    kwargs = {"on_host_loss": "restart", "host_timeout": 2, "max_restarts": 5}
    with rollouts(ReportsPid, vector_kwargs=WORKERS, **kwargs) as some:
        check.check(some.take())
        for restarts, how in enumerate(["worker killed", "host killed", "host stopped"], 1):
            ending = lose(how, some, check, 0)
            for _ in until(lambda r=restarts: some.stats().hosts[0].restarts == r):
                check.check(some.take(timeout=1))
            for _ in until(lambda: 0 in some.hosts):
                check.check(some.take(timeout=1))
            for _ in range(3):
                check.check(some.take())
            _, left = psutil.wait_procs(ending, 30)
            assert left == []
        stats = some.stats()
        assert (stats.lost, [host.restarts for host in stats.hosts]) == (3, [3, 0])


class Doomed(ReportsPid):
    """Its constructor ends the process once the file ``mark`` exists."""

    def __init__(self, mark):
        super().__init__()
        if mark.exists():
            os._exit(7)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_crash_loop_is_bounded(cluster, tmp_path, workers):
    mark, check = tmp_path / "mark", Pids()
    kwargs = {"on_host_loss": "restart", "max_restarts": 1, "hosts": 1}
    envs = [functools.partial(Doomed, mark)]
    with rollouts(envs, vector_kwargs={"num_workers": workers}, **kwargs) as some:
        check.check(some.take())
        mark.touch()
        psutil.Process(some.stats().hosts[0].pid).kill()
        with pytest.raises((HostLostError, WorkerLostError), match="host 0"):
            for _ in until(lambda: False):
                some.take(timeout=1)
        with pytest.raises(HostLostError, match="all hosts are gone"):
            some.take()


def test_hosts_that_do_not_fit_the_cluster_are_refused(cluster):
    with pytest.raises(
        HostLostError, match=r"start_timeout, 0.5 s: 4 hosts need 4 nodes with 1 CPU; Ray has 3\."
    ):
        rollouts(hosts=4, start_timeout=0.5)
    with pytest.raises(HostLostError, match="1 host needs 9 CPU; Ray has nodes with"):
        actors(hosts=1, cpus_per_host=9, start_timeout=0.5)


def test_hosts_join_and_leave_with_their_nodes(cluster):
    check = Continuity()
    with rollouts(hosts="auto", on_host_loss="restart", vector_kwargs=WORKERS) as some:
        assert sorted(check.check(some.take()).hosts) == [0, 1, 2]
        node = next(iter(cluster.worker_nodes))
        cluster.remove_node(node, allow_graceful=False)
        for _ in until(lambda: len(some.hosts) == 2):
            check.check(some.take(timeout=1))
        [gone] = [host.host for host in some.stats().hosts if not host.serves]
        node = cluster.node()
        for _ in until(lambda: len(some.hosts) == 3):
            check.check(some.take(timeout=1))
        assert 3 in check.check(some.take()).hosts
        stats = some.stats()
        assert (stats.lost, stats.hosts[gone].gone) == (1, True)


# -- ends ----------------------------------------------------------------------------------------


class Slow(Life):
    """Its step takes 0.1 s."""

    def step(self, action):
        time.sleep(0.1)  # the env is slow: signals arrive in the middle of take
        return super().step(action)


def test_signal_handlers_may_raise_or_close_during_take(cluster):
    check = Continuity()
    with rollouts(Slow, num_envs=1, in_flight=1) as some:
        check.check(some.take())

        def interrupt(*_):
            raise KeyboardInterrupt

        with alarms(interrupt) as after:
            for n in range(5):
                after(0.1 + n / 20)
                with pytest.raises(KeyboardInterrupt):
                    for _ in until(lambda: False):
                        check.check(some.take())
            check.check(some.take())
        with alarms(lambda *_: some.close()) as after:
            after(0.25)
            with pytest.raises(ClosedError):
                for _ in until(lambda: False):
                    check.check(some.take())
        assert some.closed
        assert_nothing_left()


def test_an_interrupt_ends_a_with_block_and_all_hosts(cluster):
    with alarms(signal.default_int_handler) as after:
        with pytest.raises(KeyboardInterrupt), rollouts(Slow, vector_kwargs=WORKERS) as some:
            after(0.3)
            some.take()
        assert some.closed
    assert_nothing_left()


@contextlib.contextmanager
def alarms(handler):
    """Yield a function that raises SIGALRM after some seconds."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


DRIVER = """
import sys, threading
sys.path.insert(0, sys.argv[2])
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
from hosts_in_tests import Life, actors, rollouts
one = rollouts(hosts=1, vector_kwargs={"num_workers": 1})
other = actors(hosts=2, vector_kwargs={"num_workers": 1})
one.take(), other.take(10, min_records=10)
pids = [host.pid for some in (one, other) for host in some.stats().hosts]
print("pids", *pids, flush=True)
threading.Event().wait()
"""


def test_a_killed_driver_leaves_no_process(cluster):
    support = str(Path(__file__).parents[1] / "support")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address, support], stdout=subprocess.PIPE, text=True
    )
    with driver:
        pids = next(line for line in driver.stdout if line.startswith("pids")).split()[1:]
        hosts = [psutil.Process(int(pid)) for pid in pids]
        assert len(hosts) == 3
        ending = [*hosts, *itertools.chain(*(host.children(recursive=True) for host in hosts))]
        assert len(ending) >= 6
        assert {process.environ()[MARK] for process in ending} == {str(os.getpid())}
        assert {process.pid for process in ending} <= {one.pid for one in processes_of_hosts()}
        driver.kill()
    _, left = psutil.wait_procs(ending, 60)
    assert left == []
    for _ in until(lambda: ray.available_resources().get("CPU") == 3):
        pass
