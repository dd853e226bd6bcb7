"""``pysampler doctor``: checks everything on this machine that sampling depends on."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

import pysampler
from pysampler._cli.kernel import cores, numa_nodes, process_limits, text_of
from pysampler._cli.screen import Finding, print_findings
from pysampler._workers.launcher import files_for
from pysampler.sync import Flag, Segment, memory_left, now, sleep_until, usable_cpus, wait_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["HELP", "add_arguments", "examine", "run"]

HELP = "check versions, CPUs, limits and waits; report problems and how to fix them"

_Result = tuple[str, str, str]  # the rest of a Finding

_WORKER_BYTES = 11 << 20  # memory of a worker without its envs
_LATE = 20e-6  # a healthy machine notices a deadline at most this many seconds late
_LOADED = 0.75  # load per CPU from which other processes count as a problem
_STOLEN_FOR = 0.5  # seconds during which stolen time is measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--workers", type=_count, help="workers that must fit the limits (default: one per CPU)"
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count}, expected at least 1")
    return count


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if something is broken."""
    found: list[Finding] = []

    def kept() -> Iterator[Finding]:
        for finding in examine(options.workers):
            found.append(finding)
            yield finding

    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in kept()], indent=1))
    else:
        print_findings(kept())
    return int(any(finding.verdict == "broken" for finding in found))


def examine(workers: int | None = None) -> Iterator[Finding]:
    """Yield the findings.

    Args:
        workers: The number of workers that must fit the limits; None for one per CPU.
    """
    workers = workers or usable_cpus()
    checks: list[tuple[str, Callable[[], _Result]]] = [
        ("versions", _versions),
        ("torch", _torch),
        ("MuJoCo", _mujoco),
        ("hash seed", _hash_seed),
        ("CPUs", _cpus),
        ("stolen time", _stolen),
        ("other work", _other_work),
        ("shared memory", _shared_memory),
        ("waiting", _waiting),
        ("deadlines", _deadlines),
        ("open files", lambda: _open_files(workers)),
        ("processes", lambda: _processes(workers)),
        ("memory", lambda: _memory(workers)),
        ("a vector env", _vector_env),
    ]
    for topic, check in checks:
        try:
            yield Finding(topic, *check())
        except Exception as error:
            yield Finding(topic, *_broken(f"{type(error).__name__}: {error}"))


def _ok(found: str) -> _Result:
    return "ok", found, ""


def _look(found: str, advice: str) -> _Result:
    return "look", found, advice


def _broken(found: str, advice: str = "") -> _Result:
    return "broken", found, advice


# -- packages --------------------------------------------------------------------------------------


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> _Result:
    python = platform.python_version()
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        python += " without GIL"
    return _ok(
        f"pysampler {_version_of('pysampler')}, Python {python}, NumPy {np.__version__}, "
        f"gymnasium {gym.__version__}, Linux {platform.release()}",
    )


def _torch() -> _Result:
    version = _version_of("torch")
    if version is None:
        return _ok("not installed; it is needed for torch policies only")
    own = os.environ.get("OMP_NUM_THREADS")
    threads = own or str(len(os.sched_getaffinity(0)))
    found = f"{version}; starts {threads} threads in your process, one in each worker"
    if own is None and len(os.sched_getaffinity(0)) > usable_cpus():
        return _look(
            f"{found}, though a quota allows {usable_cpus()} CPUs",
            f"torch.set_num_threads({usable_cpus()})",
        )
    return _ok(found)


def _mujoco() -> _Result:
    version = _version_of("mujoco")
    if version is None:
        return _ok("not installed: pip install 'pysampler[mujoco]' for its envs")
    if importlib.util.find_spec("mujoco.batch") is None:
        return _look(
            f"{version} steps envs one by one: it has no batches",
            "pip install 'mujoco>=3.17', and its v5 envs are simulated together",
        )
    return _ok(f"{version}; make_vec simulates its v5 envs together")


def _hash_seed() -> _Result:
    seed = os.environ.get("PYTHONHASHSEED")
    if sys.flags.ignore_environment:
        return _ok("random here and in workers: Python ignores PYTHONHASHSEED (-E or -I)")
    if seed in (None, "", "random"):
        workers = "0 in workers" if seed is None else "random in workers too"
        return _ok(
            f"random here, {workers}: sets of strings have a different order there; "
            "PYTHONHASHSEED=0 python ... makes it the same"
        )
    return _ok(f"{seed} here and in workers: sets of strings have the same order")


# -- CPUs ------------------------------------------------------------------------------------------


def _cpus() -> _Result:
    allowed = sorted(os.sched_getaffinity(0))
    usable = usable_cpus()
    own_cores, nodes = cores(allowed), numa_nodes(allowed)
    found = f"{usable} usable, of {os.cpu_count()}"
    if own_cores < len(allowed):
        found += f", on {own_cores} core{'s' * (own_cores > 1)}"
    if len(allowed) > usable:
        found += f" ({len(allowed)} allowed, but a quota of CPU time)"
    if len(nodes) > 1:
        found += f"; {len(nodes)} NUMA nodes"
    if usable == 1:
        return _look(found, "num_workers=0: with one CPU, workers only cost their messages")
    if len(nodes) > 1:
        one = f"numactl --cpunodebind={nodes[0]} --membind={nodes[0]} python ..."
        advice = f"one program on each node: {one}"
        return _look(found, advice)
    return _ok(found)


