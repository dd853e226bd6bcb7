"""``pysampler doctor``: checks everything on this machine that sampling depends on."""

from __future__ import annotations

import contextlib
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
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np

import pysampler
from pysampler._cli.kernel import cores, numa_nodes, process_limits, text_of, ticks
from pysampler._cli.screen import Finding, count, print_finding, printing_to_stderr
from pysampler._cli.sources import CHECKED, source_of
from pysampler._vector.isolation.check import check_envs
from pysampler._workers.launcher import files_for
from pysampler.sync import Flag, Segment, memory_left, now, sleep_until, usable_cpus, wait_costs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

__all__ = ["HELP", "add_arguments", "examine", "run"]

HELP = "check versions, CPUs, limits and waits; report problems and how to fix them"

_Result = tuple[str, str, str]  # the rest of a Finding

_WORKER_BYTES = 11 << 20  # memory of a worker without its envs
_LATE = 20e-6  # a healthy machine notices a deadline at most this many seconds late
_LOADED = 0.75  # load per CPU from which other processes count as a problem
_STOLEN_FOR = 0.5  # seconds during which stolen time is measured
_STEAL = 7  # the kind of ticks that the hypervisor gave to other machines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "--workers",
        type=count,
        metavar="N",
        help="check the limits for this number of workers (default: one per CPU)",
    )
    parser.add_argument(
        "--env",
        metavar="ENV",
        help="check whether envs may share a process: CartPole-v1, module:Id-v0, "
        "module:function or file.py:function",
    )


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if something is broken."""
    found = []
    with printing_to_stderr() if options.json else contextlib.nullcontext():
        for finding in examine(options.workers, options.env):
            found.append(finding)
            if not options.json:
                print_finding(finding)
    if options.json:
        print(json.dumps([finding._asdict() for finding in found], indent=1))
    return int(any(finding.verdict == "broken" for finding in found))


def examine(workers: int | None = None, env: str | None = None) -> Iterator[Finding]:
    """Yield the findings.

    Args:
        workers: The number of workers that must fit the limits; None for one per CPU.
        env: The env to check for interference; None for none.
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
    if env is not None:
        checks.append(("isolation", lambda: _isolation(env)))
    for topic, check in checks:
        try:
            yield Finding(topic, *check())
        except Exception as error:
            yield Finding(topic, *_broken(f"{type(error).__name__}: {error}"))


def _ok(found: str) -> _Result:
    return "ok", found, ""


def _look(found: str, advice: str, *, needed: bool = True) -> _Result:
    return ("look", found, advice) if needed else _ok(found)


def _broken(found: str, advice: str = "", *, needed: bool = True) -> _Result:
    return ("broken", found, advice) if needed else _ok(found)


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
        return _ok("not installed; only torch policies need it")
    own, cpus = os.environ.get("OMP_NUM_THREADS"), len(os.sched_getaffinity(0))
    found = f"{version} starts {own or cpus} threads in your process, one in each worker"
    if own is None and cpus > usable_cpus():
        return _look(
            f"{found}; a quota allows {usable_cpus()} CPUs",
            f"call torch.set_num_threads({usable_cpus()}): idle threads slow the workers",
        )
    return _ok(found)


def _mujoco() -> _Result:
    version = _version_of("mujoco")
    if version is None:
        return _ok("not installed; its envs need pip install 'pysampler[mujoco]'")
    if importlib.util.find_spec("mujoco.batch") is None:
        return _look(
            f"{version} steps envs one by one: it has no module mujoco.batch",
            "pip install 'mujoco>=3.17': workers then simulate its v5 envs together",
        )
    return _ok(f"{version}; workers simulate its v5 envs together")


def _hash_seed() -> _Result:
    seed = os.environ.get("PYTHONHASHSEED")
    if sys.flags.ignore_environment:
        return _ok("random here and in workers: Python ignores PYTHONHASHSEED (-E or -I)")
    if seed in (None, "", "random"):
        workers = "0 in workers" if seed is None else "random in workers too"
        return _ok(
            f"random here, {workers}: sets of strings have another order there; start with "
            "PYTHONHASHSEED=0 for the same order"
        )
    return _ok(f"{seed} here and in workers: sets of strings have the same order")


# -- CPUs ------------------------------------------------------------------------------------------


def _cpus() -> _Result:
    allowed = sorted(os.sched_getaffinity(0))
    usable = usable_cpus()
    own_cores, nodes = cores(allowed), numa_nodes(allowed)
    found = f"this process may use {usable} of {os.cpu_count()}"
    if own_cores < len(allowed):
        found += f", on {own_cores} core{'s' * (own_cores > 1)}"
    if len(allowed) > usable:
        found += f"; a quota limits its {len(allowed)} CPUs"
    if len(nodes) > 1:
        found += f"; {len(nodes)} NUMA nodes"
    if usable == 1:
        return _look(found, "use num_workers=0: with one CPU, workers only add messages")
    node = nodes[0] if nodes else 0
    one = f"numactl --cpunodebind={node} --membind={node} python ..."
    return _look(found, f"run one program per node: {one}", needed=len(nodes) > 1)


