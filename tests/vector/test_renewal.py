"""Renewed workers: another process takes the place of one that lives, between two commands."""

import itertools
import logging
import os
import signal
import time

import numpy as np
import psutil
import pytest
from gymnasium.error import NoAsyncCallError
from interrupts import at_each_point, handler
from made_up import equal
from told_envs import Drawing
from vectors import begun, reset_ended

import pysampler
from pysampler._workers import renewal
from pysampler._workers.recovery import Faults

MODES = ["NextStep", "SameStep", "Disabled"]
ONE = {"num_workers": 2}  # two envs, so each worker has one
SEVERAL = {"num_workers": 1}


class Counting(Drawing):
    closes = None  # a folder for a file that close() makes

    def close(self):
        if self.closes is not None:
            (self.closes / str(os.getpid())).touch()


def pids_of(envs):
    return envs._pool.pids


def results(envs, mode, steps=60, seed=1):
    """Return what a program sees of some steps, and the pids that it saw."""
    seen, pids = [], []
    observations, infos = envs.reset(seed=seed)
    for _ in range(steps):
        before = observations.copy()
        observations, rewards, terminated, truncated, infos = envs.step(
            np.zeros(envs.num_envs, int)
        )
        seen.append((before, observations.copy(), rewards, terminated, truncated, infos))
        pids.append(pids_of(envs))
        over = terminated | truncated
        if mode == "Disabled" and over.any():
            observations, _ = envs.reset(options={"reset_mask": over})
    return seen, pids


def lost_in(infos, count):
    return infos.get("worker_lost", np.zeros(count, bool))


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_an_env_with_a_worker_of_its_own_is_renewed_between_its_episodes(mode):
    with pysampler.VectorEnv([Counting] * 2, recycle_after=2, autoreset_mode=mode, **ONE) as envs:
        seen, pids = results(envs, mode)
        assert envs.stats().losses.tolist() == [0, 0]
    for worker in range(2):
        assert len({each[worker] for each in pids}) > 2
    resets = np.zeros(2, bool)
    for before, after, rewards, terminated, truncated, infos in seen:
        assert not truncated.any()
        assert not lost_in(infos, 2).any()
        # Each step that is not a reset is the next one of the same episode.
        assert (after[:, 1] == before[:, 1] - 1)[~resets].all()
        assert (rewards == ~resets).all()
        assert (terminated == (after[:, 1] == 0)).all()
        resets = terminated & (mode == "NextStep")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_running_episodes_of_several_envs_are_truncated_once_and_marked(mode, groups):
    options = {"recycle_after": 4, "autoreset_mode": mode, "groups": groups, **SEVERAL}
    with pysampler.VectorEnv([Counting] * 3, **options) as envs:
        seen, pids = results(envs, mode)
        assert envs.stats().losses.tolist() == [0]
    renewed, ended = 0, np.zeros(3, bool)
    pid = pids[0]
    for (before, after, rewards, terminated, truncated, infos), now in zip(seen, pids, strict=True):
        lost = lost_in(infos, 3)
        assert (truncated == lost).all()
        if now != pid:
            renewed += 1
            going = ~ended if mode == "NextStep" else np.ones(3, bool)
            assert (lost == going).all()
        else:
            assert not lost.any()
        pid = now
        assert not rewards[lost].any()
        if mode == "SameStep":
            for i in np.flatnonzero(lost):
                assert np.array_equal(infos["final_obs"][i], before[i])
        else:
            assert np.array_equal(after[lost], before[lost])
        ended = terminated | truncated
    assert renewed > 3


@pytest.mark.slow
def test_episodes_that_the_program_ends_with_a_reset_count():
    with pysampler.VectorEnv([Drawing] * 2, **ONE, recycle_after=2, infos="none") as envs:
        pids = []
        for seed in range(7):
            envs.reset(seed=seed)
            pids.append(pids_of(envs))
            *_, truncated, _ = envs.step(np.zeros(2, int))
            assert not truncated.any()
        assert [after != before for before, after in itertools.pairwise(pids)] == [
            *(False, False, True, False, False, True)
        ]


