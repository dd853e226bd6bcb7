# /// script
# dependencies = ["minigrid>=3"]
# ///
"""Minigrid: observations with text, without infos."""

import gymnasium as gym
import minigrid
from comparison import compare

gym.register_envs(minigrid)

if __name__ == "__main__":
    compare("MiniGrid-Empty-Random-6x6-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Fetch-5x5-N2-v0")
