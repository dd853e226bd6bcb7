"""Programs about hosts of a Ray cluster that hosts.py starts and asks.

Each is a function that prepares, and returns functions by what they are asked to do: samplers on
hosts and without them, single calls of Ray, and samplers of others. All have a cluster on this
machine, whose nodes have one CPU.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from envs import Busy, Linear, mlp
from running import Measure, answer, literal, repeated

Requests = dict[str, Callable[..., dict[str, Any]]]

STORE = 2**20 * 150  # bytes of each node's object store
# Ray sends results up to 0.1 MB with the answer, larger ones from store to store. With these
# options of actors those up to 4 MB come with the answer too.
INLINE: dict[str, Any] = {
    "runtime_env": {"env_vars": {"RAY_max_direct_call_object_size": str(4 * 2**20)}}
}
LEARNS, PARAMETERS = 0.02, 250_000  # seconds that a learner takes for an update, and 1 MB
# What others sample: hosts, envs of each, the steps of a rollout, and the width of the network.
HOSTS, ENVS, HORIZON, WIDTH = 2, 8, 128, 64
WIDTHS = [17, WIDTH, WIDTH, 2 * 6]  # of all layers
ARRAYS = 8  # that a result is made of, as a rollout is
ONE_WORKER: dict[str, Any] = {"vector_kwargs": {"num_workers": 1}}
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
            return functools.partial(Busy, 200, image=True)
        return self.env


# Rollouts and messages of about 50 ms on one CPU.
CASES = {
    CARTPOLE: Case(CARTPOLE, 16, 256, high=4096),
    CHEETAH: Case(CHEETAH, 8, 128, high=1024),
    IMAGE: Case(IMAGE, 8, 32),
    IMAGE_BY_RAY: Case(IMAGE, 8, 32, in_memory=False),
}


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


# -- samplers on hosts, and without ----------------------------------------------------------------


def hosts(nodes: int) -> Requests:
    """Prepare a cluster. It is asked to open a sampler, to run slices, to close it, and to end."""
    import pysampler.ray
    from pysampler.ray._host_memory import HostMemory

    cluster = start_cluster(nodes)
    map_memory = HostMemory.map
    sampler: Any = None
    take: Callable[[], int]
    lags: list[float] = []

    def opened(kind: str, case: list[Any], in_flight: int, *, learns: bool) -> dict[str, Any]:
        nonlocal sampler, take
        made, env = Case(*case), case[0]
        HostMemory.map = map_memory if made.in_memory else lambda _: None  # type: ignore[method-assign]
        options = {"hosts": nodes, "num_envs": made.envs, "in_flight": in_flight, "seed": 0}
        options |= ONE_WORKER
        if kind == "Actors":
            sampler = pysampler.ray.Actors(made.make(), Linear(env), high=made.high, **options)
            take = lambda: len(sampler.take(made.high, min_records=made.high))  # noqa: E731
        else:
            policy = Linear(env, PARAMETERS if learns else 0)
            sampler = pysampler.ray.Rollouts(made.make(), policy, made.horizon, **options)
            take = functools.partial(_learn, sampler, lags) if learns else first_ready
        for _ in range(3 * nodes):
            take()
        return {}

    def first_ready() -> int:
        return sum(one.steps for one in sampler.take(min_hosts=1))

    def run(begin: int, end: int) -> dict[str, Any]:
        began = False
        t0, cpu0, before = time.monotonic(), time.thread_time(), sampler.stats()

        def one() -> int:
            nonlocal began, t0, cpu0, before
            count = take()
            if not began and time.monotonic_ns() >= begin:
                began = True
                t0, cpu0, before = time.monotonic(), time.thread_time(), sampler.stats()
                lags.clear()
            return count

        result = counted(one, begin, end)
        t1, cpu1, after = time.monotonic(), time.thread_time(), sampler.stats()
        answers = sum(h.taken for h in after.hosts) - sum(h.taken for h in before.hosts)
        answers = max(answers, 1)
        shares = {
            name: (getattr(after, name) - getattr(before, name)) / (t1 - t0)
            for name in ("receiving", "waiting", "publishing")
        }
        return {
            **result,
            **shares,
            "thread": (cpu1 - cpu0) / (t1 - t0),
            "answers": answers / (t1 - t0),
            "calls": (after.calls - before.calls) / answers,
            "bytes": (after.bytes_received - before.bytes_received) / answers,
            "updates": (after.version - before.version) / (t1 - t0),
            "lag": float(np.mean(lags)) if lags else 0.0,
        }

    def close() -> dict[str, Any]:
        sampler.close()
        return {}

    end = functools.partial(stop_cluster, cluster)
    return {"open": opened, "run": run, "close": close, "end": end}


def _learn(sampler: Any, lags: list[float]) -> int:
    """Take a rollout of each host, and change the policy as a learner on another device does."""
    taken = sampler.take()
    lags.extend(one.lag for one in taken)
    steps = sum(one.steps for one in taken)
    time.sleep(LEARNS)
    sampler.policy.change()
    return steps


def plain(index: int, kind: str, case: list[Any]) -> Requests:
    """Prepare the sampler of one host, without Ray."""
    import pysampler

    pin(index)
    made, env = Case(*case), case[0]
    options = {"num_envs": made.envs, "seed": index * made.envs, **ONE_WORKER}
    take: Callable[[], int]
    if kind == "Actors":
        actors = pysampler.Actors(made.make(), Linear(env), high=made.high, **options)
        take = lambda: len(actors.take(made.high, 0.05, min_records=made.high))  # noqa: E731
    else:
        rollouts = pysampler.Rollouts(made.make(), Linear(env), made.horizon, **options)
        take = lambda: next(rollouts).steps  # noqa: E731
    for _ in range(3):
        take()
    return {"run": lambda begin, end: counted(take, begin, end), "end": dict}


# -- what Ray costs --------------------------------------------------------------------------------


def arrays(size: int) -> dict[int, Any]:
    return {part: np.ones(size // ARRAYS, np.uint8) for part in range(ARRAYS)}


class Made:
    """An actor whose calls do nothing of their own."""

    _size = 0
    _arrays: dict[int, Any]

    def pid(self) -> int:
        return os.getpid()

    def nothing(self) -> None:
        return None

    def result(self, size: int) -> dict[int, Any]:
        if self._size != size:
            self._size, self._arrays = size, arrays(size)
        return self._arrays

    def use(self, weights: Any) -> int:
        return sum(array.nbytes for array in weights.values())


def costs() -> Requests:
    """Prepare a cluster of two nodes, with an actor on each."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cluster = start_cluster(2, store=2**20 * 400)
    kind = ray.remote(num_cpus=0.1)(Made)
    raylets = {
        node.node_id: node.all_processes["raylet"][0].process.pid
        for node in cluster.list_all_nodes()
    }
    nodes = [node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU")]
    places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    actors = [kind.options(scheduling_strategy=place).remote() for place in places]
    first = actors[0]
    inline_actor = kind.options(scheduling_strategy=places[0], **INLINE).remote()
    pids = {
        "driver": os.getpid(),
        "driver's raylet": next(pid for node, pid in raylets.items() if node not in nodes),
        "host": ray.get(first.pid.remote()),
        "host, inline": ray.get(inline_actor.pid.remote()),
        "host's raylet": raylets[nodes[0]],
    }
    ray.get(actors[1].pid.remote())
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def used() -> dict[str, float]:
        """Return the CPU time that processes have used, in ms."""
        times = {name: process.cpu_times() for name, process in processes.items()}
        found = {name: 1e3 * (one.user + one.system) for name, one in times.items()}
        return {**found, "driver's thread": 1e3 * time.thread_time()}

    def measured(once: Callable[[], Any], seconds: float) -> dict[str, Any]:
        """Repeat for some seconds; return the ms of one, and CPU time in ms by process.

        ``once`` may return how many ms of its time count, as a float.
        """
        for _ in range(3):
            once()
        spent, before, end = [], used(), time.monotonic() + seconds
        while time.monotonic() < end or len(spent) < 3:
            began = time.perf_counter()
            counts = once()
            took = 1e3 * (time.perf_counter() - began)
            spent.append(counts if isinstance(counts, float) else took)
        after = used()
        cpu = {name: (after[name] - before[name]) / len(spent) for name in after}
        cpu["host"] += cpu.pop("host, inline")
        return {"ms": statistics.median(spent), "cpu": cpu, "times": len(spent)}

    def synchronous(seconds: float) -> dict[str, Any]:
        return measured(lambda: ray.get(first.nothing.remote()), seconds)

    def asynchronous(seconds: float) -> dict[str, Any]:
        """Measure many calls, then their answers: ms each, and ``send``, the ms of sending one."""
        count, sending = 100, []

        def once() -> float:
            began = time.perf_counter()
            refs = [first.nothing.remote() for _ in range(count)]
            sending.append(1e3 * (time.perf_counter() - began) / count)
            ray.get(refs)
            return 1e3 * (time.perf_counter() - began) / count

        found = measured(once, seconds)
        found["cpu"] = {name: value / count for name, value in found["cpu"].items()}
        return {**found, "send": statistics.median(sending)}

    def result(seconds: float, mb: float, *, inline: bool) -> dict[str, Any]:
        """Measure results of a size, from another node."""
        actor = inline_actor if inline else first
        return measured(lambda: ray.get(actor.result.remote(int(mb * 1e6))), seconds)

    def copy(seconds: float, mb: float) -> dict[str, Any]:
        """Measure copying to a part of a larger array, as rollouts are copied."""
        source = np.ones((64, 8, int(mb * 1e6) // 512), np.uint8)
        target = np.zeros((64, 32, source.shape[2]), np.uint8)
        return measured(lambda: np.copyto(target[:, 8:16], source), seconds)

    def put(seconds: float, mb: float) -> dict[str, Any]:
        weights = {"weights": np.ones(int(mb * 1e6), np.uint8)}
        return measured(lambda: ray.put(weights), seconds)

    def fetch(seconds: float, mb: float, hosts: int) -> dict[str, Any]:
        """Measure how long hosts take for weights that they do not have, beyond any call."""
        weights = {"weights": np.ones(int(mb * 1e6), np.uint8)}
        asked = actors[:hosts]

        def once() -> float:
            ref = ray.put(weights)
            began = time.perf_counter()
            ray.get([one.use.remote(ref) for one in asked])
            fetched = time.perf_counter()
            ray.get([one.use.remote(ref) for one in asked])
            return 1e3 * (2 * fetched - began - time.perf_counter())

        return measured(once, seconds)

    def wait(seconds: float, refs: int) -> dict[str, Any]:
        """Measure ``ray.wait`` for answers that are there."""
        there = [first.nothing.remote() for _ in range(refs)]
        ray.get(there)
        return measured(lambda: ray.wait(there, num_returns=refs, timeout=0), seconds)

    def idle(seconds: float) -> dict[str, Any]:
        """Return how many CPUs each of the processes uses that have nothing to do."""
        before = used()
        time.sleep(seconds)
        after = used()
        return {name: (after[name] - before[name]) / seconds / 1e3 for name in after}

    def restart(times: int) -> dict[str, Any]:
        """Kill hosts; return after how many seconds the next rollout of each was there."""
        for actor in (*actors, inline_actor):
            ray.kill(actor)
        import pysampler.ray

        options = {"on_host_loss": "restart", "max_restarts": 1000, "hosts": 2, "num_envs": 8}
        seconds = []
        with pysampler.ray.Rollouts(CARTPOLE, Linear(CARTPOLE), 128, **options) as rollouts:
            for time_ in range(times):
                while {one.host for one in rollouts.take()} != {0, 1}:
                    pass
                os.kill(rollouts.stats().hosts[0].pid, signal.SIGKILL)
                began = time.perf_counter()
                while not any(one.host == 0 and one.restarts > time_ for one in rollouts.take(1)):
                    pass
                seconds.append(time.perf_counter() - began)
        return {"seconds": seconds}

    requests = (synchronous, asynchronous, result, copy, put, fetch, wait, idle, restart)
    end = functools.partial(stop_cluster, cluster)
    return {request.__name__: request for request in requests} | {"end": end}


def takes() -> Requests:
    """Prepare a node with more CPUs than this machine, for many hosts that do very little."""
    import pysampler.ray

    cluster = start_cluster(1, cpus=64)

    def opened(hosts: int, parameters: int = 0) -> Any:
        options: dict[str, Any] = {"hosts": hosts, "spread": "PACK", "cpus_per_host": 1}
        options["vector_kwargs"] = {"num_workers": 0}
        return pysampler.ray.Rollouts(
            CARTPOLE, Linear(CARTPOLE, parameters), 8, num_envs=1, **options
        )

    def take(hosts: int, times: int) -> dict[str, Any]:
        """Measure ``take`` of what is there, in ms, also CPU time of the driver's thread alone.

        ``next`` is measured too, of which each call takes one rollout.
        """
        found: dict[str, list[float]] = {"take": [], "take, cpu": [], "next": [], "next, cpu": []}
        with opened(hosts) as rollouts:
            for _ in range(3):
                rollouts.take()
            for time_ in range(times):
                all_there(rollouts)
                how = "next" if time_ % 2 else "take"
                began, cpu = time.perf_counter(), time.thread_time()
                if how == "take":
                    assert len(rollouts.take()) == hosts
                else:
                    for _ in range(hosts):
                        next(rollouts)
                found[f"{how}, cpu"].append(1e3 * (time.thread_time() - cpu))
                found[how].append(1e3 * (time.perf_counter() - began))
        return {name: statistics.median(values) for name, values in found.items()}

    def publishing(hosts: int, mb: float, times: int) -> dict[str, Any]:
        """Measure what ``take`` spends on the policy, in ms: where it has changed or has not."""
        found: dict[str, list[float]] = {"same": [], "changed": []}
        with opened(hosts, int(mb * 1e6 / 4)) as rollouts:
            for time_ in range(times):
                how = "changed" if time_ % 2 else "same"
                if how == "changed":
                    rollouts.policy.change()
                all_there(rollouts)
                before = rollouts.stats().publishing
                rollouts.take()
                found[how].append(1e3 * (rollouts.stats().publishing - before))
        return {name: statistics.median(values) for name, values in found.items()}

    def all_there(rollouts: Any) -> None:
        """Wait until the hosts have done what they can: their CPU time stands still."""
        pids = [psutil.Process(host.pid) for host in rollouts.stats().hosts]
        before = -1.0
        while (after := sum(sum(pid.cpu_times()[:2]) for pid in pids)) > before:
            before = after
            time.sleep(0.05)

    end = functools.partial(stop_cluster, cluster)
    return {"take": take, "publishing": publishing, "end": end}


# -- samplers of others ----------------------------------------------------------------------------
#
# All sample the same envs with a policy of the same size, which draws actions from a normal
# distribution and returns their log probabilities.


def _policy() -> Any:
    import torch
    from torch import nn

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = mlp(WIDTHS, "Tanh")

        def forward(self, observations: Any) -> Any:
            mean, log_std = self.network(observations.float()).chunk(2, -1)
            normal = torch.distributions.Normal(mean, log_std.exp())
            actions = normal.sample()
            return actions, {"log_probs": normal.log_prob(actions).sum(-1)}

    return Policy()


def ours() -> tuple[Callable[[], int], Callable[[], Any]]:
    import pysampler.ray

    rollouts = pysampler.ray.Rollouts(
        *(CHEETAH, _policy(), HORIZON), hosts=HOSTS, num_envs=ENVS, **ONE_WORKER
    )
    return lambda: sum(one.steps for one in rollouts.take(1)), rollouts.close


def rllib(how: str) -> tuple[Callable[[], int], Callable[[], Any]]:
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

    model = DefaultModelConfig(fcnet_hiddens=[WIDTH, WIDTH], fcnet_activation="tanh")
    batch = HOSTS * ENVS * HORIZON
    config = (
        PPOConfig()
        .environment(CHEETAH)
        .env_runners(
            num_env_runners=HOSTS,
            num_envs_per_env_runner=ENVS,
            rollout_fragment_length=HORIZON,
            num_cpus_per_env_runner=1,
        )
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .training(train_batch_size_per_learner=batch)
    )
    algorithm = config.build_algo()
    group = algorithm.env_runner_group

    def together() -> int:
        """Take a sample of all runners, as PPO does."""
        taken = synchronous_parallel_sample(
            worker_set=group,
            max_env_steps=batch,
            concat=False,
            sample_timeout_s=60,
            _uses_new_env_runners=True,
        )
        return sum(len(episode) for episodes in taken for episode in episodes)

    def as_ready() -> int:
        """Take the samples that are there, as APPO does."""
        taken = group.foreach_env_runner_async_fetch_ready(
            func=lambda runner: runner.sample(), tag="sample", timeout_seconds=0.01
        )
        return sum(len(episode) for episodes in taken for episode in episodes)

    return {"together": together, "as ready": as_ready}[how], algorithm.stop


def _torchrl_env() -> Any:
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode
    from torchrl.envs import GymWrapper

    kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = gym.make_vec(CHEETAH, ENVS, vectorization_mode="sync", vector_kwargs=kwargs)
    return GymWrapper(envs)


def torchrl(how: str) -> tuple[Callable[[], int], Callable[[], Any]]:
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch import nn
    from torchrl.collectors.distributed import RayCollector
    from torchrl.modules import ProbabilisticActor

    network = nn.Sequential(mlp(WIDTHS, "Tanh"), NormalParamExtractor()).double()
    names = ["loc", "scale"]
    policy = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=names),
        in_keys=names,
        distribution_class=torch.distributions.Normal,
        return_log_prob=True,
    )
    together = how == "together"
    collector = RayCollector(
        *(_torchrl_env, policy),
        frames_per_batch=ENVS * HORIZON * (HOSTS if together else 1),
        total_frames=10**12,
        sync=together,
        num_collectors=HOSTS,
        remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 2**28},
    )
    batches = iter(collector)
    return lambda: next(batches).numel(), collector.shutdown


