# /// script
# dependencies = ["ale-py>=0.11"]
# ///
"""Atari: image observations, and numeric infos."""

import ale_py
import gymnasium as gym
from comparison import compare

gym.register_envs(ale_py)

if __name__ == "__main__":
    compare("ALE/Pong-v5", "ALE/Breakout-v5")
