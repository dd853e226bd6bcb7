"""pysampler.envs.meta: envs whose resets take a task."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.utils.env_checker import check_env

import pysampler.envs.meta  # noqa: F401 - registers them

IDS = [
    *("HalfCheetahDir-v5", "HalfCheetahVel-v5", "AntDir-v5", "AntVel-v5"),
    *("Navigation2D-v0", "Bandit-v0"),
]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.filterwarnings("ignore")
def test_envs_pass_gymnasiums_check_and_take_tasks(name):
    env = gym.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=3)
    tasks = env.unwrapped.sample_tasks(4)
    env.reset(seed=3)
    assert str(env.unwrapped.sample_tasks(4)) == str(tasks)
    for task in tasks:
        env.reset(options={"task": task})
        assert env.unwrapped.task is task
    env.unwrapped.reset_task(tasks[0])
    assert env.unwrapped.task is tasks[0]
    for wrong in ({}, {"else": 1}, 3, None):
        with pytest.raises(ValueError, match="cannot set task of"):
            env.unwrapped.reset_task(wrong)
    env.close()


@pytest.mark.parametrize("direction", [-1.0, 1.0])
def test_cheetah_dir_rewards_the_direction_of_the_task(direction):
    env, plain = gym.make("HalfCheetahDir-v5").unwrapped, HalfCheetahEnv()
    env.reset(seed=1, options={"task": {"direction": direction}})
    plain.reset(seed=1)
    for action in np.random.default_rng(0).uniform(-1, 1, (20, 6)):
        observation, reward, *_, info = env.step(action)
        same, other, *_, expected = plain.step(action)
        np.testing.assert_array_equal(observation, same)
        assert reward == pytest.approx(other + (direction - 1) * expected["reward_forward"])
        assert info["reward_forward"] == direction * expected["reward_forward"]
    env.close()
    plain.close()


@pytest.mark.parametrize(
    ("name", "plain"), [("HalfCheetahVel-v5", HalfCheetahEnv), ("AntVel-v5", AntEnv)]
)
@pytest.mark.filterwarnings("ignore")
def test_vel_envs_reward_the_velocity_of_the_task(name, plain):
    env, plain = gym.make(name).unwrapped, plain()
    env.reset(seed=1, options={"task": {"velocity": 1.5}})
    plain.reset(seed=1)
    for action in np.random.default_rng(0).uniform(-1, 1, (20, *env.action_space.shape)):
        _, reward, *_, info = env.step(action)
        _, other, *_, expected = plain.step(action)
        assert info["reward_forward"] == -abs(expected["x_velocity"] - 1.5)
        assert reward == pytest.approx(other - expected["reward_forward"] + info["reward_forward"])
    env.close()
    plain.close()


@pytest.mark.filterwarnings("ignore")
def test_ant_dir_rewards_the_direction_of_the_task():
    env = gym.make("AntDir-v5").unwrapped
    for angle, key, sign in ((0.0, "x", 1), (np.pi, "x", -1), (np.pi / 2, "y", 1)):
        env.reset(seed=1, options={"task": {"direction": angle}})
        for action in np.random.default_rng(0).uniform(-1, 1, (5, 8)):
            *_, info = env.step(action)
            assert info["reward_forward"] == pytest.approx(sign * info[f"{key}_velocity"])
    env.close()


def test_navigation_terminates_at_the_goal():
    env = gym.make("Navigation2D-v0")
    observation, _ = env.reset(options={"task": {"goal": np.array([0.3, -0.2])}})
    rewards, terminated = [], False
    while not terminated:
        observation, reward, terminated, _, _ = env.step(np.array([0.3, -0.2]) - observation)
        rewards.append(reward)
    assert len(rewards) == 3
    assert rewards == sorted(rewards)
    np.testing.assert_allclose(observation, [0.3, -0.2], atol=0.02)
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(2,\)"):
        env.reset(options={"task": {"goal": [1, 2, 3]}})


def test_bandit_arms_pay_with_the_tasks_probabilities():
    env = gym.make("Bandit-v0", max_episode_steps=10_000, arms=3)
    env.reset(seed=1, options={"task": {"probabilities": [0.0, 0.25, 1.0]}})
    paid = [np.mean([env.step(arm)[1] for _ in range(1000)]) for arm in range(3)]
    assert paid[0] == 0.0
    assert paid[1] == pytest.approx(0.25, abs=0.05)
    assert paid[2] == 1.0
    with pytest.raises(ValueError, match=r"shape \(2,\), expected \(3,\)"):
        env.reset(options={"task": {"probabilities": [0.1, 0.2]}})
