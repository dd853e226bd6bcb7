# /// script
# dependencies = ["skrl>=2.1", "torch"]
# ///
"""skrl's PPO on pysampler: its `wrap_env` takes the vector env as it is.

python skrl_ppo.py --steps 100000
"""

import argparse

import torch
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn

import pysampler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=4096)
parser.add_argument("--envs", type=int, default=8)
options = parser.parse_args()


class Actor(CategoricalMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


class Critic(DeterministicMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


torch.manual_seed(1)
envs = pysampler.make_vec("CartPole-v1", options.envs, autoreset_mode="SameStep")
env = wrap_env(envs, verbose=False)
spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
models = {
    "policy": Actor(**spaces, device=env.device),
    "value": Critic(**spaces, device=env.device),
}
memory = RandomMemory(memory_size=64, num_envs=env.num_envs, device=env.device)
experiment = {"write_interval": 0, "checkpoint_interval": 0}
cfg = {"rollouts": 64, "learning_epochs": 4, "mini_batches": 2, "experiment": experiment}
agent = PPO(models=models, memory=memory, **spaces, device=env.device, cfg=cfg)
timesteps = options.steps // options.envs
cfg = {"timesteps": timesteps, "headless": True, "disable_progressbar": True}
SequentialTrainer(env=env, agents=agent, cfg=cfg).train()
env.close()


def policy(observations):
    with torch.no_grad():
        return models["policy"].net(torch.from_numpy(observations)).argmax(-1)


evaluation = pysampler.evaluate("CartPole-v1", policy, 16, num_envs=options.envs)
print(f"skrl's PPO: {timesteps * options.envs} steps, return {evaluation.mean:.0f}")