def test_seeded_runs_with_renewals_are_equal():
    runs = []
    for _ in range(2):
        with pysampler.VectorEnv([Counting] * 3, recycle_after=3, **SEVERAL) as envs:
            seen, pids = results(envs, "NextStep", steps=100)
            runs.append(seen)
            assert len({each[0] for each in pids}) > 5
    assert equal(*runs)


def test_a_renewal_is_logged_and_closes_the_old_envs(caplog, tmp_path):
    caplog.set_level(logging.INFO, "pysampler")

    class Closing(Counting):
        closes = tmp_path

    with pysampler.VectorEnv([Closing] * 2, recycle_after=3, **SEVERAL) as envs:
        _, pids = results(envs, "NextStep", steps=40)
        old = {each[0] for each in pids} - {pids_of(envs)[0]}
        assert old
        for pid in old:
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
        assert {int(path.name) for path in tmp_path.iterdir()} == old
    lines = [one.getMessage() for one in caplog.records]
    assert lines[0].startswith(f"pysampler: worker 0 (pid {pids[0][0]}) renewed after ")
    assert len(lines) == len(old)


@pytest.mark.slow
def test_options_stay_set():
    with begun([Counting] * 3, seed=1, recycle_after=2, **SEVERAL) as envs:
        envs.set_options(None, {"size": 3})
        first, steps = pids_of(envs), 0
        while pids_of(envs) == first or steps < 20:
            *_, infos = envs.step(np.zeros(3, int))
            steps += 1
        assert set(infos["options_version"].tolist()) == {1}
        assert envs.get_attr("options") == ({"size": 3},) * 3


def test_native_envs_are_renewed():
    options = {"recycle_after": 8, "native": True, **SEVERAL}
    with begun(pysampler.make_vec("CartPole-v1", 16, vector_kwargs=options), seed=1) as envs:
        first, lost = pids_of(envs), 0
        for _ in range(60):
            *_, infos = envs.step(np.ones(16, int))
            lost += int(lost_in(infos, 16).sum())
        assert pids_of(envs) != first
        assert lost > 0


@pytest.mark.slow
def test_send_and_recv_go_on_across_renewals():
    with pysampler.VectorEnv([Counting] * 4, num_workers=2, groups=2, recycle_after=4) as envs:
        envs.async_reset(seed=1)
        first, counts = pids_of(envs), np.zeros(4, int)
        while counts.min() < 60 or not set(first).isdisjoint(pids_of(envs)):
            *_, truncated, infos = envs.recv(min_envs=1)
            assert (truncated == lost_in(infos, len(truncated))).all()
            counts[infos["env_id"]] += 1
            envs.send(np.zeros(len(infos["env_id"]), int), infos["env_id"])
        envs.recv()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_chunks_go_on_across_renewals(mode):
    with begun([Counting] * 2, seed=1, recycle_after=2, autoreset_mode=mode, **ONE) as envs:
        first = pids_of(envs)
        for _ in range(40):
            seen = envs.step_chunk(np.zeros((2, 3), int))
            _, rewards, _, truncated, infos = seen
            assert (rewards.sum(1) == infos["steps"]).all()
            if mode != "SameStep":
                assert not truncated.any()
            reset_ended(envs, seen)
        assert set(first).isdisjoint(pids_of(envs))


def zero(observations):
    return np.zeros(len(observations), int)


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_rollouts_mark_the_steps_of_renewals_as_lost(policy_in):
    with pysampler.Rollouts(
        [Counting] * 4, zero, 8, num_workers=2, policy_in=policy_in, seed=3, recycle_after=4
    ) as rollouts:
        pids, lost = pids_of(rollouts.envs), 0
        for _ in range(8):
            rollout = next(rollouts)
            lost += int(rollout.lost.sum())
            assert not rollout.valid[rollout.lost].any()
            assert rollout.truncated[rollout.lost].all()
        assert lost > 0
        assert set(pids).isdisjoint(pids_of(rollouts.envs))


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_an_evaluation_renews_no_worker(policy_in):
    with pysampler.VectorEnv([Counting] * 3, num_workers=1) as envs:
        expected = pysampler.evaluate(envs, zero, 40, seed=1).lengths
    with pysampler.VectorEnv([Counting] * 3, num_workers=1, recycle_after=1) as envs:
        before = pids_of(envs)
        lengths = pysampler.evaluate(envs, zero, 40, seed=1, policy_in=policy_in).lengths
        assert pids_of(envs) == before
        envs.reset()
        while pids_of(envs) == before:
            envs.step(np.zeros(3, int))
    assert np.array_equal(lengths, expected)