def _stolen() -> _Result:
    before = ticks()["cpu"]
    time.sleep(_STOLEN_FOR)
    after = ticks()["cpu"]
    since_boot = before[_STEAL] / max(1, sum(before))
    share = (after[_STEAL] - before[_STEAL]) / max(1, sum(after) - sum(before))
    found = f"other machines took {share:.1%} of the CPU time just now, {since_boot:.1%} since boot"
    advice = "repeat each measurement, in turns: other machines change the speed of this one"
    return _look(found, advice, needed=max(share, since_boot) > 0.05)


def _other_work() -> _Result:
    cpus, load = usable_cpus(), os.getloadavg()[0]
    found = f"{load:.1f} processes or threads ran or waited for a CPU in the last minute"
    advice = f"end other programs: at this load on {cpus} CPUs they slow the workers"
    return _look(found, advice, needed=load > _LOADED * cpus)


# -- the kernel ------------------------------------------------------------------------------------


def _shared_memory() -> _Result:
    os.close(os.pidfd_open(os.getpid()))
    with Segment(1 << 16) as segment, Flag(segment) as flag:
        flag.set()
        if not flag.wait(timeout=1):
            advice = "try another kernel or container runtime: pysampler needs futexes"
            return _broken("a wait missed a flag that was set", advice)
        flag.clear()
        flag.wait(timeout=0.001)  # parks: a futex
    return _ok("memfd, futexes and pidfds work; pysampler does not use /dev/shm")


def _waiting() -> _Result:
    costs = wait_costs()
    found = (
        f"waking a process takes {costs.park_ns / 1e3:.1f} us, a yield "
        f"{costs.yield_ns / 1e3:.2f} us; timer slack is "
        f"{int(text_of('/proc/self/timerslack_ns') or 0) / 1e3:g} us"
    )
    advice = "give each worker more envs if a step takes less than a millisecond"
    return _look(found, advice, needed=costs.park_ns > 100_000)


def _deadlines() -> _Result:
    late = []
    for _ in range(20):
        deadline = now() + 1_000_000
        sleep_until(deadline)
        late.append((now() - deadline) / 1e9)
    middle, worst = statistics.median(late), max(late)
    found = f"waits end {middle * 1e6:.1f} us late, {worst * 1e6:.0f} us at worst of {len(late)}"
    advice = "end other programs: they compete for the CPUs"
    return _look(found, advice, needed=middle > _LATE)


def _open_files(workers: int) -> _Result:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_for(workers)
    limit = "no limit" if hard == resource.RLIM_INFINITY else f"limit {soft}, hard limit {hard}"
    found = f"{limit}; {workers} workers need {needed}"
    advice = f"raise the limit (ulimit -Hn {needed}), or use fewer workers"
    return _broken(found, advice, needed=hard != resource.RLIM_INFINITY and needed > hard)


def _processes(workers: int) -> _Result:
    needed = 2 * workers + 2
    of_groups = process_limits()
    limits = {path: f"{most}, {used} used" for path, (most, used) in of_groups.items()}
    left = [most - used for most, used in of_groups.values()]
    if (most := resource.getrlimit(resource.RLIMIT_NPROC)[0]) != resource.RLIM_INFINITY:
        limits["ulimit -u"] = str(most)
        left.append(most)
    found = ", ".join(f"{name} {limit}" for name, limit in limits.items()) or "no limit"
    found += f"; {workers} workers need {needed} threads"
    advice = "raise the limit, or use fewer workers"
    return _broken(found, advice, needed=min(left, default=needed) < needed)


def _memory(workers: int) -> _Result:
    left, needed = memory_left(), workers * _WORKER_BYTES
    found = f"{left / 1e9:.1f} GB free; {workers} workers need {needed / 1e9:.2f} GB without envs"
    return _broken(found, "use fewer workers, or add memory", needed=needed > left)


# -- envs ----------------------------------------------------------------------------------


def _isolation(env: str) -> _Result:
    checks = check_envs([source_of(env).function] * CHECKED, threads=(False, True))
    text = ". ".join("; ".join([one.verdict, *one.reasons]) for one in checks)
    remedy = checks[0].remedy
    gives = "generators of its own" if remedy == "seed_globals=True" else "a process"
    advice = f"pass {remedy}, which gives each env {gives}"
    return _look(text, advice, needed=not checks[0].isolated)


def _vector_env() -> _Result:
    begun = time.perf_counter()
    make = functools.partial(gym.make, "CartPole-v1")
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
        f"{usable_cpus()} workers start in {started:.2f} s; a step of {envs.num_envs} CartPoles "
        f"takes {statistics.median(rounds) * 1e6:.0f} us",
    )
