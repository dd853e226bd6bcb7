"""Fault campaign: random pools of random envs meet random faults; violations are counted.

    python tests/faults/campaign.py --seconds 600 --out benchmarks/results

The seed of a case decides its pool, its envs, their faults, and the times of kills. A case ends
when its steps are done or its pool has ended; one without progress is a hang.
"""

import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import psutil
from gymnasium import spaces

import pysampler
from pysampler.envs import BatchEnv
from pysampler.envs.mujoco import Task
from pysampler.errors import EnvError, EnvTimeoutError, PysamplerError, WorkerLostError
from pysampler.sync import now

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns

MARK = "PYSAMPLER_CAMPAIGN"
HANG = 60.0  # seconds without a step that count as a hang
LONG = 20.0  # seconds after which a case stops early: workers that hang or are spawned are slow
NUMBER, STEPS, EPISODE = range(3)  # the columns of an observation

FAULTS = [
    *("raise", "exit", "os._exit", "segfault", "kill", "out of memory", "hang", "hang in C"),
    *("close fds", "fork", "print", "shape", "reset raises", "reset exits"),
]
DEADLY = {"os._exit", "segfault", "kill", "reset exits"}
LASTING = {"hang", "hang in C"}


class Faulty(gym.Env):
    """Observes (number, steps, episode); fails at random."""

    observation_space = spaces.Box(-1, 2.0**40, (3,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, number, seed, faults, rate):
        self.number, self.faults, self.rate = number, faults, rate
        self.dice = random.Random(seed)
        self.steps = self.episode = 0
        self.plan = [False]

    def _observe(self):
        return np.array([self.number, self.steps, self.episode], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.dice.seed(seed)
        if "reset raises" in self.faults and self.dice.random() < self.rate:
            raise RuntimeError("reset raises")
        if "reset exits" in self.faults and self.dice.random() < self.rate:
            os._exit(4)
        self.steps = 0
        self.episode = self.dice.randrange(1 << 30)
        return self._observe(), {"number": self.number}

    def step(self, action):
        self.steps += 1
        observation, info = self._observe(), {"steps": self.steps, "text": "x"}
        if self.faults and self.dice.random() < self.rate:
            fault = self.dice.choice(self.faults)
            if fault == "raise":
                raise ValueError("told to raise")
            if fault == "exit":
                raise SystemExit(3)
            if fault == "os._exit":
                os._exit(7)
            if fault == "segfault":
                faulthandler.disable()
                ctypes.string_at(0)
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "out of memory":
                used = psutil.Process().memory_info().vms
                limit = resource.getrlimit(resource.RLIMIT_AS)
                resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), limit[1]))
                try:
                    bytearray(1 << 30)
                finally:
                    resource.setrlimit(resource.RLIMIT_AS, limit)
            if fault == "hang":
                threading.Event().wait()
            if fault == "hang in C":
                ctypes.PyDLL(None).pause()
            if fault == "close fds":
                os.closerange(3, 100)
            if fault == "fork":  # survives the env, and must end with the worker
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            if fault == "print":
                print("x" * (1 << 20), flush=True)
            if fault == "shape":
                observation = np.zeros(self.dice.randrange(4, 9))
        ended = self.steps >= 20 and self.dice.random() < 0.1
        return observation, float(self.steps), ended, False, info


class Simulated(Task):
    """A MuJoCo task with the observations of ``Faulty``; its envs are simulated together."""

    MODEL = """<mujoco><worldbody><body><joint name="j"/><geom size="0.1"/></body></worldbody>
        <actuator><motor joint="j" ctrlrange="-1 1"/></actuator></mujoco>"""

    def __init__(self):
        super().__init__(mujoco.MjModel.from_xml_string(self.MODEL))

    def allocate(self):
        self.shown = np.zeros((self.count, 3))

    def set_tasks(self, ids, tasks):
        self.shown[ids, NUMBER] = tasks

    def observe(self, d):
        return self.shown[d.ids]

    def reward(self, d, before, action):
        self.shown[d.ids, STEPS] += 1
        steps = self.shown[d.ids, STEPS]
        return steps, {"steps": steps.copy()}

    def terminated(self, d):
        steps, episode = self.shown[d.ids, STEPS], self.shown[d.ids, EPISODE]
        return steps >= 20 + episode % 9

    def reset(self, rngs, ids):
        self.shown[ids, STEPS] = 0
        self.shown[ids, EPISODE] = [rng.integers(1 << 30) for rng in rngs]
        return np.zeros((len(ids), 1)), np.zeros((len(ids), 1))


