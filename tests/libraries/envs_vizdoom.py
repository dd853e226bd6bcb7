# /// script
# dependencies = ["vizdoom>=1.2"]
# ///
"""ViZDoom: large pictures in dicts, and a process for each env."""

import gymnasium as gym
from comparison import compare
from vizdoom import gymnasium_wrapper

gym.register_envs(gymnasium_wrapper)

if __name__ == "__main__":
    compare("VizdoomBasic-v1")
