"""Helpers for tests of samplers on many hosts."""

import contextlib
import functools
import gc
import os
import signal
import sys
import time

import gymnasium as gym
import numpy as np
import psutil
import ray
from gymnasium import spaces
from ray.cluster_utils import Cluster
from ray.util import placement_group_table
from scripted import Scripted, policy

import pysampler
import pysampler.ray

HORIZON = 5
SCRIPTS = ["...t", "..c"]


class Life(gym.Env):
    """Observes its seed and the steps of its whole life, which are also its rewards."""

    observation_space = spaces.Box(-1, 2.0**40, (2,), np.float64)
    action_space = spaces.Discrete(1000)

    def __init__(self, ends=7):
        self.life, self.ends, self.number = 0, ends, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.number if seed is None else seed
        return np.array([self.number, self.life], np.float64), {}

    def step(self, action):
        self.life += 1
        observation = np.array([self.number, self.life], np.float64)
        return observation, float(self.life), self.life % self.ends == 0, False, {}


class HasWeights:
    """Base class of policies whose weights are named arrays."""

    def __init__(self, **weights):
        self.weights = weights

    def state_dict(self):
        return self.weights

    def load_state_dict(self, weights):
        self.weights = weights


def idle(observations):
    return np.zeros(len(observations), np.int64)


def weighted(weight):
    """Return a policy that tells the first number of an array."""

    def policy(observations):
        return idle(observations), {"w": np.full(len(observations), weight[0])}

    return policy


def rollouts(env=Life, policy=idle, horizon=HORIZON, **kwargs):
    """Return rollouts whose hosts step their envs inline."""
    kwargs = {"hosts": 2, "seed": 3, "vector_kwargs": {"num_workers": 0}, **kwargs}
    if not isinstance(env, list):
        kwargs = {"num_envs": 2, **kwargs}
    return pysampler.ray.Rollouts(env, policy, horizon, **kwargs)


def actors(env=Life, policy=idle, **kwargs):
    kwargs = {"hosts": 2, "seed": 3, "vector_kwargs": {"num_workers": 0}, "high": 8, **kwargs}
    return pysampler.ray.Actors(env, policy, **{"num_envs": 2, **kwargs})


def local(env, policy, horizon=HORIZON, *, host, num_envs=2, seed=3, **kwargs):
    """Return local rollouts that those of a host must equal."""
    kwargs = {"vector_kwargs": {"num_workers": 0}, **kwargs}
    if not isinstance(env, list):
        kwargs["num_envs"] = num_envs
    return pysampler.Rollouts(env, policy, horizon, seed=seed + host * num_envs, **kwargs)


def scripted():
    """Return two envs whose episodes end at different times."""
    return [functools.partial(Scripted, script) for script in SCRIPTS]


def leaves(tree, path=""):
    """Yield the arrays of a tree by their paths."""
    if isinstance(tree, dict):
        for name in tree:
            yield from leaves(tree[name], f"{path}.{name}")
    elif isinstance(tree, tuple):
        for index, one in enumerate(tree):
            yield from leaves(one, f"{path}.{index}")
    elif tree is not None:
        yield path, tree


FIELDS = [
    *("observations", "actions", "rewards", "terminated", "truncated", "starts", "valid", "lost"),
    *("extras", "state", "options", "lengths"),
]


def assert_equal(rollout, expected):
    """Assert that a rollout equals another one wherever that one has data."""
    for name in FIELDS:
        ours = dict(leaves(getattr(rollout, name)))
        theirs = dict(leaves(getattr(expected, name)))
        assert ours.keys() == theirs.keys(), name
        for path, array in theirs.items():
            assert ours[path].dtype == array.dtype, (name, path)
            np.testing.assert_array_equal(ours[path], array, err_msg=name + path)
    over = expected.terminated | expected.truncated
    ours, theirs = rollout.final_observations, expected.final_observations
    for (path, one), (_, other) in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_array_equal(one[over], other[over], err_msg=path)
    # Keys that only envs of other hosts returned are present, but empty.
    ours, theirs = dict(leaves(rollout.infos)), dict(leaves(expected.infos))
    our_masks, masks = dict(leaves(rollout.info_masks)), dict(leaves(expected.info_masks))
    assert ours.keys() >= theirs.keys()
    assert ours.keys() == our_masks.keys()
    for path in ours:
        if path in theirs:
            np.testing.assert_array_equal(ours[path], theirs[path], err_msg=path)
            np.testing.assert_array_equal(our_masks[path], masks[path], err_msg=path)
        else:
            assert not ours[path].any(), path
            assert not our_masks[path].any(), path
    assert_ended_equal(rollout.ended, expected.ended)


