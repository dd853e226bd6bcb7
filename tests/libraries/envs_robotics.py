# /// script
# dependencies = ["gymnasium-robotics>=1.4", "mujoco<3.10"]
# ///
"""Gymnasium-Robotics: dict goals, `is_success` in infos. Fetch of 1.4.2 fails with MuJoCo 4."""

import gymnasium as gym
import gymnasium_robotics
from comparison import compare

gym.register_envs(gymnasium_robotics)

if __name__ == "__main__":
    compare("FetchReach-v4", "PointMaze_UMaze-v3", "HandReach-v3")
