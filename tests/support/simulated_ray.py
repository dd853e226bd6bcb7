"""A simulated Ray in this process: the calls that pysampler.ray uses, simulated nodes and clock.

``installed`` replaces ``ray`` in all modules of ``pysampler.ray``. Actors are then objects in this
process that run the code of real hosts. A call takes ``Node.seconds``, and time passes only while
something waits. As in Ray

- arguments and results are pickled, and arrays in results are read-only views of the store;
- an actor dies when the last handle to it is gone;
- a call to an actor that has not started yet waits; if it was to start on a node that is gone, the
  call fails once Ray has noticed that;
- ``wait`` returns ready references in the order in which they were passed.
"""

import contextlib
import copy
import gc
import itertools
import pickle
import sys
import types
import weakref
from collections import deque

import cloudpickle
import numpy as np
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayTaskError,
)

import pysampler.ray  # noqa: F401 - its modules are patched here
from pysampler._vector import arguments
from pysampler.sync import now

SECOND = 1_000_000_000
CONTROL = {"load", "control", "kill_workers", "close"}


class Ref:
    """A future result: a pickle in the store, or an exception."""

    def __init__(self):
        self.done = False
        self.asked_at = None
        self.done_at = 0
        self.error = None
        self.data, self.buffers = b"", []


class Node:
    """A node.

    Attributes:
        id: Its id.
        address: Its address.
        cpus: The number of its CPUs.
        alive: False once it was removed.
        missed_at: When Ray notices its removal, by missing heartbeats.
        full: Whether other work has its CPUs, so that no actor can start.
        reserved: Whether another placement group has its CPUs.
        seconds: The duration of a call to an actor on it.
    """

    def __init__(self, number, cpus):
        self.id, self.address, self.cpus = f"{number:08x}" + "0" * 48, f"10.0.0.{number}", cpus
        self.alive, self.full, self.missed_at, self.reserved = True, False, 0, False
        self.seconds = 0.01


class Process:
    """An actor and its process.

    Attributes:
        options: The options it was made with.
        moves: Whether it may start on another node when its own is removed.
        state: "new", "running" or "dead".
        stopped: Whether it is frozen, as after SIGSTOP.
        calls: The queued calls: (name, arguments, ref).
        under_way: The running call: (ref, its result, its end).
    """

    def __init__(self, ray, kind, place, moves):
        self.ray, self.kind, self.place, self.moves = ray, kind, place, moves
        self.state, self.stopped = "new", False
        self.calls = deque()
        self.instance = None
        self.node = None
        self.starts_at = ray.time + int(ray.start_seconds * SECOND)
        self.under_way = None

    def submit(self, name, *args):
        ref = Ref()
        with untraced():
            self.ray.requests.append(name)
            args = [arg if isinstance(arg, Ref) else self.ray.put(arg) for arg in args]
            if self.state == "dead":
                self.ray.finish(ref, error=ActorDiedError())
            elif name in CONTROL and self.state == "running" and not self.stopped:
                self.ray.finish(ref, *self.returned(name, args))
            else:
                self.calls.append((name, args, ref))
                self.start_next()
        return ref

    def next_event(self):
        """Return the time of the next event here, or None."""
        if self.state == "new":
            node = self.place()
            if node is not None and node.alive and not node.full:
                return max(self.starts_at, self.ray.time)
            if not self.moves and not node.alive:
                return max(node.missed_at, self.ray.time)
        elif self.under_way is not None and not self.stopped:
            return self.under_way[2]
        return None

    def step(self):
        if self.under_way is None:
            if not self.place().alive:
                self.die(ActorUnschedulableError("The node does not exist any more"))
                return
            try:
                self.node, self.instance, self.state = self.place(), self.kind(), "running"
            except ImportError as error:
                self.die(ActorDiedError(RayTaskError("__init__", f"...\n{error!r}", error)))
                return
        else:
            (ref, returned, _), self.under_way = self.under_way, None
            self.ray.finish(ref, *returned)
        self.start_next()

    def start_next(self):
        """Begin the next call: it runs now, and its result arrives later."""
        if self.state == "running" and not self.stopped and not self.under_way and self.calls:
            name, args, ref = self.calls.popleft()
            ends_at = self.ray.time + int(self.node.seconds * SECOND)
            self.under_way = ref, self.returned(name, args), ends_at

    def returned(self, name, args):
        """Call a method; return (result, error)."""
        self.ray.node, self.ray.options = self.node, self.options
        self.ray.when_called.get(name, lambda: None)()
        try:
            return getattr(self.instance, name)(*(self.ray.get(arg) for arg in args)), None
        except Exception as error:
            return None, RayTaskError(name, repr(error), error)

    def die(self, error=None):
        """End the process: calls fail with ``error``."""
        if self.state == "dead":
            return
        instance, self.instance = self.instance, None
        self.node, self.stopped, self.state = None, False, "dead"
        refs = [ref for _, _, ref in self.calls]
        if self.under_way is not None:
            refs.append(self.under_way[0])
        self.calls, self.under_way = deque(), None
        for ref in refs:
            self.ray.finish(ref, error=error or ActorDiedError())
        if instance is not None:
            traced = sys.gettrace() is not None
            with untraced():
                instance.close()  # its workers end with it
                del instance
                if traced:
                    gc.collect()  # objects that would end with that process


