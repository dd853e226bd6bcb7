# /// script
# dependencies = ["pettingzoo>=1.24", "mpe2>=1", "pygame>=2"]
# ///
"""PettingZoo's parallel envs on pysampler: each agent is a row, and one policy acts for all.

Random changes of a linear policy are kept where the agents of all envs get more reward.

python pettingzoo_envs.py --steps 5000
"""

import argparse

import numpy as np
from mpe2 import simple_spread_v3

from pysampler.adapters.pettingzoo import make_vec

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=500, help="of each env")
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()


def make_env():
    return simple_spread_v3.parallel_env(max_cycles=25)


if __name__ == "__main__":
    envs = make_vec(make_env, options.envs, num_workers=2)
    rng = np.random.default_rng(1)
    features, actions = envs.single_observation_space.shape[0], envs.single_action_space.n

    def mean_reward(weights):
        observations, _ = envs.reset(seed=1)
        total = 0.0
        for _ in range(25):
            chosen = (observations @ weights).argmax(axis=1)
            observations, rewards, *_ = envs.step(chosen)
            total += rewards.mean()
        return total / 25

    best = rng.normal(size=(features, actions))
    first = highest = mean_reward(best)
    for _ in range(options.steps // 25):
        changed = best + rng.normal(size=best.shape)
        if (reward := mean_reward(changed)) > highest:
            best, highest = changed, reward
    envs.close()
    print(f"simple_spread: {envs.num_envs} agents, reward {first:.2f} at first, {highest:.2f} now")
