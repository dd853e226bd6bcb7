# /// script
# dependencies = ["highway-env>=1.10"]
# ///
"""highway-env: slow envs; dicts and numbers in infos."""

import gymnasium as gym
import highway_env
from comparison import compare

gym.register_envs(highway_env)

if __name__ == "__main__":
    compare("highway-fast-v0", "parking-v0", unseeded=["action"])
