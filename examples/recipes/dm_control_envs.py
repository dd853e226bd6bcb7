# /// script
# dependencies = [
#   "dm-control>=1.0.50",
#   "imageio",  # as gymnasium's MuJoCo envs do
#   "mujoco<4",  # dm-control 1.0.50 fails with 4
#   "packaging",
#   "shimmy>=2",
# ]
# ///
"""DeepMind's control suite on pysampler, by Shimmy: random actions, and their rewards.

python dm_control_envs.py --task walker-walk --steps 10000
"""

import argparse
import os

os.environ.setdefault("MUJOCO_GL", "disable")  # nothing is rendered

import gymnasium as gym
import numpy as np
import shimmy

import pysampler

gym.register_envs(shimmy)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--task", default="cartpole-swingup")
parser.add_argument("--steps", type=int, default=500, help="of each env")
parser.add_argument("--envs", type=int, default=4)
options = parser.parse_args()


def make_env():
    return gym.wrappers.FlattenObservation(gym.make(f"dm_control/{options.task}-v0"))


if __name__ == "__main__":
    with pysampler.make_vec(make_env, options.envs) as envs:
        space, rng = envs.single_action_space, np.random.default_rng(1)

        def policy(observations):
            return rng.uniform(space.low, space.high, (len(observations), *space.shape))

        with pysampler.Rollouts(envs, policy, horizon=100, seed=1) as rollouts:
            rewards = [next(rollouts).rewards.mean() for _ in range(options.steps // 100)]
    print(f"{options.task}: mean reward {np.mean(rewards):.3f} in {len(rewards)} rollouts")
