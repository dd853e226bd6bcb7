"""Envs that wait for something other than a CPU: the warning of the default, and the trial."""

import threading
import time

import gymnasium as gym
import pytest
from gymnasium import spaces
from scripted import Scripted
from vectors import begun

import pysampler
from pysampler._vector import env_trial, waiting
from pysampler._vector.division import fastest
from pysampler._vector.waiting import WaitCheck, cpu_seconds


class Pool:
    """Two workers whose envs are at work, and need a CPU for a share of it."""

    def __init__(self, monkeypatch, share):
        self.pids, self.busy, self.share = [1, 2], 0.0, share
        monkeypatch.setattr(waiting, "usable_cpus", lambda: 2)
        monkeypatch.setattr(waiting, "cpu_seconds", lambda _: 5.0 + self.share * self.busy / 2)

    def busy_seconds(self):
        return self.busy

    def step(self, check, seconds):
        self.busy += 2 * seconds
        return check.look()


@pytest.fixture
def logged(monkeypatch):
    messages = []
    monkeypatch.setattr(waiting, "log_once", messages.append)
    return messages


@pytest.mark.parametrize(
    ("share", "workers"), [(0.001, 8), (0.125, 8), (0.39, 6), (0.625, None), (1.0, None)]
)
def test_warning_names_the_workers_that_help_envs_that_wait(monkeypatch, logged, share, workers):
    pool = Pool(monkeypatch, share)
    check = WaitCheck(pool, 8)
    looked = 0
    while not pool.step(check, 0.02):
        looked += 1
    assert looked >= 50  # a second of steps
    text = (
        f"{1 - share:.0%} of their steps, envs wait for something other than a CPU: "
        f"num_workers={workers} lets more of them wait at the same time"
    )
    assert logged == ([] if workers is None else [text])
    assert pool.step(check, 0.02)
    assert len(logged) <= 1


def test_short_steps_are_not_looked_at(monkeypatch, logged):
    pool = Pool(monkeypatch, 0.01)
    assert pool.step(WaitCheck(pool, 8), 1e-4)
    assert logged == []


def test_replaced_worker_begins_the_check_anew(monkeypatch, logged):
    pool = Pool(monkeypatch, 1.0)
    check = WaitCheck(pool, 8)
    for _ in range(40):
        assert not pool.step(check, 0.02)
    pool.pids = [1, 3]
    for _ in range(40):
        assert not pool.step(check, 0.02)
    assert logged == []


def test_unknown_cpu_time_is_not_warned_of(monkeypatch, logged):
    pool = Pool(monkeypatch, 0.01)
    monkeypatch.setattr(waiting, "cpu_seconds", lambda _: None)
    check = WaitCheck(pool, 8)
    while not pool.step(check, 0.02):
        pass
    assert logged == []


def test_cpu_seconds_do_not_count_sleep():
    def grown(work):
        begun, before = time.monotonic(), cpu_seconds("thread-self")
        work()
        return (cpu_seconds("thread-self") - before) / (time.monotonic() - begun)

    def compute():
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass

    if cpu_seconds("thread-self") is None:
        pytest.skip("this kernel does not say")
    assert cpu_seconds(2**40) is None
    assert grown(lambda: threading.Event().wait(0.2)) < grown(compute)


def test_default_warns_once_while_it_steps(monkeypatch, logged):
    monkeypatch.setattr(waiting, "cpu_seconds", lambda _: 1.0)
    monkeypatch.setattr(waiting, "_SHORT", 0.0)
    monkeypatch.setattr(waiting, "_ENOUGH", 1e-4)
    count = 4 * pysampler.sync.usable_cpus()
    with begun([Scripted] * count, seed=1) as envs:
        for _ in range(200):
            envs.step(envs.action_space.sample())
    assert len(logged) == 1
    assert f"num_workers={count} lets" in logged[0]


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 0}, {"isolate": True}])
def test_chosen_number_of_workers_is_not_checked(options):
    with pysampler.VectorEnv([Scripted] * 4, **options) as envs:
        assert envs._waits is None


class Waits(gym.Env):
    """Advances a simulated clock by 5 ms in each step."""

    observation_space = action_space = spaces.Discrete(2)
    now = 0.0

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        Waits.now += 5e-3
        return 0, 0.0, False, False, {}


@pytest.fixture
def clock(monkeypatch):
    """Simulate the clock of the trial, and that its env needs a CPU for a tenth of a step."""
    Waits.now = 0.0
    monkeypatch.setattr(env_trial.time, "perf_counter", lambda: Waits.now)
    monkeypatch.setattr(env_trial, "cpu_seconds", lambda _: 0.1 * Waits.now)


@pytest.mark.usefixtures("clock")
def test_trial_measures_the_share_on_the_cpu():
    seconds, on_cpu, share = env_trial.try_env(Waits)
    assert (seconds, on_cpu, share) == (pytest.approx(5e-3), pytest.approx(0.1), 0)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("options", "workers"), [({}, 5), ({"max_concurrency": 3}, 3)])
def test_auto_gives_each_env_that_waits_a_worker(options, workers):
    with pysampler.VectorEnv([Waits] * 5, num_workers="auto", **options) as envs:
        assert (envs.num_workers, envs.division.main_envs) == (workers, 0)
        assert envs.division.round_seconds == pytest.approx(-(-5 // workers) * 5e-3, rel=0.1)


def test_envs_that_need_a_cpu_part_of_the_time_get_no_more_workers_than_help():
    def workers(envs, seconds, on_cpu):
        return fastest(envs, 2, seconds, on_cpu=on_cpu, most=envs).num_workers

    assert workers(64, 5e-3, 0.01) == 64
    assert workers(64, 5e-3, 0.1) == 22  # three each: 15 ms, and their CPUs need 16
    assert workers(64, 5e-3, 0.6) == 2
    assert workers(64, 1e-4, 0.01) == 2  # too short to gain
    assert workers(1, 5e-3, 0.01) == 0