class Handle:
    """A handle to an actor; the actor dies with its last handle."""

    def __init__(self, process):
        self._process = process
        weakref.finalize(self, process.die).atexit = False

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        process = self._process
        return types.SimpleNamespace(remote=lambda *args: process.submit(name, *args))


class Group:
    """A placement group; its bundles are on different nodes, and move off removed nodes."""

    def __init__(self, ray, bundles, strategy):
        self.ray, self.bundles, self.strategy = ray, bundles, strategy
        self.bundle_count = len(bundles)
        self.nodes = [None] * len(bundles)

    def node(self, index):
        if self.nodes[index] is not None and not self.nodes[index].alive:
            self.nodes[index] = None
        if self.nodes[index] is None:
            free = [
                node
                for node in self.ray.alive
                if node not in self.nodes
                and node.cpus >= self.bundles[index]["CPU"]
                and not node.reserved
            ]
            self.nodes[index] = free[0] if free else None
        return self.nodes[index]

    def wait(self, seconds):
        if all(self.node(index) is not None for index in range(self.bundle_count)):
            return True
        self.ray.pass_until(self.ray.time + int(seconds * SECOND))
        return False


class SimulatedRay:
    """The module ``ray``.

    Args:
        nodes: The number of nodes, with one CPU each.

    Attributes:
        nodes_by_age: The nodes.
        start_seconds: The time from the creation of an actor to the start of its process.
        miss_seconds: The time from the removal of a node until Ray notices it.
        fetch_seconds: The transfer time of a requested result to this node.
        processes: All actors so far.
        groups: The placement groups that were not removed.
        keepers: The keepers that were not ended; their actors are not simulated.
        mode: Whether this process is a driver or a worker of Ray.
        requests: The names of the called methods.
        when_called: Functions to call just before a method of this name begins.
    """

    def __init__(self, nodes=2):
        self.time = now()
        self.WORKER_MODE = ray.WORKER_MODE
        self.nodes_by_age = []
        self.start_seconds = 1.0
        self.miss_seconds = 5.0
        self.fetch_seconds = 0.0
        self.processes, self.groups = [], []
        self.keepers = set()
        self.mode = ray.SCRIPT_MODE
        self.requests = []
        self.when_called = {}
        self.later = []  # (time, function)
        self.util = types.SimpleNamespace(get_node_ip_address=lambda: self.node.address)
        self.node = None
        self._stored = {}  # weak references to the arrays in the store
        self._numbers = itertools.count()
        for _ in range(nodes):
            self.add_node()

    # -- nodes and processes ---------------------------------------------------------------------

    def add_node(self, cpus=1):
        node = Node(next(self._numbers), cpus)
        self.nodes_by_age.append(node)
        return node

    @property
    def alive(self):
        return [node for node in self.nodes_by_age if node.alive]

    def remove_node(self, node):
        """Remove a node ungracefully, with its processes."""
        node.alive, node.missed_at = False, self.time + int(self.miss_seconds * SECOND)
        for process in self.processes:
            if process.node is node:
                process.die()

    @property
    def running(self):
        return [process for process in self.processes if process.state != "dead"]

    def process_on(self, node):
        [process] = [one for one in self.running if one.node is node]
        return process

    def kill_process(self, node):
        """Kill the process of the actor on a node, like SIGKILL."""
        self.process_on(node).die()

    def at(self, seconds, function):
        """Call a function after some seconds."""
        self.later.append((self.time + int(seconds * SECOND), function))

    # -- time ------------------------------------------------------------------------------------

    def now(self):
        return self.time

    def monotonic(self):
        return self.time / SECOND

    def deadline(self, timeout, doing="receive"):
        if arguments.deadline(timeout, doing) is None:
            return None
        return self.time + int(min(timeout, arguments.LONGEST) * SECOND)

    def sleep(self, seconds):
        self.pass_until(self.time + int(seconds * SECOND))

    def pass_until(self, until, over=lambda: False):
        """Process events until the time ``until``, or until ``over()`` is true."""
        with untraced():
            while not over():
                events = [(at, function) for at, function in self.later]
                events += [
                    (at, process.step)
                    for process in self.processes
                    if (at := process.next_event()) is not None
                ]
                if not events or min(at for at, _ in events) > until:
                    self.time = max(self.time, until)
                    return
                at, function = min(events, key=lambda event: event[0])
                self.later = [one for one in self.later if one != (at, function)]
                self.time = max(self.time, at)
                function()

    def settle(self):
        """Process all pending events."""
        self.pass_until(self.time + 3600 * SECOND, lambda: not self._busy())

    def _busy(self):
        return self.later or any(one.next_event() is not None for one in self.processes)

    # -- the store -------------------------------------------------------------------------------

    def put(self, value):
        with untraced():
            ref = Ref()
            self.finish(ref, value)
        return ref

    def finish(self, ref, value=None, error=None):
        ref.done, ref.done_at, ref.error = True, self.time, error
        if error is None:
            buffers = []
            ref.data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
            for buffer in buffers:
                array = np.frombuffer(bytes(buffer.raw()), np.uint8)
                self._stored[id(array)] = weakref.ref(array)
                ref.buffers.append(array)

    @property
    def stored_bytes(self):
        """The size of all referenced arrays in the store."""
        gc.collect()
        arrays = [array() for array in self._stored.values()]
        return sum(array.nbytes for array in arrays if array is not None)

    def get(self, ref, timeout=None):
        until = 1 << 62 if timeout is None else self.time + int(timeout * SECOND)
        self._ask([ref])
        self.pass_until(until, lambda: self._here(ref))
        if not self._here(ref):
            raise GetTimeoutError
        if ref.error is not None:
            raise copy.copy(ref.error)  # like Ray: a new exception each time
        with untraced():
            return pickle.loads(ref.data, buffers=ref.buffers)

    def _ask(self, refs):
        for ref in refs:
            if ref.asked_at is None:
                ref.asked_at = self.time

    def _here(self, ref):
        if not ref.done:
            return False
        here_at = max(ref.done_at, ref.asked_at) + int(self.fetch_seconds * SECOND)
        if not ref.buffers or here_at <= self.time:
            return True
        if not any(at == here_at for at, _ in self.later):
            self.later.append((here_at, lambda: None))
        return False

    def wait(self, refs, *, num_returns=1, timeout=None, fetch_local=True):
        if not isinstance(refs, list) or not refs or len(set(refs)) < len(refs):
            raise ValueError("wait() takes a list of different references")
        if not 0 < num_returns <= len(refs):
            raise ValueError("num_returns")
        until = 1 << 62 if timeout is None else self.time + int(timeout * SECOND)
        if fetch_local:
            self._ask(refs)
        is_ready = self._here if fetch_local else lambda ref: ref.done
        self.pass_until(until, lambda: sum(map(is_ready, refs)) >= num_returns)
        ready = [ref for ref in refs if is_ready(ref)][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    # -- actors ----------------------------------------------------------------------------------

    def keeper(self, undo):
        keeper = types.SimpleNamespace(undo=undo, end=lambda: self.keepers.discard(id(keeper)))
        self.keepers.add(id(keeper))
        return keeper

    def is_initialized(self):
        return True

    def nodes(self):
        return [
            {
                "NodeID": node.id,
                "Alive": node.missed_at == 0 or self.time < node.missed_at,
                "Resources": {"CPU": float(node.cpus)},
            }
            for node in self.nodes_by_age
        ]

    def get_runtime_context(self):
        return types.SimpleNamespace(
            worker=types.SimpleNamespace(mode=self.mode),
            get_node_id=lambda: self.node.id,
            get_assigned_resources=lambda: {"CPU": float(self.options["num_cpus"])},
        )

    def available_resources(self):
        return {"CPU": float(sum(node.cpus for node in self.alive if not node.reserved))}

    def remote(self, **groups):
        def decorated(kind):
            checked = ray.remote(**groups)(kind)

            def options(**options):
                checked.options(**options)  # raises for wrong options
                return types.SimpleNamespace(remote=lambda: self._actor(kind, options))

            return types.SimpleNamespace(options=options)

        return decorated

    def _actor(self, kind, options):
        strategy = options["scheduling_strategy"]
        if (group := getattr(strategy, "placement_group", None)) is not None:
            index = strategy.placement_group_bundle_index
            process = Process(self, kind, lambda: group.node(index), moves=True)
        else:
            [node] = [node for node in self.nodes_by_age if node.id == strategy.node_id]
            process = Process(self, kind, lambda: node, moves=False)
        process.options = options
        self.processes.append(process)
        return Handle(process)

    def kill(self, handle):
        handle._process.die()

    def placement_group(self, bundles, strategy="PACK", name=""):
        group = Group(self, bundles, strategy)
        self.groups.append(group)
        return group

    def remove_placement_group(self, group):
        if group in self.groups:
            self.groups.remove(group)


@contextlib.contextmanager
def untraced():
    """Run code that stands for another process, without the signals of ``interrupts``."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


@contextlib.contextmanager
def installed(simulated, monkeypatch):
    """Replace Ray with a simulated one; assert that nothing of it is left at the end."""
    replaced = {
        "ray": simulated,
        "now": simulated.now,
        "time": simulated,
        "arguments": types.SimpleNamespace(**{**vars(arguments), "deadline": simulated.deadline}),
        "Keeper": simulated.keeper,
        "placement_group": simulated.placement_group,
        "remove_placement_group": simulated.remove_placement_group,
    }
    with monkeypatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("pysampler.ray."):
                for attribute in vars(module).keys() & replaced.keys():
                    patch.setattr(module, attribute, replaced[attribute])
        yield simulated
        if simulated.running:
            gc.collect()  # handles in cycles
        assert simulated.running == [], "processes are left"
        assert simulated.groups == [], "placement groups are left"
        assert simulated.keepers == set(), "keepers are left"