def test_a_masked_reset_tells_the_truth_about_the_envs_that_it_leaves():
    """An end in an older frame must not end a running episode, nor be taken for the last one."""
    with pysampler.VectorEnv([Counting] * 2, recycle_after=1, **ONE) as envs:
        observations, _ = envs.reset(seed=1)
        first, resets = pids_of(envs), np.zeros(2, bool)
        for _ in range(60):
            before = observations
            observations, _, terminated, truncated, _infos = envs.step([0, 0])
            assert not truncated.any()
            assert (observations[:, 1] == before[:, 1] - 1)[~resets].all()
            resets = terminated.copy()
            if resets[0]:
                before = observations
                mask = {"reset_mask": np.array([True, False])}
                observations, _ = envs.reset(options=mask)
                assert np.array_equal(observations[1], before[1])
                resets[0] = False
        assert pids_of(envs)[0] != first[0]


def test_a_masked_reset_after_a_renewal_marks_no_loss():
    options = {"recycle_after": 1, "autoreset_mode": "Disabled", **ONE}
    with begun([Counting] * 2, seed=1, **options) as envs:
        first = pids_of(envs)
        for _ in range(40):
            _, _, terminated, truncated, _ = envs.step([0, 0])
            assert not truncated.any()
            if terminated.any():
                _, infos = envs.reset(options={"reset_mask": terminated})
                assert "worker_lost" not in infos
        assert set(first).isdisjoint(pids_of(envs))


@pytest.mark.parametrize("options", [ONE, SEVERAL], ids=str)
def test_calls_after_a_step_reach_the_envs_that_made_it(options):
    with begun([Counting] * 2, seed=1, recycle_after=1, **options) as envs:
        first = pids_of(envs)
        for _ in range(40):
            observations, _, _, truncated, _ = envs.step([0, 0])
            left = envs.get_attr("left")
            assert truncated.any() or left == tuple(observations[:, 1])
        assert set(first).isdisjoint(pids_of(envs))


def test_notes_that_do_not_fit_the_inbox_arrive_before_a_renewal(tmp_path):
    class Closing(Counting):
        closes = tmp_path

    with begun([Closing], seed=1, num_workers=1, recycle_after=1) as envs:
        first = pids_of(envs)
        while pids_of(envs) == first:
            envs.set_options(None, {"x": np.zeros(1_000_000)})
            envs.step([0])
        assert (tmp_path / str(first[0])).exists()


class SlowToClose(Counting):
    def close(self):
        time.sleep(0.3)  # the program's handler comes meanwhile


def test_a_step_that_a_renewal_interrupts_was_not_sent():
    def interrupt(*_):
        raise InterruptedError

    with begun([SlowToClose] * 2, seed=1, recycle_after=1, **ONE) as envs:
        first = pids_of(envs)
        while pids_of(envs) == first:
            before = envs.observations.copy()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with handler(interrupt, signal.SIGALRM):
                try:
                    envs.step([0, 0])
                except InterruptedError:
                    with pytest.raises(NoAsyncCallError):
                        envs.step_wait()
                    after = envs.step([0, 0])[0]
                    break
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        over = before[:, 1] == 0
        assert over.any()
        assert (after[~over, 1] == before[~over, 1] - 1).all()
        assert envs.stats().losses.tolist() == [0, 0]