def _ticks() -> tuple[int, int]:
    """Return the CPU time of all kinds, and the part that the hypervisor stole, in ticks."""
    fields = [int(field) for field in text_of("/proc/stat").split("\n", 1)[0].split()[1:]]
    return sum(fields[:8]), fields[7]


def _stolen() -> _Result:
    total, stolen = _ticks()
    time.sleep(_STOLEN_FOR)
    later, stolen_later = _ticks()
    since_boot = stolen / max(1, total)
    share = (stolen_later - stolen) / max(1, later - total)
    found = f"{share:.1%} of the CPU time went to other machines just now, {since_boot:.1%} in all"
    if max(share, since_boot) > 0.05:
        advice = "measure in turns, several times: speeds here depend on other machines"
        return _look(found, advice)
    return _ok(found)


def _other_work() -> _Result:
    cpus, load = usable_cpus(), os.getloadavg()[0]
    found = f"{load:.1f} processes or threads ran or waited for a CPU in the last minute"
    if load > _LOADED * cpus:
        advice = f"high load for {cpus} CPUs: other processes slow the workers"
        return _look(found, advice)
    return _ok(found)


# -- the kernel ------------------------------------------------------------------------------------


def _shared_memory() -> _Result:
    os.close(os.pidfd_open(os.getpid()))
    with Segment(1 << 16) as segment, Flag(segment) as flag:
        flag.set()
        if not flag.wait(timeout=1):
            return _broken("a wait did not notice that its flag was set")
        flag.clear()
        flag.wait(timeout=0.001)  # parks: a futex
    return _ok("memfd, futexes and pidfds work; /dev/shm is not needed")


def _waiting() -> _Result:
    costs = wait_costs()
    found = (
        f"a wake takes {costs.park_ns / 1e3:.1f} us, a yield {costs.yield_ns / 1e3:.2f} us; "
        f"timer slack {int(text_of('/proc/self/timerslack_ns') or 0) / 1e3:g} us"
    )
    if costs.park_ns > 100_000:
        advice = "envs whose steps take less than a millisecond: more of them for each worker"
        return _look(found, advice)
    return _ok(found)


def _deadlines() -> _Result:
    late = []
    for _ in range(20):
        deadline = now() + 1_000_000
        sleep_until(deadline)
        late.append((now() - deadline) / 1e9)
    middle, worst = statistics.median(late), max(late)
    found = f"noticed {middle * 1e6:.1f} us late, {worst * 1e6:.0f} us at worst of {len(late)}"
    if middle > _LATE:
        return _look(found, "other programs compete for the CPUs; end them")
    return _ok(found)


def _open_files(workers: int) -> _Result:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_for(workers)
    limit = "no limit" if hard == resource.RLIM_INFINITY else f"limit {soft}, at most {hard}"
    found = f"{limit}; with {workers} workers this process has {needed}"
    if hard != resource.RLIM_INFINITY and needed > hard:
        return _broken(found, f"ulimit -Hn {needed}, or fewer workers")
    return _ok(found)


def _processes(workers: int) -> _Result:
    needed = 2 * workers + 2
    of_groups = process_limits()
    limits = {path: f"{most}, {used} used" for path, (most, used) in of_groups.items()}
    left = [most - used for most, used in of_groups.values()]
    if (most := resource.getrlimit(resource.RLIMIT_NPROC)[0]) != resource.RLIM_INFINITY:
        limits["ulimit -u"] = str(most)
        left.append(most)
    found = ", ".join(f"{name} {limit}" for name, limit in limits.items()) or "no limit"
    found += f"; {workers} workers are {needed} threads"
    if left and min(left) < needed:
        return _broken(found, "raise the limit, or take fewer workers")
    return _ok(found)


def _memory(workers: int) -> _Result:
    left, needed = memory_left(), workers * _WORKER_BYTES
    found = f"{left / 1e9:.1f} GB left; {workers} workers take {needed / 1e9:.2f} GB without envs"
    if needed > left:
        return _broken(found, "fewer workers, or more memory")
    return _ok(found)


# -- a vector env ----------------------------------------------------------------------------------


class _Nothing(gym.Env[Any, Any]):
    """An env whose step does nothing."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        return self._observation, 0.0, False, False, {}


def _trial_env() -> tuple[str, Callable[[], gym.Env[Any, Any]]]:
    """Return the name of an env that takes two actions, and the function that makes it."""
    cart_pole = functools.partial(gym.make, "CartPole-v1")
    try:
        cart_pole().close()
    except Exception:  # gymnasium was installed without its envs
        return "envs that do nothing", _Nothing
    return "CartPoles", cart_pole


def _vector_env() -> _Result:
    name, make = _trial_env()
    begun = time.perf_counter()
    envs = pysampler.VectorEnv([make] * 2 * usable_cpus())
    try:
        envs.reset(seed=0)
        started = time.perf_counter() - begun
        actions = np.zeros(envs.num_envs, np.int64)
        rounds = []
        for _ in range(200):
            before = time.perf_counter()
            envs.step(actions)
            rounds.append(time.perf_counter() - before)
    finally:
        envs.close()
    return _ok(
        f"{usable_cpus()} workers start in {started:.2f} s; a step of {envs.num_envs} {name} takes "
        f"{statistics.median(rounds) * 1e6:.0f} us",
    )
