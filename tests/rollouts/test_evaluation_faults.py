"""Errors of envs and workers in an evaluation name the episode, and keep the other results."""

import functools
import itertools
import os
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers.vector import TransformObservation
from interrupts import handler, signal_later
from small_envs import Small, still

import pysampler
from pysampler import EnvError, EnvTimeoutError, WorkerLostError
from pysampler.envs import BatchEnv

BAD = 5  # the seed of the episode that fails


class Failing(gym.Env):
    """Episodes of 1 + seed % 3 steps; one fails in its first step, or in its reset."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, how, where="step"):
        self.how, self.where = how, where

    def reset(self, *, seed=None, options=None):
        self.seed, self.left = seed, 0 if seed is None else 1 + seed % 3
        self.fail("reset")
        return np.zeros(1), {}

    def fail(self, where):
        if self.seed != BAD or where != self.where:
            return
        if self.how == "raise":
            raise ValueError("broken")
        if self.how == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hang":
            time.sleep(3600)

    def step(self, action):
        self.fail("step")
        self.left -= 1
        return np.zeros(1), 1.0, self.left == 0, False, {}


ERRORS = {"raise": EnvError, "crash": WorkerLostError, "hang": EnvTimeoutError}
RESTARTS = {"on_worker_loss": "restart", "restart_window": 1e-6}


def caught(how, where="step", **options):
    """Return the error of an evaluation of the seeds 2 to 13."""
    if how == "hang":
        options["step_timeout"] = 0.05
    options = {"seed": 2, "num_envs": 2, "num_workers": 2, **options}
    env = functools.partial(Failing, how, where)
    with pytest.raises(ERRORS[how]) as info:
        pysampler.evaluate(env, still, options.pop("episodes", 12), **options)
    return info.value


@pytest.mark.slow
@pytest.mark.filterwarnings("error:pysampler")
@pytest.mark.parametrize("policy_in", ["main", "workers"])
@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize("how", ERRORS)
def test_errors_name_the_episode(how, where, policy_in):
    error = caught(how, where, policy_in=policy_in)
    names = ["3 (seed 5)"]
    if policy_in == "workers" and how != "raise":  # a worker may have begun a spare episode
        names.append("1 (seed 3) or 3 (seed 5)")
    assert str(error).startswith(tuple(f"cannot evaluate episode {name}: " for name in names))
    assert error.episode == (None if " or " in str(error) else 3)
    assert error.evaluation.lengths.tolist() == [
        1 + one.seed % 3 for one in error.evaluation.episodes
    ]
    if error.evaluation.episodes:
        assert "of 12 episodes are over" in error.__notes__[-1]


def test_errors_of_the_first_reset_name_the_episode():
    error = caught("raise", "reset", num_envs=4, num_workers=0)
    assert str(error).startswith("cannot evaluate episode 3 (seed 5): env 3")
    assert isinstance(error, ValueError)
    assert not error.evaluation.episodes
    assert str(error.evaluation) == "no episodes"


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_episodes_that_were_over_are_in_the_error(policy_in):
    error = caught("raise", num_envs=1, num_workers=0, policy_in=policy_in, episodes=40)
    assert [one.seed for one in error.evaluation.episodes] == [2, 3, 4]


def test_episodes_that_end_in_the_round_of_an_error_are_in_it():
    error = caught("raise", num_envs=4, num_workers=0, groups=2)
    assert [one.seed for one in error.evaluation.episodes] == [3]


class Brief(gym.Env):
    """Episodes of one step, which leaves a file; the step of one episode crashes."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, folder):
        self.folder = folder

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return np.zeros(1), {}

    def step(self, action):
        if self.seed == BAD:
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / str(self.seed)).touch()
        return np.zeros(1), 1.0, True, False, {}


@pytest.mark.slow
def test_episodes_that_end_in_the_round_of_a_last_loss_are_in_the_error(tmp_path):
    options = {"num_workers": 2, "autoreset_mode": "Disabled", **RESTARTS}
    with pysampler.VectorEnv([functools.partial(Brief, tmp_path)] * 2, **options) as envs:
        # The wrapper lets all groups act together, so that each round has results of both.
        wrapped = TransformObservation(envs, lambda observations: observations * 2)
        with pytest.raises(WorkerLostError) as info:
            pysampler.evaluate(wrapped, still, 40, seed=BAD - 1)
    over = {int(path.name) for path in tmp_path.iterdir()}
    assert {one.seed for one in info.value.evaluation.episodes} == over


