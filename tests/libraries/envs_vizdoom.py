# /// script
# dependencies = ["vizdoom>=1.2"]
# ///
"""ViZDoom: large images in dicts, and a subprocess per env."""

import gymnasium as gym
from comparison import compare
from vizdoom import gymnasium_wrapper

gym.register_envs(gymnasium_wrapper)

if __name__ == "__main__":
    compare("VizdoomBasic-v1")
