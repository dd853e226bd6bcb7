"""Fault campaign for hosts of samplers on Ray; violations are counted.

    python tests/faults/hosts.py --faults 100 --out benchmarks/results

Rollouts and actors run on the same three nodes of a cluster on this machine. A node is removed
ungracefully and replaced; a host or its worker is killed or stopped. After each fault the hosts
that it hit must come back, and all others must continue without a gap, with the arrays that
deterministic envs make. One seed decides the faults and their order.
"""

import contextlib
import faulthandler
import gc
import logging
import random
import signal
import statistics
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import campaigns
from hosts_in_tests import MARK, HasWeights, cluster_of, orphans_of_hosts, processes_of_hosts

import pysampler.ray
from pysampler.errors import PysamplerError

NODES, ENVS, HORIZON, WIDTH = 3, 2, 20, 2000
HANG = 240.0  # seconds per fault, after which the process ends with a traceback
BACK = 90.0  # seconds within which the hosts that a fault hit must be back
ENDED = 30.0  # seconds within which processes left behind must end
STOPPED = 10.0  # host_timeout: seconds without an answer after which a host is killed

# Nodes are removed in each phase of their hosts' work; other faults come at any time.
PHASES = ["making", "sampling", "publishing", "returning"]
KINDS = [
    *(f"node removed while {phase}" for phase in PHASES),
    *("host killed", "host stopped", "worker killed", "worker stopped"),
]


class Numbered(gym.Env):
    """Observes its seed, the steps of its life, and values computed from both."""

    observation_space = spaces.Box(-1, 2.0**62, (WIDTH,), np.float64)
    action_space = spaces.Discrete(1000)

    def __init__(self):
        self.number, self.life = -1, 0
        time.sleep(0.1)  # slow, so that faults hit the making of envs

    def _observe(self):
        return observed(np.array([self.number, self.life], np.float64))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.number if seed is None else seed
        return self._observe(), {}

    def step(self, action):
        time.sleep(0.005)  # leaves the CPU to others
        self.life += 1
        return self._observe(), float(self.life), self.life % 33 == 0, False, {}


def observed(known):
    """Return the observations of envs with these (number, life)."""
    number, life = known[..., :1] % 2**20, known[..., 1:2]
    return np.concatenate([known, number * 1e6 + life + np.arange(WIDTH - 2)], axis=-1)


class Versioned(HasWeights):
    """A policy whose weights are all one number, which it reports."""

    def __init__(self):
        super().__init__(w=np.zeros(100_000))

    def __call__(self, observations):
        w = self.weights["w"]
        if (w != w[0]).any():
            raise AssertionError("torn weights")
        actions = ((observations[:, 1] + w[0]) % 1000).astype(np.int64)
        return actions, {"w": np.full(len(observations), w[0])}


@dataclass
class Report:
    """Counts of a campaign."""

    faults: Counter = field(default_factory=Counter)
    hosts_lost: int = 0
    rollouts: int = 0
    records: int = 0
    steps: int = 0
    hangs: int = 0
    lost_of_others: int = 0
    left_behind: list = field(default_factory=list)
    back_after: dict = field(default_factory=lambda: defaultdict(list))  # seconds by kind
    wrong: list = field(default_factory=list)  # violations

    def expect(self, true, what):
        if not true:
            self.wrong.append(what)

    def lose(self, count, what):
        self.lost_of_others += count
        self.wrong.append(what)


