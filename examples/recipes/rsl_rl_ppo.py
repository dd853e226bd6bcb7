# /// script
# dependencies = ["rsl-rl-lib>=5", "torch"]
# ///
"""rsl_rl's PPO on pysampler: its `VecEnv` interface around a vector env, for `OnPolicyRunner`.

python rsl_rl_ppo.py --steps 200000
"""

import argparse

import gymnasium as gym
import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

import pysampler

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=16384)
parser.add_argument("--envs", type=int, default=16)
options = parser.parse_args()


class Envs(VecEnv):
    """A vector env that resets each env in the step that ends its episode."""

    device, cfg = "cpu", {}

    def __init__(self, envs):
        self.envs, self.num_envs = envs, envs.num_envs
        self.num_actions = envs.single_action_space.shape[0]
        self.max_episode_length = envs.spec.max_episode_steps
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.observations = tensordict(envs.reset(seed=1)[0])

    def get_observations(self):
        return self.observations

    def step(self, actions):
        observations, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
        dones = torch.from_numpy(terminated | truncated)
        time_outs = torch.from_numpy(truncated & ~terminated)
        self.episode_length_buf = (self.episode_length_buf + 1) * ~dones
        self.observations = tensordict(observations)
        return self.observations, torch.from_numpy(rewards), dones, {"time_outs": time_outs}


def tensordict(observations):
    return TensorDict({"policy": torch.from_numpy(observations)}, [len(observations)])


torch.manual_seed(1)
envs = pysampler.make_vec(
    "Pendulum-v1",
    options.envs,
    wrappers=[gym.wrappers.ClipAction],
    autoreset_mode="SameStep",
)
mlp = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "tanh"}
config = {
    "num_steps_per_env": 64,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "actor": {**mlp, "distribution_cfg": {"class_name": "GaussianDistribution"}},
    "critic": mlp,
    "algorithm": {"class_name": "PPO", "gamma": 0.9, "use_clipped_value_loss": False},
}
runner = OnPolicyRunner(Envs(envs), config)
iterations = options.steps // (options.envs * config["num_steps_per_env"])
runner.learn(iterations)
actor = runner.get_inference_policy("cpu")


def policy(observations):
    with torch.inference_mode():
        return actor(tensordict(observations))


evaluation = pysampler.evaluate(envs, policy, options.envs, seed=2)
envs.close()
steps = iterations * options.envs * config["num_steps_per_env"]
print(f"rsl_rl's PPO: {steps} steps, return {evaluation.mean:.0f}")
