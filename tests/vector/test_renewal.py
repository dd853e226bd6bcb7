"""Renewed workers: another process takes the place of one that lives, and no step is lost."""

import logging
import os
import signal
import sys
import threading

import gymnasium as gym
import numpy as np
import psutil
import pytest
from interrupts import at_each_point, at_point

import pysampler
from pysampler._workers import renewal
from pysampler._workers.recovery import Faults

MODES = ["NextStep", "SameStep", "Disabled"]


class Counting(gym.Env):
    """Has episodes of random lengths, and observes random numbers of its own."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Discrete(3)
    factor = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 9))
        self.options = options
        return self._observe(0.0), {"length": self.left}

    def step(self, action):
        if action == 7:
            raise LookupError("no such action")
        self.left -= 1
        return self._observe(float(action)), self.factor, self.left <= 0, False, {"left": self.left}

    def _observe(self, action):
        return np.array([self.np_random.random(), action, self.left])


class DrawsGlobally(Counting):
    def _observe(self, action):
        return np.array([np.random.rand(), action, self.left])


def pids_of(envs):
    return envs._pool.pids


def results(envs, mode, steps=60, seed=1):
    """Return what a program sees of some steps, and the pids that it saw."""
    envs.action_space.seed(0)
    observations, infos = envs.reset(seed=seed)
    seen, pids = [(observations.copy(), infos)], [pids_of(envs)]
    for _ in range(steps):
        observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        seen.append((observations.copy(), rewards, terminated, truncated, infos))
        pids.append(pids_of(envs))
        over = terminated | truncated
        if mode == "Disabled" and over.any():
            observations, infos = envs.reset(options={"reset_mask": over})
            seen.append((observations.copy(), infos))
    return seen, pids


def copied(results):
    observations, *others = results
    return observations.copy(), *others


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray) and a.dtype == object:
        return all(map(equal, a, b))
    return np.array_equal(a, b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_renewed_workers_give_the_same_results(mode, groups):
    options = {"num_workers": 2, "groups": groups, "autoreset_mode": mode}
    with pysampler.VectorEnv([Counting] * 4, **options) as envs:
        expected, _ = results(envs, mode)
    with pysampler.VectorEnv([Counting] * 4, recycle_after=5, **options) as envs:
        seen, pids = results(envs, mode)
        assert envs.stats().losses.tolist() == [0, 0]
    assert equal(expected, seen)
    for worker in range(2):
        assert len({each[worker] for each in pids}) > 1


@pytest.mark.slow
def test_generators_of_the_process_go_on_with_their_env():
    options = {"num_workers": 1, "seed_globals": True}
    with pysampler.VectorEnv([DrawsGlobally] * 3, **options) as envs:
        expected, _ = results(envs, "NextStep")
    with pysampler.VectorEnv([DrawsGlobally] * 3, recycle_after=4, **options) as envs:
        seen, pids = results(envs, "NextStep")
    assert equal(expected, seen)
    assert len({each[0] for each in pids}) > 1


def test_a_renewal_is_logged_and_old_processes_end(caplog):
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    caplog.set_level(logging.INFO, "pysampler")
    with pysampler.VectorEnv([Counting] * 2, num_workers=1, recycle_after=3) as envs:
        _, pids = results(envs, "NextStep", steps=40)
        assert len(envs._pool._processes.retired) <= 1
        old = {each[0] for each in pids} - {pids_of(envs)[0]} - before
        retired = {child.pid for child in envs._pool._processes.retired}
        for pid in old - retired:
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    lines = [one.getMessage() for one in caplog.records]
    assert lines[0].startswith(f"pysampler: worker 0 (pid {pids[0][0]}) renewed after ")
    assert len(lines) == len({each[0] for each in pids}) - 1


def renewed(env=Counting, **options):
    """Return envs whose worker has just been renewed, within episodes, and how often they acted."""
    envs = pysampler.VectorEnv([env] * 3, num_workers=1, recycle_after=1, **options)
    envs.reset(seed=2)
    first = pids_of(envs)
    for steps in range(1, 50):
        envs.step(np.zeros(3, int))
        if pids_of(envs) != first:
            return envs, steps
    raise AssertionError("the worker was not renewed")


@pytest.mark.slow
def test_calls_reach_the_old_env_until_its_episode_ends():
    envs, _ = renewed()
    here = pids_of(envs)[0]
    [old] = [one.pid for one in envs._pool._processes.retired]
    assert old in envs.apply(lambda _: os.getpid())
    envs.apply(lambda env: setattr(env, "factor", 3.0))
    seen = set()
    for _ in range(10):  # no episode is longer
        pids = envs.apply(lambda _: os.getpid())
        if pids_of(envs)[0] != here:
            break
        left = envs.get_attr("left")
        _, rewards, *_ = envs.step(np.zeros(3, int))
        for i in range(3):
            if pids[i] == old and left[i] > 0:
                assert rewards[i] == 3.0
        seen.update(pids)
    assert seen == {old, here}
    envs.close()


class CannotAct(Exception):  # noqa: N818
    """Cannot be pickled: its constructor takes other arguments than it passes on."""

    def __init__(self, action, lock):
        super().__init__(f"no such action: {action}")
        self.action = action
        self.lock = lock


class Raises(Counting):
    def step(self, action):
        if action == 7:
            raise CannotAct(7, threading.Lock())
        if action == 6:
            sys.exit("no more")
        return super().step(action)


def test_exceptions_of_the_old_env_arrive_as_those_of_others():
    envs, _ = renewed(env=Raises)
    with pytest.raises(CannotAct, match="env 0 in worker 0 .* raised CannotAct stepping") as caught:
        envs.step(np.full(3, 7))
    assert isinstance(caught.value, pysampler.EnvError)
    assert caught.value.action == 7
    assert "raise CannotAct(7" in str(caught.value.__cause__.__cause__)
    envs.step(np.zeros(3, int))
    envs.close()
    envs, _ = renewed(env=Raises)
    with pytest.raises(pysampler.EnvError, match="raised SystemExit stepping: no more"):
        envs.step(np.full(3, 6))
    with pytest.raises(ZeroDivisionError):
        envs.apply(lambda _: 1 / 0)
    envs.step(np.zeros(3, int))
    envs.close()


class Locks(Counting):
    def step(self, action):
        *others, infos = super().step(action)
        return *others, infos if others[2] else {"lock": threading.Lock()}


@pytest.mark.parametrize("infos", ["none", "final"])
def test_infos_that_are_not_kept_need_no_pickle(infos):
    envs, _ = renewed(env=Locks, infos=infos)
    [old] = [one.pid for one in envs._pool._processes.retired]
    envs.step(np.zeros(3, int))
    assert old in envs.apply(lambda _: os.getpid())
    envs.close()


@pytest.mark.slow
def test_options_stay_set():
    envs, _ = renewed(autoreset_mode="SameStep")
    envs.set_options(None, {"size": 3})
    first = pids_of(envs)
    steps = 0
    while pids_of(envs) == first or steps < 20:
        *_, infos = envs.step(np.zeros(3, int))
        steps += 1
    assert infos["options_version"].tolist() == [1, 1, 1]
    assert envs.get_attr("options") == ({"size": 3},) * 3
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
def test_the_loss_of_the_old_process_is_a_loss_of_the_worker(context):
    envs, _ = renewed(on_worker_loss="restart", context=context)
    [retired] = envs._pool._processes.retired
    os.kill(retired.pid, signal.SIGKILL)
    lost = False
    for _ in range(10):
        *_, infos = envs.step(np.zeros(3, int))
        lost = lost or "worker_lost" in infos
    assert lost
    assert envs.stats().losses.tolist() == [1]
    envs.close()


class Ends(gym.Env):
    """Its process ends with action 1."""

    observation_space = gym.spaces.Box(0, 9, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == self.length, False, {}


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_a_loss_tells_how_the_old_process_ended(capfd, context):
    env_fns = [lambda n=n: Ends(n) for n in (100, 100, 3, 100)]
    with pysampler.VectorEnv(env_fns, num_workers=2, recycle_after=1, context=context) as envs:
        envs.reset(seed=1)
        for _ in range(6):
            envs.step(np.zeros(4, int))
        [retired] = envs._pool._processes.retired
        with pytest.raises(pysampler.WorkerLostError, match="signal 9 while stepping") as raised:
            envs.step(np.array([0, 0, 0, 1]))
    assert (raised.value.exit_code, raised.value.pid) == (-signal.SIGKILL, retired.pid)
    assert "within an episode of env 3\n" in capfd.readouterr().err


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_the_loss_of_the_new_process_is_handled_as_ever(context):
    envs, _ = renewed(on_worker_loss="restart", context=context)
    [retired] = envs._pool._processes.retired
    os.kill(pids_of(envs)[0], signal.SIGKILL)
    *_, infos = envs.step(np.zeros(3, int))
    assert infos["worker_lost"].all()
    assert retired.ended(10)  # it serves no envs any more
    envs.step(np.zeros(3, int))
    envs.close()


@pytest.mark.slow
def test_forks_hold_no_connection_between_others():
    options = {"recycle_after": 1, "context": "fork", "on_worker_loss": "restart"}
    with pysampler.VectorEnv([Counting] * 4, num_workers=2, **options) as envs:
        envs.reset(seed=1)
        for worker in (1, 0):  # worker 1 is forked while worker 0 may still retire
            before = pids_of(envs)[worker]
            while pids_of(envs)[worker] == before:
                envs.step(np.zeros(4, int))
        old = envs._pool._processes.predecessor(0)
        os.kill(pids_of(envs)[0], signal.SIGKILL)
        assert old.ended(10)
        envs.step(np.zeros(4, int))


class Hangs(Counting):
    def step(self, action):
        if action == 5:
            signal.pause()
        return super().step(action)


@pytest.mark.slow
def test_an_old_process_that_hangs_is_killed():
    envs, _ = renewed(env=Hangs, step_timeout=0.5, on_hang="restart")
    [retired] = envs._pool._processes.retired
    *_, infos = envs.step(np.full(3, 5))
    assert infos["worker_lost"].all()
    old = psutil.Process(retired.pid)
    envs.step(np.zeros(3, int))
    envs.step(np.zeros(3, int))
    old.wait(10)
    envs.close()


class DiesOnce:
    """Lets the first worker that retires die before it serves its successor."""

    def __init__(self, marker):
        self.marker = marker

    def __call__(self):
        from pysampler._vector.renewed import RenewedServer

        serve = RenewedServer.serve_successor

        def serve_or_die(server, connection):
            if not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            serve(server, connection)

        RenewedServer.serve_successor = serve_or_die


@pytest.mark.slow
@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_a_worker_that_dies_while_it_retires_is_replaced(tmp_path, context):
    options = {"context": context, "recycle_after": 1}
    init = DiesOnce(tmp_path / "died")
    with pysampler.VectorEnv(
        [Counting] * 2, num_workers=1, worker_init=init, on_worker_loss="restart", **options
    ) as envs:
        envs.reset(seed=1)
        lost, pids = 0, set()
        for _ in range(60):
            *_, infos = envs.step(np.zeros(2, int))
            lost += int(infos.get("worker_lost", np.zeros(2)).sum())
            pids.update(pids_of(envs))
        assert lost == 2
        assert envs.stats().losses.tolist() == [1]
        assert len(pids) > 3  # it is renewed again
    init.marker.unlink()
    with pysampler.VectorEnv([Counting] * 2, num_workers=1, worker_init=init, **options) as envs:
        envs.reset(seed=1)
        with pytest.raises(pysampler.WorkerLostError, match="signal 9"):
            for _ in range(60):
                envs.step(np.zeros(2, int))


@pytest.mark.slow
def test_send_and_recv_go_on_across_renewals():
    with pysampler.VectorEnv([Counting] * 4, num_workers=2, groups=2, recycle_after=4) as envs:
        envs.async_reset(seed=1)
        first, counts = pids_of(envs), np.zeros(4, int)
        while counts.min() < 60 or not set(first).isdisjoint(pids_of(envs)):
            *_, infos = envs.recv(min_envs=1)
            counts[infos["env_id"]] += 1
            envs.send(np.zeros(len(infos["env_id"]), int), infos["env_id"])
        *_, infos = envs.recv()
        assert "worker_lost" not in infos


class Skips(Counting):
    """Counts how often it was told whether its observations are read."""

    told = 0

    def skip_frames(self, unseen):
        self.told += 1


@pytest.mark.slow
def test_chunks_go_on_across_renewals():
    found = []
    for options in ({}, {"recycle_after": 4}):
        with pysampler.VectorEnv(
            [Skips] * 4, num_workers=2, autoreset_mode="SameStep", **options
        ) as envs:
            envs.reset(seed=1)
            first, told = pids_of(envs), 0
            found.append([envs.step_chunk(np.ones((4, 3), int)) for _ in range(40)])
            assert set(first).isdisjoint(pids_of(envs)) == bool(options)
            for _ in range(3):  # old and new envs are told
                told = max(told, *envs.get_attr("told"))
                envs.step_chunk(np.ones((4, 3), int))
            assert told > 0
    assert equal(*found)


class Draws(gym.Env):
    """Draws from a generator of its own, which only a seed of reset() seeds."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self):
        self.generator = np.random.default_rng()
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        return self._observe(), 0.0, self.steps >= 3 + action, False, {}

    def _observe(self):
        return np.array([self.generator.random(), self.np_random.random()])


