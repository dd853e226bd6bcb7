"""Rollouts while workers die, envs raise or hang, and Ctrl-C arrives."""

import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
from scripted import Mortal
from suspended import suspended

import pysampler
from pysampler._vector import core
from pysampler.errors import ClosedError, EnvTimeoutError, WorkerLostError


def policy(observations):
    return np.sin(observations[:, 1:]), {"value": observations[:, 1]}


WAYS = [
    {"policy_in": "main"},
    {"policy_in": "main", "overlap": True},
    {"policy_in": "main", "min_envs": 1},
    {"policy_in": "workers"},
    {"policy_in": "workers", "overlap": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_loss_without_restarts_raises_and_closes(way, tmp_path):
    fns = [functools.partial(Mortal, "die", 3, tmp_path / "died")] + [Mortal] * 3
    envs = pysampler.VectorEnv(fns, num_workers=2)
    rollouts = pysampler.Rollouts(envs, policy, 5, **way)
    with pytest.raises(WorkerLostError, match=r"worker 0 \(pid \d+\) lost: exit code 7"):
        next(rollouts)
    assert envs.closed
    with pytest.raises(ClosedError):
        next(rollouts)
    rollouts.close()


def expect_hang(envs, told, under_way, **options):
    """Sample until an env hangs: an error names it, a warning tells of the rollout under way."""
    rollouts = pysampler.Rollouts(envs, policy, 5, **options)
    with pytest.raises(EnvTimeoutError, match=told), pytest.warns(UserWarning, match=under_way):
        next(rollouts)
    rollouts.close()
    assert envs.closed


@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_hanging_env_is_named(where, tmp_path):
    fns = [Mortal, functools.partial(Mortal, "hang", 3, tmp_path / "hung")]
    envs = pysampler.VectorEnv(fns, num_workers=2, step_timeout=0.5)
    under_way = "closed with a rollout under way: 1 envs did not return"
    expect_hang(envs, "env 1 in worker 1", under_way, policy_in=where)


class LargeInfos(Mortal):
    """Its infos are so large that most of them wait in the worker for room."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"words": "x" * 15_000}


def test_a_hanging_env_is_named_while_infos_of_others_wait(tmp_path):
    hangs = functools.partial(LargeInfos, "hang", 3, tmp_path / "hung")
    fns = [LargeInfos] * 5 + [hangs] + [LargeInfos] * 2
    envs = pysampler.VectorEnv(fns, num_workers=1, groups=8, step_timeout=0.5)
    under_way = "closed with a rollout under way"
    expect_hang(envs, "env 5 in worker 0", under_way, info_keys=["words"])


@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_hanging_env_is_replaced_with_on_hang_restart(where, tmp_path):
    fns = [Mortal, functools.partial(Mortal, "hang", 3, tmp_path / "hung")]
    envs = pysampler.VectorEnv(fns, num_workers=2, step_timeout=0.5, on_hang="restart")
    with envs, pysampler.Rollouts(envs, policy, 5, policy_in=where) as rollouts:
        rollout = next(rollouts)
        assert np.argwhere(rollout.lost).tolist() == [[2, 1]]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_policy_error_raises_and_rollouts_continue(way, num_workers):
    envs = pysampler.VectorEnv([Mortal] * 4, num_workers=num_workers)

    def fails(observations):
        if (observations[:, 1] == 3).any():
            raise RuntimeError("no idea")
        return policy(observations)

    with pysampler.Rollouts(envs, fails, 5, **way) as rollouts:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no idea"):
                next(rollouts)
    assert envs.reset(seed=1)[0].shape == (4, 2)
    envs.close()


class Closes(Mortal):
    """Leaves a file when it is closed."""

    def close(self):
        self.mark.with_name("closed").touch()


@pytest.mark.parametrize("culprit", ["env", "policy"])
def test_envs_are_closed_after_an_error(culprit, tmp_path):
    def fails(observations):
        if culprit == "policy" and (observations[:, 1] == 3).any():
            raise ValueError("told to")
        return policy(observations)

    make = functools.partial(Closes, "raise" if culprit == "env" else None, 3, tmp_path / "raised")
    rollouts = pysampler.Rollouts(make, fails, 5, num_envs=2, num_workers=1)
    with pytest.raises(ValueError, match="told to"):
        next(rollouts)
    rollouts.close()
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_ctrl_c_ends_the_rollout_but_not_the_envs(way):
    envs = pysampler.VectorEnv([Mortal] * 4, num_workers=2)
    with pysampler.Rollouts(envs, policy, 40_000, **way) as rollouts:
        idle = envs._pool.busy_seconds() + 0.001  # past the reset

        def interrupt():
            while envs._pool.busy_seconds() < idle:
                time.sleep(0.001)  # poll: another thread cannot wait for this
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            next(rollouts)
    assert envs.reset(seed=1)[0].shape == (4, 2)
    envs.step(np.zeros((4, 1)))
    envs.close()


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize(
    "sample",
    [
        lambda envs: pysampler.Rollouts(envs, policy, 5),
        lambda envs: pysampler.Rollouts(envs, policy, 5, overlap=True),
        lambda envs: pysampler.Rollouts(envs, policy, 5, policy_in="workers"),
        lambda envs: pysampler.Actors(envs, policy),
    ],
    ids=["main", "overlap", "workers", "actors"],
)
def test_ctrl_c_does_not_wait_for_an_env_in_a_long_step(owned, sample, tmp_path, monkeypatch):
    monkeypatch.setattr(core, "SHUTDOWN_TIMEOUT_S", 1e6)
    hangs = functools.partial(Mortal, "hang", 8, tmp_path / "hangs")
    envs = pysampler.VectorEnv([hangs, Mortal], num_workers=2)
    main = threading.get_ident()

    def interrupt():
        while not (tmp_path / "hangs").exists():
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    sampler = sample(envs)
    sampler._owned = owned
    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt), sampler:
        thread.start()
        if hasattr(sampler, "take"):
            while True:
                sampler.take(5)
        for _ in sampler:
            pass
    thread.join()
    assert sampler.closed
    assert envs.closed == owned
    envs.close(terminate=True)


def lent_to_rollouts(envs):
    with pysampler.Rollouts(envs, policy, 200, policy_in="workers") as rollouts:
        while True:
            yield next(rollouts)


def lent_to_actors(envs):
    with pysampler.Actors(envs, policy) as actors:
        while True:
            yield actors.take(1000)


@pytest.mark.filterwarnings("ignore:.*closed with a rollout under way")  # while it is stopped
@pytest.mark.parametrize("sampled", [lent_to_rollouts, lent_to_actors])
def test_a_worker_that_stops_between_steps_of_a_sampler_is_late(sampled):
    envs = pysampler.VectorEnv([Mortal] * 2, num_workers=1, step_timeout=0.3)
    samples = sampled(envs)
    next(samples)
    with suspended(envs._pool.pids), pytest.raises(EnvTimeoutError, match="env 0 in worker 0"):
        while True:
            next(samples)
    envs.close(terminate=True)