PEERS: dict[str, Callable[[], tuple[Callable[[], int], Callable[[], Any]]]] = {
    "pysampler.ray.Rollouts": ours,
    "RLlib EnvRunners, together (PPO)": functools.partial(rllib, "together"),
    "RLlib EnvRunners, as ready (APPO)": functools.partial(rllib, "as ready"),
    "TorchRL RayCollector, sync=True": functools.partial(torchrl, "together"),
    "TorchRL RayCollector, sync=False": functools.partial(torchrl, "as ready"),
}


def peer(name: str) -> Requests:
    """Prepare a cluster and a sampler on it."""
    cluster = start_cluster(HOSTS)
    take, close = PEERS[name]()
    warm = time.monotonic() + 2
    while time.monotonic() < warm:
        take()

    def end() -> dict[str, Any]:
        close()
        return stop_cluster(cluster)

    measure = repeated(take)
    return {"run": lambda seconds: measure({"seconds": seconds}), "end": end}


def alone(index: int) -> Requests:
    """Prepare the sampler of one of our hosts, without Ray."""
    import pysampler

    pin(index)
    options = {"num_envs": ENVS, "seed": index * ENVS, **ONE_WORKER}
    rollouts = pysampler.Rollouts(CHEETAH, _policy(), HORIZON, **options)
    next(rollouts)
    measure = repeated(lambda: next(rollouts).steps)
    return {"run": lambda seconds: measure({"seconds": seconds}), "end": dict}


# -- any of them -----------------------------------------------------------------------------------

KINDS: dict[str, Callable[..., Requests]] = {
    kind.__name__: kind for kind in (hosts, plain, costs, takes, peer, alone)
}


def contender(kind: str, *arguments: Any) -> Measure:
    """Prepare a contender, which also says its process id, and what has failed in it."""
    requests: dict[str, Any] = result_or_failure(KINDS[kind], *arguments)

    def answered(cell: dict[str, Any]) -> dict[str, Any]:
        do = cell.pop("do")
        if do == "pid":
            return {"pid": os.getpid()}
        return requests if "failed" in requests else result_or_failure(requests[do], **cell)

    return answered


def result_or_failure(call: Callable[..., Any], *arguments: Any, **cell: Any) -> dict[str, Any]:
    try:
        return call(*arguments, **cell)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    answer(lambda: contender(*map(literal, sys.argv[1:])))
