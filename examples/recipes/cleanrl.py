# /// script
# dependencies = ["torch"]
# ///
"""PPO in one file, in the style of CleanRL: a vector env and gymnasium's wrappers, nothing else.

python cleanrl.py --steps 100000
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import pysampler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=8192)
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()
T, N, gamma, lam, clip = 128, options.envs, 0.99, 0.95, 0.2


def make_env():
    return gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))


torch.manual_seed(1)
envs = pysampler.VectorEnv([make_env] * N, autoreset_mode="SameStep")
actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
obs, acts, logps, values, rewards, dones, returns = torch.zeros(T, N, 4), *torch.zeros(5, T, N), []
next_obs, next_done = torch.from_numpy(envs.reset(seed=1)[0]), torch.zeros(N)
for _ in range(0, options.steps, T * N):
    with torch.no_grad():
        for t in range(T):
            # dones[t]: whether an episode ended before step t.
            obs[t], dones[t], values[t] = next_obs, next_done, critic(next_obs)
            dist = Categorical(logits=actor(next_obs))
            action = dist.sample()
            acts[t], logps[t] = action, dist.log_prob(action)
            next_array, reward, terminated, truncated, infos = envs.step(action.numpy())
            next_obs, rewards[t] = torch.from_numpy(next_array), torch.from_numpy(reward)
            next_done = torch.from_numpy(terminated | truncated).float()
            if "final_info" in infos:
                ended = infos["final_info"]
                returns += ended["episode"]["r"][ended["_episode"]].tolist()
        advantages, last = torch.zeros(T, N), torch.zeros(N)
        after, continues = critic(next_obs), 1 - next_done
        for t in reversed(range(T)):
            delta = rewards[t] + gamma * after * continues - values[t]
            advantages[t] = last = delta + gamma * lam * continues * last
            after, continues = values[t], 1 - dones[t]
    batch = [x.flatten(0, 1) for x in (obs, acts, logps, advantages, advantages + values)]
    for rows in [r for _ in range(4) for r in torch.randperm(T * N).split(256)]:
        o, a, logp, adv, target = (x[rows] for x in batch)
        dist = Categorical(logits=actor(o))
        ratio = (dist.log_prob(a) - logp).exp()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        surrogate = torch.min(adv * ratio, adv * ratio.clamp(1 - clip, 1 + clip)).mean()
        loss = 0.5 * (critic(o) - target).square().mean() - surrogate - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
envs.close()
first, last = np.mean(returns[:10]), np.mean(returns[-10:])
print(f"PPO: {len(returns)} episodes, return {first:.0f} at first, {last:.0f} at last")