class Endless(gym.Env):
    """Steps take 0.1 s in an evaluation, in which one env raises."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.seed, self.steps = seed, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.seed == BAD and self.steps == 3:
            raise ValueError("broken")
        if self.seed in (BAD + 1, BAD + 2):
            time.sleep(0.1)
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_rollouts_outlive_an_error_of_an_evaluation_on_their_envs(policy_in):
    with pysampler.Rollouts([Endless] * 2, still, 4, num_workers=2, seed=1) as rollouts:
        next(rollouts)
        with pytest.raises(EnvError, match="broken"):
            pysampler.evaluate(rollouts, still, 2, seed=BAD, policy_in=policy_in)
        assert next(rollouts).rewards.sum() == 8


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_rollouts_outlive_an_interrupted_evaluation_on_their_envs(policy_in):
    def raises(*_):
        raise KeyboardInterrupt

    with (
        pysampler.Rollouts([Endless] * 2, still, 4, num_workers=2, seed=1) as rollouts,
        handler(raises),
    ):
        next(rollouts)
        sender = signal_later(0.3)
        sender.start()
        with pytest.raises(KeyboardInterrupt) as info:
            pysampler.evaluate(rollouts, still, 2, seed=BAD + 1, policy_in=policy_in)
        assert not info.value.evaluation.episodes
        assert next(rollouts).rewards.sum() == 8


def test_ctrl_c_keeps_the_episodes_that_were_over():
    calls = []

    def policy(observations):
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return still(observations)

    with pytest.raises(KeyboardInterrupt) as info:
        pysampler.evaluate(
            functools.partial(Failing, ""), policy, 12, seed=0, num_envs=1, num_workers=0
        )
    assert info.value.evaluation.lengths.tolist() == [1, 2]
    assert "2 of 12 episodes are over" in info.value.__notes__[0]


def test_errors_do_not_promise_that_the_same_call_runs_the_others(tmp_path):
    error = caught("raise", num_envs=1, num_workers=0, resume=tmp_path / "file")
    assert f"3 of 12 episodes are over and in {tmp_path / 'file'};" in error.__notes__[-1]
    assert "the same call" not in error.__notes__[-1]


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
@pytest.mark.parametrize("how", ["crash", "hang"])
@pytest.mark.parametrize("num_envs", [1, 4])
def test_an_episode_that_loses_every_worker_ends_the_evaluation(how, num_envs, policy_in):
    options = {"num_envs": num_envs, "num_workers": 1, "max_restarts": 2, "policy_in": policy_in}
    options |= {"step_timeout": 0.05, "on_hang": "restart"} if how == "hang" else {}
    with pytest.raises(WorkerLostError) as info:
        pysampler.evaluate(
            functools.partial(Failing, how), still, 40, seed=2, **options, **RESTARTS
        )
    assert str(info.value).startswith(
        "cannot evaluate episode 3 (seed 5): its worker was lost 3 times, expected at most 2 "
        "(max_restarts); worker 0 "
    )
    assert info.value.episode == 3
    assert (set() if num_envs == 4 else {2, 3, 4}) <= {
        one.seed for one in info.value.evaluation.episodes
    }


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
@pytest.mark.parametrize("seed", [BAD, BAD - 3])
def test_a_reset_that_loses_every_worker_ends_the_evaluation(seed, policy_in):
    with pytest.raises(WorkerLostError) as info:
        pysampler.evaluate(
            *(functools.partial(Failing, "crash", "reset"), still, 40),
            seed=seed,
            num_envs=2,
            num_workers=1,
            policy_in=policy_in,
            **RESTARTS,
        )
    assert f"cannot evaluate episode {BAD - seed} (seed 5): " in str(info.value)
    assert info.value.episode == BAD - seed


@pytest.mark.slow
def test_a_reset_is_not_repeated_forever():
    env = functools.partial(Failing, "crash", "reset")
    with pysampler.VectorEnv([env] * 2, num_workers=1, max_restarts=2, **RESTARTS) as envs:
        with pytest.raises(WorkerLostError, match="it was replaced before") as info:
            envs.reset(seed=BAD)
        assert str(info.value).count("signal 9") == 3


def test_a_loss_in_a_reset_within_a_vector_wrapper_begins_the_episode_again(tmp_path):
    def die_in_the_third_reset(env):
        if env.episodes == 3 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(3)

    fns = [functools.partial(Small, 4, reset_info=die_in_the_third_reset), lambda: Small(4)]
    with pysampler.VectorEnv(fns, num_workers=2, on_worker_loss="restart") as envs:
        wrapped = TransformObservation(envs, lambda observations: observations * 2)
        lengths = pysampler.evaluate(wrapped, still, 8, seed=5).lengths
        assert envs.stats().losses.tolist() == [1, 0]
    assert lengths.tolist() == [4] * 8


class Dying(Failing):
    """Episodes of 10 steps; the sixth of one kills the process, perhaps only once."""

    def __init__(self, flag, *, once):
        super().__init__("crash")
        self.flag, self.once = flag, once

    def reset(self, *, seed=None, options=None):
        self.seed, self.left = seed, 10
        return np.zeros(1), {}

    def fail(self, where):
        if self.seed == BAD and self.left == 5 and not (self.once and self.flag.exists()):
            self.flag.touch()
            super().fail(where)


def dying(flag, *, once=True, mode="Disabled", num_workers=0):
    """Return a vector env of a vector env of two envs, each in a worker."""
    env = functools.partial(Dying, flag, once=once)
    options = {"num_workers": 2, "autoreset_mode": mode, **RESTARTS}
    inner = functools.partial(pysampler.VectorEnv, [env] * 2, **options)
    return pysampler.VectorEnv([inner], num_workers=num_workers, autoreset_mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_episodes_begin_again_if_a_vector_env_loses_a_worker(tmp_path, policy_in, num_workers):
    with dying(tmp_path / "flag", num_workers=num_workers) as envs:
        evaluation = pysampler.evaluate(envs, still, 6, seed=BAD - 1, policy_in=policy_in)
    assert (tmp_path / "flag").exists()
    assert evaluation.lengths.tolist() == [10] * 6


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_a_spare_episode_of_a_vector_env_that_loses_a_worker_begins_again(tmp_path, policy_in):
    with dying(tmp_path / "flag", num_workers=1) as envs:
        evaluation = pysampler.evaluate(envs, still, 12, seed=BAD - 3, policy_in=policy_in)
    assert (tmp_path / "flag").exists()
    assert [one.seed for one in evaluation.episodes] == [*range(BAD - 3, BAD + 9)]
    assert evaluation.lengths.tolist() == [10] * 12


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_an_episode_that_loses_workers_of_a_vector_env_ends_the_evaluation(tmp_path, policy_in):
    with dying(tmp_path / "flag", once=False) as envs, pytest.raises(WorkerLostError) as info:
        pysampler.evaluate(envs, still, 6, seed=BAD - 1, policy_in=policy_in)
    assert str(info.value).startswith(
        "cannot evaluate episode 1 (seed 5): its worker was lost 4 times, expected at most 3 "
        "(max_restarts); it was one of a vector env's own"
    )
    assert info.value.episode == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_vector_envs_that_reset_themselves_must_not_lose_workers(tmp_path, policy_in):
    loses = pytest.raises(WorkerLostError, match="its vector envs reset themselves")
    with dying(tmp_path / "flag", mode="SameStep") as envs, loses:
        pysampler.evaluate(envs, still, 6, seed=BAD - 1, policy_in=policy_in)


class Alike(BatchEnv):
    """Steps many envs at once, in episodes of 20 steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)
    max_episode_steps = 20

    def reset(self, ids, rngs):
        pass

    def step(self, ids, actions):
        count = len(np.arange(self.num_envs)[ids])
        return np.ones(count), np.zeros(count, bool)

    def observe(self, ids):
        return np.zeros((len(np.arange(self.num_envs)[ids]), 1))


@pytest.mark.parametrize("policy_in", ["main", "workers"])
def test_envs_of_a_batch_that_have_no_episode_rest_after_a_loss(tmp_path, policy_in):
    calls, pids = itertools.count(), []

    def policy(observations):
        if next(calls) >= 5 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(pids[0] if pids else os.getpid(), signal.SIGKILL)
        return np.zeros(len(observations), np.int64)

    with pysampler.make_vec(Alike, 3, num_workers=1, **RESTARTS) as envs:
        if policy_in == "main":
            pids.append(envs._pool.pids[0])
        found = pysampler.evaluate(envs, policy, 2, seed=3, policy_in=policy_in)
        assert found.lengths.tolist() == [20, 20]
        assert envs.stats().losses.tolist() == [1]
