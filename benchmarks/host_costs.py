"""What Ray costs a sampler with hosts: programs that hosts.py starts and asks."""

from __future__ import annotations

import os
import signal
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from hosting import CARTPOLE, INLINE, Linear, start_cluster, stop_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

ARRAYS = 8  # that a result is made of, as a rollout is


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


def costs() -> Callable[[dict[str, Any]], dict[str, Any]]:
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
    inline = kind.options(scheduling_strategy=places[0], **INLINE).remote()
    pids = {
        "driver": os.getpid(),
        "driver's raylet": next(pid for node, pid in raylets.items() if node not in nodes),
        "host": ray.get(first.pid.remote()),
        "host, inline": ray.get(inline.pid.remote()),
        "host's raylet": raylets[nodes[0]],
    }
    ray.get(actors[1].pid.remote())
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def used() -> dict[str, float]:
        """Return the CPU time that processes have used, in ms."""
        times = {name: process.cpu_times() for name, process in processes.items()}
        found = {name: 1e3 * (one.user + one.system) for name, one in times.items()}
        return {**found, "driver's thread": 1e3 * time.thread_time()}

    def measured(once: Callable[[], float | None], seconds: float) -> dict[str, Any]:
        """Repeat for some seconds; return the ms of one, and CPU time in ms by process.

        ``once`` may return how many ms of its time count.
        """
        for _ in range(3):
            once()
        spent, before, end = [], used(), time.monotonic() + seconds
        while time.monotonic() < end or len(spent) < 3:
            began = time.perf_counter()
            counts = once()
            spent.append(1e3 * (time.perf_counter() - began) if counts is None else counts)
        after = used()
        cpu = {name: (after[name] - before[name]) / len(spent) for name in after}
        cpu["host"] += cpu.pop("host, inline")
        return {"ms": statistics.median(spent), "cpu": cpu, "times": len(spent)}

    def synchronous(cell: dict[str, Any]) -> dict[str, Any]:
        return measured(lambda: ray.get(first.nothing.remote()), cell["seconds"])

    def asynchronous(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure many calls, then their answers: ms each, and ``send``, the ms of sending one."""
        count, sending = 100, []

        def once() -> float:
            began = time.perf_counter()
            refs = [first.nothing.remote() for _ in range(count)]
            sending.append(1e3 * (time.perf_counter() - began) / count)
            ray.get(refs)
            return 1e3 * (time.perf_counter() - began) / count

        found = measured(once, cell["seconds"])
        found["cpu"] = {name: value / count for name, value in found["cpu"].items()}
        return {**found, "send": statistics.median(sending)}

    def result(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure results of a size, from another node."""
        size, actor = int(cell["mb"] * 1e6), inline if cell["inline"] else first

        def once() -> None:
            ray.get(actor.result.remote(size))

        return measured(once, cell["seconds"])

    def copy(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure copying to a part of a larger array, as rollouts are copied."""
        source = np.ones((64, 8, int(cell["mb"] * 1e6) // 512), np.uint8)
        target = np.zeros((64, 32, source.shape[2]), np.uint8)

        def once() -> None:
            target[:, 8:16] = source

        return measured(once, cell["seconds"])

    def put(cell: dict[str, Any]) -> dict[str, Any]:
        weights = {"weights": np.ones(int(cell["mb"] * 1e6), np.uint8)}

        def once() -> None:
            ray.put(weights)

        return measured(once, cell["seconds"])

    def fetch(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure how long hosts take for weights that they do not have, beyond any call."""
        weights = {"weights": np.ones(int(cell["mb"] * 1e6), np.uint8)}
        asked = actors[: cell["hosts"]]

        def once() -> float:
            ref = ray.put(weights)
            began = time.perf_counter()
            ray.get([one.use.remote(ref) for one in asked])
            fetched = time.perf_counter()
            ray.get([one.use.remote(ref) for one in asked])
            return 1e3 * (2 * fetched - began - time.perf_counter())

        return measured(once, cell["seconds"])

    def wait(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure ``ray.wait`` for answers that are there."""
        refs = [first.nothing.remote() for _ in range(cell["refs"])]
        ray.get(refs)
        return measured(
            lambda: ray.wait(refs, num_returns=len(refs), timeout=0) and None, cell["seconds"]
        )

    def idle(cell: dict[str, Any]) -> dict[str, Any]:
        """Return how many CPUs each of the processes uses that have nothing to do."""
        before = used()
        time.sleep(cell["seconds"])
        after = used()
        return {name: (after[name] - before[name]) / cell["seconds"] / 1e3 for name in after}

    def restart(cell: dict[str, Any]) -> dict[str, Any]:
        """Kill hosts; return after how many seconds the next rollout of each was there."""
        for actor in (*actors, inline):
            ray.kill(actor)
        import pysampler.ray

        options = {"on_host_loss": "restart", "max_restarts": 1000, "hosts": 2, "num_envs": 8}
        seconds = []
        with pysampler.ray.Rollouts(CARTPOLE, Linear(CARTPOLE), 128, **options) as rollouts:
            for time_ in range(cell["times"]):
                while {one.host for one in rollouts.take()} != {0, 1}:
                    pass
                os.kill(rollouts.stats().hosts[0].pid, signal.SIGKILL)
                began = time.perf_counter()
                while not any(one.host == 0 and one.restarts > time_ for one in rollouts.take(1)):
                    pass
                seconds.append(time.perf_counter() - began)
        return {"seconds": seconds}

    requests = {
        "synchronous": synchronous,
        "asynchronous": asynchronous,
        "result": result,
        "copy": copy,
        "put": put,
        "fetch": fetch,
        "wait": wait,
        "idle": idle,
        "restart": restart,
        "end": lambda _: stop_cluster(cluster),
    }
    return lambda cell: requests[cell["do"]](cell)


def takes() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Prepare a node with more CPUs than this machine, for many hosts that do very little."""
    import pysampler.ray

    cluster = start_cluster(1, cpus=64)

    def opened(hosts: int, parameters: int = 0) -> Any:
        options: dict[str, Any] = {"hosts": hosts, "spread": "PACK", "cpus_per_host": 1}
        options["vector_kwargs"] = {"num_workers": 0}
        return pysampler.ray.Rollouts(
            CARTPOLE, Linear(CARTPOLE, parameters), 8, num_envs=1, **options
        )

    def take(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure ``take`` of what is there, in ms, also CPU time of the driver's thread alone.

        ``next`` is measured too, of which each call takes one rollout.
        """
        hosts, found = cell["hosts"], {"take": [], "take, cpu": [], "next": [], "next, cpu": []}
        with opened(hosts) as rollouts:
            for _ in range(3):
                rollouts.take()
            for time_ in range(cell["times"]):
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

    def publishing(cell: dict[str, Any]) -> dict[str, Any]:
        """Measure what ``take`` spends on the policy, in ms: where it has changed or has not."""
        found: dict[str, list[float]] = {"same": [], "changed": []}
        with opened(cell["hosts"], int(cell["mb"] * 1e6 / 4)) as rollouts:
            for time_ in range(cell["times"]):
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

    requests = {
        "take": take,
        "publishing": publishing,
        "end": lambda _: stop_cluster(cluster),
    }
    return lambda cell: requests[cell["do"]](cell)


KINDS: dict[str, Callable[..., Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "costs": costs,
    "takes": takes,
}