class RolloutsUnderTest:
    """Rollouts whose arrays are checked."""

    name = "rollouts"

    def __init__(self, report, seed):
        self.report, self.policy = report, Versioned()
        self.last = {}  # by host: restarts, number, last (number, life) of its envs
        self.hit = set()  # hosts hit by a fault, until they are back
        self.sampler = pysampler.ray.Rollouts(
            *(Numbered, self.policy, HORIZON), seed=seed, in_flight=2, **options()
        )

    def publish(self):
        """Change the weights; the next ``take`` sends them."""
        self.policy.weights["w"] += 1

    def take(self):
        for one in self.sampler.take(timeout=0.3):
            self.check(one)

    def check(self, one):
        report = self.report
        report.rollouts += 1
        report.steps += HORIZON * ENVS
        known = one.observations[..., :2]
        steps, weights, host = known[..., 1], one.extras["w"], one.host
        actions = (steps[:-1] + one.version - 1) % 1000
        expect = report.expect
        expect((one.observations == observed(known)).all(), f"observations of host {host}")
        expect((np.diff(steps, axis=0) == 1).all(), f"steps of host {host}: {steps.tolist()}")
        expect((one.rewards == steps[1:]).all(), f"rewards of host {host}")
        versions = f"weights of host {host}: {weights[0]}, version {one.version}"
        expect((weights == one.version - 1).all(), versions)
        expect((one.actions == actions).all(), f"actions of host {host}")
        restarts, number, before = self.last.get(host, (-1, -1, None))
        if one.restarts > restarts:
            if restarts >= 0 and host not in self.hit:
                report.lose(1, f"host {host} of the rollouts was started again, not hit")
            expect((steps[0] == 0).all(), f"new envs of host {host} begin at {steps[0]}")
        elif one.number != number + 1 or (known[0] != before).any():
            missed = one.number - number - 1
            report.lose(missed, f"rollout {one.number} of host {host} after {number}")
        self.last[host] = one.restarts, one.number, known[-1].copy()


