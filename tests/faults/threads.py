"""Threads that share primitives, vector envs and samplers, under ThreadSanitizer.

    python tests/faults/threads.py --module build/tsan-module --seconds 600

The folder has a build of the module with PYSAMPLER_SANITIZE=thread. This program runs itself again
with the sanitizer's library preloaded; workers run without it, since the sanitizer sees the threads
of one process only. CPython and NumPy are not instrumented, but it sees their locks, and thus the
order that the GIL gives. The seed of a case decides its objects and the calls of its threads.
Exceptions are only counted: a report of the sanitizer, a crash or a hang is a fault.
"""

import argparse
import contextlib
import faulthandler
import functools
import os
import platform
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import campaigns
from hammers import together

HANG = 120.0  # seconds that a case may take at most
CALLS = 40  # per thread and case
# glibc reuses the memory of an ended thread for another.
SUPPRESSIONS = """\
race:_dl_deallocate_tls
"""


# -- the cases -------------------------------------------------------------------------------------


class Case:
    """Some objects, and threads that use them."""

    def __init__(self, seed, raised):
        self.seed, self.raised = seed, raised
        self.dice = random.Random(seed)
        self.going = 0  # loops with calls left to make

    def run(self):
        kinds = [self.hostile, self.streams, self.vector_env, self.vector_env, self.rollouts]
        self.dice.choice([*kinds, self.actors])()

    def attempt(self, call):
        """Call, and count an exception."""
        try:
            return call()
        except Exception as error:
            self.raised[type(error).__name__] += 1
        return None

    def together(self, *loops):
        """Run each function in a thread, with its own seed.

        Loops of ``calling`` continue until all of them have made their calls.
        """
        self.going = len(loops)
        attempts = [functools.partial(loop, self.dice.random()) for loop in loops]
        together(*(functools.partial(self.attempt, one) for one in attempts))

    def calling(self, *calls, count=CALLS):
        """Return a loop that calls these functions at random."""

        def loop(seed):
            dice, made = random.Random(seed), 0
            while self.going > 0:
                self.attempt(dice.choice(calls))
                made += 1
                if made == count:
                    self.going -= 1

        return loop

    def hostile(self):
        """Primitives with hostile arguments, while threads close them."""
        fuzz_primitives.Case(self.seed, lambda _: None).run()

    def streams(self):
        """Primitives in proper use: each side in its own thread."""
        policy = self.dice.choice([None, sync.WaitPolicy.fixed(spin_ns=0, yield_ns=0)])
        ring, shared = sync.Ring(8, policy=policy), sync.SharedRing(8, producers=2, policy=policy)
        mail, flag = sync.ByteRing(4096, policy=policy), sync.Flag(policy=policy)
        one, picture = np.zeros(()), {"a": np.zeros(100)}
        board, bell = sync.Board(picture, policy=policy), sync.Doorbell(2, policy=policy)
        wait = {"timeout": 0.01}
        handles = [ring, shared, mail, flag, board, bell]
        self.together(
            self.calling(lambda: ring.push(one, **wait), lambda: ring.slots),
            self.calling(lambda: ring.pop(**wait), lambda: len(ring)),
            self.calling(lambda: shared.push(one, **wait)),
            self.calling(lambda: shared.push(one, **wait)),
            self.calling(lambda: shared.pop(**wait)),
            self.calling(lambda: mail.send(bytes(1000), **wait)),
            self.calling(lambda: mail.recv(**wait), lambda: mail.capacity),
            self.calling(flag.set, flag.clear, lambda: flag.stats),
            self.calling(lambda: flag.wait(**wait), flag.is_set),
            self.calling(lambda: board.publish(picture), lambda: board.version),
            self.calling(board.read, lambda: board.wait(1, **wait)),
            self.calling(lambda: bell.post(0), lambda: bell.stats),
            self.calling(lambda: bell.wait(1, **wait), bell.take_ready),
            *([self.calling(*(one.close for one in handles))] if self.dice.random() < 0.3 else []),
        )

    def vector_env(self):
        dice = self.dice
        workers = dice.choice([0, 1, 2])
        kwargs = {
            "num_workers": workers,
            "groups": dice.choice([1, 2]),
            "copy": dice.random() < 0.7,
            "on_worker_loss": dice.choice(["raise", "restart"]) if workers else "raise",
            "wait": dice.choice(["adaptive", "park", "yield"]),
        }
        with pysampler.VectorEnv([fuzz_envs.Honest] * 4, **kwargs) as envs:
            envs.reset(seed=3)
            actions = np.ones(4, np.int64)
            step = self.calling(lambda: envs.step(actions))
            parts = self.calling(lambda: envs.send(actions), lambda: envs.recv(timeout=0.01))
            looks = [envs.stats, lambda: repr(envs), lambda: envs.closed]
            calls = [lambda: list(envs.call("asked")), envs.render, lambda: envs.get_attr("steps")]
            loops = [step, dice.choice([step, parts]), self.calling(*looks)]
            loops.append(self.calling(*calls, envs.reset, count=5))
            if dice.random() < 0.5:
                loops.append(self.calling(lambda: time.sleep(0.01), envs.close, count=3))
            self.together(*loops)

    def rollouts(self):
        dice = self.dice
        kwargs = {
            "policy_in": dice.choice(["main", "workers"]),
            "info_keys": ["steps"],
            "vector_kwargs": {"num_workers": dice.choice([0, 1, 2])},
        }
        policy = fuzz_envs.Policy(0, 0)
        envs = [fuzz_envs.Honest] * 4
        with pysampler.Rollouts(envs, policy, 4, **kwargs) as rollouts:
            self.use(rollouts, lambda: next(rollouts))

    def actors(self):
        policy = fuzz_envs.Policy(0, 0)
        workers = {"num_workers": self.dice.choice([1, 2])}
        with pysampler.Actors([fuzz_envs.Honest] * 4, policy, vector_kwargs=workers) as actors:
            take = self.dice.choice([actors.take, lambda n: actors.take(n, min_records=1)])
            self.use(actors, lambda: take(8))

    def use(self, sampler, take):
        loops = [
            self.calling(take),
            self.calling(take),
            self.calling(sampler.envs.stats, lambda: repr(sampler), lambda: sampler.closed),
        ]
        if self.dice.random() < 0.5:
            loops.append(self.calling(lambda: time.sleep(0.01), sampler.close, count=3))
        self.together(*loops)


