# /// script
# dependencies = ["metaworld>=3", "packaging"]
# ///
"""Meta-World: a dozen numbers in infos."""

import gymnasium as gym
import metaworld
from comparison import compare

gym.register_envs(metaworld)

if __name__ == "__main__":
    compare("Meta-World/MT1", env_name="door-open-v3", seed=1)