@pytest.mark.slow
def test_seeded_runs_are_equal_whatever_envs_draw_from():
    runs = []
    for options in ({}, {"recycle_after": 3}, {"recycle_after": 3}):
        with pysampler.VectorEnv([Draws] * 3, num_workers=1, **options) as envs:
            seen, pids = results(envs, "NextStep", steps=100)
            runs.append((np.array([each[0] for each in seen]), seen))
            assert len({each[0] for each in pids}) > 5 or not options
    assert equal(runs[1][1], runs[2][1])
    assert np.array_equal(runs[0][0][..., 1], runs[1][0][..., 1])  # np_random is continued
    drawn = runs[1][0][..., 0]
    assert len(np.unique(drawn)) == drawn.size  # no env repeats what it or another drew


def zero(observations):
    return np.zeros(len(observations), int)


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_rollouts_go_on_across_renewals(policy_in):
    found = []
    for options in ({}, {"recycle_after": 4}):
        with pysampler.Rollouts(
            [Counting] * 4, zero, 8, num_workers=2, policy_in=policy_in, seed=3, **options
        ) as rollouts:
            pids = pids_of(rollouts.envs)
            found.append([next(rollouts).observations.copy() for _ in range(8)])
            assert set(pids).isdisjoint(pids_of(rollouts.envs)) == bool(options)
    assert np.array_equal(*found)


