# /// script
# dependencies = ["torchrl>=0.14"]
# ///
"""PPO of TorchRL's parts on pysampler's rollouts, which it gets as TensorDicts without copies.

    python torchrl_ppo.py --steps 100000

For TorchRL's own collectors there is `pysampler.adapters.torchrl.make_env`.
"""

import argparse

import torch
from tensordict.nn import ProbabilisticTensorDictModule as Probabilistic
from tensordict.nn import ProbabilisticTensorDictSequential as Sequential
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import pysampler
from pysampler.adapters.torchrl import RolloutCollector

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4096)
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()

net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
value_net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
actor = Sequential(
    TensorDictModule(net, ["observation"], ["logits"]),
    Probabilistic(["logits"], ["action"], distribution_class=Categorical),
)
critic = TensorDictModule(value_net, ["observation"], ["state_value"])
loss_of = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
optimizer = torch.optim.Adam(loss_of.parameters(), lr=1e-3)


def policy(observations):
    with torch.no_grad():
        actions = Categorical(logits=net(torch.from_numpy(observations)))
    chosen = actions.sample()
    return chosen, {"action_log_prob": actions.log_prob(chosen)}


rollouts = pysampler.Rollouts("CartPole-v1", policy, 128, num_envs=options.envs, seed=1)
with RolloutCollector(rollouts, options.steps) as collector:
    for data in collector:
        for _ in range(8):
            steps = advantage(data).reshape(-1)
            for rows in torch.randperm(len(steps)).split(256):
                losses = loss_of(steps[rows])
                loss = sum(value for key, value in losses.items() if key.startswith("loss_"))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
evaluation = pysampler.evaluate("CartPole-v1", policy, 16, num_envs=options.envs)
print(f"TorchRL's PPO: {collector.frames} steps, return {evaluation.mean:.0f}")
