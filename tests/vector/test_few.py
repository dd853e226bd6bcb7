"""make_vec starts workers for known envs only where they pay."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeAwareObservation

import pysampler
from pysampler._vector import make

EVERY_CPU = None  # as many workers as CPUs


@pytest.mark.parametrize(
    ("env_id", "count", "cpus", "workers"),
    [
        ("CartPole-v1", 1, 2, 0),
        ("CartPole-v1", 64, 2, 0),
        ("CartPole-v1", 64, 1, 0),
        ("CartPole-v1", 65, 2, 1),  # slow if they must step in Python
        ("CartPole-v1", 299, 16, 1),
        ("CartPole-v1", 301, 2, EVERY_CPU),
        ("CartPole-v1", 1024, 16, 6),
        ("HalfCheetah-v5", 1, 2, 0),
        ("HalfCheetah-v5", 2, 2, EVERY_CPU),
        ("HalfCheetah-v5", 4, 16, 4),
        ("HalfCheetah-v5", 4, 1, 0),
        ("HalfCheetah-v5", 64, 16, EVERY_CPU),
        ("FrozenLake-v1", 4, 2, EVERY_CPU),
    ],
)
def test_workers_share_no_less_than_handing_over_costs(env_id, count, cpus, workers, monkeypatch):
    monkeypatch.setattr(make, "usable_cpus", lambda: cpus)
    chosen, why = make._workers_of_few(gym.spec(env_id).entry_point, count)
    assert chosen == workers
    assert bool(why) == (workers is not EVERY_CPU)


@pytest.mark.parametrize(
    ("options", "few"),
    [
        ({}, True),
        ({"copy": False, "autoreset_mode": "SameStep", "infos": "final"}, True),
        ({"num_workers": None, "context": None, "groups": 1, "main_envs": 0}, True),
        ({"num_workers": "auto"}, True),
        ({"vectorization_mode": "async"}, True),
        ({"num_workers": 2}, False),
        ({"groups": 2}, False),
        ({"step_timeout": 9.0}, False),
        ({"on_worker_loss": "restart"}, False),
        ({"wrappers": [TimeAwareObservation]}, False),
    ],
)
def test_options_that_may_need_workers_get_them(options, few):
    with pysampler.make_vec("CartPole-v1", np.int64(4), **options) as envs:
        assert (envs.num_workers == 0) is few
        with pysampler.make_vec(envs.spec) as again:
            assert again.num_workers == envs.num_workers
        assert ("handing it to workers 12 us" in envs.describe()) is few
        assert ("handing it to workers 12 us" in str(envs.division)) is few


def test_wrappers_of_a_spec_get_workers():
    spec = TimeAwareObservation(gym.make("CartPole-v1")).spec
    with pysampler.make_vec(spec, 4) as envs:
        assert envs.num_workers > 0


def test_samplers_and_functions_keep_workers():
    with pysampler.VectorEnv([lambda: gym.make("CartPole-v1")] * 4) as envs:
        assert envs.num_workers > 0
    rollouts = pysampler.Rollouts("CartPole-v1", lambda o: np.zeros(len(o), int), 4, num_envs=4)
    with rollouts:
        assert rollouts.envs.num_workers > 0
