"""step_timeout and close when the whole program is suspended or only a worker is stopped."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from suspended import family, suspend, suspended

TIMEOUT = 2.0

# Programs whose first env is busy until just after it was suspended: once in a step and once in
# close.
BEGIN = f"""
import functools, os, sys, time
import gymnasium as gym
import numpy as np
from gymnasium import spaces
import pysampler
from pysampler._vector import core
from pysampler._workers import pool

class Busy(gym.Env):
    observation_space = spaces.Box(-1, 2**40, (1,), np.float64)
    action_space = spaces.Discrete(2)
    life = 0

    def work(self, mark):
        before = time.monotonic()
        os.write(int(sys.argv[1]), mark)
        while (at := time.monotonic()) - before < 1:  # until it was suspended
            before = at
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass

    def __init__(self, env):
        self.env = env
        os.write(int(sys.argv[1]), b"m")

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {{}}

    def step(self, action):
        self.life += 1
        if self.env == 0 and self.life == 3:
            self.work(b"s")
        return np.full(1, float(self.life)), 0.0, False, False, {{}}

    def close(self):
        if self.env == 0:
            self.work(b"c")
            os.write(int(sys.argv[1]), b"d")

def policy(observations):
    return np.zeros(len(observations), np.int64)

def begin(on_hang="raise"):
    fns = [functools.partial(Busy, env) for env in range(2)]
    return pysampler.VectorEnv(
        fns, num_workers=2, context="fork", step_timeout={TIMEOUT}, on_hang=on_hang
    )

actions = np.zeros(2, np.int64)
"""
STEPPING = {
    "step": """
envs.reset()
for n in range(1, 6):
    assert envs.step(actions)[0].tolist() == [[n], [n]]
""",
    "step_async": """
envs.reset()
for n in range(1, 6):
    envs.step_async(actions)
    assert envs.step_wait()[0].tolist() == [[n], [n]]
""",
    "recv": """
envs.reset()
envs.send(actions)
while envs.stats().steps.count.min() < 10:
    ids = envs.recv(min_envs=1)[4]["env_id"]
    assert envs.late == []
    envs.send(actions[:len(ids)], ids)
""",
    "rollouts": """
with pysampler.Rollouts(envs, policy, 5) as rollouts:
    assert next(rollouts).observations[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
""",
    "rollouts in workers": """
with pysampler.Rollouts(envs, policy, 5, policy_in="workers") as rollouts:
    assert next(rollouts).observations[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
""",
    "actors": """
with pysampler.Actors(envs, policy, high=64) as actors:
    while envs.stats().steps.count.min() < 10:
        actors.take(8)
""",
}


@contextmanager
def running(code, *arguments):
    """Run a program; yield it and the reading end of a pipe that its envs write to."""
    marks, fd = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + code, str(fd), *arguments],
        pass_fds=[fd],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(fd)
        try:
            yield process, marks
        finally:
            os.close(marks)
            for pid in family(process.pid) if process.poll() is None else ():
                os.kill(pid, signal.SIGKILL)


def await_mark(marks, mark):
    """Wait until an env has written ``mark``."""
    while (got := os.read(marks, 1)) != mark:
        assert got, "all envs have ended"


def busy(process, marks, mark=b"s"):
    """Return the pids of a program and its workers, once its first env is busy."""
    await_mark(marks, b"m")
    await_mark(marks, b"m")
    pids = family(process.pid)
    await_mark(marks, mark)
    return pids


@pytest.mark.slow
@pytest.mark.parametrize("on_hang", ["raise", "restart"])
@pytest.mark.parametrize("how", STEPPING)
def test_step_timeout_excludes_suspension_of_the_whole_program(how, on_hang):
    end = "assert envs.stats().losses.tolist() == [0, 0]; print('fine', flush=True); os._exit(0)"
    with running(f"envs = begin({on_hang!r})" + STEPPING[how] + end) as (process, marks):
        suspend(busy(process, marks), 2 * TIMEOUT)
        out, err = process.communicate()
    assert (out, process.returncode) == ("fine\n", 0), err


@pytest.mark.slow
def test_close_waits_for_envs_after_a_suspension():
    short = f"core.SHUTDOWN_TIMEOUT_S = {TIMEOUT}; pool.Pool.close.__defaults__ = ({TIMEOUT},)\n"
    code = "envs = begin()\n" + short + "envs.reset(); envs.step(actions); envs.close()"
    with running(code) as (process, marks):
        suspend(busy(process, marks, b"c"), 2 * TIMEOUT)
        await_mark(marks, b"d")
        _, err = process.communicate()
    assert process.returncode == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("how", STEPPING)
def test_a_stopped_worker_makes_its_env_late(how):
    with running("envs = begin()" + STEPPING[how]) as (process, marks):
        pids = busy(process, marks)
        with suspended(pids[1:]):
            suspend(pids[:1], 2 * TIMEOUT)
            _, err = process.communicate()
    assert "EnvTimeoutError: env" in err
