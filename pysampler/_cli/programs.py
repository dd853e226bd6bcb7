"""Running programs that sample: found by the titles of their workers, read by their descriptors.

A segment contains its program's pid as the program sees it. In a container this pid differs from
the one seen here, and may be that of another process here: a program is found by it and by the pid
namespace of its workers.

Programs are only observed: their counters are mapped read-only, and no process is sent anything.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._cli.kernel import text_of
from pysampler._workers.counters import Counters
from pysampler._workers.gauges import Gauges
from pysampler._workers.header import HEADER, LAYOUT, MAGIC
from pysampler._workers.manifest import SegmentManifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = ["AttachError", "Pool", "Program", "find", "is_running", "programs"]

# The index of a worker, and the name of its pool, which may be cut off.
_TITLE = re.compile(r"pysampler: worker ([0-9]{1,9})/[0-9]+ *(.*)")
_MEMFD = "/memfd:pysampler"
_OWN_COMMAND = "use the command pysampler of its environment"
_PROC = Path("/proc")


class AttachError(Exception):
    """Why a program cannot be observed, in one line."""


@dataclass
class Pool:
    """The workers of one vector env or sampler, and their counters.

    Attributes:
        number: The random number that identifies its segment.
        name: The name of its env, with a number if the program has several such pools.
        about: The manifest of its segment.
        counters: The counters of its workers, live.
        gauges: The gauges of its workers and samplers, live.
        memory: All bytes of its segment, mapped read-only.
        descriptor: The path of one worker's descriptor of the segment.
        workers: The pid of each worker, by its index; workers that have ended are missing. The
            program itself is the last, if it serves envs too.
    """

    number: int
    name: str
    about: SegmentManifest
    counters: Counters
    gauges: Gauges
    memory: npt.NDArray[np.uint8]
    descriptor: Path
    workers: dict[int, int] = field(default_factory=dict)


@dataclass
class Program:
    """A process that samples with workers.

    Attributes:
        pid: Its pid.
        command: Its command line.
        pools: Its pools.
        nspid: Its pid here, and in each nested pid namespace: the last is the one that it sees.
    """

    pid: int
    command: str
    pools: list[Pool]
    nspid: tuple[int, ...]


def programs() -> list[Program]:
    """Return all programs of this user that sample with workers."""
    found: dict[int, dict[int, Pool]] = {}  # by pid of the program, then by id of the segment
    for pid in _pids():
        if (known := _TITLE.match(_command(pid))) is None:
            continue
        try:
            inner, pool = _attach(pid, known[2])
        except (OSError, AttachError):  # has ended, or belongs to another user or version
            continue
        if (creator := _creator_of(pid, inner)) is None:
            continue
        pool = found.setdefault(creator, {}).setdefault(pool.number, pool)
        pool.workers[int(known[1])] = pid
        if pool.about.main:
            pool.workers[len(pool.about.envs) - 1] = creator
    return [
        Program(pid, _command(pid), _numbered(pools.values()), _nspid(pid))
        for pid, pools in sorted(found.items())
    ]


def _numbered(pools: Iterable[Pool]) -> list[Pool]:
    """Return pools in the order in which they were created; number those of the same name."""

    def created(pool: Pool) -> int:
        try:
            return pool.descriptor.stat().st_ctime_ns
        except OSError:  # its worker has ended
            return 0

    in_order = sorted(pools, key=created)
    counts = Counter(pool.name for pool in in_order)
    numbers: Counter[str] = Counter()
    for pool in in_order:
        if counts[pool.name] > 1:
            numbers[pool.name] += 1
            pool.name += f" ({numbers[pool.name]})"
    return in_order


def find(pid: int | None = None) -> Program:
    """Return the program with this pid, or with this worker; for None, the only program.

    Raises:
        AttachError: There is no such program, there are several, or it cannot be read.
    """
    all_of_them = programs()
    if pid is None:
        if not all_of_them:
            raise AttachError("no running program of yours has pysampler workers; start one first")
        if len(all_of_them) > 1:
            pids = ", ".join(f"{one.pid} ({one.command[:40]})" for one in all_of_them)
            raise AttachError(f"several programs have pysampler workers; pass a pid: {pids}")
        return all_of_them[0]
    for one in all_of_them:
        if pid == one.pid or any(pid in pool.workers.values() for pool in one.pools):
            return one
    for one in all_of_them:  # /proc may be mounted from an outer namespace
        if pid == one.nspid[-1] and _namespace(one.pid) == _namespace("self"):
            return one
    raise AttachError(_why_not(pid))


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return _command(pid) != ""


def _why_not(pid: int) -> str:
    """Return why ``find`` has found no program with this pid."""
    if not (_PROC / str(pid)).exists():
        return f"process not found: {pid}"
    try:
        os.listdir(_PROC / str(pid) / "fd")  # noqa: PTH208
    except PermissionError:
        return f"process {pid} belongs to another user; run this command as that user"
    except OSError:
        return f"process {pid} ended"
    for worker in _pids():
        if _TITLE.match(_command(worker)) and pid in _with_ancestors(worker):
            try:
                _attach(worker, "")
            except (OSError, AttachError) as error:
                return f"worker {worker}: {error}"
    return f"process {pid} has no pysampler workers (num_workers=0 and threads start no processes)"


def _creator_of(worker: int, inner: int) -> int | None:
    """Return the pid of a worker's program, which sees it as ``inner``; None if it has ended."""
    namespace, ancestors = _namespace(worker), _with_ancestors(worker)
    for pid in itertools.chain([inner], ancestors, _pids()):
        if _namespace(pid) == namespace and _nspid(pid)[-1] == inner:
            return pid
    # Its workers may be in another namespace than the program.
    return next((pid for pid in ancestors if _nspid(pid)[-1] == inner), None)


