"""What the kernel's files say of CPUs and limits. Files that are missing say nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["busy_seconds", "cores", "cpus_in", "numa_nodes", "process_limits", "text_of"]

_CPUS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
_MOST = 1 << 16  # CPUs


def text_of(path: Path | str) -> str:
    """Return what a file says; empty if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def cpus_in(text: str) -> set[int]:
    """Return the CPUs of a list as the kernel writes it: "0-3,8"; none if it is no such list."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        known = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if known is None:
            return set()
        first, last = int(known[1]), int(known[2] or known[1])
        cpus.update(range(first, min(last, _MOST) + 1))
    return cpus


def busy_seconds(cpus: Collection[int], path: Path | str = "/proc/stat") -> float:
    """Return for how long some CPUs together were not idle since the machine began."""
    ticks = 0
    for line in text_of(path).splitlines():
        name, *fields = line.split()
        if name.removeprefix("cpu") in map(str, cpus):
            numbers = [int(field) for field in fields[:8]]
            ticks += sum(numbers) - sum(numbers[3:5])  # without idle, and idle for a disk
    return ticks / os.sysconf("SC_CLK_TCK")


def cores(cpus: Collection[int], folder: Path = _CPUS) -> int:
    """Return how many cores some CPUs belong to; one of which nothing is known has its own."""
    own = set(cpus)
    siblings = set()
    for cpu in own:
        topology = folder / f"cpu{cpu}/topology"
        # The older name comes second.
        lists = (text_of(topology / name) for name in ("core_cpus_list", "thread_siblings_list"))
        known = next((found for text in lists if cpu in (found := cpus_in(text))), {cpu})
        siblings.add(frozenset(known & own))
    return len(siblings)


def numa_nodes(cpus: Collection[int], folder: Path = _NODES) -> list[int]:
    """Return the NUMA nodes that some CPUs belong to; others have memory alone, or other CPUs."""
    nodes = []
    for path in folder.glob("node[0-9]*"):
        number = path.name.removeprefix("node")
        if number.isdecimal() and cpus_in(text_of(path / "cpulist")) & set(cpus):
            nodes.append(int(number))
    return sorted(nodes)


def process_limits(root: Path = Path("/")) -> dict[str, tuple[int, int]]:
    """Return how many threads this process's cgroups may have, and have now, by their files."""
    limits = {}
    for folder in _cgroups("pids", root):
        most, current = (text_of(folder / f"pids.{name}") for name in ("max", "current"))
        if most.isdecimal():  # or it is "max"
            path = f"/{folder.relative_to(root)}/pids.max"
            limits[path] = int(most), int(current) if current.isdecimal() else 0
    return limits


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups and of those above, as csrc/cgroup.h does.

    In a container the group's own path may not be visible; its root is then the container's group.
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