class ActorsUnderTest:
    """Actors whose records are checked."""

    name = "actors"

    def __init__(self, report, seed):
        self.report, self.policy = report, Versioned()
        self.last = {}  # of each env: the number of its last record
        self.first = {}  # of each env: the number of the first record of its host's process
        self.hit = set()
        self.sampler = pysampler.ray.Actors(
            *(Numbered, self.policy), seed=seed, high=64, send_every=0.1, **options()
        )

    def publish(self):
        self.policy.weights["w"] += 1
        self.sampler.publish()

    def take(self):
        records = self.sampler.take(200, timeout=0.2, min_records=200)
        if records is None:
            self.report.wrong.append("the actors have ended")
            return
        known, came = records.observations[:, :2], records.next_observations[:, :2]
        expect = self.report.expect
        expect((records.observations == observed(known)).all(), "observations of records")
        following = observed(came)
        expect((records.next_observations == following).all(), "next observations of records")
        expect((came - known == (0, 1)).all(), "steps of records")
        expect((records.w == records.version - 1).all(), "weights of records of another version")
        expect((records.host == records.env // ENVS).all(), "hosts of records")
        for env, number, life in zip(
            records.env.tolist(), records.number.tolist(), known[:, 1].tolist(), strict=True
        ):
            self.check(env, number, life)
        self.report.records += len(records)
        self.report.steps += len(records)

    def check(self, env, number, life):
        host, before = env // ENVS, self.last.get(env, -1)
        if life == 0 and before >= 0:  # the host has restarted: numbers go on, after a gap
            if host not in self.hit:
                self.report.lose(1, f"env {env} of the actors begins anew, not hit")
            self.report.expect(number > before + 1, f"record {number} of env {env} after {before}")
            self.first[env] = number
        elif number != before + 1:
            missed = max(0, number - before - 1)
            self.report.lose(missed, f"record {number} of env {env} after {before}")
        made = number - self.first.get(env, 0)
        self.report.expect(life == made, f"record {number} of env {env} is of step {life}")
        self.last[env] = number


def options():
    return {
        "hosts": NODES,
        "num_envs": ENVS,
        "cpus_per_host": 1,
        "vector_kwargs": {"num_workers": 1},
        "on_host_loss": "restart",
        "max_restarts": 1_000_000,
        "host_timeout": STOPPED,
        "start_timeout": 120.0,
    }


class Campaign:
    """Injects faults, one after another, into a cluster that runs both samplers."""

    def __init__(self, cluster, seed, report):
        self.cluster, self.report = cluster, report
        self.dice = random.Random(seed)
        self.both = [RolloutsUnderTest(report, seed), ActorsUnderTest(report, seed + 1000)]
        self.deck = []

    def close(self):
        for one in self.both:
            one.sampler.close()

    # -- normal work -----------------------------------------------------------------------------

    def work(self, rounds=1):
        """Take from both samplers, and sometimes publish."""
        for _ in range(rounds):
            for one in self.both:
                if self.dice.random() < 0.3:
                    one.publish()
                one.take()

    def work_until(self, so, seconds):
        """Work until ``so()`` is true; return whether it became true in time."""
        end = time.monotonic() + seconds
        while not so():
            if time.monotonic() > end:
                return False
            self.work()
        return True

    # -- faults ----------------------------------------------------------------------------------

    def fault(self):
        """Inject the next fault, and wait until all hosts serve again."""
        if not self.deck:
            self.deck = self.dice.sample(KINDS, len(KINDS))
        kind = self.deck.pop()
        faulthandler.dump_traceback_later(HANG, exit=True)
        self.work(self.dice.randint(3, 8))
        before = self.state()
        self.report.faults[kind] += 1
        began = time.monotonic()
        if kind.startswith("node"):
            hit = self.remove_node(kind.rpartition(" ")[2])
        else:
            hit = self.hit_host(*kind.split())
        back = self.work_until(lambda: self.are_back(hit, before), BACK)
        seconds = time.monotonic() - began
        if back:
            self.report.back_after[kind].append(round(seconds, 2))
        else:
            self.report.hangs += 1
            self.report.wrong.append(f"{kind}: not back: {[o.sampler.stats() for o in self.both]}")
        print(f"{kind}: {'back' if back else 'NOT BACK'} after {seconds:.1f} s", file=sys.stderr)
        self.work(4)
        for one in self.both:
            one.hit.clear()
        self.look_for_orphans()
        faulthandler.cancel_dump_traceback_later()

    def state(self):
        return [[host.restarts for host in one.sampler.stats().hosts] for one in self.both]

    def are_back(self, hit, before):
        """Return whether all hosts serve, and those that were hit have restarted."""
        for one, hosts, restarts in zip(self.both, hit, before, strict=True):
            stats = one.sampler.stats().hosts
            if not all(host.serves for host in stats):
                return False
            if not all(stats[host].restarts > restarts[host] for host in hosts):
                return False
        return True

    def marked(self, hit):
        """Note the hosts that a fault hits; all others must not notice it."""
        for one, hosts in zip(self.both, hit, strict=True):
            one.hit.update(hosts)
        return hit

    def hosts_on(self, node):
        """Return the hosts of both samplers that are on a node."""
        return [
            [
                host.host
                for host in one.sampler.stats().hosts
                if f"({node.node_id[:8]})" in host.node
            ]
            for one in self.both
        ]

    def remove_node(self, phase):
        """Remove a node ungracefully, and add another; return the hosts that were on it."""
        node = self.dice.choice(list(self.cluster.worker_nodes))
        hit = self.marked(self.hosts_on(node))
        if phase == "making":  # its hosts restart on it, and are not done when it goes
            for process in self.processes(hit):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self.work_until(lambda: not any(host.serves for host in self.stats_of(hit)), 30)
            time.sleep(self.dice.uniform(0, 2))  # a random moment of the restart
            self.remove(node)
        elif phase == "sampling":
            self.work()
            self.remove(node)
        elif phase == "publishing":
            removing = threading.Timer(self.dice.uniform(0, 0.05), self.remove, [node])
            removing.start()
            for one in self.both:
                one.publish()
                one.take()
            removing.join()
        else:  # answers lie on that node, or are in transfer from it
            time.sleep(0.3)  # answers arrive that the learner does not take
            removing = threading.Timer(self.dice.choice([0, 0, 0.002, 0.01]), self.remove, [node])
            removing.start()
            self.work()
            removing.join()
        self.cluster.node()
        return hit

    def remove(self, node):
        self.cluster.remove_node(node, allow_graceful=False)

    def stats_of(self, hit):
        """Return the stats of the hosts that a fault hits."""
        return [
            one.sampler.stats().hosts[host]
            for one, hosts in zip(self.both, hit, strict=True)
            for host in hosts
        ]

    def processes(self, hit):
        return [psutil.Process(host.pid) for host in self.stats_of(hit)]

    def hit_host(self, what, how):
        """Kill or stop a host of one sampler, or its worker; return which was hit."""
        which, host = self.dice.randrange(2), self.dice.randrange(NODES)
        hit = [[host] if index == which else [] for index in range(2)]
        [process] = self.processes(hit)
        if what == "worker":
            [process] = filter(campaigns.is_worker, process.children(recursive=True))
        time.sleep(self.dice.uniform(0, 0.1))  # a random moment of a call
        if (what, how) == ("worker", "stopped") and self.both[which].name == "actors":
            return self.pause(process)
        self.marked(hit)
        process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        return hit

    def pause(self, worker):
        """Stop a worker of actors for a while; its host still answers, but without records."""
        worker.suspend()
        self.work_until(lambda: False, self.dice.uniform(1, 5))
        before = dict(self.both[1].last)
        worker.resume()
        if not self.work_until(
            lambda: all(self.both[1].last[env] > number for env, number in before.items()), BACK
        ):
            self.report.wrong.append(f"no records of all envs after {before}")
        return [[], []]

    def look_for_orphans(self):
        """Report processes that ended hosts left behind."""
        end = time.monotonic() + ENDED
        while orphans := orphans_of_hosts():
            if time.monotonic() > end:
                self.report.left_behind += [describe(one) for one in orphans]
                for process in orphans:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                return
            self.work()


def describe(process):
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:80]}"
    return f"{process.pid}"


