# /// script
# dependencies = ["stable-baselines3>=2.4"]
# ///
"""Stable-Baselines3's PPO on pysampler: pass `VecEnv` where you passed `SubprocVecEnv`.

python sb3.py --steps 100000
"""

import argparse

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from pysampler.adapters.sb3 import VecEnv

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4096)
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()

envs = VecMonitor(VecEnv([lambda: gym.make("CartPole-v1")] * options.envs))
model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, seed=1, device="cpu")
model.learn(options.steps)
mean, spread = evaluate_policy(model, envs, n_eval_episodes=8)
envs.close()
print(f"SB3's PPO: {model.num_timesteps} steps, return {mean:.0f} +- {spread:.0f}")
