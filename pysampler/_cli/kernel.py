"""Reads CPUs and limits from the kernel's files. A missing file is treated as empty."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["busy_seconds", "cores", "cpus_in", "numa_nodes", "process_limits", "text_of", "ticks"]

_CPUS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
_MOST = 1 << 16  # CPUs


def text_of(path: Path | str) -> str:
    """Return the contents of a file; empty if it cannot be read."""
    try:
        return Path(path).read_text("utf-8", errors="replace").strip()
    except OSError:
        return ""


def cpus_in(text: str) -> set[int]:
    """Return the CPUs of a list of the kernel, such as "0-3,8"; empty if it is malformed."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        known = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if known is None:
            return set()
        first, last = int(known[1]), int(known[2] or known[1])
        cpus.update(range(first, min(last, _MOST) + 1))
    return cpus


def ticks(path: Path | str = "/proc/stat") -> dict[str, list[int]]:
    """Return the ticks since boot of "cpu0", "cpu1", ... and of "cpu", all together, by kind."""
    lines = (line.split() for line in text_of(path).splitlines() if line.startswith("cpu"))
    return {name: [int(field) for field in fields[:8]] for name, *fields in lines}


def busy_seconds(cpus: Collection[int], path: Path | str = "/proc/stat") -> float:
    """Return the total time since boot that some CPUs were not idle."""
    found = ticks(path)
    known = [found.get(f"cpu{cpu}", []) for cpu in cpus]
    busy = sum(sum(one) - sum(one[3:5]) for one in known)  # without idle and iowait
    return busy / os.sysconf("SC_CLK_TCK")


def cores(cpus: Collection[int], folder: Path = _CPUS) -> int:
    """Return the number of cores of some CPUs; a CPU without known siblings counts as a core."""
    own = set(cpus)
    siblings = set()
    for cpu in own:
        topology = folder / f"cpu{cpu}/topology"
        # The second name is that of older kernels.
        lists = (text_of(topology / name) for name in ("core_cpus_list", "thread_siblings_list"))
        known = next((found for text in lists if cpu in (found := cpus_in(text))), {cpu})
        siblings.add(frozenset(known & own))
    return len(siblings)


def numa_nodes(cpus: Collection[int], folder: Path = _NODES) -> list[int]:
    """Return the NUMA nodes of some CPUs, without nodes that have only memory or other CPUs."""
    nodes = []
    for path in folder.glob("node[0-9]*"):
        number = path.name.removeprefix("node")
        if number.isdecimal() and cpus_in(text_of(path / "cpulist")) & set(cpus):
            nodes.append(int(number))
    return sorted(nodes)


def process_limits(root: Path = Path("/")) -> dict[str, tuple[int, int]]:
    """Return the limit and the number of threads of each cgroup of this process, by file."""
    limits = {}
    for folder in _cgroups("pids", root):
        most, current = (text_of(folder / f"pids.{name}") for name in ("max", "current"))
        if most.isdecimal():  # or it is "max"
            path = f"/{folder.relative_to(root)}/pids.max"
            limits[path] = int(most), int(current) if current.isdecimal() else 0
    return limits


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups and of their parents, like csrc/cgroup.h.

    In a container the path of the group may not be visible; the root is then the container's group.
    """
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "none", "")
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = top / path.strip("/")
        yield own
        while own != top and top in own.parents:
            own = own.parent
            yield own