def shared_files():
    return set(map(str, Path("/dev/shm").iterdir()))


def campaign(args):
    """Inject a number of faults, or as many as fit the time."""
    report = Report()
    files = shared_files()
    faulthandler.dump_traceback_later(HANG, exit=True)
    end = time.monotonic() + args.seconds
    with cluster_of(NODES, cpus=2) as cluster:
        running = Campaign(cluster, args.seed, report)
        try:
            for _ in range(args.faults):
                if time.monotonic() > end:
                    break
                running.fault()
        except PysamplerError:
            report.wrong.append(traceback.format_exc())
        faulthandler.dump_traceback_later(HANG, exit=True)
        report.hosts_lost = sum(one.sampler.stats().lost for one in running.both)
        running.close()
        del running
        gc.collect()
        left = campaigns.left_after(processes_of_hosts, ENDED)
        report.left_behind += [describe(one) for one in left]
    # All processes of the cluster, including Ray's.
    left = campaigns.left_after(lambda: campaigns.marked(MARK), ENDED)
    report.left_behind += [describe(one) for one in left]
    report.left_behind += sorted(shared_files() - files)
    faulthandler.cancel_dump_traceback_later()
    return report


def table(report):
    def seconds(kind):
        times = report.back_after[kind]
        return f"{statistics.median(times):.1f} / {max(times):.1f}" if times else "-"

    rows = [
        ("faults", f"{sum(report.faults.values()):,}"),
        ("hosts lost", f"{report.hosts_lost:,}"),
        ("rollouts looked at", f"{report.rollouts:,}"),
        ("records looked at", f"{report.records:,}"),
        ("hangs", f"{report.hangs:,}"),
        ("lost rollouts and records of others", f"{report.lost_of_others:,}"),
        ("left behind: processes, shared memory", f"{len(report.left_behind):,}"),
        ("wrong in any other way", f"{len(report.wrong):,}"),
    ]
    head = "| fault | times | all hosts back after s, p50 / max |"
    times = [(kind, str(report.faults[kind]), seconds(kind)) for kind in KINDS]
    return f"{campaigns.table(rows)}\n{campaigns.table(times, head)}"


def main():
    parser = campaigns.parser(__doc__, 7200, None)
    parser.add_argument("--faults", type=int, default=100)
    args = parser.parse_args()
    logging.getLogger("pysampler.ray").setLevel(logging.ERROR)
    print(f"seed {args.seed}", file=sys.stderr)
    report = campaign(args)
    text = table(report)
    print(text, file=sys.stderr)
    for what in (*report.wrong, *report.left_behind):
        print(f"WRONG: {what}", file=sys.stderr)
    more = f"{NODES} nodes", f"seed {args.seed}"
    record = {"machine": campaigns.MACHINE, "seed": args.seed, **vars(report)}
    campaigns.write(
        args.out, "host-faults", campaigns.headed("Faults of hosts", text, *more), record
    )
    return bool(report.wrong or report.left_behind or report.hangs)


if __name__ == "__main__":
    sys.exit(main())