# Functions that a renewal runs.
RENEWING = (
    *("due", "_start_of", "_why", "_over", "_look", "renew", "_close", "_replace", "resend"),
    *("finish", "_prepare", "_finish_replacements", "replace", "_set_up", "_start", "send_arrays"),
    *("watch_worker", "forget_worker", "_send", "send", "start", "begin", "ended", "kill"),
    "release",
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_interrupted_renewals_go_on(mode):
    with begun([Counting] * 2, seed=2, recycle_after=1, autoreset_mode=mode, **SEVERAL) as envs:

        def step():
            return envs.step([0, 0])

        def check(results, where):
            if results is None:
                results = envs.step_wait() if envs.pending else envs.step([0, 0])
            for _ in range(12):
                *_, truncated, infos = results
                assert (truncated == lost_in(infos, 2)).all(), where
                reset_ended(envs, results)
                if envs._pool._renewal._why(0):
                    break
                results = envs.step([0, 0])
            assert envs.stats().losses.tolist() == [0], where

        before = pids_of(envs)
        # Each call that is interrupted renews the worker.
        assert at_each_point(step, check, only=RENEWING) > 50
        assert pids_of(envs) != before


class Leaks(Counting):
    kept = []  # noqa: RUF012

    def step(self, action):
        self.kept.append(np.ones(250_000))
        return super().step(action)


def test_a_worker_with_too_much_memory_is_renewed(monkeypatch):
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    with begun([Leaks], num_workers=1, recycle_above=1e9) as envs:
        most = renewal.own_memory(pids_of(envs)[0]) + 50_000_000
    with begun([Leaks], seed=1, num_workers=1, recycle_above=most) as envs:
        first = pids_of(envs)
        while pids_of(envs) == first:
            assert renewal.own_memory(first[0]) < most + 200_000_000
            envs.step([0])


@pytest.mark.slow
def test_a_limit_that_a_new_worker_exceeds_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    with begun([Counting], seed=1, num_workers=1, recycle_above=1000) as envs:
        seen = set()
        while len(seen) < 4:
            envs.step([0])
            seen.update(pids_of(envs))
    [line] = [one.getMessage() for one in caplog.records]
    assert "right after its renewal, recycle_above is 1e-06 GB: workers are renewed again" in line


class LeaksLong(Leaks):
    """Its episode does not end."""

    def step(self, action):
        observation, reward, _, *others = super().step(action)
        return observation, reward, False, *others


@pytest.mark.slow
def test_a_long_episode_that_keeps_much_memory_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    monkeypatch.setattr(renewal, "LONG_EPISODE", 50)
    used = {}
    monkeypatch.setattr(renewal, "own_memory", lambda pid: used.get(pid, 0))
    with begun([LeaksLong], seed=1, num_workers=1, recycle_above=1000) as envs:
        used[pids_of(envs)[0]] = 10**6
        for _ in range(50):
            envs.step([0])
        assert not caplog.records
        for _ in range(50):
            envs.step([0])
        assert envs.stats().losses.tolist() == [0]
    [line] = [one.getMessage() for one in caplog.records]
    assert line.startswith("pysampler: worker 0 (pid ")
    assert "GB, recycle_above is 1e-06 GB; it is not renewed before env 0 ends its episode" in line


def test_own_memory_leaves_out_what_others_share():
    before = psutil.Process().memory_full_info()
    own = renewal.own_memory(os.getpid())
    after = psutil.Process().memory_full_info()
    assert min(before.uss, after.uss) - 2**20 < own < max(before.uss, after.uss) + 2**20
    assert renewal.own_memory(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("2 GB", 2 * 10**9), ("2gb", 2 * 10**9), ("2 Gb ", 2 * 10**9), ("2G", 2 * 10**9)),
        *(("1.5MiB", 3 * 2**19), ("500 mib", 500 * 2**20), ("1 kB", 1000), ("1Ki", 1024)),
        *(("300 B", 300), (".5 TB", 5 * 10**11), (77, 77)),
    ],
)
def test_limits_of_memory_have_units(text, count):
    with pysampler.VectorEnv([Counting], num_workers=1, recycle_above=text) as envs:
        assert envs._pool._faults == Faults(recycle_above=count)
