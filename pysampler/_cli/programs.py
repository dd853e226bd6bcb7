"""Running programs that sample: found by the titles of their workers, read by their descriptors.

A segment says by which pid its program knows itself. In a container that is another than here, and
one that other processes have, too: a program is found by it and the pid namespace of its workers.

All is read only: the memory that the workers count in is mapped without the right to write, and
nothing is sent to any process.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pysampler._workers.counters import Counters
from pysampler._workers.gauges import Gauges
from pysampler._workers.header import HEADER, LAYOUT, MAGIC
from pysampler._workers.manifest import SegmentManifest
from pysampler._workers.tracing import TraceMemory

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["AttachError", "Pool", "Program", "find", "is_running", "programs"]

# Which worker it is, and what it samples; a title that was cut off for lack of room is none.
_TITLE = re.compile(r"pysampler: worker ([0-9]{1,9})/[0-9]+ *(.*)")
_MEMFD = "/memfd:pysampler"
_PROC = Path("/proc")


class AttachError(Exception):
    """Says in one line why a program cannot be looked at."""


@dataclass
class Pool:
    """The workers of one vector env or sampler, and what they count.

    Attributes:
        number: The random number of its segment, which tells it from others.
        name: What it samples: the env's name.
        about: What its segment says of itself.
        counters: What its workers count, as it is at each moment.
        gauges: What its workers and samplers note, as it is at each moment.
        memory: All bytes of its segment, mapped to be read only.
        descriptor: The path of a descriptor of it, which one of the workers has.
        workers: The pid of each worker, by its index; one that has ended is missing. The program
            itself is the last, if it serves members too.
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
        nspid: Its pid here, and in each pid namespace within: the last is how it knows itself.
    """

    pid: int
    command: str
    pools: list[Pool]
    nspid: tuple[int, ...]


def programs() -> list[Program]:
    """Return all programs of this user that sample with workers."""
    found: dict[int, dict[int, Pool]] = {}  # by pid of the program, then by id of the segment
    for pid in _pids():
        title = _command(pid)
        known = _TITLE.match(title)
        if known is None:
            continue
        try:
            inner, pool = _attach(pid, known[2])
        except (OSError, AttachError):  # it has ended, is another user's or of another version
            continue
        if (creator := _creator_of(pid, inner)) is None:
            continue
        pool = found.setdefault(creator, {}).setdefault(pool.number, pool)
        pool.workers[int(known[1])] = pid
        if pool.about.main:
            pool.workers[len(pool.about.members) - 1] = creator
    return [
        Program(pid, _command(pid), list(pools.values()), _nspid(pid))
        for pid, pools in sorted(found.items())
    ]


def find(pid: int | None = None) -> Program:
    """Return the program of that pid, or of which that is a worker; None: the only one there is.

    Raises:
        AttachError: There is none, there are several, or it cannot be read.
    """
    all_of_them = programs()
    if pid is None:
        if not all_of_them:
            raise AttachError("no program of yours samples with pysampler's workers here")
        if len(all_of_them) > 1:
            pids = ", ".join(f"{one.pid} ({one.command[:40]})" for one in all_of_them)
            raise AttachError(f"several programs sample here, say which pid: {pids}")
        return all_of_them[0]
    for one in all_of_them:
        if pid == one.pid or any(pid in pool.workers.values() for pool in one.pools):
            return one
    for one in all_of_them:  # /proc may be that of an outer namespace
        if pid == one.nspid[-1] and _namespace(one.pid) == _namespace("self"):
            return one
    raise AttachError(_why_not(pid))


def is_running(pid: int) -> bool:
    """Return whether there is such a process; one that only waits to be reaped is none."""
    return _command(pid) != ""


def _why_not(pid: int) -> str:
    """Return why there is no program of that pid."""
    if not (_PROC / str(pid)).exists():
        return f"there is no process {pid}"
    try:
        os.listdir(_PROC / str(pid) / "fd")  # noqa: PTH208
    except PermissionError:
        return f"process {pid} is another user's"
    except OSError:
        return f"process {pid} has ended"
    for worker in _pids():
        if _TITLE.match(_command(worker)) and pid in _with_ancestors(worker):
            try:
                _attach(worker, "")
            except (OSError, AttachError) as error:
                return f"worker {worker}: {error}"
    return f"process {pid} has no workers of pysampler (num_workers=0 has none)"


def _creator_of(worker: int, inner: int) -> int | None:
    """Return the pid of a worker's program, which knows itself by ``inner``; None: it ended."""
    namespace, ancestors = _namespace(worker), _with_ancestors(worker)
    for pid in itertools.chain([inner], ancestors, _pids()):
        if _namespace(pid) == namespace and _nspid(pid)[-1] == inner:
            return pid
    # Its workers may have a namespace of their own.
    return next((pid for pid in ancestors if _nspid(pid)[-1] == inner), None)