def draws(observations, *, generators):
    return np.array([one.integers(3) for one in generators])


@pytest.mark.slow
def test_a_policy_in_the_workers_continues_its_generators():
    found = []
    for options in ({}, {"recycle_after": 4}):
        with pysampler.Rollouts(
            [Counting] * 4, draws, 8, num_workers=2, policy_in="workers", seed=3, **options
        ) as rollouts:
            found.append([next(rollouts).actions.copy() for _ in range(8)])
    assert np.array_equal(*found)


# Functions that a renewal runs, besides those of Recovery.
RENEWING = (
    *("renew_due", "finish", "_due", "_start_of", "_renew", "_retire", "retire", "resume", "renew"),
    *("await_retirement", "has_retired", "succeed", "_restart", "_start", "_setup", "_set_up"),
    *("send_arrays", "connection_pair", "_send_end", "_send", "let_go", "predecessor"),
    *("release_retired", "watch_worker", "_prepare", "_finish_replacements", "_close", "__init__"),
    *("fork", "_line", "start", "begin", "ended", "kill", "release", "send", "environment"),
)


def calls_of(envs, mode, count):
    """Return some steps and resets: names, arguments, and the results of these envs."""
    calls = [("reset", {"seed": 2}, copied(envs.reset(seed=2)))]
    for _ in range(count):
        results = copied(envs.step([0, 1]))
        calls.append(("step", {"actions": [0, 1]}, results))
        if mode == "Disabled" and (over := results[2] | results[3]).any():
            options = {"options": {"reset_mask": over}}
            calls.append(("reset", options, copied(envs.reset(**options))))
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_interrupted_renewals_go_on(mode):
    options = {"num_workers": 1, "autoreset_mode": mode}
    with pysampler.VectorEnv([Counting] * 2, **options) as envs:
        calls = calls_of(envs, mode, 10_000)
    done = 0  # calls

    with pysampler.VectorEnv([Counting] * 2, recycle_after=1, **options) as envs:

        def call(*, wait=False):
            nonlocal done
            name, arguments, expected = calls[done]
            results = getattr(envs, f"{name}_wait")() if wait else getattr(envs, name)(**arguments)
            assert equal(expected, results)
            done += 1
            return True

        def check(finished, where):
            if finished is None:
                call(wait=envs.pending)
            assert envs.stats().losses.tolist() == [0], where
            while not envs._pool._renewal._due(0):
                call()

        check(call(), "")
        before = pids_of(envs)
        # Each call that is interrupted renews the worker.
        assert at_each_point(call, check, only=RENEWING) > 100
        assert pids_of(envs) != before