def child(args):
    """Run cases until the time is over; print their count and exceptions."""
    faulthandler.enable()
    sys.setswitchinterval(1e-4)
    largest = fuzz_primitives.LARGEST
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))  # of a segment
    warnings.simplefilter("ignore")
    raised, count = Counter(), 0
    for seed in campaigns.seeds(args, hang=HANG):
        print(f"case {seed}", file=sys.stderr, flush=True)
        Case(seed, raised).run()
        count += 1
    print(f"{count} cases; raised: {dict(raised.most_common())}")


# -- the parent ------------------------------------------------------------------------------------


def package(module, folder):
    """Make a copy of our package from links, with the module of another build."""
    root = Path(__file__).parents[2]
    shutil.copytree(
        root / "pysampler",
        folder / "pysampler",
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    [built] = Path(module).resolve().glob("_core.*.so")
    (folder / "pysampler" / built.name).symlink_to(built)


def sanitizer():
    """Return the path of the sanitizer's library."""
    name = ["g++", "-print-file-name=libtsan.so"]
    return subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()


def campaign(args, folder):
    """Run the cases under the sanitizer; return the exit status and stderr."""
    package(args.module, folder)
    suppressions = folder / "suppressions"
    suppressions.write_text(SUPPRESSIONS)
    options = {
        "suppressions": suppressions,
        "exitcode": 66,
        "history_size": 7,
        "second_deadlock_stack": 1,
    }
    env = {
        **os.environ,
        "LD_PRELOAD": sanitizer(),
        "TSAN_OPTIONS": " ".join(f"{name}={value}" for name, value in options.items()),
    }
    command = [sys.executable, __file__, "--child", str(folder), "--seed", str(args.seed)]
    command += ["--seconds", str(args.seconds)]
    if args.case is not None:
        command += ["--case", str(args.case)]
    # On some kernels the sanitizer fails with large address space randomization.
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    done = subprocess.run([*fixed, *command], env=env, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stderr.decode(errors="replace")


def main():
    parser = campaigns.parser(__doc__, 600, out=False)
    parser.add_argument("--module", default="build/tsan-module", help="folder of the build")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        child(args)
        return False
    print(f"from --seed {args.seed if args.case is None else args.case}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        status, stderr = campaign(args, Path(folder))
    reports = re.findall(r"^WARNING: ThreadSanitizer", stderr, re.MULTILINE)
    kinds = Counter(re.findall(r"^SUMMARY: ThreadSanitizer: (.*)$", stderr, re.MULTILINE))
    print(f"{len(reports)} reports, exit status {status}")
    for kind, count in kinds.most_common():
        print(f"WRONG: {count} times {kind}", file=sys.stderr)
    if reports or status:
        print(stderr[-100_000:], file=sys.stderr)
    return bool(reports or status)


if "--child" in sys.argv:
    # Import the package with the sanitizer's module, not the editable install.
    sys.path.insert(0, sys.argv[sys.argv.index("--child") + 1])
    sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
    with contextlib.suppress(KeyError):
        del os.environ["LD_PRELOAD"]  # workers run without the sanitizer

    import fuzz_envs
    import fuzz_primitives
    import numpy as np

    import pysampler
    from pysampler import sync


if __name__ == "__main__":
    sys.exit(main())
