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
from pysampler.errors import ClosedError, EnvError, EnvTimeoutError, WorkerLostError


def policy(observations):
    return np.sin(observations[:, 1:]), {"value": observations[:, 1]}


def counted(observations, state):
    state = np.zeros(len(observations), np.int64) if state is None else state
    return np.sin(observations[:, 1:]), {"value": observations[:, 1], "state": state + 1}


WAYS = [
    {"policy_in": "main"},
    {"policy_in": "main", "overlap": True},
    {"policy_in": "main", "min_envs": 1},
    {"policy_in": "workers"},
    {"policy_in": "workers", "overlap": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("at", [1, 3, 5, 6, 10])  # of rollouts of 5
def test_a_rollout_with_a_lost_worker_is_well_formed(way, groups, at, tmp_path):
    fns = [functools.partial(Mortal, "die", at, tmp_path / "died")] + [Mortal] * 5
    envs = pysampler.VectorEnv(fns, num_workers=3, groups=groups, on_worker_loss="restart")
    index, step = divmod(at - 1, 5)
    with pysampler.Rollouts(envs, counted, 5, seed=0, **way) as rollouts:
        copies = [next(rollouts).copy() for _ in range(3)]
    assert envs.stats().losses.tolist() == [1, 0, 0]
    envs.close()
    # The worker's other env is lost too: in its pending step or, with two groups, in its next one.
    # Its other group may have made more steps by itself.
    assert copies[index].lost[step, 0]
    lost_steps = {0: index * 5 + step}
    for number, rollout in enumerate(copies):
        for t, env in np.argwhere(rollout.lost):
            assert env in (0, 1)
            lost_steps[int(env)] = number * 5 + int(t)
            assert rollout.truncated[t, env]
            assert not rollout.valid[t, env]
            assert rollout.rewards[t, env] == 0
            # It ended with its current observation and continued with a new env.
            np.testing.assert_array_equal(
                rollout.final_observations[t, env], rollout.observations[t, env]
            )
            assert rollout.observations[t + 1, env, 1] == 0
            assert rollout.observations[t + 1, env, 0] > 5
            assert rollout.starts[t + 1, env]
            if t < 4:
                assert rollout.state[t + 1, env] == 0
        np.testing.assert_array_equal(rollout.valid, ~rollout.lost)
        assert len(rollout.ended) == 0
        assert rollout.steps == 30 - rollout.lost.sum()
    assert lost_steps.keys() == {0, 1}
    for env in range(6):
        steps = np.concatenate([rollout.observations[:-1, env, 1] for rollout in copies])
        lost = lost_steps.get(env)
        expected = list(range(15)) if lost is None else [*range(lost + 1), *range(14 - lost)]
        assert steps.tolist() == expected, env
        values = np.concatenate([rollout.extras["value"][:, env] for rollout in copies])
        np.testing.assert_array_equal(values, steps)
        states = np.concatenate([rollout.state[:, env] for rollout in copies])
        np.testing.assert_array_equal(states, steps)


class NumberedInfos(Mortal):
    """Its infos hold the step's number, and another number in each fourth step."""

    def step(self, action):
        *results, _ = super().step(action)
        info = {"step": self.steps, "in": {"array": np.full(2, self.steps)}}
        return *results, info | ({"fourth": 1.5} if self.life % 4 == 0 else {})


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("at", [1, 3, 5, 6, 8])  # of rollouts of 5
def test_steps_before_a_loss_keep_their_infos(way, groups, at, tmp_path):
    fns = [functools.partial(NumberedInfos, "die", at, tmp_path / "died")] + [NumberedInfos] * 5
    envs = pysampler.VectorEnv(fns, num_workers=3, groups=groups, on_worker_loss="restart")
    options = {"info_keys": ["step", "in", "fourth"], "seed": 0, **way}
    with pysampler.Rollouts(envs, counted, 5, **options) as rollouts:
        copies = [next(rollouts).copy() for _ in range(3)]
    assert envs.stats().losses.tolist() == [1, 0, 0]
    envs.close()
    for rollout in copies:
        steps = np.where(rollout.valid, rollout.observations[1:, :, 1], 0)
        np.testing.assert_array_equal(rollout.infos["step"], steps)
        np.testing.assert_array_equal(rollout.info_masks["step"], rollout.valid)
        np.testing.assert_array_equal(rollout.infos["in"]["array"], steps[..., None] * [1, 1])
        fourth = rollout.infos.get("fourth", np.zeros(steps.shape))
        np.testing.assert_array_equal(fourth[:, 2:], np.where(steps % 4 == 0, 1.5, 0)[:, 2:])


@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_worker_killed_between_rollouts_is_replaced(where):
    envs = pysampler.VectorEnv([Mortal] * 4, num_workers=2, on_worker_loss="restart")
    with pysampler.Rollouts(envs, policy, 5, seed=0, policy_in=where) as rollouts:
        next(rollouts)
        os.kill(envs._pool.pids[1], signal.SIGKILL)
        assert envs._pool._processes.children[1].ended(10)
        rollout = next(rollouts)
        assert rollout.lost[0].tolist() == [False, False, True, True]
        assert not rollout.lost[1:].any()
        np.testing.assert_array_equal(rollout.observations[1, 2:, 1], [0, 0])
        np.testing.assert_array_equal(rollout.final_observations[0, 2:, 1], [5, 5])
        assert next(rollouts).valid.all()
    envs.close()


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


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_env_error_ends_the_rollout_and_the_next_resets(way, num_workers, tmp_path):
    fns = [Mortal, functools.partial(Mortal, "raise", 8, tmp_path / "raised"), Mortal, Mortal]
    envs = pysampler.VectorEnv(fns, num_workers=num_workers)
    with pysampler.Rollouts(envs, policy, 5, seed=0, **way) as rollouts:
        with pytest.raises(EnvError, match=r"env 1.* raised ValueError.*: told to") as caught:
            [next(rollouts) for _ in range(2)]
        assert isinstance(caught.value, ValueError)
        assert caught.value.env == 1
        again = next(rollouts)
        assert again.observations[:, :, 1].tolist() == [[t] * 4 for t in range(6)]
        assert again.starts[0].all()
        assert again.valid.all()
    envs.reset()
    envs.close()


@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_hanging_env_is_named(where, tmp_path):
    fns = [Mortal, functools.partial(Mortal, "hang", 3, tmp_path / "hung")]
    envs = pysampler.VectorEnv(fns, num_workers=2, step_timeout=0.5)
    rollouts = pysampler.Rollouts(envs, policy, 5, policy_in=where)
    with (
        pytest.raises(EnvTimeoutError, match="env 1 in worker 1"),
        pytest.warns(UserWarning, match="closed with a rollout under way: 1 envs did not return"),
    ):
        next(rollouts)
    rollouts.close()
    assert envs.closed


class LargeInfos(Mortal):
    """Its infos are so large that most of them wait in the worker for room."""

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"words": "x" * 15_000}


def test_a_hanging_env_is_named_while_infos_of_others_wait(tmp_path):
    hangs = functools.partial(LargeInfos, "hang", 3, tmp_path / "hung")
    fns = [LargeInfos] * 5 + [hangs] + [LargeInfos] * 2
    envs = pysampler.VectorEnv(fns, num_workers=1, groups=8, step_timeout=0.5)
    rollouts = pysampler.Rollouts(envs, policy, 5, info_keys=["words"])
    with (
        pytest.raises(EnvTimeoutError, match="env 5 in worker 0"),
        pytest.warns(UserWarning, match="closed with a rollout under way"),
    ):
        next(rollouts)
    rollouts.close()
    assert envs.closed


@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_hanging_env_is_replaced_with_on_hang_restart(where, tmp_path):
    fns = [Mortal, functools.partial(Mortal, "hang", 3, tmp_path / "hung")]
    envs = pysampler.VectorEnv(fns, num_workers=2, step_timeout=0.5, on_hang="restart")
    with pysampler.Rollouts(envs, policy, 5, policy_in=where) as rollouts:
        rollout = next(rollouts)
        assert np.argwhere(rollout.lost).tolist() == [[2, 1]]
    envs.close()


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