@pytest.mark.slow
def test_frames_are_laid_out_after_an_interrupted_renewal():
    with pysampler.VectorEnv([Counting] * 2, num_workers=1, recycle_after=1) as envs:
        envs.reset(seed=2)

        def until_interrupted():
            while True:
                envs.step([0, 0])

        for n, steps in ((3, 2), (6, 4), (9, 6)):
            before = pids_of(envs)
            at_point(n, until_interrupted, only=("_renew",))
            assert envs._pool._renewal.interrupted
            envs.step_chunk(np.zeros((2, steps), int))
            assert pids_of(envs) != before
        assert envs.stats().losses.tolist() == [0]


class Leaks(Counting):
    kept = []  # noqa: RUF012

    def step(self, action):
        self.kept.append(np.ones(250_000))
        return super().step(action)


def test_a_worker_with_too_much_memory_is_renewed(monkeypatch):
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    with pysampler.VectorEnv([Leaks], num_workers=1, recycle_above=1e9) as envs:
        envs.reset()
        most = renewal.own_memory(pids_of(envs)[0]) + 50_000_000
    with pysampler.VectorEnv([Leaks], num_workers=1, recycle_above=most) as envs:
        envs.reset(seed=1)
        first = pids_of(envs)
        while pids_of(envs) == first:
            assert renewal.own_memory(first[0]) < most + 200_000_000
            envs.step([0])


