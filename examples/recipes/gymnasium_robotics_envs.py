# /// script
# dependencies = ["gymnasium-robotics>=1.4", "mujoco<3.3"]  # 1.4.2: Fetch fails with mujoco 4
# ///
"""Gymnasium-Robotics on pysampler: observations are dicts with goals, infos have the success.

The policy moves the gripper straight to the goal.

python gymnasium_robotics_envs.py --steps 1000
"""

import argparse

import gymnasium as gym
import gymnasium_robotics
import numpy as np

import pysampler

gym.register_envs(gymnasium_robotics)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200, help="of each env")
parser.add_argument("--envs", type=int, default=4)
options = parser.parse_args()


def policy(observations):
    actions = np.zeros((len(observations["desired_goal"]), 4), np.float32)
    actions[:, :3] = 10 * (observations["desired_goal"] - observations["achieved_goal"])
    return actions.clip(-1, 1)


if __name__ == "__main__":
    successes = []
    with pysampler.Rollouts(
        *("FetchReach-v4", policy),
        horizon=50,  # as an episode
        num_envs=options.envs,
        policy_in="workers",
        info_keys=["is_success"],
        seed=1,
    ) as rollouts:
        for _ in range(options.steps // 50):
            rollout = next(rollouts)
            successes.append(rollout.infos["is_success"][rollout.truncated])
    rate = np.concatenate(successes).mean()
    print(f"FetchReach: {rate:.0%} of {sum(map(len, successes))} episodes reached the goal")