def assert_ended_equal(ended, expected):
    for name in ("env", "step", "returns", "lengths"):
        np.testing.assert_array_equal(getattr(ended, name), getattr(expected, name), err_msg=name)


class Continuity:
    """Checks that rollouts of ``Life`` continue where the last ones of the same host ended.

    Attributes:
        counts: The number of checked rollouts by host.
    """

    def __init__(self):
        self.counts = {}
        self._last = {}  # by host: last observations, restarts, number

    def check(self, rollouts):
        """Check rollouts, and return them."""
        for one in rollouts:
            life = one.observations[:, :, 1]
            observations, restarts, number = self._last.get(one.host, (None, -1, -1))
            if one.restarts > restarts:  # new envs; unfinished rollouts were lost
                assert one.number > number
                assert (life[0] == 0).all()
                assert one.starts[0].all()
            else:
                assert (one.restarts, one.number) == (restarts, number + 1)
                np.testing.assert_array_equal(one.observations[0], observations)
            # A reset observes the same life as the end of the previous episode.
            np.testing.assert_array_equal(np.diff(life, axis=0), np.ones_like(life[1:]))
            np.testing.assert_array_equal(one.rewards, life[1:])
            self._last[one.host] = one.observations[-1].copy(), one.restarts, one.number
            self.counts[one.host] = self.counts.get(one.host, 0) + 1
        return rollouts


# -- clusters ------------------------------------------------------------------------------------

MARK = "PYSAMPLER_TEST_CLUSTER"  # in the environment of every process of a cluster
# Parts of the command lines of hosts and their workers.
PARTS = (
    *("ray::HostActor", "PysamplerAnchor", "PysamplerKeeper", "pysampler._workers.fork_server"),
    "pysampler: ",
)


@contextlib.contextmanager
def cluster_of(nodes, *, cpus=1, store=100):
    """Start a cluster on this machine, whose head node has no CPUs, and connect to it.

    Args:
        nodes: The number of other nodes.
        cpus: The CPUs of each.
        store: The memory for objects of each, in MiB.
    """
    before = dict(os.environ)
    os.environ[MARK] = str(os.getpid())
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # modules of the tests
    # Else Ray warns that it will not hide GPUs from some tasks.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": 150 * 2**20,
            # By default Ray notices a killed node after 15 seconds.
            "_system_config": {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000},
        },
    )
    try:
        cluster.node = functools.partial(_add_node, cluster, cpus, store * 2**20)
        for _ in range(nodes):
            cluster.node()
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False,
        )
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _add_node(cluster, cpus, store):
    """Add a node, and restore the SIGTERM handler."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return cluster.add_node(num_cpus=cpus, object_store_memory=store)
    finally:
        signal.signal(signal.SIGTERM, before)


def processes_of_hosts(parts=PARTS):
    """Return the processes of all hosts of this program's cluster, and of their workers.

    Args:
        parts: Return processes whose command lines have one of these.
    """
    me = psutil.Process()
    own = {me.pid}  # this process also has workers
    for child in me.children():
        if _line_of(child).find("pysampler._workers.fork_server") >= 0:
            own |= {child.pid, *(process.pid for process in child.children(recursive=True))}
    found = []
    for process in psutil.process_iter():
        line = _line_of(process)
        if process.pid not in own and any(part in line for part in parts):
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == str(me.pid):
                    found.append(process)
    return found


def orphans_of_hosts():
    """Return the processes that ended hosts left behind."""
    found = processes_of_hosts()
    alive = {one.pid for one in found if "ray::HostActor" in _line_of(one)}
    orphans = []
    for process in found:
        with contextlib.suppress(psutil.Error):
            if process.pid not in alive and not alive & {one.pid for one in process.parents()}:
                orphans.append(process)
    return orphans


def _line_of(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def assert_nothing_left(seconds=30):
    """Wait until no process and no placement group of a host is left."""
    gc.collect()
    end = time.monotonic() + seconds
    while True:
        groups = [
            group for group in placement_group_table().values() if group["state"] != "REMOVED"
        ]
        left = processes_of_hosts(), groups
        if left == ([], []):
            return
        assert time.monotonic() < end, left
        time.sleep(0.05)  # poll: they are not our children


__all__ = [
    "HORIZON",
    "MARK",
    "Continuity",
    "HasWeights",
    "Life",
    "Scripted",
    "actors",
    "assert_ended_equal",
    "assert_equal",
    "assert_nothing_left",
    "cluster_of",
    "idle",
    "leaves",
    "local",
    "orphans_of_hosts",
    "policy",
    "processes_of_hosts",
    "rollouts",
    "scripted",
    "weighted",
]