@pytest.mark.slow
def test_a_limit_that_a_new_worker_exceeds_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    with pysampler.VectorEnv([Counting], num_workers=1, recycle_above=1000) as envs:
        envs.reset(seed=1)
        seen = set()
        while len(seen) < 4:
            envs.step([0])
            seen.update(pids_of(envs))
    [line] = [one.getMessage() for one in caplog.records]
    assert "right after its renewal, recycle_above is 1e-06 GB: workers are renewed again" in line


class LeaksLong(Leaks):
    """Leaks; every second one is in an episode that does not end."""

    made = 0

    def __init__(self):
        self.long = LeaksLong.made % 2 == 1
        LeaksLong.made += 1

    def step(self, action):
        observation, reward, ended, *others = super().step(action)
        return observation, reward, ended and not self.long, *others


@pytest.mark.slow
def test_a_long_episode_that_keeps_much_memory_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    monkeypatch.setattr(renewal, "LONG_EPISODE", 50)
    options = {"num_workers": 1, "autoreset_mode": "SameStep"}
    with pysampler.VectorEnv([LeaksLong] * 2, recycle_above=1e9, **options) as envs:
        envs.reset()
        most = renewal.own_memory(pids_of(envs)[0]) + 50_000_000
    with pysampler.VectorEnv([LeaksLong] * 2, recycle_above=most, **options) as envs:
        envs.reset(seed=1)
        first = pids_of(envs)
        while pids_of(envs) == first:
            envs.step([0, 0])
        for _ in range(49):
            envs.step([0, 0])
        assert not caplog.records
        for _ in range(50):
            envs.step([0, 0])
        assert envs.stats().losses.tolist() == [0]
    [line] = [one.getMessage() for one in caplog.records]
    assert line.startswith("pysampler: worker 0 (pid ")
    assert f"GB, recycle_above is {most / 1e9:.3g} GB; it is not renewed before env 1 ends" in line