class Batched(BatchEnv):
    """The same as arrays."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.shown = self.rows((3,))

    def set_options(self, ids, options):
        self.shown[ids, NUMBER] = [one["task"] for one in options]

    def observe(self, ids):
        return self.shown[ids]

    def step(self, ids, actions):
        self.shown[ids, STEPS] += 1
        steps, episode = self.shown[ids, STEPS], self.shown[ids, EPISODE]
        return steps, steps >= 20 + episode % 9, {"steps": steps.copy()}

    def reset(self, ids, rngs):
        self.shown[ids, STEPS] = 0
        self.shown[ids, EPISODE] = [rng.integers(1 << 30) for rng in rngs]

    def render(self):
        return None


@dataclass
class Report(campaigns.Report):
    steps: int = 0
    ended: Counter = field(default_factory=Counter)  # cases, by their ends
    faults: Counter = field(default_factory=Counter)
    kills: int = 0
    restarts: int = 0
    notices_ms: list = field(default_factory=list)


class Case:
    method = "_observe"  # of the envs

    def __init__(self, seed, report):
        self.seed, self.report = seed, report
        self.dice = dice = random.Random(seed)
        self.workers = dice.randint(1, 3)
        self.count = dice.randint(self.workers, 3 * self.workers)
        self.groups = dice.randint(1, 3)
        faults = dice.sample(FAULTS, dice.randint(0, 4))
        self.hangs = bool(LASTING & set(faults))
        self.mode = dice.choice(["NextStep", "SameStep", "Disabled"])
        self.asynchronous = dice.random() < 0.5
        self.restart = dice.random() < 0.7
        self.kind = dice.choice(["forkserver"] * 6 + ["fork", "spawn"])
        self.steps = dice.choice([20, 100, 400])
        self.rate = dice.choice([0.001, 0.01, 0.05])
        self.kills = dice.choice([0, 0, 1, 3])
        self.kill_fork_server = dice.random() < 0.05 and self.kind == "forkserver"
        self.faults = faults
        self.killed: dict[int, int] = {}
        self.envs = None
        self.began = time.monotonic()
        self.done = threading.Event()

    def options(self):
        return {
            "num_workers": self.workers,
            "groups": self.groups,
            "autoreset_mode": self.mode,
            "context": self.kind,
            "copy": self.dice.random() < 0.5,
            "infos": self.dice.choice(["all", "final", "none"]),
            "on_worker_loss": "restart" if self.restart else "raise",
            "max_restarts": 19 if self.dice.random() < 0.8 else 2,
        }

    def make(self):
        faulty = self.dice.randrange(self.count + 1)  # the number of faulty envs
        fns = [
            functools.partial(
                Faulty, i, self.seed + i, self.faults if i < faulty else [], self.rate
            )
            for i in range(self.count)
        ]
        return pysampler.VectorEnv(
            fns,
            **self.options(),
            step_timeout=0.3 if self.hangs else None,
            on_hang="restart" if self.restart and self.hangs else "raise",
        )

    def run(self):
        killer = threading.Thread(target=self.kill_some, daemon=True)
        killer.start()
        try:
            self.envs = self.make()
            self.sample()
            self.envs.close()
            how = "closed"
        except (WorkerLostError, EnvTimeoutError, EnvError) as error:
            how = type(error).__name__.split("[")[0]
        except PysamplerError:
            how = "something else"
            self.expect(not how, traceback.format_exc())
        finally:
            self.done.set()
            killer.join()
            if self.envs is not None and not self.envs.closed:
                self.envs.close(terminate=True)
        self.report.ended[how] += 1

    def sample(self):
        self.last = [None] * self.count  # by env: last observed (steps, episode)
        self.reset()
        for _ in range(self.steps):
            if not self.goes_on():
                break
            if not self.attempt(self.some if self.asynchronous else self.all):
                self.reset()
        if self.dice.random() < 0.3:
            self.reset()
            with contextlib.suppress(EnvError):
                self.envs.call(self.method)
        self.count_losses()

    def attempt(self, call):
        """Return whether a call lost no env; raise if the loss of a worker closed the envs."""
        try:
            call()
        except WorkerLostError:
            if self.envs.closed:
                raise
        except EnvError as error:
            self.saw_error(error)
        else:
            return True
        return False

    def idle(self, count):
        return np.zeros(count, np.int64)

    def goes_on(self):
        """Reset the watchdog; return whether the case continues."""
        faulthandler.dump_traceback_later(HANG, exit=True)
        return time.monotonic() < self.began + LONG

    def count_losses(self):
        links = getattr(self.envs._pool, "_links", None)
        if links is None or links.watch.closed:
            return
        for loss in links.watch.losses:
            if loss.pid in self.killed:
                self.report.notices_ms.append((loss.noticed_at - self.killed.pop(loss.pid)) / 1e6)
        self.report.restarts += int(self.envs.stats().losses.sum())

    def saw_error(self, error):
        kind = next((f for f in ("told to raise", "reset raises") if f in str(error)), "")
        self.report.faults[kind or type(error.__cause__).__name__] += 1

    def reset(self):
        """Retry until all envs are reset; some may raise."""
        while not self.attempt(self.reset_once):
            pass

    def reset_once(self):
        while self.envs.pending:
            with contextlib.suppress(EnvError):
                self.envs.recv()
        observations, _ = self.envs.reset(seed=self.dice.randrange(1 << 30))
        for env, (number, steps, episode) in enumerate(observations):
            self.expect(number == env and steps == 0, f"reset of env {env}: {number} {steps}")
            self.saw_reset(env, episode)

    def all(self):
        results = self.envs.step(self.idle(self.count))
        self.look(range(self.count), results)
        if self.mode == "Disabled" and (over := results[2] | results[3]).any():
            observations, infos = self.envs.reset(options={"reset_mask": over})
            new = over | infos.get("worker_lost", np.zeros(self.count, np.bool_))
            for env in np.flatnonzero(new):
                self.saw_reset(env, observations[env][EPISODE])

    def saw_reset(self, env, episode):
        self.last[env], self.over[env] = (0, episode), False

    def some(self):
        envs = self.envs
        if not envs.pending:
            envs.send(self.idle(self.count))
        least = self.dice.choice([None, 1, self.count // 2])
        results = envs.recv(min_envs=least, timeout=self.dice.choice([None, 0.001, 0.1]))
        ids = results[4]["env_id"]
        self.look(ids, results)
        if len(ids) == 0:
            return
        if self.mode == "Disabled" and (results[2] | results[3]).any():
            envs.async_reset(env_ids=ids)
            for env in ids:
                self.last[env] = None
        else:
            envs.send(self.idle(len(ids)), ids)

    def look(self, ids, results):
        """Check that no step was lost or repeated, except those of lost workers."""
        observations, rewards, terminated, truncated, infos = results
        lost = infos.get("worker_lost", np.zeros(len(ids), np.bool_))
        self.report.steps += len(ids)
        for at, env in enumerate(ids):
            number, steps, episode = observations[at]
            self.expect(number == env, f"env {env} shows the observation of {number}")
            if self.last[env] is None:  # a reset
                self.expect(steps == 0, f"env {env} was reset and shows step {steps}")
            elif lost[at]:
                if self.mode != "SameStep":
                    self.expect((steps, episode) == self.last[env], f"env {env} lost: last seen")
            elif self.mode == "NextStep" and self.over[env]:
                self.expect(steps == 0 and rewards[at] == 0, f"env {env} was not reset")
            elif self.mode == "SameStep" and terminated[at]:
                self.expect(steps == 0, f"env {env} was not reset in the same step")
            else:
                expected = self.last[env][0] + 1, self.last[env][1]
                self.expect((steps, episode) == expected, f"env {env}: {steps}, not {expected}")
            self.last[env] = steps, episode
            self.over[env] = terminated[at] or truncated[at]

    @functools.cached_property
    def over(self):
        return [False] * self.count

    def expect(self, true, what):
        if not true:
            self.report.wrong.append((self.seed, what))

    def kill_some(self):
        """Kill workers or the fork server at random times."""
        dice = random.Random(self.seed + 1)
        for _ in range(self.kills):
            if self.done.wait(dice.expovariate(1 / 0.1)):
                return
            if self.kill_fork_server and dice.random() < 0.5:
                for child in psutil.Process().children():
                    with contextlib.suppress(psutil.Error):
                        if "pysampler._workers.fork_server" in " ".join(child.cmdline()):
                            child.kill()
                            self.report.kills += 1
                continue
            mine = psutil.Process().children(recursive=True)
            workers = [c for c in mine if campaigns.is_worker(c)]
            if workers:
                victim = dice.choice(workers)
                with contextlib.suppress(psutil.Error):
                    self.killed[victim.pid] = now()
                    victim.kill()
                    self.report.kills += 1


class SimulatedCase(Case):
    """A case with native envs, whose workers are killed."""

    method = "render"

    def __init__(self, seed, report):
        super().__init__(seed, report)
        self.hangs, self.faults = False, []
        self.kills = self.dice.choice([0, 1, 3])

    of = Simulated, {"native": True}

    def make(self):
        kind, extra = self.of
        envs = pysampler.make_vec(kind, self.count, vector_kwargs={**extra, **self.options()})
        envs.set_options(None, [{"task": env} for env in range(self.count)])
        return envs

    def idle(self, count):
        return np.zeros((count, 1), np.float32)


class BatchedCase(SimulatedCase):
    """A case with a BatchEnv in each group of a worker."""

    of = Batched, {}


class Weighted:
    """Reports the weights it acts by; raises if they mix two versions."""

    def __init__(self):
        self.weights = {"a": np.zeros(3000), "b": np.zeros(3000)}

    def state_dict(self):
        return self.weights

    def load_state_dict(self, weights):
        self.weights = {name: value.copy() for name, value in weights.items()}

    def __call__(self, observations):
        a, b = self.weights["a"], self.weights["b"]
        if (a != a[0]).any() or (b != a[0]).any():
            raise AssertionError("torn weights")
        count = len(observations)
        return np.zeros(count, np.int64), {"weight": np.full(count, a[0])}


class LearnerError(Exception):
    pass


class ActorCase(Case):
    """Actors with a learner that may be slow or fail, sometimes in phases or with a Watcher."""

    def __init__(self, seed, report):
        super().__init__(seed, report)
        dice = self.dice
        self.length = dice.choice([None, None, 1, 5])
        self.high = dice.choice([8, 64, 256])
        self.phases = dice.random() < 0.4
        self.watched = dice.random() < 0.3
        self.learner_fails = dice.random() < 0.1

    def sample(self):
        self.before = {}  # by env: its last record's number, and next observation
        self.actors = pysampler.Actors(
            *(self.envs, Weighted()),
            steps=self.length,
            seed=self.seed,
            refresh_share=1,
            **({} if self.phases else {"high": self.high}),
        )
        with contextlib.suppress(LearnerError), self.actors, contextlib.ExitStack() as stack:
            if self.watched:
                fn = functools.partial(Faulty, 99, self.seed, self.faults, self.rate)
                self.watcher = stack.enter_context(pysampler.Watcher(self.actors, fn))
            self.learn()
        self.count_losses()

    def batches(self):
        if not self.phases:
            yield from self.actors.batches(self.dice.choice([1, 16, 1000]), min_records=1)
            return
        for phase in self.actors.phases(self.high, self.dice.choice([0, 7])):
            yield from phase.batches(16)

    def learn(self):
        taken, version = 0, 1
        for records in self.batches():
            weights = records.weight.reshape(len(records), -1).T
            self.expect((weights == records.version - 1).all(), "weights of another version")
            for row in records.rows:
                self.look_at(row)
            taken += len(records) * (self.length or 1)
            self.report.steps += len(records) * (self.length or 1)
            if self.goes_on() and taken < self.steps * self.count:
                values = np.full(3000, float(version))
                version = self.actors.publish({"a": values, "b": values})
                if self.watched and not self.watcher.closed:
                    self.watcher.curve  # noqa: B018
            elif not self.actors.stopped:
                self.actors.stop()
            if self.learner_fails and taken > self.steps:
                raise LearnerError

    def look_at(self, row):
        """Check that a record continues the last one, or begins an episode after a loss."""
        env = int(row["env"])
        seen, came = row["observations"].reshape(-1, 3), row["next_observations"].reshape(-1, 3)
        over = (row["terminated"] | row["truncated"]).reshape(-1)
        lengths = row["lengths"].reshape(-1)
        number, expected = self.before.get(env, (-1, None))
        self.expect(int(row["number"]) > number, f"env {env}: record {row['number']} comes again")
        # A loss that closes the envs, perhaps after others, leaves records to take.
        fatal = self.envs._pool.fatal_loss is not None
        replaced = fatal or (not self.envs.closed and self.envs.stats().losses.any())
        begins = lengths[0] == 1 and replaced
        if int(row["number"]) != number + 1 or begins:
            expected = None
        for t in range(len(seen)):
            if expected is None:
                self.expect(seen[t][STEPS] == 0, f"env {env}: an episode begins at {seen[t]}")
            else:
                self.expect((seen[t] == expected).all(), f"env {env}: {seen[t]}, not {expected}")
            then = seen[t] + (0, 1, 0)
            self.expect(seen[t][NUMBER] == env, f"env {env} shows {seen[t]}")
            self.expect((came[t] == then).all(), f"env {env}: {came[t]} after {seen[t]}")
            self.expect(lengths[t] == came[t][STEPS], f"env {env}: length {lengths[t]}")
            expected = None if over[t] else came[t].copy()
        self.before[env] = int(row["number"]), expected


KINDS = [ActorCase, ActorCase, Case, Case, Case, SimulatedCase, BatchedCase]


def mappings():
    return Path("/proc/self/maps").read_text().count("memfd:pysampler")


def left_over():
    """Return the processes of this campaign except this one and the fork server."""
    return campaigns.marked(MARK, but="pysampler._workers.fork_server")


def nothing():
    """Make sure that a fork server runs."""
    pysampler.VectorEnv([functools.partial(Faulty, 0, 0, [], 0)]).close()


def campaign(args):
    """Run cases until the time is over; a hang ends the process."""
    os.environ[MARK] = str(os.getpid())
    report = Report()
    nothing()
    gc.collect()
    me = psutil.Process()
    fds, maps = me.num_fds(), mappings()
    for seed in campaigns.seeds(args, step=1001, hang=HANG):
        print(f"case {seed}", file=sys.stderr, flush=True)
        case = KINDS[seed % len(KINDS)](seed, report)
        case.run()
        # Subprocesses of envs end with their workers if the fork server lives.
        if case.kill_fork_server:  # a dead one is reaped when another is needed
            nothing()
        adopted = case.kind == "forkserver" and not case.kill_fork_server
        del case
        gc.collect()
        faulthandler.cancel_dump_traceback_later()
        report.cases += 1
        # Killed processes take a while to disappear.
        left = campaigns.left_after(left_over, 20 if adopted else 0)
        left = [p for p in left if adopted or campaigns.is_worker(p)]
        if left:
            report.wrong.append((seed, f"processes left: {left}"))
        for process in left_over():
            with contextlib.suppress(psutil.Error):
                process.kill()
        zombies = [c for c in me.children() if c.status() == psutil.STATUS_ZOMBIE]
        if zombies:
            report.wrong.append((seed, f"zombies: {zombies}"))
        if me.num_fds() > fds:
            report.wrong.append((seed, f"{me.num_fds()} fds, {fds} before"))
            fds = me.num_fds()
        if mappings() > maps:
            report.wrong.append((seed, f"{mappings()} mappings, {maps} before"))
            maps = mappings()
    return report


def table(report):
    notices = sorted(report.notices_ms) or [0.0]
    quantile = lambda share: notices[min(int(share * len(notices)), len(notices) - 1)]  # noqa: E731
    rows = [
        ("cases", f"{report.cases:,}"),
        ("steps of envs looked at", f"{report.steps:,}"),
        ("how they ended", ", ".join(f"{k} {v}" for k, v in report.ended.most_common())),
        ("errors of envs", ", ".join(f"{k} {v}" for k, v in report.faults.most_common())),
        ("kills from outside", f"{report.kills:,}"),
        ("workers replaced", f"{report.restarts:,}"),
        ("hangs", "0"),
        ("lost or doubled steps of the others, leaks", str(len(report.wrong))),
        (
            "from kill to notice, ms, p50 / p99 / max",
            f"{quantile(0.5):.2f} / {quantile(0.99):.2f} / {notices[-1]:.2f}",
        ),
    ]
    return campaigns.table(rows)


def main():
    args = campaigns.parser(__doc__, 600).parse_args()
    warnings.simplefilter("ignore")
    report = campaign(args)
    # Envs print to stdout.
    return campaigns.finish(args, "faults", "Faults", table(report), report, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
