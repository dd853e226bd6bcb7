# /// script
# dependencies = ["ale-py>=0.11", "opencv-python-headless>=4"]
# ///
"""Atari games on pysampler: actors fill a replay buffer with stacked frames.

python atari.py --game Breakout --steps 20000
"""

import argparse
import time

import ale_py
import gymnasium as gym
import numpy as np

import pysampler

gym.register_envs(ale_py)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--game", default="Pong")
parser.add_argument("--steps", type=int, default=1000, help="of all envs together")
parser.add_argument("--envs", type=int, default=4)
options = parser.parse_args()


def make_env():
    env = gym.make(f"ALE/{options.game}-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env)  # 4 frames a step, 84 x 84, grey
    return gym.wrappers.FrameStackObservation(env, 4)


if __name__ == "__main__":
    began = time.perf_counter()
    with pysampler.make_vec(make_env, options.envs) as envs:
        count, rng = envs.single_action_space.n, np.random.default_rng(1)

        def policy(observations):
            return rng.integers(count, size=len(observations))

        with pysampler.Actors(envs, policy, seed=1) as actors:
            replay = pysampler.ReplayBuffer(10_000, actors.like, seed=1)
            taken = 0
            while taken < options.steps:
                records = actors.take(64, min_records=16)
                replay.extend(records)
                taken += len(records)
    rate = taken / (time.perf_counter() - began)
    shape = replay.sample(32).fields["observations"].shape
    print(f"{options.game}: {rate:.0f} steps/s with the start, observations of a batch {shape}")
