# /// script
# dependencies = ["minigrid>=3"]
# ///
"""Minigrid on pysampler: observations with a mission, which has no fixed shape and is left out.

The policy goes ahead until there is a wall, and turns right.

python minigrid_envs.py --steps 10000
"""

import argparse

import gymnasium as gym
import minigrid
import numpy as np

import pysampler

gym.register_envs(minigrid)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1000, help="of each env")
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()

RIGHT, FORWARD = 1, 2
WALL = 2  # as minigrid numbers what lies in a cell


def policy(observations):
    ahead = observations["image"][:, 3, 5, 0]  # the agent is at the bottom of its view
    return np.where(ahead == WALL, RIGHT, FORWARD)


if __name__ == "__main__":
    episodes, found = 0, 0
    with pysampler.Rollouts(
        *("MiniGrid-Empty-Random-6x6-v0", policy),
        horizon=100,
        num_envs=options.envs,
        policy_in="workers",
        leave_out=["mission"],
        seed=1,
    ) as rollouts:
        for _ in range(options.steps // 100):
            rollout = next(rollouts)
            episodes += len(rollout.ended.returns)
            found += int((rollout.ended.returns > 0).sum())
    print(f"MiniGrid-Empty-Random-6x6: {found} of {episodes} episodes reached the goal")
