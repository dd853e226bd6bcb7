# /// script
# dependencies = ["dm-control>=1.0.50", "imageio", "mujoco<4", "packaging", "shimmy>=2"]
# ///
"""DeepMind's control suite via Shimmy: enums in infos. 1.0.50 fails with MuJoCo 4."""

import os

os.environ.setdefault("MUJOCO_GL", "disable")
import gymnasium as gym
import shimmy
from comparison import compare

gym.register_envs(shimmy)

if __name__ == "__main__":
    compare("dm_control/cartpole-swingup-v0", "dm_control/cheetah-run-v0")