def test_own_memory_leaves_out_what_others_share():
    before = psutil.Process().memory_full_info()
    own = renewal.own_memory(os.getpid())
    after = psutil.Process().memory_full_info()
    assert min(before.uss, after.uss) - 2**20 < own < max(before.uss, after.uss) + 2**20
    assert renewal.own_memory(2**22 + 1) == 0


def test_bad_limits_are_refused():
    for given, text in (
        ({"recycle_after": 0}, "recycle_after 0, expected a whole number of at least 1"),
        ({"recycle_above": "2 XB"}, "recycle_above '2 XB', expected a number of bytes"),
        (
            {"recycle_above": "5"},
            "recycle_above '5', expected a number of bytes, or text with a un",
        ),
        ({"recycle_above": "2 iB"}, "recycle_above '2 iB', expected"),
        ({"recycle_above": "0 GB"}, "recycle_above '0 GB', expected"),
        ({"recycle_above": "1.2.3 GB"}, "recycle_above '1.2.3 GB', expected"),
        ({"recycle_above": True}, "recycle_above True, expected"),
        ({"recycle_after": 3, "native": True}, "native=True, but recycle_after is given"),
    ):
        with pytest.raises(ValueError, match=text):
            pysampler.VectorEnv([Counting], num_workers=1, **given)
    several = [lambda: gym.vector.SyncVectorEnv([Counting])]
    for option, value in (("recycle_after", 3), ("recycle_above", "1 GB")):
        with pytest.raises(ValueError, match=f"^cannot make vector env: {option} needs envs, not"):
            pysampler.VectorEnv(several, num_workers=1, **{option: value})
    with pytest.raises(ValueError, match="run by `worker` cannot be renewed"):
        pysampler.VectorEnv([Counting], worker=lambda *_: None, recycle_after=3)
    for text, count in (
        *(("2 GB", 2 * 10**9), ("2gb", 2 * 10**9), ("2 Gb ", 2 * 10**9), ("2G", 2 * 10**9)),
        *(("1.5MiB", 3 * 2**19), ("500 mib", 500 * 2**20), ("1 kB", 1000), ("1Ki", 1024)),
        *(("300 B", 300), (".5 TB", 5 * 10**11), (77, 77)),
    ):
        envs = pysampler.VectorEnv([Counting], num_workers=1, recycle_above=text)
        assert envs._pool._faults == Faults(recycle_above=count)
        envs.close()


class Strict(Counting):
    """Raises if it is stepped after the end of its episode."""

    left = 0

    def step(self, action):
        assert self.left > 0
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_evaluations_go_on_across_renewals(policy_in):
    with pysampler.VectorEnv([Strict] * 3, num_workers=1) as envs:
        expected = pysampler.evaluate(envs, _zeros, 40, seed=1).lengths
    with pysampler.VectorEnv([Strict] * 3, num_workers=1, recycle_after=1) as envs:
        before = pids_of(envs)
        lengths = pysampler.evaluate(envs, _zeros, 40, seed=1, policy_in=policy_in).lengths
        # A policy in the workers keeps them until the evaluation ends.
        assert (pids_of(envs) == before) == (policy_in == "workers")
        envs.reset()
        before = pids_of(envs)
        while pids_of(envs) == before:
            envs.step(np.zeros(3, int))
    assert np.array_equal(lengths, expected)


@pytest.mark.slow
def test_envs_that_rest_in_an_evaluation_rest_in_the_new_process(monkeypatch):
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    monkeypatch.setattr(renewal, "own_memory", lambda _: 10)  # due whenever it can be renewed
    found = []
    for options in ({}, {"recycle_above": 1}):
        for episodes in range(1, 5):  # some envs have nothing to do
            with pysampler.VectorEnv([Strict] * 4, num_workers=1, **options) as envs:
                before = pids_of(envs)
                found.append(pysampler.evaluate(envs, _zeros, episodes, seed=1).lengths.tolist())
                assert (pids_of(envs) == before) != bool(options)
    assert found[:4] == found[4:]


def _zeros(observations):
    return np.zeros(len(observations), int)