def _namespace(pid: int | str) -> str:
    """Return the pid namespace of a process; empty if it has ended or is another user's."""
    try:
        return str((_PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return ""


def _nspid(pid: int) -> tuple[int, ...]:
    """Return the pids of a process in each namespace, from that of /proc to its own."""
    text = text_of(_PROC / str(pid) / "status")
    line = re.search(r"^NSpid:([\d\t ]+)$", text, re.MULTILINE)
    return tuple(map(int, line[1].split())) if line else (pid,)


def _with_ancestors(pid: int) -> list[int]:
    """Return the pid and those of all its ancestors."""
    pids = []
    while pid > 0 and pid not in pids:
        pids.append(pid)
        fields = text_of(_PROC / str(pid) / "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if fields else 0
    return pids


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208


def _command(pid: int) -> str:
    """Return the printable command line of a process; empty if it has ended."""
    return _printable(text_of(_PROC / str(pid) / "cmdline").replace("\0", " ").strip())


def _printable(text: str) -> str:
    """Return text with "?" for control characters, which a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _attach(pid: int, name: str) -> tuple[int, Pool]:
    """Map the segment of a worker's counters; return its creator's pid as seen there, and the pool.

    Raises:
        AttachError: The worker has no segment that this version of pysampler can read.
        OSError: The worker has ended, or belongs to another user.
    """
    why = f"it has no counters that this version can read; {_OWN_COMMAND}"
    folder = _PROC / str(pid) / "fd"
    for descriptor in folder.iterdir():
        try:
            if not str(descriptor.readlink()).startswith(_MEMFD):
                continue
            memory, header = _mapped(descriptor)
        except FileNotFoundError:  # closed meanwhile
            continue
        except AttachError as error:
            why = str(error)
            continue
        if (about := SegmentManifest.read(memory)) is None:
            continue
        counts = about.envs[-1][1], len(about.envs)
        counters_end = about.counters + Counters.size_of(*counts)
        gauges_end = about.gauges + Gauges.size_of(counts[1])
        trace_end = about.trace + _core.Track.size_of(counts[1] - about.main + 1)
        if max(counters_end, gauges_end, trace_end) > len(memory):
            raise AttachError("its counters exceed its segment")
        counters = Counters(*counts, memory[about.counters : counters_end])
        gauges = Gauges(counts[1], memory[about.gauges : gauges_end])
        number = int(header["id"])
        about = replace(about, noun=_printable(about.noun))
        pool = Pool(number, name or about.noun, about, counters, gauges, memory, descriptor)
        return int(header["creator"]), pool
    raise AttachError(why)


def _mapped(path: Path) -> tuple[npt.NDArray[np.uint8], Any]:
    """Map a segment read-only; return it and its header.

    Raises:
        AttachError: The segment is of another version, too small, or not complete yet.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise AttachError("it is starting; try again")  # may still shrink during reads
        size = os.fstat(descriptor).st_size
        if size < HEADER.itemsize:
            raise AttachError("its segment is too small")
        memory = np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(descriptor)
    header = memory[: HEADER.itemsize].view(HEADER)[0]
    if header["magic"] != MAGIC or header["layout"] != LAYOUT:
        raise AttachError(f"it runs another version of pysampler; {_OWN_COMMAND}")
    return memory, header
