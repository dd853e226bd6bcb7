"""What the programs about hosts share: a Ray cluster on this machine, envs, a policy."""

from __future__ import annotations

import atexit
import functools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

STORE = 2**20 * 150  # bytes of each node's object store
# Ray sends results up to 0.1 MB with the answer, larger ones from store to store. With these
# options of actors those up to 4 MB come with the answer too.
INLINE: dict[str, Any] = {
    "runtime_env": {"env_vars": {"RAY_max_direct_call_object_size": str(4 * 2**20)}}
}
CARTPOLE, CHEETAH, IMAGE = "CartPole-v1", "HalfCheetah-v5", "200 us and an image"
IMAGE_BY_RAY = f"{IMAGE}, through Ray"


@dataclass(frozen=True)
class Case:
    """An env, and how much a host does at once: its envs and the steps of each, or its records.

    Unless ``in_memory``, rollouts pass through Ray, as those of another machine do.
    """

    env: str
    envs: int
    horizon: int
    high: int = 1
    in_memory: bool = True

    def make(self) -> Any:
        """Return what a sampler makes its envs of."""
        if self.env == IMAGE:
            from envs import Busy

            return functools.partial(Busy, 200, image=True)
        return self.env


# Rollouts and messages of about 50 ms on one CPU.
CASES = {
    CARTPOLE: Case(CARTPOLE, 16, 256, high=4096),
    CHEETAH: Case(CHEETAH, 8, 128, high=1024),
    IMAGE: Case(IMAGE, 8, 32),
    IMAGE_BY_RAY: Case(IMAGE, 8, 32, in_memory=False),
}


class Linear:
    """A policy that costs next to nothing, with any number of further parameters."""

    def __init__(self, env: str, parameters: int = 0) -> None:
        self._env = env
        shape = {CARTPOLE: (4, 2), CHEETAH: (17, 6), IMAGE: (1, 1)}[env]
        weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        self.weights = {"weight": weight, "rest": np.zeros(parameters, np.float32)}

    def __call__(self, observations: Any) -> Any:
        if self._env == IMAGE:
            return np.zeros(len(observations["x"]), np.int64)
        outputs = observations @ self.weights["weight"]
        return outputs.argmax(-1) if self._env == CARTPOLE else np.tanh(outputs)

    def change(self) -> None:
        self.weights["weight"] *= np.float32(0.999)

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        self.weights = weights


def pin(node: int) -> set[int]:
    """Let this process, and what it starts, run on one CPU only; return what it could run on."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cpus)[node % len(cpus)]})
    return cpus


def start_cluster(nodes: int, cpus: int = 1, store: int = STORE) -> Any:
    """Start a cluster of nodes beside a head without CPUs, and connect to it.

    What runs on a node with one CPU runs on one: on a CPU of its own as long as there are enough.
    """
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": store}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for node in range(nodes):
        before = pin(node) if cpus == 1 else os.sched_getaffinity(0)
        cluster.add_node(num_cpus=cpus, object_store_memory=store)
        os.sched_setaffinity(0, before)
    atexit.register(cluster.shutdown)  # the program that asks may have died
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    ray.init(address=cluster.address, **quiet)
    return cluster


def stop_cluster(cluster: Any) -> dict[str, Any]:
    """Disconnect, and end the cluster's processes."""
    import ray

    ray.shutdown()
    cluster.shutdown()
    atexit.unregister(cluster.shutdown)
    return {}


def counted(take: Callable[[], int], begin: int, end: int) -> dict[str, float]:
    """Take until ``end``, in ns; return how many steps came between ``begin`` and ``end``.

    What comes counts as made evenly since something came before.
    """
    at, counts = [time.monotonic_ns()], [0]
    while at[-1] < end:
        counts.append(take())
        at.append(time.monotonic_ns())
    first, last = np.interp([begin, end], at, np.cumsum(counts))
    intervals = np.diff(at)[1:]
    return {"steps": float(last - first), "variation": float(intervals.std() / intervals.mean())}