def _namespace(pid: int | str) -> str:
    """Return the pid namespace of a process; empty if it has ended, or is another user's."""
    try:
        return str((_PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return ""


def _nspid(pid: int) -> tuple[int, ...]:
    """Return the pids of a process in each namespace, from that of /proc to its own."""
    try:
        text = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return (pid,)
    told = re.search(r"^NSpid:([\d\t ]+)$", text, re.MULTILINE)
    return tuple(map(int, told[1].split())) if told else (pid,)


def _with_ancestors(pid: int) -> list[int]:
    """Return the pid, and those of its parent, of the parent's parent and so on."""
    pids = []
    while pid > 0 and pid not in pids:
        pids.append(pid)
        try:
            text = (_PROC / str(pid) / "stat").read_text()
        except OSError:
            break
        pid = int(text.rpartition(")")[2].split()[1])
    return pids


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208


def _command(pid: int) -> str:
    """Return the command line of a process, fit to be shown; empty if it has ended."""
    try:
        line = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return ""
    return _printable(line.decode(errors="replace").strip())


def _printable(text: str) -> str:
    """Return text without what a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _attach(pid: int, name: str) -> tuple[int, Pool]:
    """Map the segment that a worker counts in; return the creator's own pid, and the pool.

    Raises:
        AttachError: It has no segment that this version of pysampler can read.
        OSError: It has ended, or is another user's.
    """
    why = "it has no segment of a pool that this version of pysampler can read"
    folder = _PROC / str(pid) / "fd"
    for descriptor in folder.iterdir():
        try:
            if not str(descriptor.readlink()).startswith(_MEMFD):
                continue
            memory = _mapped(descriptor)
        except FileNotFoundError:  # it was closed meanwhile
            continue
        except AttachError as error:
            why = str(error)
            continue
        about = SegmentManifest.read(memory)
        if about is None:
            continue
        counts = about.members[-1][1], len(about.members)
        counters_end = about.counters + Counters.size_of(*counts)
        gauges_end = about.gauges + Gauges.size_of(counts[1])
        workers = counts[1] - about.main
        trace_end = about.trace + TraceMemory(workers).size
        if max(counters_end, gauges_end, trace_end) > len(memory):
            raise AttachError("its counters lie outside of its segment")
        counters = Counters(*counts, memory[about.counters : counters_end])
        gauges = Gauges(counts[1], memory[about.gauges : gauges_end])
        header = memory[: HEADER.itemsize].view(HEADER)[0]
        number = int(header["id"])
        about = replace(about, noun=_printable(about.noun))
        pool = Pool(number, name or about.noun, about, counters, gauges, memory, descriptor)
        return int(header["creator"]), pool
    raise AttachError(why)


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    """Map a segment, to be read only; raise AttachError if it is of another version."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise AttachError("its segment is being made")  # and may shrink while it is read
        size = os.fstat(descriptor).st_size
        if size < HEADER.itemsize:
            raise AttachError("its segment is too small")
        memory = np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(descriptor)
    header = memory[: HEADER.itemsize].view(HEADER)[0]
    if header["magic"] != MAGIC or header["layout"] != LAYOUT:
        raise AttachError("its segment was laid out by another version of pysampler")
    return memory
