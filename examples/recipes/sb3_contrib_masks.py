# /// script
# dependencies = ["sb3-contrib>=2.4"]
# ///
"""sb3-contrib's MaskablePPO on pysampler: action masks come with the steps, as an info.

python sb3_contrib_masks.py --steps 50000
"""

import argparse

import gymnasium as gym
import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from pysampler.adapters.sb3 import VecEnv


class Lights(gym.Env):
    """Switch all lights on: what is on may not be switched again."""

    observation_space = gym.spaces.MultiBinary(6)
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.on = self.np_random.integers(2, size=6).astype(np.int8)
        self.on[self.np_random.integers(6)] = 0
        return self.on.copy(), {}

    def step(self, action):
        assert not self.on[action]
        self.on[action] = 1
        # It is best to switch the lights on from left to right.
        in_order = self.on[:action].all()
        return self.on.copy(), float(in_order), bool(self.on.all()), False, {}

    def action_masks(self):
        return self.on == 0


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4096)
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()

envs = VecMonitor(VecEnv([Lights] * options.envs))
model = MaskablePPO("MlpPolicy", envs, n_steps=64, batch_size=128, device="cpu")
model.learn(options.steps)
mean, _ = evaluate_policy(model, envs, n_eval_episodes=32)
envs.close()
print(f"MaskablePPO: {model.num_timesteps} steps, none masked, {mean:.1f} lights in order")
